// What is counted of streams, where, and when it moves.

#include "rsocket-core/stats/stats.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/core/stream_pair.h"

namespace ringroad {
namespace {

using stats::Log2Histogram;
using stats::Segment;
using stats::SegmentHeader;
using test::recv_text;
using test::send_text;
using test::StreamPair;

TEST(Log2Histogram, ABucketHoldsUpToItsPowerOfTwo) {
  EXPECT_EQ(Log2Histogram::bucket(0), 0U);
  for (std::size_t i = 0; i + 1 < Log2Histogram::kBuckets; ++i) {
    EXPECT_EQ(Log2Histogram::bucket(Log2Histogram::bound(i)), i);
    EXPECT_EQ(Log2Histogram::bucket(Log2Histogram::bound(i) + 1), i + 1);
  }
  EXPECT_EQ(Log2Histogram::bucket(~std::uint64_t{0}), Log2Histogram::kBuckets - 1);
}

TEST(Log2Histogram, AWaitIsAtMostTheBoundOfItsBucket) {
  for (const std::uint64_t ns : {0ULL, 1ULL, 1024ULL, 1025ULL, 2048ULL, 2049ULL, 1ULL << 32}) {
    const std::size_t bucket = Log2Histogram::bucket(stats::wait_units(ns));
    EXPECT_LE(ns, Log2Histogram::bound(bucket) * stats::kWaitUnitNs);
    if (bucket > 0) {
      EXPECT_GT(ns, Log2Histogram::bound(bucket - 1) * stats::kWaitUnitNs);
    }
  }
}

class Stats : public testing::Test {
 protected:
  Stats() {
    std::string path = "/tmp/ringroad-stats-test-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    folder_ = path;
    segment_.reset(Segment::create(folder_.c_str(), "test"));
  }
  ~Stats() override {
    segment_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  SegmentHeader& header() { return segment_->header(); }
  stats::StreamSlot& slot(std::size_t i) {
    auto* const begin = reinterpret_cast<std::byte*>(&header());
    return reinterpret_cast<stats::StreamSlot*>(begin + stats::kSlotsOffset)[i];
  }
  static StreamConfig config(const char* rule) {
    StreamConfig result;
    std::snprintf(result.rule, sizeof result.rule, "%s", rule);
    return result;
  }
  static std::uint64_t all(const Log2Histogram& histogram) {
    std::uint64_t sum = 0;
    for (const auto& count : histogram.counts) sum += count;
    return sum;
  }

  std::string folder_;
  std::unique_ptr<Segment> segment_;
};

TEST_F(Stats, ARuleIsCountedWhereItsNameStands) {
  const std::uint8_t first = segment_->rule_index("galera");
  EXPECT_EQ(segment_->rule_index("galera"), first);
  EXPECT_NE(segment_->rule_index("galera-2"), first);
  EXPECT_EQ(header().rules_used, 2U);
  EXPECT_STREQ(segment_->rule(first).name, "galera");
}

TEST_F(Stats, RulesThatAreTooManyShareTheLastPlace) {
  for (std::uint32_t i = 0; i + 1 < stats::kRules; ++i) {
    EXPECT_EQ(segment_->rule_index(("rule-" + std::to_string(i)).c_str()), i);
  }
  const std::uint8_t last = segment_->rule_index("one more");
  EXPECT_EQ(last, stats::kRules - 1);
  EXPECT_EQ(segment_->rule_index("and another"), last);
  EXPECT_STREQ(segment_->rule(last).name, "(others)");
  EXPECT_EQ(segment_->rule_index("rule-7"), 7U);
  EXPECT_EQ(header().rules_used, stats::kRules);
}

TEST_F(Stats, AStreamThatEndsLeavesItsCountsToTheProcessAndItsRule) {
  segment_->rule_index("other");
  {
    StreamPair pair(config("demo"), StreamPair::kRing, segment_.get());
    pair.promote();
    send_text(*pair.a, std::string(100, 'x'));
    recv_text(*pair.b, 1000);
    EXPECT_EQ(header().closings, 0U);
  }
  EXPECT_EQ(header().closings, 4U);  // two streams
  const stats::RuleSlot& rule = segment_->rule(segment_->rule_index("demo"));
  EXPECT_EQ(rule.opened, 2U);
  EXPECT_EQ(rule.promoted, 2U);
  const stats::StreamCounts& of_all = header().closed;
  for (const stats::StreamCounts* counts : {&rule.closed, &of_all}) {
    EXPECT_EQ(counts->traffic.tx_bytes[1], 100U);
    EXPECT_EQ(counts->traffic.rx_messages[1], 1U);
    EXPECT_EQ(counts->promotions, 2U);
    EXPECT_EQ(counts->tx_sizes.counts[7], 1U);
    EXPECT_EQ(counts->rx_sizes.counts[7], 1U);
  }
  EXPECT_EQ(segment_->rule(segment_->rule_index("other")).closed.traffic.tx_bytes[1], 0U);
  // Which closing freed a slot, and that the next stream begins with nothing.
  EXPECT_EQ(std::max(slot(0).closed_at.load(), slot(1).closed_at.load()), header().closings);
  stats::StreamSlot* next = segment_->acquire();
  EXPECT_EQ(
      next->counts.traffic.tx_bytes[1] + all(next->counts.tx_sizes) + all(next->counts.rx_sizes),
      0U);
}

TEST_F(Stats, ARefusalIsCountedWithItsRule) {
  StreamPair pair(config("demo"), StreamPair::kRing, segment_.get());
  pair.start();
  pair.a->promotion_refused(Reason::kMemlock, Reason::kNone);
  const stats::RuleSlot& rule = segment_->rule(segment_->rule_index("demo"));
  EXPECT_EQ(rule.refused[static_cast<unsigned>(Reason::kMemlock)], 1U);
  EXPECT_EQ(rule.refused[static_cast<unsigned>(Reason::kTimeout)], 0U);
}

TEST_F(Stats, ReasonsThatCameLaterHaveAPlaceOfTheirOwn) {
  stats::RuleSlot& rule = segment_->rule(3);
  for (unsigned i = 0; i < stats::kFirstReasons + stats::kLaterReasons; ++i) {
    stats::refusals(header(), i) = i + 1;
    stats::refusals(header(), rule, 3, i) = i + 1001;
  }
  for (unsigned i = 0; i < stats::kFirstReasons + stats::kLaterReasons; ++i) {
    EXPECT_EQ(stats::refusals(header(), i), i + 1);
    EXPECT_EQ(stats::refusals(header(), rule, 3, i), i + 1001);
  }
}

TEST_F(Stats, AStreamWithoutASlotIsCountedWhenItEnds) {
  for (std::uint32_t i = 0; i < stats::kSlots; ++i) ASSERT_NE(segment_->acquire(), nullptr);
  {
    StreamPair pair(config("demo"), StreamPair::kRing, segment_.get());
    EXPECT_EQ(header().unlisted, 2U);
    send_text(*pair.a, "hello");
  }
  EXPECT_EQ(header().unlisted, 0U);
  EXPECT_EQ(header().closed.traffic.tx_bytes[0], 5U);
  EXPECT_EQ(segment_->rule(segment_->rule_index("demo")).closed.traffic.tx_bytes[0], 5U);
}

TEST_F(Stats, EachCallIsOneSizeWhateverItsPieces) {
  for (const bool on_channel : {false, true}) {
    StreamPair pair(config("demo"), StreamPair::kRing, segment_.get());
    if (on_channel) pair.promote();
    const stats::StreamCounts& a = slot(0).fd == pair.a_fd ? slot(0).counts : slot(1).counts;
    const stats::StreamCounts& b = slot(0).fd == pair.a_fd ? slot(1).counts : slot(0).counts;
    EXPECT_EQ(send_text(*pair.a, std::string(3000, 'x')), 3000);
    EXPECT_EQ(send_text(*pair.a, "y"), 1);
    EXPECT_EQ(send_text(*pair.a, ""), 0);
    EXPECT_EQ(a.tx_sizes.counts[12], 1U);
    EXPECT_EQ(a.tx_sizes.counts[0], 2U);
    ASSERT_TRUE(on_channel || test::readable(pair.b_fd, 1000));
    EXPECT_EQ(recv_text(*pair.b, 100, MSG_PEEK).size(), 100U);
    EXPECT_EQ(all(b.rx_sizes), 0U);
    EXPECT_EQ(recv_text(*pair.b, 1000).size(), 1000U);
    EXPECT_EQ(b.rx_sizes.counts[10], 1U);
    EXPECT_EQ(recv_text(*pair.b, 2001, MSG_WAITALL).size(), 2001U);
    EXPECT_EQ(b.rx_sizes.counts[11], 1U);
    EXPECT_EQ(recv_text(*pair.b, 10), "<EAGAIN>");
    EXPECT_EQ(all(b.rx_sizes), b.traffic.rx_messages[on_channel]);
    EXPECT_EQ(all(a.tx_sizes), a.traffic.tx_messages[on_channel]);
  }
}

TEST_F(Stats, ASendThatIsTakenInPartIsCountedWithThatPart) {
  StreamPair pair(config("demo"), StreamPair::kRing, segment_.get());
  pair.promote();
  const stats::StreamCounts& a = slot(0).fd == pair.a_fd ? slot(0).counts : slot(1).counts;
  const ssize_t sent = send_text(*pair.a, std::string(4 * StreamPair::kRing, 'x'));
  ASSERT_GT(sent, 0);
  ASSERT_LT(sent, 4 * StreamPair::kRing);
  EXPECT_EQ(all(a.tx_sizes), 1U);
  EXPECT_EQ(a.tx_sizes.counts[Log2Histogram::bucket(static_cast<std::uint64_t>(sent))], 1U);
  EXPECT_EQ(a.traffic.tx_messages[1], 1U);
}

TEST_F(Stats, AnswersAreTimedAtBothEndsByCarrierAndKeptForTheirRule) {
  segment_->rule_index("other");
  constexpr unsigned kSamples = 3;
  const auto counted = [](const stats::Times& times) { return all(times.counts); };
  {
    StreamPair pair(config("demo"), StreamPair::kRing, segment_.get());
    const auto ask_and_answer = [&] {
      // Each sample takes the answer that begins it, and the next one.
      for (unsigned i = 0; i < kSamples * (AnswerTimer::kEvery + 1); ++i) {
        ASSERT_EQ(send_text(*pair.a, "what?"), 5);
        if (pair.a->state() == State::kOnTcp) {
          ASSERT_TRUE(test::readable(pair.b_fd, 1000));
        }
        ASSERT_EQ(recv_text(*pair.b, 100), "what?");
        ASSERT_EQ(send_text(*pair.b, "that"), 4);
        if (pair.a->state() == State::kOnTcp) {
          ASSERT_TRUE(test::readable(pair.a_fd, 1000));
        }
        ASSERT_EQ(recv_text(*pair.a, 100), "that");
      }
    };
    ask_and_answer();
    for (const std::size_t end : {0U, 1U}) {
      EXPECT_EQ(counted(segment_->latencies(slot(end)).answers[0]), kSamples);
      EXPECT_EQ(counted(segment_->latencies(slot(end)).answers[1]), 0U);
    }
    pair.promote();
    ask_and_answer();
    for (const std::size_t end : {0U, 1U}) {
      EXPECT_EQ(counted(segment_->latencies(slot(end)).answers[0]), kSamples);
      EXPECT_EQ(counted(segment_->latencies(slot(end)).answers[1]), kSamples);
      EXPECT_GT(segment_->latencies(slot(end)).answers[1].sum_ns, 0U);
    }
  }
  const stats::Latencies& of_rule = segment_->rule_latencies(segment_->rule_index("demo"));
  EXPECT_EQ(counted(of_rule.answers[0]), 2 * kSamples);
  EXPECT_EQ(counted(of_rule.answers[1]), 2 * kSamples);
  EXPECT_EQ(counted(segment_->rule_latencies(segment_->rule_index("other")).answers[1]), 0U);
  // The next stream of the place begins at nothing.
  const StreamPair next(config("demo"), StreamPair::kRing, segment_.get());
  for (const std::size_t end : {0U, 1U}) {
    EXPECT_EQ(counted(segment_->latencies(slot(end)).answers[1]), 0U);
  }
}

TEST_F(Stats, AWaitForRoomLastsUntilThereIsSome) {
  StreamPair pair(config("demo"), StreamPair::kRing, segment_.get());
  pair.promote();
  stats::StreamSlot& mine = slot(0).fd == pair.a_fd ? slot(0) : slot(1);
  while (send_text(*pair.a, std::string(4096, 'x')) > 0) {
  }
  const std::int64_t since = mine.stalled_since_ns;
  EXPECT_GT(since, 0);
  EXPECT_EQ(all(mine.counts.waits), 0U);
  EXPECT_LT(send_text(*pair.a, "x"), 0);  // it is the same wait
  EXPECT_EQ(mine.stalled_since_ns, since);
  poll(nullptr, 0, 5);
  while (recv_text(*pair.b, 65536) != "<EAGAIN>") {
  }
  EXPECT_EQ(send_text(*pair.a, "x"), 1);
  EXPECT_EQ(mine.stalled_since_ns, 0);
  EXPECT_EQ(all(mine.counts.waits), 1U);
  EXPECT_EQ(mine.counts.waits.counts[0] + mine.counts.waits.counts[1], 0U);  // more than 2 us
  EXPECT_GE(mine.counts.waited_ns, 5'000'000U);
  EXPECT_GE(mine.counts.stalls, 2U);
}

// In a child, whose mounts are its own. Returns what it exits with.
constexpr int kNoMount = 100;
bool has_small_file_system(const std::string& folder, unsigned kib) {
  return ::mount("none", folder.c_str(), "tmpfs", 0, ("size=" + std::to_string(kib) + "k").c_str()) == 0;
}
void use_rules(Segment& segment) {
  for (std::size_t i = 0; i < stats::kRules; ++i) {
    const std::uint8_t index = segment.rule_index(("rule " + std::to_string(i)).c_str());
    segment.rule(index).opened.fetch_add(1);
    segment.rule_latencies(index).reads.add(1);
  }
}
int use_all_of_a_small_file_system(const std::string& folder) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return kNoMount;
  }
  // Whichever part is the first to find no memory.
  for (unsigned kib = 4; kib <= 96; kib += 4) {
    if (!has_small_file_system(folder, kib)) return kNoMount;
    const std::unique_ptr<Segment> segment(Segment::create(folder.c_str(), "test"));
    if (segment != nullptr) use_rules(*segment);
  }
  if (!has_small_file_system(folder, 64)) return kNoMount;
  const std::unique_ptr<Segment> segment(Segment::create(folder.c_str(), "test"));
  if (segment == nullptr) return 1;
  const std::uint8_t first = segment->rule_index("first");
  std::size_t slots = 0;
  while (const stats::StreamSlot* slot = segment->acquire()) {
    segment->latencies(*slot).reads.add(1);
    ++slots;
  }
  if (slots == 0 || slots >= stats::kSlots) return 2;
  bool shared = false;
  for (std::size_t i = 0; i < stats::kRules; ++i) {
    const std::uint8_t index = segment->rule_index(("rule " + std::to_string(i)).c_str());
    segment->rule(index).opened.fetch_add(1);
    segment->rule_latencies(index).reads.add(1);
    shared |= index == first;
  }
  return shared ? 0 : 3;
}

TEST_F(Stats, AFullFileSystemCostsTheCountingAndNotTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(use_all_of_a_small_file_system(folder_));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kNoMount) GTEST_SKIP() << "may not mount a file system of its own";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Stats, OnlyWhatIsUsedTakesMemory) {
  segment_->rule_index("first");
  struct stat file {};
  ASSERT_EQ(::stat(segment_->path(), &file), 0);
  constexpr long kBlock = 512;  // stat(2)
  EXPECT_LE(file.st_blocks * kBlock, stats::kSlotsOffset / 4);
}

}  // namespace
}  // namespace ringroad
