// The decisions of a stream's retries alone: what a refusal and a return lead to, and how pauses grow.
#include "rsocket-core/stream/promotion_retry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>

namespace ringroad::test {
namespace {
struct Refused {
  Reason reason;
  Reason peer_reason;
  bool returned;
  bool impatient;
  Reason before;
  Retry expected;
};

TEST(PromotionRetryTable, SaysWhatARefusalLeadsTo) {
  constexpr Reason kNone = Reason::kNone;
  constexpr Reason kRefused = Reason::kPeerRefused;
  const Refused rows[] = {
      // reason, the peer's, was on a channel, impatient, refused before
      {Reason::kFork, kNone, false, false, kNone, Retry::kAfterFork},
      {kRefused, Reason::kFork, false, false, kNone, Retry::kAfterFork},
      {Reason::kTimeout, Reason::kFork, true, false, kNone, Retry::kAfterFork},
      {kRefused, Reason::kOperator, false, false, kNone, Retry::kByAgent},
      {kRefused, Reason::kOperator, true, true, Reason::kTimeout, Retry::kByAgent},
      {Reason::kMaxChannels, kNone, false, false, kNone, Retry::kForRoom},
      {kRefused, Reason::kMaxChannels, true, false, kNone, Retry::kForRoom},
      {Reason::kTimeout, Reason::kMaxChannels, false, false, kNone, Retry::kAfterUses},
      {kRefused, Reason::kBusy, true, false, kNone, Retry::kWhenRead},
      {Reason::kBusy, kNone, true, true, kNone, Retry::kWhenRead},
      {kRefused, Reason::kBusy, false, false, kNone, Retry::kAfterUses},
      {kRefused, Reason::kBusy, false, true, kNone, Retry::kAfterFewUses},
      {Reason::kTimeout, kNone, false, true, kNone, Retry::kAfterUses},
      {Reason::kTimeout, kNone, true, false, kNone, Retry::kAfterPause},
      {kRefused, Reason::kUnknownConnection, false, false, kNone, Retry::kAfterUses},
      {Reason::kMemlock, kNone, false, false, kNone, Retry::kAfterPause},
      {kRefused, Reason::kNoRdmaDevice, false, false, kNone, Retry::kAfterPause},
      {Reason::kPeerHasNoRingroad, kNone, false, false, kNone, Retry::kAfterPause},
      {Reason::kPeerHasNoRingroad, kNone, false, false, Reason::kPeerHasNoRingroad, Retry::kNever},
      {Reason::kPeerHasNoRingroad, kNone, false, false, Reason::kTimeout, Retry::kAfterPause},
      {Reason::kOtherNamespace, kNone, false, false, kNone, Retry::kAfterPause},
      {Reason::kOtherNamespace, kNone, false, false, Reason::kOtherNamespace, Retry::kNever},
      {Reason::kPeerHasNoRingroad, kNone, true, false, kNone, Retry::kAfterPause},
      {Reason::kExec, kNone, true, false, kNone, Retry::kNever},
      {Reason::kVersion, kNone, false, false, Reason::kTimeout, Retry::kNever},
      {kRefused, Reason::kWrongKey, true, false, Reason::kTimeout, Retry::kNever},
  };
  for (const Refused& row : rows) {
    EXPECT_EQ(row.expected,
              PromotionRetry::decide_after_refusal(row.reason, row.peer_reason, row.returned,
                                                   row.impatient, row.before))
        << reason_name(row.reason) << " " << reason_name(row.peer_reason) << " " << row.returned
        << row.impatient << " " << reason_name(row.before);
  }
}

TEST(PromotionRetryTable, SaysWhatAReturnLeadsTo) {
  constexpr Reason kNone = Reason::kNone;
  constexpr Reason kLeft = Reason::kPeerLeft;
  const std::tuple<Reason, Reason, Retry> rows[] = {
      {Reason::kQpError, kNone, Retry::kAfterPause},
      {kLeft, kNone, Retry::kAfterPause},
      {kLeft, Reason::kExec, Retry::kAfterPause},
      {kLeft, Reason::kDescriptorUse, Retry::kNever},
      {Reason::kDescriptorUse, kNone, Retry::kNever},
      {Reason::kUntrackedIo, kNone, Retry::kNever},
      {kLeft, Reason::kOperator, Retry::kByAgent},
      {kLeft, Reason::kPolicy, Retry::kByAgent},
      {Reason::kQpError, Reason::kOperator, Retry::kByAgent},
      {kLeft, Reason::kBusy, Retry::kImpatience},
      {Reason::kBusy, kNone, Retry::kImpatience},
      {Reason::kFork, kNone, Retry::kAfterFork},
      {kLeft, Reason::kFork, Retry::kAfterFork},
      {Reason::kIdle, kNone, Retry::kWhenUsed},
      {kLeft, Reason::kIdle, Retry::kWhenUsed},
      {Reason::kStalled, kNone, Retry::kAfterPause},
  };
  for (const auto& [reason, peer_reason, expected] : rows) {
    EXPECT_EQ(expected, PromotionRetry::decide_after_return(reason, peer_reason))
        << reason_name(reason) << " " << reason_name(peer_reason);
  }
}

constexpr std::uint64_t kAnyBytes = std::numeric_limits<std::uint64_t>::max();

TEST(PromotionRetryTable, PausesGrowAndBeginAnewAfterAChannelThatHeldForLong) {
  PromotionRetry retry(true, 0, kAnyBytes);
  std::int64_t now = 1'000'000'000;
  EXPECT_TRUE(retry.count_use(1, 1));
  EXPECT_EQ(0, retry.not_before_ns());
  EXPECT_TRUE(retry.claim());
  EXPECT_FALSE(retry.claim()) << "asked once";
  for (unsigned times = 0; times < PromotionRetry::kPauseDoublings + 3; ++times) {
    EXPECT_FALSE(retry.after_return(Reason::kQpError, Reason::kNone, now));
    EXPECT_EQ(now + (PromotionRetry::kFirstPauseNs << std::min(times, PromotionRetry::kPauseDoublings)),
              retry.not_before_ns());
    EXPECT_TRUE(retry.count_use(1, 1)) << "with the next use, when the pause is over";
    EXPECT_TRUE(retry.claim());
    retry.on_channel(now);
    now += PromotionRetry::kWellAfterNs - 1;
  }
  EXPECT_FALSE(retry.after_return(Reason::kQpError, Reason::kNone, now + 1));
  EXPECT_EQ(now + 1 + PromotionRetry::kFirstPauseNs, retry.not_before_ns());
}

TEST(PromotionRetryTable, AttemptsCostMoreUsesEachTimeAndThenAPause) {
  PromotionRetry retry(true, 0, kAnyBytes);
  for (unsigned times = 0; times < PromotionRetry::kMostAttempts; ++times) {
    EXPECT_TRUE(retry.claim());
    retry.after_refusal(Reason::kTimeout, Reason::kNone, 5);
    const std::uint64_t uses = PromotionRetry::kFirstUses << times;
    EXPECT_FALSE(retry.count_use(uses - 1, 0)) << times;
    EXPECT_TRUE(retry.count_use(1, 0)) << times;
    EXPECT_EQ(0, retry.not_before_ns());
  }
  EXPECT_TRUE(retry.claim());
  retry.after_refusal(Reason::kTimeout, Reason::kNone, 5);
  EXPECT_EQ(5 + PromotionRetry::kFirstPauseNs, retry.not_before_ns());
}

TEST(PromotionRetryTable, AServerThatDoesNotAnswerYetIsAskedOnceMore) {
  PromotionRetry retry(true, 0, kAnyBytes);
  EXPECT_TRUE(retry.claim());
  retry.after_refusal(Reason::kPeerHasNoRingroad, Reason::kNone, 5);
  EXPECT_EQ(5 + PromotionRetry::kFirstPauseNs, retry.not_before_ns());
  EXPECT_TRUE(retry.count_use(1, 0)) << "with the next use, when the pause is over";
  EXPECT_TRUE(retry.claim());
  retry.after_refusal(Reason::kPeerHasNoRingroad, Reason::kNone, 7);
  EXPECT_TRUE(retry.stopped());
}

TEST(PromotionRetryTable, AServerThatAnsweredOnceIsAskedAsOftenAsItTakes) {
  PromotionRetry retry(true, 0, kAnyBytes);
  retry.after_refusal(Reason::kPeerHasNoRingroad, Reason::kNone, 5);
  retry.after_refusal(Reason::kTimeout, Reason::kNone, 5);
  for (int times = 0; times < 20; ++times) {
    EXPECT_TRUE(retry.claim());
    retry.after_refusal(Reason::kPeerHasNoRingroad, Reason::kNone, 5);
    EXPECT_FALSE(retry.stopped());
  }
}

TEST(PromotionRetryTable, AForksPausesGrowToFourSeconds) {
  PromotionRetry retry(true, 0, kAnyBytes);
  std::int64_t last = 0;
  for (int times = 0; times < 8; ++times) {
    retry.after_refusal(Reason::kFork, Reason::kNone, 7);
    const std::int64_t pause = retry.not_before_ns() - 7;
    EXPECT_GE(pause, last);
    last = pause;
  }
  EXPECT_EQ(PromotionRetry::kLongestForkPauseNs, last);
}

TEST(PromotionRetryTable, AHoldOrTheEndOfAllAttemptsPlansNothing) {
  for (const bool held : {true, false}) {
    PromotionRetry retry(true, 0, kAnyBytes);
    if (held) {
      retry.set_hold(Reason::kOperator);
    } else {
      retry.stop();
    }
    EXPECT_EQ(held, !retry.claim());
    retry.after_refusal(Reason::kTimeout, Reason::kNone, 5);
    EXPECT_FALSE(retry.after_return(Reason::kQpError, Reason::kNone, 5));
    EXPECT_FALSE(retry.count_use(1000, 1000));
    retry.end_hold(true);
    EXPECT_EQ(held, !retry.stopped());
  }
}

// For a connect that waits: it asks again soon, or returns.
TEST(PromotionRetryTable, SaysWhetherTheLastRefusalPasses) {
  PromotionRetry retry(true, 0, 0);
  EXPECT_FALSE(retry.passes());
  retry.after_refusal(Reason::kPeerRefused, Reason::kBusy, 1);
  EXPECT_TRUE(retry.passes());
  retry.after_refusal(Reason::kPeerRefused, Reason::kMaxChannels, 2);
  EXPECT_FALSE(retry.passes());
  retry.after_refusal(Reason::kTimeout, Reason::kNone, 3);
  EXPECT_TRUE(retry.passes());
  retry.set_hold(Reason::kOperator);
  EXPECT_FALSE(retry.passes()) << "nobody asks";
}

}  // namespace
}  // namespace ringroad::test
