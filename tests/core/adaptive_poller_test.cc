#include "rsocket-core/stream/adaptive_poller.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace ringroad {
namespace {

constexpr std::int64_t kLook = 100;
constexpr std::int64_t kDefault = 50'000;
constexpr std::int64_t kLong = 100'000'000;
constexpr std::int64_t kSlice = 3'000'000;  // of a thread that does not sleep
constexpr int kMostCredit = AdaptivePoller::kMostCredit;
constexpr int kProbeEvery = AdaptivePoller::kProbeEvery;  // waits at most from one probe to the next
constexpr int kFewestWaits = kProbeEvery - kMostCredit + 1;

// A processor that takes 100 ns for a look, and where others run for `others_ns` once they may.
struct Host {
  std::int64_t now_ns() const { return now; }
  void relax() { now += kLook; }
  void yield() {
    ++yields;
    now += yield_ns + others_ns;
    if (others_ns > 0) ++switched;
  }
  long switches() const { return switched; }

  std::int64_t now = 0;
  std::int64_t yield_ns = kLook;
  std::int64_t others_ns = 0;
  int yields = 0;
  long switched = 0;
};

const auto kNever = [] { return PollResult::kNothing; };
const auto kAtOnce = [] { return PollResult::kReady; };

PollResult ready_if(bool found) { return found ? PollResult::kReady : PollResult::kNothing; }

// As each that waits does: whether what came was polled for.
template <typename Look, typename Host>
bool polled(AdaptivePoller& poller, Look look, std::int64_t longest, Host& host) {
  return poller.should_poll(host) && poller.poll_until(look, longest, host);
}

// How many waits are not polled for from here on.
template <typename Host>
int refusals(AdaptivePoller& poller, Host& host) {
  int refused = 0;
  while (!poller.should_poll(host) && refused < 1'000) ++refused;
  return refused;
}

// How long it polls where nothing comes and nobody else wants to run.
template <typename Host>
std::int64_t polls_for(AdaptivePoller& poller, std::int64_t longest, Host& host) {
  const std::int64_t before = host.now;
  host.others_ns = 0;
  polled(poller, kNever, longest, host);
  return host.now - before;
}

// A wait whose answer takes so long, and nobody wants the processor meanwhile.
bool answered_after(AdaptivePoller& poller, std::int64_t ns, std::int64_t longest, Host& host) {
  const std::int64_t at = host.now + ns;
  const bool found = polled(poller, [&] { return ready_if(host.now >= at); }, longest, host);
  host.now = std::max(host.now, at);
  return found;
}

template <typename Host>
void make_it_give_up(AdaptivePoller& poller, Host& host) {
  for (int i = 0; i <= kMostCredit; ++i) polls_for(poller, kDefault, host);
}

TEST(AdaptivePollerTest, EndsWithItsBudgetWhereNothingComes) {
  AdaptivePoller poller;
  Host host;
  const std::int64_t took = polls_for(poller, kDefault, host);
  EXPECT_GE(took, kDefault);
  EXPECT_LE(took, kDefault + kLook);
  EXPECT_EQ(polls_for(poller, 0, host), 0);
}

TEST(AdaptivePollerTest, AnswersThatComeSoonCostNoSystemCall) {
  AdaptivePoller poller;
  Host host;
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(answered_after(poller, AdaptivePoller::kYieldEveryNs - kLook, kDefault, host));
  }
  EXPECT_EQ(host.yields, 0);
}

TEST(AdaptivePollerTest, ALongPollYieldsAgainAndAgain) {
  AdaptivePoller poller;
  Host host;
  EXPECT_TRUE(answered_after(poller, 11 * AdaptivePoller::kYieldEveryNs, kLong, host));
  EXPECT_EQ(host.yields, 10);
}

// ---- Whether polling pays

TEST(AdaptivePollerTest, LearnsFromWhatItBrings) {
  AdaptivePoller poller;
  Host host;
  for (int i = 0; i < kMostCredit; ++i) polled(poller, kAtOnce, kDefault, host);
  EXPECT_GE(polls_for(poller, kDefault, host), kDefault);
  make_it_give_up(poller, host);
  EXPECT_EQ(polls_for(poller, kDefault, host), 0);
  refusals(poller, host);
  EXPECT_GT(polls_for(poller, kDefault, host), 0) << "now and then";
}

// What is polled of many waits that are answered soon with that chance, in percent.
int percent_polled(int chance) {
  constexpr int kWaits = 20'000;
  AdaptivePoller poller;
  Host host;
  int polls = 0;
  unsigned random = 1;
  for (int i = 0; i < kWaits; ++i) {
    random = random * 1'664'525 + 1'013'904'223;
    const bool soon = static_cast<int>((random >> 16) % 100) < chance;
    const std::int64_t at = host.now + (soon ? 2'000 : 1'000'000);
    bool polls_now = false;
    const auto look = [&] {
      polls_now = true;
      return ready_if(host.now >= at);
    };
    polled(poller, look, kDefault, host);
    polls += polls_now ? 1 : 0;
    host.now = std::max(host.now, at);
  }
  return 100 * polls / kWaits;
}

TEST(AdaptivePollerTest, WaitsThatAreMostlyShortArePolledForAndThoseThatAreMostlyLongAreNot) {
  EXPECT_EQ(percent_polled(100), 100);
  EXPECT_GE(percent_polled(70), 90);
  EXPECT_LE(percent_polled(30), 15);
  EXPECT_LE(percent_polled(0), 3);
}

TEST(AdaptivePollerTest, AnswersAtTheEndOfTheBudgetAreFoundAfterManyThatDidNotCome) {
  AdaptivePoller poller;
  Host host;
  make_it_give_up(poller, host);
  const auto answered = [&] { return answered_after(poller, kDefault * 9 / 10, kDefault, host); };
  EXPECT_FALSE(answered()) << "nothing is polled for";
  refusals(poller, host);
  EXPECT_TRUE(answered());
  EXPECT_TRUE(answered()) << "from then on";
}

// A caller may find before it polls that there is no need to.
TEST(AdaptivePollerTest, AProbeThatWasNotMadeIsMadeTheNextTime) {
  AdaptivePoller poller;
  Host host;
  make_it_give_up(poller, host);
  refusals(poller, host);
  EXPECT_TRUE(poller.should_poll(host));
  EXPECT_TRUE(poller.should_poll(host));
  EXPECT_FALSE(polled(poller, kNever, kLong, host));
  EXPECT_FALSE(poller.should_poll(host));
}

// Of as many waits as `period` so many are long, and polling has not paid so far.
int found_in_a_pattern(int period, int are_long, int first) {
  AdaptivePoller poller;
  Host host;
  make_it_give_up(poller, host);
  int found = 0;
  for (int i = first; i < 8'000; ++i) {
    found += answered_after(poller, i % period < are_long ? 1'000'000 : 2'000, kDefault, host) ? 1 : 0;
  }
  return found;
}

TEST(AdaptivePollerTest, WaitsThatComeInAPatternAreTriedInTheEndWhereverItBegins) {
  for (const int are_long : {1, 2}) {
    for (const int period : {7, 8, 9, 31, 64}) {
      for (int first = 0; first < period; ++first) {
        EXPECT_GT(found_in_a_pattern(period, are_long, first), 4'000)
            << are_long << " of " << period << ", " << first;
      }
    }
  }
}

TEST(AdaptivePollerTest, AnInterruptedPollHasLearnedNothing) {
  AdaptivePoller poller;
  Host host;
  const std::int64_t before = polls_for(poller, kDefault, host);
  polled(poller, kAtOnce, kDefault, host);  // makes up for the one that brought nothing
  for (int i = 0; i < kMostCredit; ++i) {
    EXPECT_FALSE(polled(poller, [] { return PollResult::kInterrupted; }, kDefault, host));
  }
  EXPECT_EQ(polls_for(poller, kDefault, host), before);
}

// ---- Others that want the processor

// How often of 1,000 messages it polls where each answer is by the thread that takes the first yield.
int polls_where_others_answer(AdaptivePoller& poller, Host& host) {
  int polls = 0;
  for (int i = 1; i <= 1'000; ++i) {
    host.yields = 0;
    const bool found = polled(poller, [&] { return ready_if(host.yields > 0); }, kLong, host);
    EXPECT_EQ(found, host.yields > 0) << "what came is not slept for";
    EXPECT_LE(host.yields, 1);
    polls += host.yields;
    host.now += 5'000;
  }
  return polls;
}

TEST(AdaptivePollerTest, AThreadThatYieldsToTheAnsweringOnePollsNoMoreButNowAndThen) {
  for (const std::int64_t others_ns : {500, 5'000}) {
    AdaptivePoller poller;
    Host host;
    for (int i = 0; i < kMostCredit; ++i) polled(poller, kAtOnce, kDefault, host);
    host.others_ns = others_ns;
    const int polls = polls_where_others_answer(poller, host);
    EXPECT_GE(polls, 1 + 999 / kProbeEvery);
    EXPECT_LE(polls, 1 + 999 / kFewestWaits);
  }
}

// Before that it would keep the processor from the answering thread.
TEST(AdaptivePollerTest, AProbeAsksFirstWhetherOthersWantTheProcessor) {
  AdaptivePoller poller;
  Host host;
  make_it_give_up(poller, host);
  refusals(poller, host);
  host.others_ns = 3'000;
  const std::int64_t before = host.now;
  EXPECT_FALSE(polled(poller, kNever, kDefault, host));
  EXPECT_EQ(host.now - before, host.yield_ns + host.others_ns);
  EXPECT_FALSE(poller.should_poll(host));
}

TEST(AdaptivePollerTest, PollsAgainWhereOthersNoLongerWantTheProcessor) {
  AdaptivePoller poller;
  Host host;
  host.others_ns = 3'000;
  EXPECT_FALSE(polled(poller, kNever, kLong, host));
  EXPECT_EQ(host.yields, 1);
  host.others_ns = 0;
  host.now += 2 * 3'000;
  const int refused = refusals(poller, host);
  EXPECT_GE(refused, kFewestWaits - 1);
  EXPECT_LE(refused, kProbeEvery - 1);
  EXPECT_TRUE(polled(poller, kAtOnce, kLong, host));
  EXPECT_TRUE(poller.should_poll(host));
}

TEST(AdaptivePollerTest, WhatCameWhileOthersRanIsFound) {
  AdaptivePoller poller;
  Host host;
  host.others_ns = kSlice;
  EXPECT_TRUE(polled(poller, [&] { return ready_if(host.yields == 1); }, kLong, host));
  EXPECT_EQ(polls_for(poller, kLong, host), 0);
}

// The kernel has something to do for a moment, in a thread of its own, as often as the poller looks.
TEST(AdaptivePollerTest, WhatRanBetweenTwoYieldsHasTakenNeither) {
  struct Busy : Host {
    void relax() {
      Host::relax();
      ++switched;
    }
  };
  AdaptivePoller poller;
  Busy host;
  for (int i = 0; i < 1'000; ++i) {
    const std::int64_t at = host.now + 100'000;
    EXPECT_TRUE(polled(poller, [&] { return ready_if(host.now >= at); }, kLong, host));
  }
}

TEST(AdaptivePollerTest, AnAnswerByTheThreadThatTakesALaterYieldEndsThePolling) {
  struct Shared : Host {
    void yield() {
      if (yields == 1) others_ns = answering_ns;
      Host::yield();
      others_ns = 0;
    }
    std::int64_t answering_ns = 0;
  };
  for (const std::int64_t ns : {std::int64_t{500}, std::int64_t{5'000}, kSlice}) {
    AdaptivePoller poller;
    Shared host;
    host.answering_ns = ns;
    int found = 0;
    for (int i = 0; i < 1'000; ++i) {
      host.yields = 0;
      found += polled(poller, [&] { return ready_if(host.yields == 2); }, kLong, host) ? 1 : 0;
      host.now += 10'000;
    }
    EXPECT_GE(found, 1);
    EXPECT_LE(found, 1 + 1'000 / kFewestWaits) << ns;
  }
}

// As a hypervisor does, or an emulator, or the kernel's own work in an interrupt.
TEST(AdaptivePollerTest, GoesOnWhereNoThreadOfTheHostTookTheProcessor) {
  struct Emulated : Host {
    void relax() { now += kLook + (++looks % 20 == 0 ? kSlice : 0); }
    int looks = 0;
  };
  AdaptivePoller poller;
  Emulated host;
  host.yield_ns = 3'000;
  host.switched = 7;  // at work, before
  EXPECT_TRUE(polled(poller, [&] { return ready_if(host.looks == 200); }, kLong, host));
  EXPECT_GT(polls_for(poller, kLong, host), 0) << "no pause";
}

// Each thread has a count of its own.
TEST(AdaptivePollerTest, ThreadsThatTakeTurnsAreNotTakenForEachOther) {
  AdaptivePoller poller;
  Host host;
  for (int i = 0; i < 20; ++i) {
    host.switched = i % 2 == 0 ? 7 : 1'000;
    EXPECT_TRUE(answered_after(poller, 100'000, kLong, host)) << i;
  }
}

TEST(AdaptivePollerTest, PausesWhereOthersKeepTheProcessor) {
  AdaptivePoller poller;
  Host host;
  host.others_ns = kSlice;
  EXPECT_FALSE(polled(poller, kNever, kLong, host));
  EXPECT_EQ(host.yields, 1);
  EXPECT_LE(host.now - kSlice, AdaptivePoller::kYieldEveryNs + 2 * kLook);
  for (int i = 0; i < 2 * kProbeEvery; ++i) EXPECT_EQ(polls_for(poller, kLong, host), 0);
  host.now += 2 * kSlice;
  EXPECT_GE(polls_for(poller, kLong, host), kLong) << "as if nothing had happened";
}

// At a yield it gives the processor away for good, and so loses no second slice in the same poll.
TEST(AdaptivePollerTest, PausesWhereTheSchedulerGivesTheProcessorToOthersUnasked) {
  struct Preempted : Host {
    void relax() {
      now += kLook + kSlice;
      ++switched;
    }
  };
  AdaptivePoller poller;
  Preempted host;
  host.others_ns = kSlice;
  EXPECT_FALSE(polled(poller, kNever, kLong, host));
  EXPECT_LE(host.now, 2 * (kSlice + kLook));
  EXPECT_FALSE(poller.should_poll(host));
}

TEST(AdaptivePollerTest, CostsNextToNothingWhereOthersAlwaysWantTheProcessor) {
  AdaptivePoller poller;
  Host host;
  constexpr std::int64_t kMinute = 60'000'000'000;
  std::int64_t polling_ns = 0;
  while (host.now < kMinute) {
    const std::int64_t before = host.now;
    const int yields = host.yields;
    host.others_ns = kSlice;
    polled(poller, kNever, kLong, host);
    polling_ns += host.now - before - (host.yields - yields) * kSlice;
    host.now += 10'000;  // asleep
  }
  EXPECT_LT(host.yields, 100);
  EXPECT_LT(polling_ns, kMinute / 10'000);
}

TEST(AdaptivePollerTest, AThreadThatWantsTheProcessorNowAndThenCostsShortPauses) {
  AdaptivePoller poller;
  Host host;
  for (int i = 0; i < 20; ++i) {
    host.others_ns = kSlice;
    polled(poller, kNever, kLong, host);
    host.now += 2 * kSlice;
    host.others_ns = 0;
    EXPECT_LT(refusals(poller, host), kProbeEvery);
    EXPECT_TRUE(polled(poller, kAtOnce, kDefault, host));
    host.now += 10 * kSlice;
  }
}

// This host, with its yields counted in one thread.
struct Counted : PollerHost {
  void yield() noexcept {
    ++yields;
    PollerHost::yield();
  }
  int yields = 0;
};

// Waits for each odd, or each even, number and says the next one. How often it yielded.
int take_turns(std::atomic<int>& turn, int first, int last) {
  AdaptivePoller poller;
  Counted host;
  for (int mine = first; mine < last; mine += 2) {
    const auto look = [&] { return ready_if(turn.load(std::memory_order_acquire) == mine); };
    if (!polled(poller, look, kLong, host)) {
      for (int now = turn.load(); now != mine; now = turn.load()) turn.wait(now);
    }
    turn.store(mine + 1, std::memory_order_release);
    turn.notify_all();
  }
  return host.yields;
}

TEST(AdaptivePollerTest, TwoThatShareAProcessorSleepForEachOther) {
  constexpr int kTurns = 8'000;
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  std::size_t processor = 0;
  while (!CPU_ISSET(processor, &before)) ++processor;
  CPU_SET(processor, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // the other thread inherits that
  std::atomic<int> turn = 0;
  int of_other = 0;
  std::thread other([&] { of_other = take_turns(turn, 1, kTurns); });
  const int yields = take_turns(turn, 0, kTurns);
  other.join();
  sched_setaffinity(0, sizeof before, &before);
  // One in kProbeEvery, and what else wants this processor.
  EXPECT_GT(yields + of_other, 0);
  EXPECT_LT(yields + of_other, kTurns / 8);
}

}  // namespace
}  // namespace ringroad
