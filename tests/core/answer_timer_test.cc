// Which calls are timed, and from when to when.
#include "rsocket-core/stream/answer_timer.h"

#include <gtest/gtest.h>

namespace ringroad {
namespace {

class AnswerTimerTest : public testing::Test {
 protected:
  AnswerTimerTest() { answering_.set(1); }

  void ask(std::int64_t now_ns) {
    if (asking_.due()) timer_.asked(now_ns, asking_, answering_);
  }
  std::int64_t answer(std::int64_t now_ns) {
    return answering_.due() ? timer_.answered(now_ns, asking_, answering_) : AnswerTimer::kNothing;
  }

  SampleCountdown asking_;
  SampleCountdown answering_;
  AnswerTimer timer_;
};

TEST_F(AnswerTimerTest, OneRequestInSoManyIsTimed) {
  std::int64_t now = 0;
  int timed = 0;
  for (unsigned request = 0; request < 3 * AnswerTimer::kEvery + 3; ++request) {
    ask(now += 10);
    const std::int64_t took = answer(now += 7);
    // The first answer is where it begins.
    if (request % (AnswerTimer::kEvery + 1) == 1) {
      EXPECT_EQ(took, 7) << request;
    } else {
      EXPECT_EQ(took, AnswerTimer::kNothing) << request;
    }
    timed += took != AnswerTimer::kNothing ? 1 : 0;
  }
  EXPECT_EQ(timed, 3);
}

TEST_F(AnswerTimerTest, ARequestOfManyCallsIsTimedFromTheLastAndAnAnswerToTheFirst) {
  answer(5);
  for (const std::int64_t at : {10, 20, 30}) ask(at);
  EXPECT_EQ(answer(34), 4);
  EXPECT_EQ(answer(50), AnswerTimer::kNothing);
}

// A server greets before it is asked anything, and answers in many calls.
TEST_F(AnswerTimerTest, AnAnswerToNothingIsNotTimedAndLookedAtOnce) {
  EXPECT_EQ(answer(5), AnswerTimer::kNothing);
  EXPECT_FALSE(answering_.due());
  EXPECT_FALSE(answering_.due());
  ask(10);
  EXPECT_EQ(answer(12), 2);
}

// Bulk in one direction costs nothing but its countdown.
TEST_F(AnswerTimerTest, ARequestThatIsNeverAnsweredIsGivenUp) {
  answer(5);
  unsigned looked_at = 0;
  for (unsigned i = 0; i < 10'000; ++i) {
    if (!asking_.due()) continue;
    ++looked_at;
    timer_.asked(i, asking_, answering_);
  }
  EXPECT_EQ(looked_at, AnswerTimer::kMostCalls + 1);
  // And what is answered at last is not taken for its answer.
  for (unsigned i = 0; i < AnswerTimer::kEvery; ++i) EXPECT_EQ(answer(20'000), AnswerTimer::kNothing);
  ask(30'000);
  EXPECT_EQ(answer(30'004), 4);
}

TEST_F(AnswerTimerTest, StreamsBeginAtDifferentRequests) {
  EXPECT_EQ(AnswerTimer::first(0), 1U);
  EXPECT_EQ(AnswerTimer::first(AnswerTimer::kEvery - 1), AnswerTimer::kEvery);
  EXPECT_EQ(AnswerTimer::first(AnswerTimer::kEvery), 1U);
}

TEST_F(AnswerTimerTest, OneSleepInSoManyIsTimedUntilTheProgramReads) {
  SampleCountdown receiving;
  int timed = 0;
  for (unsigned sleep = 0; sleep < 2 * AnswerTimer::kWakeUpsEvery; ++sleep) {
    if (timer_.times_wake_up()) timer_.woken(100, receiving);
    const std::int64_t took = receiving.due() ? timer_.read(103) : AnswerTimer::kNothing;
    if (sleep % AnswerTimer::kWakeUpsEvery == 0) {
      EXPECT_EQ(took, 3);
    }
    timed += took != AnswerTimer::kNothing ? 1 : 0;
  }
  EXPECT_EQ(timed, 2);
  EXPECT_EQ(timer_.read(200), AnswerTimer::kNothing);
}

TEST_F(AnswerTimerTest, WhatNobodyHasReadBeforeTheNextSleepIsNotTimed) {
  SampleCountdown receiving;
  ASSERT_TRUE(timer_.times_wake_up());
  timer_.woken(100, receiving);
  ASSERT_FALSE(timer_.times_wake_up());
  EXPECT_EQ(timer_.read(200), AnswerTimer::kNothing);
}

}  // namespace
}  // namespace ringroad
