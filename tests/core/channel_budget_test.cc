// Which streams have a channel when not all can have one.
#include "rsocket-core/agent/channel_budget.h"

#include <deque>

#include "rsocket-core/base/sys.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

using Quota = ChannelBudget::Quota;

constexpr std::int64_t kIdleNs = 5'000'000'000;
constexpr std::int64_t kBusyNs = ChannelBudget::kBusyNs;

class ChannelBudgetTest : public testing::Test {
 protected:
  // One that is on a channel, and entered.
  StreamPair& promoted(std::int64_t now_ns, std::int64_t idle_ns = 0) {
    StreamConfig config;
    config.idle_ns = idle_ns;
    StreamPair& pair = pairs_.emplace_back(config);
    pair.promote();
    budget_.add(pair.a, now_ns);
    return pair;
  }
  static void use(StreamPair& pair) {
    ASSERT_EQ(4, send_text(*pair.a, "used"));
    ASSERT_EQ("used", recv_text(*pair.b, 4));
  }
  static bool leaves(const StreamPair& pair) { return pair.a->state() == State::kResuming; }
  static bool stays(const StreamPair& pair) { return pair.a->state() == State::kOnChannel; }
  // The other end answers.
  bool is_back(StreamPair& pair) {
    return pair.pump_until([&] { return pair.a->state() == State::kOnTcp; });
  }

  std::deque<StreamPair> pairs_;
  ChannelBudget budget_;
  const std::int64_t start_ = sys::now_ns();
};

TEST_F(ChannelBudgetTest, AStreamThatIsNotUsedForItsIdleTimeGivesItsChannelBack) {
  StreamPair& idle = promoted(start_, kIdleNs);
  StreamPair& for_ever = promoted(start_);
  EXPECT_EQ(budget_.deadline_ns(), start_ + kIdleNs);
  budget_.expire(start_ + kIdleNs - 1);
  EXPECT_TRUE(stays(idle));
  budget_.expire(start_ + kIdleNs);
  EXPECT_TRUE(leaves(idle));
  EXPECT_TRUE(stays(for_ever));
  EXPECT_EQ(budget_.deadline_ns(), ChannelBudget::kNever);
  ASSERT_TRUE(is_back(idle));
  EXPECT_EQ(idle.a->reason(), Reason::kIdle);
}

TEST_F(ChannelBudgetTest, AStreamThatIsUsedKeepsItsChannel) {
  StreamPair& pair = promoted(start_, kIdleNs);
  for (int i = 1; i <= 5; ++i) {
    use(pair);
    budget_.expire(start_ + i * kIdleNs);
    EXPECT_TRUE(stays(pair));
    EXPECT_EQ(budget_.deadline_ns(), start_ + (i + 1) * kIdleNs);
  }
  budget_.expire(start_ + 6 * kIdleNs);
  EXPECT_TRUE(leaves(pair));
}

TEST_F(ChannelBudgetTest, WhenAllAreTakenTheOneThatWasNotUsedForLongestGivesItUp) {
  budget_.set_limit(3);
  StreamPair& first = promoted(start_);
  StreamPair& second = promoted(start_ + 1);
  EXPECT_EQ(budget_.channel_quota(0, 0, start_ + 2), Quota::kFree);
  EXPECT_EQ(budget_.channel_quota(1, 0, start_ + 2), Quota::kNone)
      << "one is promised, and nobody is idle yet";
  StreamPair& third = promoted(start_ + 2);
  use(first);
  EXPECT_EQ(budget_.channel_quota(0, 0, start_ + 3 + kBusyNs), Quota::kComing);
  EXPECT_TRUE(stays(first));
  EXPECT_TRUE(leaves(second));
  EXPECT_TRUE(stays(third));
  ASSERT_TRUE(is_back(second));
  EXPECT_TRUE(budget_.remove(second.a->id()));
  EXPECT_FALSE(budget_.remove(second.a->id()));
  EXPECT_EQ(budget_.channel_quota(0, 0, start_ + 3 + kBusyNs), Quota::kFree);
}

TEST_F(ChannelBudgetTest, NobodyTakesTheChannelOfABusyOne) {
  budget_.set_limit(1);
  StreamPair& pair = promoted(start_);
  for (int i = 1; i <= 5; ++i) {
    use(pair);
    EXPECT_EQ(budget_.channel_quota(0, 0, start_ + i * kBusyNs), Quota::kNone);
    EXPECT_EQ(budget_.channel_quota(0, 0, start_ + i * kBusyNs + kBusyNs / 2), Quota::kNone);
  }
  EXPECT_TRUE(stays(pair));
  EXPECT_EQ(budget_.channel_quota(0, 0, start_ + 6 * kBusyNs), Quota::kComing);
}

TEST_F(ChannelBudgetTest, OneIsSentAwayForEachThatAsks) {
  budget_.set_limit(3);
  for (int i = 0; i < 3; ++i) promoted(start_ + i);
  const std::int64_t later = start_ + 2 * kBusyNs;
  EXPECT_EQ(budget_.channel_quota(0, 0, later), Quota::kComing);
  EXPECT_EQ(budget_.channel_quota(0, 0, later), Quota::kComing) << "the same one, asked again";
  EXPECT_TRUE(leaves(pairs_[0]));
  EXPECT_TRUE(stays(pairs_[1]));
  EXPECT_EQ(budget_.channel_quota(0, 1, later), Quota::kComing) << "another one";
  EXPECT_TRUE(leaves(pairs_[1]));
  EXPECT_TRUE(stays(pairs_[2]));
}

TEST_F(ChannelBudgetTest, OneThatWasUsedSinceItWasLookedAtIsLeftAlone) {
  budget_.set_limit(2);
  StreamPair& first = promoted(start_);
  StreamPair& second = promoted(start_ + 1);
  const std::int64_t later = start_ + 2 * kBusyNs;
  EXPECT_EQ(budget_.channel_quota(0, 0, later), Quota::kComing);
  EXPECT_TRUE(leaves(first));
  use(second);
  EXPECT_EQ(budget_.channel_quota(0, 1, later), Quota::kNone);
  EXPECT_TRUE(stays(second));
}

TEST_F(ChannelBudgetTest, APeerThatDoesNotAnswerIsNotWaitedFor) {
  budget_.set_limit(2);
  StreamPair& stuck = promoted(start_);
  StreamPair& other = promoted(start_ + 1);
  const std::int64_t later = start_ + 2 * kBusyNs;
  EXPECT_EQ(budget_.channel_quota(0, 0, later), Quota::kComing);
  EXPECT_TRUE(leaves(stuck));
  EXPECT_EQ(budget_.channel_quota(0, 1, later + ChannelBudget::kLeavePatienceNs), Quota::kComing);
  EXPECT_TRUE(leaves(other));
}

TEST_F(ChannelBudgetTest, ALowerLimitTakesTheChannelsThatWereUsedLeastLately) {
  for (int i = 0; i < 4; ++i) promoted(start_ + i);
  budget_.expire(start_ + 10);
  use(pairs_[0]);
  use(pairs_[2]);
  budget_.set_limit(2);
  EXPECT_LE(budget_.deadline_ns(), start_);
  budget_.expire(start_ + 20);
  EXPECT_TRUE(stays(pairs_[0]));
  EXPECT_TRUE(leaves(pairs_[1]));
  EXPECT_TRUE(stays(pairs_[2]));
  EXPECT_TRUE(leaves(pairs_[3]));
}

TEST_F(ChannelBudgetTest, StreamsThatHaveEndedHaveNoChannel) {
  budget_.set_limit(2);
  promoted(start_);
  promoted(start_);
  pairs_.clear();
  EXPECT_EQ(budget_.channel_quota(1, 0, start_ + 1), Quota::kFree);
}

}  // namespace
}  // namespace ringroad::test
