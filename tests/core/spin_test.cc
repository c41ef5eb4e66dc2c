#include "rsocket-core/spin.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

namespace ringroad {
namespace {

constexpr std::int64_t kLook = 100;
constexpr std::int64_t kDefault = 20'000;
constexpr std::int64_t kPolls = 100'000'000;
constexpr std::int64_t kSlice = 3'000'000;  // of who does not sleep
// From one try to the next.
constexpr int kMostWaits = static_cast<int>(Spin::kProbeEvery);
constexpr int kFewestWaits = static_cast<int>(Spin::kProbeEvery - Spin::kProbeSpread + 1);

// A processor that takes 100 ns for a look, and where others run for `others_ns` once they may.
struct Host {
  std::int64_t now_ns() const { return now; }
  void relax() { now += kLook; }
  void let_others_run() {
    ++offers;
    now += offer_ns + others_ns;
    if (others_ns > 0) ++switched;
  }
  long switches() const { return switched; }

  std::int64_t now = 0;
  std::int64_t offer_ns = kLook;
  std::int64_t others_ns = 0;
  int offers = 0;
  long switched = 0;
};

const auto kNever = [] { return Spin::Look::kNothing; };
const auto kAtOnce = [] { return Spin::Look::kReady; };

// As whoever waits does: whether what came was polled for.
template <typename Find, typename Host>
bool polled(Spin& spin, Find look, std::int64_t longest, Host& host) {
  return spin.pays(host) && spin.until(look, longest, host);
}

// How many waits are not polled for now.
template <typename Host>
int refusals(Spin& spin, Host& host) {
  int refused = 0;
  while (!spin.pays(host) && refused < 1'000) ++refused;
  return refused;
}

Spin::Look ready_if(bool found) { return found ? Spin::Look::kReady : Spin::Look::kNothing; }

// How long it polls where nothing comes and nobody else wants to run.
std::int64_t polls_for(Spin& spin, std::int64_t longest, Host& host) {
  const std::int64_t before = host.now;
  host.others_ns = 0;
  polled(spin, kNever, longest, host);
  return host.now - before;
}

TEST(SpinTest, EndsWithItsBudgetWhereNothingComes) {
  Spin spin;
  Host host;
  const std::int64_t took = polls_for(spin, kDefault, host);
  EXPECT_GE(took, kDefault);
  EXPECT_LE(took, kDefault + kLook);
  EXPECT_EQ(polls_for(spin, 0, host), 0);
}

TEST(SpinTest, AnswersWithinAFewMicrosecondsCostNoSystemCall) {
  Spin spin;
  Host host;
  const auto soon = [&] { return ready_if(host.now >= Spin::kOfferEveryNs - kLook); };
  EXPECT_TRUE(polled(spin, soon, kDefault, host));
  EXPECT_EQ(host.offers, 0);
}

// Answers that take 30 us, and nobody who wants the processor meanwhile.
void answer_after(Spin& spin, std::int64_t ns, Host& host) {
  const std::int64_t at = host.now + ns;
  EXPECT_TRUE(polled(spin, [&] { return ready_if(host.now >= at); }, kPolls, host));
}

TEST(SpinTest, CheapOffersAreMadeAgainAndAgain) {
  Spin spin;
  Host host;
  for (int i = 0; i < 10; ++i) answer_after(spin, 32'000, host);
  EXPECT_EQ(host.offers, 60);
}

// As a system call of an emulated processor is.
Host with_dear_offers() {
  Host host;
  host.offer_ns = 1'300;
  return host;
}

TEST(SpinTest, DearOffersThatNobodyTakesBecomeRare) {
  Spin spin;
  Host host = with_dear_offers();
  for (int i = 0; i < 10; ++i) answer_after(spin, 30'000, host);
  EXPECT_GT(host.offers, 0);
  host.offers = 0;
  for (int i = 0; i < 10; ++i) answer_after(spin, 30'000, host);
  EXPECT_EQ(host.offers, 0);
  answer_after(spin, 10 * Spin::kLongestOfferNs, host);
  EXPECT_GE(host.offers, 9) << "rare, not never";
}

TEST(SpinTest, AnOfferThatIsTakenIsMadeAgainSoon) {
  Spin spin;
  Host host = with_dear_offers();
  for (int i = 0; i < 10; ++i) answer_after(spin, 30'000, host);
  host.offers = 0;
  host.others_ns = 3'000;
  EXPECT_FALSE(polled(spin, kNever, kPolls, host));
  EXPECT_EQ(host.offers, 1);
  const std::int64_t before = host.now;
  refusals(spin, host);
  EXPECT_FALSE(polled(spin, kNever, kPolls, host));
  EXPECT_EQ(host.offers, 2);
  EXPECT_LE(host.now - before, Spin::kOfferEveryNs + host.offer_ns + host.others_ns + 2 * kLook);
}

// How often of 1,000 messages it polls where each answer is by who takes the first offer.
int polls_where_others_answer(Spin& spin, Host& host) {
  int polls = 0;
  for (int i = 1; i <= 1'000; ++i) {
    host.offers = 0;
    const bool found = polled(spin, [&] { return ready_if(host.offers > 0); }, kPolls, host);
    EXPECT_EQ(found, host.offers > 0) << "what came is not slept for";
    EXPECT_LE(host.offers, 1);
    polls += host.offers;
  }
  return polls;
}

TEST(SpinTest, WhoGivesWayToWhoAnswersPollsNoMoreButNowAndThen) {
  for (const std::int64_t others_ns : {Spin::kOfferTakenNs / 5, 2 * Spin::kOfferTakenNs}) {
    Spin spin;
    Host host;
    for (unsigned i = 0; i < Spin::kMaxScore; ++i) polled(spin, kAtOnce, kDefault, host);
    host.others_ns = others_ns;
    const int polls = polls_where_others_answer(spin, host);
    EXPECT_GE(polls, 1 + 999 / kMostWaits);
    EXPECT_LE(polls, 1 + 999 / kFewestWaits);
  }
}

TEST(SpinTest, WhoGivesWayToOthersInVainSleepsAtOnce) {
  Spin spin;
  Host host;
  host.others_ns = 3'000;
  EXPECT_FALSE(polled(spin, kNever, kPolls, host));
  EXPECT_EQ(host.offers, 1);
  EXPECT_FALSE(spin.pays(host));
}

TEST(SpinTest, PollsAgainWhereOthersNoLongerWantTheProcessor) {
  Spin spin;
  Host host;
  host.others_ns = 3'000;
  EXPECT_FALSE(polled(spin, kNever, kPolls, host));
  host.others_ns = 0;
  const int refused = refusals(spin, host);
  EXPECT_GE(refused, kFewestWaits - 1);
  EXPECT_LE(refused, kMostWaits - 1);
  EXPECT_TRUE(polled(spin, kAtOnce, kPolls, host));
  EXPECT_TRUE(spin.pays(host));
}

// Somebody may find before it polls that there is no need to.
TEST(SpinTest, ATryThatWasNotMadeIsMadeTheNextTime) {
  Spin spin;
  Host host;
  host.others_ns = 3'000;
  EXPECT_FALSE(polled(spin, kNever, kPolls, host));
  refusals(spin, host);
  EXPECT_TRUE(spin.pays(host));
  EXPECT_TRUE(spin.pays(host));
  EXPECT_FALSE(polled(spin, kNever, kPolls, host));
  EXPECT_FALSE(spin.pays(host));
}

// Between a poll's first offer and its second the kernel has something to do, for a moment, and perhaps again
// at the second.
struct Interrupted : Host {
  void relax() {
    Host::relax();
    if (offers == 1 && std::exchange(disturbed, false)) ++switched;
  }
  void let_others_run() {
    Host::let_others_run();
    if (offers == 2) now += second_ns;
  }
  bool disturbed = false;
  std::int64_t second_ns = 0;
};

TEST(SpinTest, WhatRanBeforeAnOfferHasNotTakenIt) {
  for (const std::int64_t second_ns : {std::int64_t{0}, Spin::kOfferTakenNs}) {
    Spin spin;
    Interrupted host;
    int found = 0;
    for (int i = 0; i < 1'000; ++i) {
      host.offers = 0;
      host.disturbed = i % 3 == 0;
      host.second_ns = host.disturbed ? second_ns : 0;
      const int answer = second_ns == 0 ? 2 : 3;
      const auto look = [&] { return ready_if(host.offers == answer); };
      found += polled(spin, look, kPolls, host) ? 1 : 0;
    }
    EXPECT_EQ(found, 1'000) << second_ns;
  }
}

TEST(SpinTest, WhoIsAnsweredByWhoTakesALaterOfferPollsLessAndLess) {
  struct Shared : Host {
    void let_others_run() {
      if (offers == 1) others_ns = answering_ns;
      Host::let_others_run();
      others_ns = 0;
    }
    std::int64_t answering_ns = 0;
  };
  for (const std::int64_t ns : {Spin::kOfferTakenNs / 5, 2 * Spin::kOfferTakenNs,
                                Spin::kTakenAwayNs + 1, kSlice}) {
    Spin spin;
    Shared host;
    host.answering_ns = ns;
    int found = 0;
    for (int i = 0; i < 1'000; ++i) {
      host.offers = 0;
      found += polled(spin, [&] { return ready_if(host.offers == 2); }, kPolls, host) ? 1 : 0;
    }
    EXPECT_GE(found, 1'000 / kMostWaits);
    EXPECT_LT(found, 100) << ns;
  }
}

// Of as many waits as `period` so many are long, and polling has not paid so far.
int found_in_a_pattern(int period, int are_long, int first) {
  Spin spin;
  Host host;
  for (unsigned i = 0; i < Spin::kMaxScore; ++i) polls_for(spin, kDefault, host);
  int found = 0;
  for (int i = first; i < 8'000; ++i) {
    const std::int64_t at = host.now + (i % period < are_long ? 1'000'000 : 2'000);
    found += polled(spin, [&] { return ready_if(host.now >= at); }, kDefault, host) ? 1 : 0;
    host.now = std::max(host.now, at);
  }
  return found;
}

TEST(SpinTest, WaitsThatComeInAPatternAreTriedInTheEndWhereverItBegins) {
  for (const int are_long : {1, 2}) {
    for (const int period : {7, 9, 31}) {
      for (int first = 0; first < period; ++first) {
        EXPECT_GT(found_in_a_pattern(period, are_long, first), 4'000)
            << are_long << " of " << period << ", " << first;
      }
    }
  }
}

// With offers that are dear and that nobody takes each is counted: what the kernel has to do for a moment in the
// time between is not who takes the next one.
TEST(SpinTest, WhatRanBetweenTwoDearOffersHasNotTakenTheSecond) {
  struct Busy : Host {
    void relax() {
      Host::relax();
      if (++looks % 5'000 == 0) ++switched;
    }
    int looks = 0;
  };
  Spin spin;
  Busy host;
  host.offer_ns = 2 * Spin::kOfferTakenNs;
  int found = 0;
  for (int i = 0; i < 1'000; ++i) {
    const std::int64_t at = host.now + 100'000;
    found += polled(spin, [&] { return ready_if(host.now >= at); }, kPolls, host) ? 1 : 0;
    host.now = std::max(host.now, at);
  }
  EXPECT_GT(found, 900);
}

// Of a hypervisor's, in a poll in which something else ran for a moment long before.
TEST(SpinTest, WhatRanBeforeAGapHasNotMadeIt) {
  struct Stolen : Host {
    void relax() {
      Host::relax();
      ++looks;
      if (looks == 100) ++switched;
      if (looks == 300) now += kSlice;
    }
    int looks = 0;
  };
  Spin spin;
  Stolen host;
  EXPECT_TRUE(polled(spin, [&] { return ready_if(host.looks == 400); }, kPolls, host));
}

// Each thread has a count of its own, and a gap that a hypervisor makes is in neither.
TEST(SpinTest, ThreadsThatTakeTurnsAreNotTakenForEachOther) {
  struct Stolen : Host {
    void relax() { now += kLook + (++looks % 20 == 0 ? kSlice : 0); }
    int looks = 0;
  };
  Spin spin;
  Stolen host;
  for (int i = 0; i < 20; ++i) {
    host.switched = i % 2 == 0 ? 7 : 1'000;
    const int last = host.looks + 30;
    EXPECT_TRUE(polled(spin, [&] { return ready_if(host.looks >= last); }, kPolls, host)) << i;
  }
}

// This host, with what was offered in one thread counted.
struct Counted : SpinHost {
  void let_others_run() noexcept {
    ++offers;
    SpinHost::let_others_run();
  }
  int offers = 0;
};

// Waits for each odd, or each even, number and says the next one. How often it made an offer.
int take_turns(std::atomic<int>& turn, int first, int last) {
  Spin spin;
  Counted host;
  for (int mine = first; mine < last; mine += 2) {
    const auto look = [&] { return ready_if(turn.load(std::memory_order_acquire) == mine); };
    if (!polled(spin, look, kPolls, host)) {
      for (int now = turn.load(); now != mine; now = turn.load()) turn.wait(now);
    }
    turn.store(mine + 1, std::memory_order_release);
    turn.notify_all();
  }
  return host.offers;
}

TEST(SpinTest, TwoThatShareAProcessorSleepForEachOther) {
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
  const int offers = take_turns(turn, 0, kTurns);
  other.join();
  sched_setaffinity(0, sizeof before, &before);
  // One in kProbeEvery, and what else wants this processor.
  EXPECT_GT(offers + of_other, 0);
  EXPECT_LT(offers + of_other, kTurns / 8);
}

TEST(SpinTest, OffersThatTakeLongWhereNobodyRanAreNotTaken) {
  Spin spin;
  Host host;
  host.offer_ns = 3'000;  // by a hypervisor, or an interrupt
  EXPECT_TRUE(polled(spin, [&] { return ready_if(host.offers == 5); }, kPolls, host));
  EXPECT_GT(host.now, 4 * Spin::kLongestOfferNs / 2) << "and not made all the time";
}

// Who was to answer may have waited for this processor.
TEST(SpinTest, WhoPolledInVainOffersSoonAgain) {
  Spin spin;
  Host host = with_dear_offers();
  for (int i = 0; i < 10; ++i) answer_after(spin, 30'000, host);
  EXPECT_GT(polls_for(spin, kDefault, host), 0);
  host.offers = 0;
  answer_after(spin, 2 * Spin::kOfferEveryNs, host);
  EXPECT_EQ(host.offers, 1);
}

TEST(SpinTest, WhereOffersAreRareAGapSaysNothingOfThreadsUntilTheyAreCounted) {
  struct Disturbed : Host {
    void relax() {
      now += kLook;
      if (gaps == 0 || ++looks % 20 != 0) return;
      --gaps;
      now += kSlice;
      if (by_threads) ++switched;
    }
    int gaps = 0;
    int looks = 0;
    bool by_threads = false;
  };
  Spin spin;
  Disturbed host;
  host.offer_ns = 1'300;
  for (int i = 0; i < 10; ++i) answer_after(spin, 30'000, host);
  host.switched = 7;  // at work
  host.gaps = 1;
  EXPECT_TRUE(polled(spin, [&] { return ready_if(host.gaps == 0); }, kPolls, host));
  for (int i = 0; i < 10; ++i) answer_after(spin, 30'000, host);
  host.by_threads = true;
  host.looks = 0;
  host.gaps = 5;
  EXPECT_FALSE(polled(spin, kNever, kPolls, host));
  EXPECT_EQ(host.gaps, 3) << "the second one is known to be of a thread";
}

TEST(SpinTest, PausesWhereOthersKeepTheProcessor) {
  for (const std::int64_t longest : {kDefault, kPolls}) {
    Spin spin;
    Host host;
    host.others_ns = kSlice;
    EXPECT_FALSE(polled(spin, kNever, longest, host));
    EXPECT_EQ(host.offers, 1);
    EXPECT_LE(host.now - kSlice, Spin::kOfferEveryNs + 2 * kLook);
    EXPECT_EQ(polls_for(spin, longest, host), 0);
    host.now += Spin::kFirstPauseNs;
    EXPECT_GE(polls_for(spin, longest, host), longest / 2) << "as if nothing had happened";
  }
}

// As a hypervisor does, or an emulator, or the kernel's own work in an interrupt.
TEST(SpinTest, GoesOnWhereNoThreadOfTheHostTookTheProcessor) {
  struct Emulated : Host {
    void relax() { now += kLook + (++looks % 20 == 0 ? kSlice : 0); }
    int looks = 0;
  };
  Spin spin;
  Emulated host;
  EXPECT_TRUE(polled(spin, [&] { return ready_if(host.looks == 200); }, kPolls, host));
  EXPECT_GT(polls_for(spin, kPolls, host), 0) << "no pause";
}

TEST(SpinTest, WhatTookTheProcessorBetweenTwoPollsIsNoReasonToPause) {
  struct Emulated : Host {
    void relax() { now += kLook + (++looks == 100 ? kSlice : 0); }
    int looks = 0;
  };
  Spin spin;
  Emulated host;
  host.switched = 7;  // at work
  EXPECT_TRUE(polled(spin, [&] { return ready_if(host.looks == 200); }, kPolls, host));
}

TEST(SpinTest, PausesWhereTheSchedulerGivesTheProcessorToOthersUnasked) {
  struct Preempted : Host {
    void relax() {
      now += kLook + kSlice;
      ++switched;
    }
  };
  Spin spin;
  Preempted host;
  EXPECT_FALSE(polled(spin, kNever, kPolls, host));
  EXPECT_LE(host.now, 2 * (kSlice + kLook)) << "the first is nobody's: there was no count";
  EXPECT_EQ(polls_for(spin, kPolls, host), 0);
}

TEST(SpinTest, CostsNextToNothingWhereOthersAlwaysWantTheProcessor) {
  Spin spin;
  Host host;
  constexpr std::int64_t kMinute = 60'000'000'000;
  std::int64_t polling_ns = 0;
  while (host.now < kMinute) {
    const std::int64_t before = host.now;
    const int offers = host.offers;
    host.others_ns = kSlice;
    polled(spin, kNever, kPolls, host);
    polling_ns += host.now - before - (host.offers - offers) * kSlice;
    host.now += 10'000;  // asleep
  }
  EXPECT_LT(host.offers, 100);
  EXPECT_LT(polling_ns, kMinute / 10'000);
}

TEST(SpinTest, OneWhoWantsTheProcessorNowAndThenCostsShortPauses) {
  Spin spin;
  Host host;
  for (int i = 0; i < 20; ++i) {
    host.others_ns = kSlice;
    polled(spin, kNever, kPolls, host);
    host.now += Spin::kFirstPauseNs;
    host.others_ns = 0;
    EXPECT_TRUE(polled(spin, kAtOnce, kDefault, host));
    host.now += 10 * Spin::kFirstPauseNs;
  }
}

TEST(SpinTest, WhatCameWhileOthersRanIsFound) {
  Spin spin;
  Host host;
  host.others_ns = kSlice;
  EXPECT_TRUE(polled(spin, [&] { return ready_if(host.offers == 1); }, kPolls, host));
  EXPECT_EQ(polls_for(spin, kPolls, host), 0);
}

TEST(SpinTest, LearnsFromWhatItBrings) {
  Spin spin;
  Host host;
  for (unsigned i = 0; i < Spin::kMaxScore; ++i) polled(spin, kAtOnce, kDefault, host);
  EXPECT_GE(polls_for(spin, kDefault, host), kDefault);
  for (unsigned i = 0; i < Spin::kMaxScore; ++i) polls_for(spin, kDefault, host);
  EXPECT_EQ(polls_for(spin, kDefault, host), 0);
  refusals(spin, host);
  EXPECT_GT(polls_for(spin, kDefault, host), 0) << "now and then";
}

TEST(SpinTest, AnswersAtTheEndOfTheBudgetAreFoundAfterManyThatDidNotCome) {
  Spin spin;
  Host host;
  for (unsigned i = 0; i < Spin::kMaxScore; ++i) polls_for(spin, kDefault, host);
  const auto answered = [&] {
    const std::int64_t at = host.now + kDefault * 9 / 10;
    return polled(spin, [&] { return ready_if(host.now >= at); }, kDefault, host);
  };
  EXPECT_FALSE(answered()) << "nothing is polled for";
  refusals(spin, host);
  EXPECT_TRUE(answered());
  EXPECT_TRUE(answered()) << "from now on";
}

TEST(SpinTest, WhoIsInterruptedHasLearnedNothing) {
  Spin spin;
  Host host;
  const std::int64_t before = polls_for(spin, kDefault, host);
  polled(spin, kAtOnce, kDefault, host);  // makes up for the one that brought nothing
  for (unsigned i = 0; i < Spin::kMaxScore; ++i) {
    EXPECT_FALSE(polled(spin, [] { return Spin::Look::kInterrupted; }, kDefault, host));
  }
  EXPECT_EQ(polls_for(spin, kDefault, host), before);
}

}  // namespace
}  // namespace ringroad
