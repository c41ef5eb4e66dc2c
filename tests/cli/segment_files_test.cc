// What may lie in the directory besides the segments of living processes.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using stats::SegmentHeader;
using testing::HasSubstr;
using testing::StartsWith;

class SegmentFiles : public testing::Test {
 protected:
  // The reason for which the one file in the folder is skipped.
  std::string skipped() {
    const Snapshot snapshot = read_segments(folder_.path());
    EXPECT_TRUE(snapshot.processes.empty());
    return snapshot.skipped.size() == 1 ? snapshot.skipped[0].why : "";
  }

  std::string skipped_after(const std::function<void(SegmentHeader&)>& change) {
    make_segment(folder_);
    hand_over(folder_, getpid(), change);
    return skipped();
  }

  ProcessReport one_process() {
    const Snapshot snapshot = read_segments(folder_.path());
    EXPECT_TRUE(snapshot.skipped.empty());
    return snapshot.processes.size() == 1 ? snapshot.processes[0] : ProcessReport{};
  }

  const TempFolder folder_;
};

TEST_F(SegmentFiles, ADirectoryThatDoesNotExistHoldsNothing) {
  const Snapshot snapshot = read_segments(folder_.file("absent"));
  EXPECT_TRUE(snapshot.processes.empty());
  EXPECT_TRUE(snapshot.skipped.empty());
}

TEST_F(SegmentFiles, ADirectoryThatIsNoneIsNamed) {
  write_file(folder_.file("file"), "");
  const Snapshot snapshot = read_segments(folder_.file("file"));
  ASSERT_EQ(snapshot.skipped.size(), 1U);
  EXPECT_EQ(snapshot.skipped[0].why, "Not a directory");
}

TEST_F(SegmentFiles, NamesThatAreNoProcessNumbersAreNotSegments) {
  for (const char* name : {"rendezvous", "12x", "-3", "0", "99999999999999999999"}) {
    write_file(folder_.file(name), "something");
  }
  const Snapshot snapshot = read_segments(folder_.path());
  EXPECT_TRUE(snapshot.processes.empty());
  EXPECT_TRUE(snapshot.skipped.empty());
}

TEST_F(SegmentFiles, ForeignContentIsSaidToBeForeign) {
  write_file(folder_.file("4711"), std::string(10000, 'x'));
  EXPECT_EQ(skipped(), "it is not a Ringroad statistics segment");
}

TEST_F(SegmentFiles, AFileTooShortForAHeaderIsTruncated) {
  write_file(folder_.file("4711"), "short");
  EXPECT_EQ(skipped(), "it is truncated: 5 bytes hold no header");
}

TEST_F(SegmentFiles, AnEmptyFileIsOneThatIsBeingMade) {
  write_file(folder_.file("4711"), "");
  EXPECT_THAT(skipped(), HasSubstr("has not finished it"));
}

TEST_F(SegmentFiles, ASegmentWhoseSlotsAreCutOffIsTruncated) {
  make_segment(folder_);
  ASSERT_EQ(truncate(own_segment(folder_).c_str(), stats::kHeaderBytes + 10), 0);
  EXPECT_THAT(skipped(), StartsWith("it is truncated: 4106 of "));
}

TEST_F(SegmentFiles, ASegmentWithoutItsMagicIsUnfinished) {
  EXPECT_THAT(skipped_after([](SegmentHeader& header) { header.magic = 0; }),
              HasSubstr("has not finished it"));
}

TEST_F(SegmentFiles, AnotherVersionIsNamedWithTheRemedy) {
  const std::string why =
      skipped_after([](SegmentHeader& header) { header.version = stats::kSegmentVersion + 1; });
  EXPECT_THAT(why, HasSubstr("it is of version " + std::to_string(stats::kSegmentVersion + 1)));
  EXPECT_THAT(why, HasSubstr("written by ringroad "));
  EXPECT_THAT(why, HasSubstr(") reads version " +
                             std::to_string(stats::kSegmentVersion)));
  EXPECT_THAT(why, HasSubstr("use the ringroad command that came with the preloaded library"));
}

TEST_F(SegmentFiles, AnotherVersionOfAProcessThatHasEndedMayBeRemoved) {
  EXPECT_THAT(skipped_after([](SegmentHeader& header) {
                header.version = stats::kSegmentVersion - 1;
                header.start_ticks -= 1;
              }),
              HasSubstr("its process has ended: remove the file"));
}

TEST_F(SegmentFiles, OtherSizesOfItsPartsAreRefused) {
  EXPECT_THAT(skipped_after([](SegmentHeader& header) { header.slot_bytes -= 8; }),
              HasSubstr("other sizes"));
  EXPECT_THAT(skipped_after([](SegmentHeader& header) { header.slot_bytes += 4; }),
              HasSubstr("other sizes"));
  EXPECT_THAT(skipped_after([](SegmentHeader& header) { header.slot_bytes = 1U << 31; }),
              HasSubstr("other sizes"));
  EXPECT_THAT(skipped_after([](SegmentHeader& header) { header.rule_bytes -= 8; }),
              HasSubstr("other sizes"));
  EXPECT_THAT(skipped_after([](SegmentHeader& header) { header.header_bytes = 1; }),
              HasSubstr("other sizes"));
  EXPECT_THAT(skipped_after([](SegmentHeader& header) { header.slots = 0xffffffff; }),
              HasSubstr("other sizes"));
}

TEST_F(SegmentFiles, LatenciesOfImpossibleSizesAreRefused) {
  constexpr std::uint32_t kKnown = sizeof(stats::Latencies);
  for (const std::uint32_t bytes : {1U, kKnown - 4, kKnown + 4, 64 * 1024U + 8, 0xfffffff8U}) {
    EXPECT_THAT(skipped_after([&](SegmentHeader& header) { header.latencies_bytes = bytes; }),
                HasSubstr("latencies of " + std::to_string(bytes) + " bytes"));
  }
}

TEST_F(SegmentFiles, LatenciesThatReachBehindTheEndOfTheFileAreTruncated) {
  EXPECT_THAT(skipped_after([](SegmentHeader& header) { header.latencies_bytes += 8; }),
              StartsWith("it is truncated: " + std::to_string(stats::kSegmentBytes) + " of "));
  EXPECT_THAT(skipped_after([](SegmentHeader& header) { header.latencies_bytes = 64 * 1024; }),
              StartsWith("it is truncated: "));
  make_segment(folder_);
  ASSERT_EQ(truncate(own_segment(folder_).c_str(), stats::kSegmentBytes - 1), 0);
  EXPECT_THAT(skipped(), StartsWith("it is truncated: "));
}

// Its streams and rules have times, and each has others.
class SegmentLatencies : public SegmentFiles {
 protected:
  static constexpr std::uint64_t kStreams = 100;

  SegmentLatencies() : segment_(make_segment(folder_)) {
    for (std::uint64_t id = 1; id <= kStreams; ++id) {
      stats::StreamSlot* slot = add_stream(*segment_, id, "127.0.0.1", 1, "127.0.0.1", 2);
      slot->rule_index = segment_->rule_index(id % 2 == 0 ? "even" : "odd");
      segment_->latencies(*slot).answers[1].add(id);
      segment_->latencies(*slot).reads.add(1000 * id);
    }
    segment_->rule_latencies(segment_->rule_index("even")).answers[0].add(7);
  }
  std::string content() const {
    std::ifstream in(own_segment(folder_), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void all_are_there() {
    const ProcessReport process = one_process();
    ASSERT_EQ(process.streams.size(), kStreams);
    for (std::uint64_t id = 1; id <= kStreams; ++id) {
      ASSERT_NE(process.streams[id - 1].latencies, nullptr) << id;
      const LatenciesReport& latencies = *process.streams[id - 1].latencies;
      EXPECT_EQ(latencies.answers[0].sum_ns, 0U);
      EXPECT_EQ(latencies.answers[1].sum_ns, id);
      EXPECT_EQ(latencies.reads.sum_ns, 1000 * id);
    }
    ASSERT_EQ(process.rules.size(), 2U);
    EXPECT_EQ(process.rules[1].name, "even");
    EXPECT_EQ(process.rules[1].latencies.answers[0].sum_ns, 7U);
    EXPECT_EQ(process.rules[0].latencies.answers[0].sum_ns, 0U);
    EXPECT_EQ(sum_of(process.rules[0].latencies.answers[1].counts), kStreams / 2);
    EXPECT_EQ(process.closed_latencies.answers[0].sum_ns, 7U);
  }

  const std::unique_ptr<stats::Segment> segment_;
};

TEST_F(SegmentLatencies, AreThoseOfTheirStreamAndRule) { all_are_there(); }

TEST_F(SegmentLatencies, MayBeLongerInFilesOfALaterVersion) {
  constexpr std::uint32_t kMore = 64;
  const std::string bytes = content();
  std::string later = bytes.substr(0, stats::kLatenciesOffset);
  reinterpret_cast<SegmentHeader*>(later.data())->latencies_bytes += kMore;
  for (std::uint32_t i = 0; i < stats::kRules + stats::kSlots; ++i) {
    later += bytes.substr(stats::kLatenciesOffset + i * sizeof(stats::Latencies), sizeof(stats::Latencies));
    later += std::string(kMore, '\xff');
  }
  write_file(own_segment(folder_), later);
  all_are_there();
}

TEST_F(SegmentLatencies, MayBeShorterInFilesOfAnEarlierVersion) {
  constexpr std::uint32_t kShorter = sizeof(stats::Latencies) - sizeof(std::uint64_t);
  const std::string bytes = content();
  std::string earlier = bytes.substr(0, stats::kLatenciesOffset);
  reinterpret_cast<SegmentHeader*>(earlier.data())->latencies_bytes = kShorter;
  for (std::uint32_t i = 0; i < stats::kRules + stats::kSlots; ++i) {
    earlier += bytes.substr(stats::kLatenciesOffset + i * sizeof(stats::Latencies), kShorter);
  }
  write_file(own_segment(folder_), earlier);
  const ProcessReport process = one_process();
  ASSERT_EQ(process.streams.size(), kStreams);
  for (std::uint64_t id = 1; id <= kStreams; ++id) {
    ASSERT_NE(process.streams[id - 1].latencies, nullptr) << id;
    EXPECT_EQ(process.streams[id - 1].latencies->answers[1].sum_ns, id);
    EXPECT_EQ(process.streams[id - 1].latencies->reads.sum_ns, 0U) << "it knew no such thing";
  }
}

// As the releases before the latencies made it: the file ends with its slots.
TEST_F(SegmentLatencies, AreNoneInTheFileOfAnOlderLibrary) {
  std::string bytes = content().substr(0, stats::kLatenciesOffset);
  reinterpret_cast<SegmentHeader*>(bytes.data())->latencies_bytes = 0;
  write_file(own_segment(folder_), bytes);
  const ProcessReport process = one_process();
  ASSERT_EQ(process.streams.size(), kStreams);
  for (const StreamReport& stream : process.streams) EXPECT_EQ(stream.latencies, nullptr);
  ASSERT_EQ(process.rules.size(), 2U);
  EXPECT_EQ(process.rules[1].streams, kStreams / 2);
  EXPECT_EQ(process.rules[1].latencies.answers[0].sum_ns, 0U);
}

// All that a command of before the latencies looks for is where it has always been, and is as large.
TEST_F(SegmentLatencies, StandBehindAllThatOlderCommandsRead) {
  const SegmentHeader& header = segment_->header();
  EXPECT_EQ(header.version, 5U);
  EXPECT_EQ(header.header_bytes, 4096U);
  EXPECT_EQ(header.rule_bytes, 1056U);
  EXPECT_EQ(header.slot_bytes, 952U);
  const std::string bytes = content();
  EXPECT_STREQ(&bytes[4096 + 1056], "even");
  const auto slot = std::string::size_type{4096 + 69632};
  EXPECT_EQ(reinterpret_cast<const stats::StreamSlot*>(&bytes[slot + 952])->id, 2U);
  EXPECT_GE(stats::kLatenciesOffset, slot + 952 * header.slots);
}

// A later version has more behind each header, rule and slot.
TEST_F(SegmentFiles, WhatALaterVersionHasAppendedIsPassedOver) {
  constexpr std::uint32_t kMore = 64;
  const auto segment = make_segment(folder_);
  for (std::uint64_t id = 1; id <= 100; ++id) {
    stats::StreamSlot* slot = add_stream(*segment, id, "127.0.0.1", 1, "127.0.0.1", 2);
    slot->counts.traffic.tx_bytes[0] = id;
    slot->rule_index = segment->rule_index(id % 2 == 0 ? "even" : "odd");
  }
  segment->rule(segment->rule_index("odd")).opened = 50;
  std::ifstream in(own_segment(folder_), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  auto& header = *reinterpret_cast<SegmentHeader*>(bytes.data());
  header.rule_bytes += kMore;
  header.slot_bytes += kMore;
  std::string later = bytes.substr(0, stats::kHeaderBytes);
  for (std::uint32_t i = 0; i < stats::kRules; ++i) {
    later += bytes.substr(stats::kHeaderBytes + i * sizeof(stats::RuleSlot), sizeof(stats::RuleSlot));
    later += std::string(kMore, '\xff');
  }
  later.resize((later.size() + 4095) / 4096 * 4096);
  for (std::uint32_t i = 0; i < stats::kSlots; ++i) {
    later += bytes.substr(stats::kSlotsOffset + i * sizeof(stats::StreamSlot), sizeof(stats::StreamSlot));
    later += std::string(kMore, '\xff');
  }
  later += bytes.substr(stats::kLatenciesOffset);
  write_file(own_segment(folder_), later);
  const ProcessReport process = one_process();
  ASSERT_EQ(process.streams.size(), 100U);
  for (std::uint64_t id = 1; id <= 100; ++id) {
    EXPECT_EQ(process.streams[id - 1].id, id);
    EXPECT_EQ(process.streams[id - 1].traffic.tcp.tx_bytes, id);
  }
  ASSERT_EQ(process.rules.size(), 2U);
  EXPECT_EQ(process.rules[0].name, "odd");
  EXPECT_EQ(process.rules[0].opened, 50U);
  EXPECT_EQ(process.rules[1].streams, 50U);
}

TEST_F(SegmentFiles, MoreUsedSlotsThanThereAreAreNotRead) {
  const auto segment = make_segment(folder_);
  add_stream(*segment, 1, "127.0.0.1", 1, "127.0.0.1", 2);
  segment->header().slots_used = 0xffffffff;
  const ProcessReport process = one_process();
  EXPECT_EQ(process.streams.size(), 1U);
  EXPECT_EQ(process.unreadable, 0U);
}

TEST_F(SegmentFiles, StringsWithoutAnEndAreCutAtTheirField) {
  const auto segment = make_segment(folder_);
  stats::StreamSlot* slot = add_stream(*segment, 1, "127.0.0.1", 1, "127.0.0.1", 2);
  std::memset(segment->header().program, 'p', sizeof segment->header().program);
  std::memset(slot->rule, 'r', sizeof slot->rule);
  std::memset(slot->channel.device, 'd', sizeof slot->channel.device);
  std::memset(slot->channel.gid, 'g', sizeof slot->channel.gid);
  // What follows a field must not end it by chance.
  segment->header().policy_status = 1;
  slot->state = 1;
  const ProcessReport process = one_process();
  EXPECT_EQ(process.program, std::string(sizeof segment->header().program, 'p'));
  ASSERT_EQ(process.streams.size(), 1U);
  EXPECT_EQ(process.streams[0].rule, std::string(sizeof slot->rule, 'r'));
  EXPECT_EQ(process.streams[0].channel.device, std::string(sizeof slot->channel.device - 1, 'd'));
  EXPECT_EQ(process.streams[0].channel.gid, std::string(sizeof slot->channel.gid - 1, 'g'));
}

TEST_F(SegmentFiles, NumbersThatNameNothingAreInvalid) {
  const auto segment = make_segment(folder_);
  stats::StreamSlot* slot = add_stream(*segment, 1, "127.0.0.1", 1, "127.0.0.1", 2);
  segment->header().policy_status = 77;
  slot->state = 200;
  slot->reason = 201;
  slot->peer_reason = 202;
  const ProcessReport process = one_process();
  EXPECT_EQ(process.policy_status, stats::PolicyStatus::kNone);
  ASSERT_EQ(process.streams.size(), 1U);
  EXPECT_EQ(process.streams[0].state, State::kCount);
  EXPECT_EQ(process.streams[0].reason, Reason::kCount);
  EXPECT_EQ(process.streams[0].peer_reason, Reason::kCount);
  EXPECT_STREQ(carrier_name(static_cast<Carrier>(99)), "invalid");
}

TEST_F(SegmentFiles, ASegmentUnderAnotherProcessNumberIsNotBelieved) {
  make_segment(folder_);
  ASSERT_EQ(rename(own_segment(folder_).c_str(), folder_.file("1").c_str()), 0);
  EXPECT_EQ(skipped(), "it says that it belongs to process " + std::to_string(getpid()));
}

TEST_F(SegmentFiles, OneOfAnotherUserThanTheProcessIsNotBelieved) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  constexpr uid_t kNobody = 65534;
  make_segment(folder_);
  ASSERT_EQ(chown(own_segment(folder_).c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(skipped(), "it belongs to user 65534, and process " + std::to_string(getpid()) + " to another");
}

TEST_F(SegmentFiles, OneFileUnderManyNamesIsNotReadForEach) {
  make_segment(folder_);
  ASSERT_EQ(link(own_segment(folder_).c_str(), folder_.file("other").c_str()), 0);
  EXPECT_EQ(skipped(), "it has several names");
}

TEST_F(SegmentFiles, ASymbolicLinkIsNotFollowed) {
  const TempFolder elsewhere;
  make_segment(elsewhere);
  ASSERT_EQ(symlink(own_segment(elsewhere).c_str(), own_segment(folder_).c_str()), 0);
  EXPECT_EQ(skipped(), "it is a symbolic link");
}

TEST_F(SegmentFiles, AFifoDoesNotBlockTheReader) {
  ASSERT_EQ(mkfifo(folder_.file("4711").c_str(), 0644), 0);
  EXPECT_EQ(skipped(), "it is not a regular file");
}

TEST_F(SegmentFiles, AFileThatMayNotBeReadIsSkippedWithTheReason) {
  make_segment(folder_);
  ASSERT_EQ(chmod(own_segment(folder_).c_str(), 0), 0);
  constexpr uid_t kNobody = 65534;
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  const std::string why = skipped();
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_EQ(why, "Permission denied");
}

TEST_F(SegmentFiles, TheSegmentOfAnEndedProcessIsReadAndMarked) {
  const auto segment = make_segment(folder_);
  add_stream(*segment, 1, "127.0.0.1", 1, "127.0.0.1", 2);
  const pid_t pid = ended_pid();
  hand_over(folder_, pid);
  const ProcessReport process = one_process();
  EXPECT_EQ(process.pid, pid);
  EXPECT_FALSE(process.alive);
  EXPECT_EQ(process.streams.size(), 1U);
}

TEST_F(SegmentFiles, TheSegmentOfAnEarlierProcessOfTheSameNumberIsOfAnEndedOne) {
  make_segment(folder_);
  hand_over(folder_, getpid(), [](SegmentHeader& header) { header.start_ticks -= 1; });
  EXPECT_FALSE(one_process().alive);
}

TEST_F(SegmentFiles, ProcessesComeByNumber) {
  const Child one;
  const Child two;
  for (const pid_t pid : {two.pid(), one.pid()}) {
    make_segment(folder_);
    hand_over(folder_, pid);
  }
  make_segment(folder_);
  const Snapshot snapshot = read_segments(folder_.path());
  ASSERT_EQ(snapshot.processes.size(), 3U);
  EXPECT_LT(snapshot.processes[0].pid, snapshot.processes[1].pid);
  EXPECT_LT(snapshot.processes[1].pid, snapshot.processes[2].pid);
  for (const ProcessReport& process : snapshot.processes) EXPECT_TRUE(process.alive);
}

// How many bytes this process has read by system calls.
std::uint64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  while (io >> name >> value) {
    if (name == "rchar:") return value;
  }
  ADD_FAILURE() << "/proc/self/io does not tell";
  return 0;
}

TEST_F(SegmentFiles, WhatManyDeadLeftBehindIsNotReadForThoseThatRun) {
  constexpr std::uint32_t kDead = 2000;
  constexpr std::uint32_t kBeyondEveryPid = 1U << 23;
  const auto segment = make_segment(folder_);
  add_stream(*segment, 1, "127.0.0.1", 1, "127.0.0.1", 2);
  std::vector<char> header(sizeof(SegmentHeader));
  ASSERT_EQ(std::ifstream(own_segment(folder_)).read(header.data(), sizeof(SegmentHeader)).gcount(),
            static_cast<std::streamsize>(header.size()));
  // All of its slots were used: 25 MiB each, which are holes here.
  auto& dead = *reinterpret_cast<SegmentHeader*>(header.data());
  dead.slots_used.store(stats::kSlots);
  constexpr off_t size = stats::kSegmentBytes;
  for (std::uint32_t i = 0; i < kDead; ++i) {
    dead.pid = kBeyondEveryPid + i;
    const std::string path = folder_.file(std::to_string(dead.pid));
    write_file(path, std::string(header.begin(), header.end()));
    ASSERT_EQ(truncate(path.c_str(), size), 0);
  }
  const std::uint64_t before = bytes_read();
  const Snapshot snapshot = read_segments(folder_.path(), Which::kRunning);
  const std::uint64_t read = bytes_read() - before;
  ASSERT_EQ(snapshot.processes.size(), 1U);
  EXPECT_EQ(snapshot.processes[0].pid, getpid());
  EXPECT_EQ(snapshot.processes[0].streams.size(), 1U);
  EXPECT_TRUE(snapshot.skipped.empty());
  constexpr std::uint64_t kOwn = 1U << 20;
  EXPECT_LT(read, kOwn + kDead * 2 * sizeof(SegmentHeader));
}

TEST_F(SegmentFiles, AFileOfTheDeadThatCannotBeReadIsStillNamed) {
  make_segment(folder_);
  hand_over(folder_, ended_pid(), [](SegmentHeader& header) { header.version += 1; });
  const Snapshot snapshot = read_segments(folder_.path(), Which::kRunning);
  ASSERT_EQ(snapshot.skipped.size(), 1U);
  EXPECT_THAT(snapshot.skipped[0].why, HasSubstr("remove the file"));
}

TEST_F(SegmentFiles, TheDirectoryIsTheOneThatTheLibraryUses) {
  ASSERT_EQ(setenv("RINGROAD_RUNTIME_DIR", "/run/here", 1), 0);
  EXPECT_EQ(segment_directory(), "/run/here");
  ASSERT_EQ(setenv("RINGROAD_RUNTIME_DIR", "", 1), 0);
  EXPECT_EQ(segment_directory(), stats::kDefaultDirectory);
  ASSERT_EQ(unsetenv("RINGROAD_RUNTIME_DIR"), 0);
  EXPECT_EQ(segment_directory(), stats::kDefaultDirectory);
}

}  // namespace
}  // namespace ringroad::cli
