// What a living process writes is what the reader gets, while it is being written too.

#include "cli/segment_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using stats::Counters;
using stats::Segment;
using stats::StreamSlot;

ProcessReport read_own(const TempFolder& folder) {
  ProcessReport report;
  std::string why;
  EXPECT_TRUE(read_segment(own_segment(folder), report, why)) << why;
  return report;
}

TEST(SegmentReader, AFreshSegmentIsAProcessWithoutStreams) {
  const TempFolder folder;
  const auto segment = make_segment(folder, "mariadbd");
  const Snapshot snapshot = read_segments(folder.path());
  EXPECT_TRUE(snapshot.skipped.empty());
  ASSERT_EQ(snapshot.processes.size(), 1U);
  const ProcessReport& process = snapshot.processes[0];
  EXPECT_EQ(process.pid, getpid());
  EXPECT_EQ(process.program, "mariadbd");
  EXPECT_TRUE(process.alive);
  EXPECT_FALSE(process.library_version.empty());
  EXPECT_EQ(process.policy_status, stats::PolicyStatus::kNone);
  EXPECT_TRUE(process.streams.empty());
}

TEST(SegmentReader, EveryFieldOfAStreamComesBack) {
  const TempFolder folder;
  const auto segment = make_segment(folder);
  StreamSlot* slot = add_stream(*segment, 41, "10.9.1.1", 23306, "10.9.0.1", 40000);
  Segment::begin(*slot);
  slot->role = 1;
  slot->fd = 5;
  std::snprintf(slot->rule, sizeof slot->rule, "demo");
  slot->channel.carrier = Carrier::kRdma;
  std::snprintf(slot->channel.device, sizeof slot->channel.device, "rxe1");
  std::snprintf(slot->channel.gid, sizeof slot->channel.gid, "::ffff:10.9.1.1");
  slot->channel.qpn = 17;
  slot->channel.peer_qpn = 18;
  slot->channel.traffic_class = 106;
  slot->channel.path_mtu = 4096;
  slot->channel.pinned_bytes = 524288;
  slot->channel.descriptors = 3;
  slot->protocol = 2;
  slot->features = 1;
  Segment::end(*slot);
  slot->state = static_cast<std::uint8_t>(State::kOnChannel);
  slot->reason = static_cast<std::uint8_t>(Reason::kMemlock);
  slot->peer_reason = static_cast<std::uint8_t>(Reason::kFork);
  slot->descriptors_extra = 2;
  slot->counts.traffic.tx_bytes[0] = 1;
  slot->counts.traffic.tx_bytes[1] = 2;
  slot->counts.traffic.rx_bytes[0] = 3;
  slot->counts.traffic.rx_bytes[1] = 4;
  slot->counts.traffic.tx_messages[0] = 5;
  slot->counts.traffic.tx_messages[1] = 6;
  slot->counts.traffic.rx_messages[0] = 7;
  slot->counts.traffic.rx_messages[1] = 8;
  slot->counts.stalls = 9;
  slot->counts.promotions = 10;
  slot->counts.resumptions = 11;

  const ProcessReport process = read_own(folder);
  ASSERT_EQ(process.streams.size(), 1U);
  const StreamReport& stream = process.streams[0];
  EXPECT_EQ(stream.id, 41U);
  EXPECT_EQ(stream.fd, 5);
  EXPECT_EQ(stream.role, Role::kAccept);
  EXPECT_EQ(stream.local.to_string(), "10.9.1.1:23306");
  EXPECT_EQ(stream.remote.to_string(), "10.9.0.1:40000");
  EXPECT_EQ(stream.rule, "demo");
  EXPECT_EQ(stream.state, State::kOnChannel);
  EXPECT_EQ(stream.reason, Reason::kMemlock);
  EXPECT_EQ(stream.peer_reason, Reason::kFork);
  EXPECT_EQ(stream.carrier(), Carrier::kRdma);
  EXPECT_STREQ(stream.channel.device, "rxe1");
  EXPECT_STREQ(stream.channel.gid, "::ffff:10.9.1.1");
  EXPECT_EQ(stream.channel.qpn, 17U);
  EXPECT_EQ(stream.channel.peer_qpn, 18U);
  EXPECT_EQ(stream.channel.traffic_class, 106U);
  EXPECT_EQ(stream.channel.path_mtu, 4096U);
  EXPECT_EQ(stream.channel.pinned_bytes, 524288U);
  EXPECT_EQ(stream.channel.descriptors, 3U);
  EXPECT_EQ(stream.protocol, 2U);
  EXPECT_EQ(stream.features, 1U);
  EXPECT_EQ(stream.extra_descriptors, 2U);
  EXPECT_EQ(stream.traffic.tcp.tx_bytes, 1U);
  EXPECT_EQ(stream.traffic.channel.tx_bytes, 2U);
  EXPECT_EQ(stream.traffic.tcp.rx_bytes, 3U);
  EXPECT_EQ(stream.traffic.channel.rx_bytes, 4U);
  EXPECT_EQ(stream.traffic.tcp.tx_messages, 5U);
  EXPECT_EQ(stream.traffic.channel.tx_messages, 6U);
  EXPECT_EQ(stream.traffic.tcp.rx_messages, 7U);
  EXPECT_EQ(stream.traffic.channel.rx_messages, 8U);
  EXPECT_EQ(stream.measures.stalls, 9U);
  EXPECT_EQ(stream.measures.promotions, 10U);
  EXPECT_EQ(stream.measures.resumptions, 11U);
}

TEST(SegmentReader, TheHeaderComesBack) {
  const TempFolder folder;
  const auto segment = make_segment(folder);
  stats::SegmentHeader& header = segment->header();
  header.policy_status = static_cast<std::uint32_t>(stats::PolicyStatus::kLoaded);
  header.policy_rules = 3;
  std::snprintf(header.policy_detail, sizeof header.policy_detail, "/etc/ringroad/policy.toml");
  header.streams_opened = 12;
  header.streams_promoted = 10;
  header.unlisted = 1;
  header.promotions_refused[static_cast<unsigned>(Reason::kMemlock)] = 2;

  const ProcessReport process = read_own(folder);
  EXPECT_EQ(process.policy_status, stats::PolicyStatus::kLoaded);
  EXPECT_EQ(process.policy_rules, 3U);
  EXPECT_EQ(process.policy_detail, "/etc/ringroad/policy.toml");
  EXPECT_EQ(process.streams_opened, 12U);
  EXPECT_EQ(process.streams_promoted, 10U);
  EXPECT_EQ(process.unlisted, 1U);
  EXPECT_EQ(process.promotions_refused[static_cast<unsigned>(Reason::kMemlock)], 2U);
}

// "47" and "11.control" would be the socket of process 4711, which root asks for another.
TEST(SegmentReader, ASuffixThatWouldLeadToAnotherProcessIsNotBelieved) {
  const TempFolder folder;
  const auto segment = make_segment(folder);
  for (const char* suffix : {"11.control", "/../11.control", ".control/../1.control", "1"}) {
    std::snprintf(segment->header().control_suffix, control::kSuffixBytes, "%s", suffix);
    EXPECT_EQ(read_own(folder).control_suffix, "") << suffix;
  }
  for (const char* suffix : {".control", ".control.0123456789abcdef"}) {
    std::snprintf(segment->header().control_suffix, control::kSuffixBytes, "%s", suffix);
    EXPECT_EQ(read_own(folder).control_suffix, suffix);
  }
}

TEST(SegmentReader, TheChannelIsTheCarrierOnlyWhileItCarriesSomething) {
  StreamReport stream;
  stream.channel.carrier = Carrier::kShm;
  for (const State state : {State::kOnTcp, State::kConnecting, State::kSwitching, State::kReset}) {
    stream.state = state;
    EXPECT_EQ(stream.carrier(), Carrier::kTcp) << state_name(state);
  }
  for (const State state : {State::kOnChannel, State::kResuming}) {
    stream.state = state;
    EXPECT_EQ(stream.carrier(), Carrier::kShm) << state_name(state);
  }
}

TEST(SegmentReader, TotalsAreThoseOfClosedAndLiveStreams) {
  const TempFolder folder;
  const auto segment = make_segment(folder);
  StreamSlot* closing = add_stream(*segment, 1, "127.0.0.1", 1, "127.0.0.1", 2);
  Counters::add(closing->counts.traffic.tx_bytes[0], 100);
  Counters::add(closing->counts.traffic.rx_messages[1], 5);
  segment->release(closing);
  StreamSlot* live = add_stream(*segment, 2, "127.0.0.1", 1, "127.0.0.1", 3);
  Counters::add(live->counts.traffic.tx_bytes[0], 11);
  Counters::add(live->counts.traffic.tx_bytes[1], 7);

  const ProcessReport process = read_own(folder);
  ASSERT_EQ(process.streams.size(), 1U);
  EXPECT_EQ(process.streams[0].id, 2U);
  EXPECT_EQ(process.closed.tcp.tx_bytes, 100U);
  EXPECT_EQ(process.totals().tcp.tx_bytes, 111U);
  EXPECT_EQ(process.totals().channel.tx_bytes, 7U);
  EXPECT_EQ(process.totals().channel.rx_messages, 5U);
  EXPECT_EQ(process.totals().sum().tx_bytes, 118U);
}

TEST(SegmentReader, StreamsComeInTheOrderTheyWereOpened) {
  const TempFolder folder;
  const auto segment = make_segment(folder);
  StreamSlot* first = add_stream(*segment, 1, "127.0.0.1", 1, "127.0.0.1", 2);
  add_stream(*segment, 2, "127.0.0.1", 1, "127.0.0.1", 3);
  segment->release(first);
  add_stream(*segment, 3, "127.0.0.1", 1, "127.0.0.1", 4);  // in the first one's slot
  const ProcessReport process = read_own(folder);
  ASSERT_EQ(process.streams.size(), 2U);
  EXPECT_EQ(process.streams[0].id, 2U);
  EXPECT_EQ(process.streams[1].id, 3U);
}

TEST(SegmentReader, ASlotThatStaysInTheMiddleOfAChangeIsLeftOutAndCounted) {
  const TempFolder folder;
  const auto segment = make_segment(folder);
  StreamSlot* torn = add_stream(*segment, 1, "127.0.0.1", 1, "127.0.0.1", 2);
  add_stream(*segment, 2, "127.0.0.1", 1, "127.0.0.1", 3);
  Segment::begin(*torn);  // and there the process was stopped
  ProcessReport process = read_own(folder);
  ASSERT_EQ(process.streams.size(), 1U);
  EXPECT_EQ(process.streams[0].id, 2U);
  EXPECT_EQ(process.unreadable, 1U);

  Segment::end(*torn);
  process = read_own(folder);
  EXPECT_EQ(process.streams.size(), 2U);
  EXPECT_EQ(process.unreadable, 0U);
}

TEST(SegmentReader, ManySlotsInTheMiddleOfAChangeDoNotHoldItUp) {
  const TempFolder folder;
  const auto segment = make_segment(folder);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    Segment::begin(*add_stream(*segment, i, "127.0.0.1", 1, "127.0.0.1", 2));
  }
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(read_own(folder).unreadable, 2000U);
  // A retry for each would take 2000 times as long as one torn slot may.
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
}

TEST(SegmentReader, AnIdentityIsNeverHalfOfOneStreamAndHalfOfAnother) {
  const TempFolder folder;
  const auto segment = make_segment(folder);
  StreamSlot* slot = add_stream(*segment, 0, "127.0.0.1", 0, "127.0.0.1", 0);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; !stop; ++i) {
      Segment::begin(*slot);
      slot->id = i;
      slot->fd = static_cast<int>(i % 60000);
      slot->local.port = static_cast<std::uint16_t>(i % 60000);
      slot->channel.qpn = static_cast<std::uint32_t>(i % 60000);
      Segment::end(*slot);
      // No program changes its slots all the time: a reader would find no moment between two changes.
      const timespec pause{0, 1000};
      if (i % 16384 == 0) nanosleep(&pause, nullptr);
    }
  });
  unsigned seen = 0;
  for (int i = 0; i < 3000; ++i) {
    const ProcessReport process = read_own(folder);
    for (const StreamReport& stream : process.streams) {
      ++seen;
      const auto expected = static_cast<unsigned>(stream.id % 60000);
      if (static_cast<unsigned>(stream.fd) != expected || stream.local.port != expected ||
          stream.channel.qpn != expected) {
        ADD_FAILURE() << "id " << stream.id << ", fd " << stream.fd << ", port "
                      << stream.local.port << ", qpn " << stream.channel.qpn;
        i = 3000;
      }
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(seen, 0U);
}

// Whatever closes while it is read: each has counted as much, and none has begun.
TEST(SegmentReader, AStreamThatClosesIsCountedOnceAndNeverNot) {
  constexpr std::uint64_t kStreams = 8000;
  constexpr std::uint64_t kBytes = 1000;
  constexpr std::uint64_t kReadings = 8;
  const TempFolder folder;
  const auto segment = make_segment(folder);
  std::vector<StreamSlot*> slots;
  for (std::uint64_t i = 0; i < kStreams; ++i) {
    slots.push_back(add_stream(*segment, i, "127.0.0.1", 1, "127.0.0.1", 2));
    slots.back()->rule_index = segment->rule_index("demo");
    Counters::add(slots.back()->counts.traffic.tx_bytes[1], kBytes);
    slots.back()->counts.tx_sizes.add(kBytes);
  }
  std::atomic<std::uint64_t> readings{0};
  std::atomic<bool> done{false};
  std::thread program([&] {
    // From everywhere in the file.
    for (std::uint64_t i = 0; i < kStreams; ++i) {
      // So many meet every reading, however long it takes.
      while (readings <= i * kReadings / kStreams) std::this_thread::yield();
      segment->release(slots[i * 4801 % kStreams]);
      const timespec pause{0, 1000};
      if (i % 4 == 0) nanosleep(&pause, nullptr);
    }
    done = true;
  });
  std::uint64_t meanwhile = 0;
  bool right = true;
  while (!done && right) {
    const ProcessReport process = read_own(folder);
    ++readings;
    meanwhile += !process.streams.empty() && process.streams.size() < kStreams ? 1U : 0U;
    const Measures measures = process.total_measures();
    right = process.totals().channel.tx_bytes == kStreams * kBytes &&
            sum_of(measures.tx_sizes) == kStreams && process.rules.size() == 1 &&
            process.rules[0].traffic.channel.tx_bytes == kStreams * kBytes;
    EXPECT_TRUE(right) << process.streams.size() << " live, "
                       << process.totals().channel.tx_bytes / kBytes << " counted";
  }
  readings = kStreams;  // also after a failure
  program.join();
  EXPECT_GE(meanwhile, kReadings - 1);
}

TEST(SegmentReader, TotalsNeverFallNorCountTwiceWhileStreamsClose) {
  constexpr int kStreams = 1000;
  constexpr std::uint64_t kBytes = 1000;
  const TempFolder folder;
  const auto segment = make_segment(folder);
  // Many slots, so that a reading takes long enough to meet a closing stream.
  for (std::uint64_t i = 0; i < 50; ++i) add_stream(*segment, i, "127.0.0.1", 1, "127.0.0.1", 2);
  std::atomic<std::uint64_t> begun{0};
  std::atomic<bool> done{false};
  std::thread program([&] {
    for (int i = 0; i < kStreams; ++i) {
      StreamSlot* slot = add_stream(*segment, 100, "127.0.0.1", 1, "127.0.0.1", 2);
      begun += kBytes;
      Counters::add(slot->counts.traffic.tx_bytes[1], kBytes);
      // A program's pace: streams that close faster than they can be read are not promised.
      std::this_thread::sleep_for(std::chrono::microseconds(500));
      segment->release(slot);
    }
    done = true;
  });
  std::uint64_t last = 0;
  bool right = true;
  while (!done && right) {
    const std::uint64_t now = read_own(folder).totals().channel.tx_bytes;
    const std::uint64_t most = begun;
    right = now >= last && now <= most;
    EXPECT_TRUE(right) << "after " << last << " came " << now << ", of " << most;
    last = now;
  }
  program.join();
  EXPECT_EQ(read_own(folder).totals().channel.tx_bytes, kStreams * kBytes);
}

}  // namespace
}  // namespace ringroad::cli
