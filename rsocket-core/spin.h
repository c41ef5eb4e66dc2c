// How a thread polls before it sleeps: for as long as that has paid lately, and, but for a try now and
// then, never where another wants the processor, which may be who is to answer.
//
// Thread rule: any thread at any time.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "rsocket-core/hints.h"
#include "rsocket-core/signals.h"
#include "rsocket-core/sys.h"

namespace ringroad {

// What a spin asks of the host.
struct SpinHost {
  static std::int64_t now_ns() noexcept { return sys::now_ns(); }
  static void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  // Whoever else is ready to run here runs.
  static void let_others_run() noexcept { sys::raw(SYS_sched_yield); }
  // How often another thread was given the processor while this one wanted it.
  static long switches() noexcept {
    rusage usage{};
    sys::raw(SYS_getrusage, RUSAGE_THREAD, sys::word(&usage));
    return usage.ru_nivcsw;
  }
};

class Spin {
 public:
  // What a look has found. Who is interrupted ends without having learned whether polling pays.
  enum class Look : std::uint8_t { kNothing, kReady, kInterrupted };

  static constexpr unsigned kMaxScore = 16;
  // Waits, where it has not paid: at most so many, and fewer by up to kProbeSpread - 1, in turns, or each
  // try might come at the same place of what the program does again and again.
  static constexpr unsigned kProbeEvery = 61;
  static constexpr unsigned kProbeSpread = 16;
  // So much costs no more than a sleep. Behind it the processor is offered to others, each time; more
  // seldom, up to the longest, where an offer that nobody takes is more than such a part of that.
  static constexpr std::int64_t kOfferEveryNs = 5'000;
  static constexpr std::int64_t kLongestOfferNs = 40'000;
  static constexpr std::int64_t kOfferPart = 32;
  // Longer than an offer takes that nobody wants, shorter than two switches with an answer between.
  static constexpr std::int64_t kOfferTakenNs = 2'500;
  // Longer than an interrupt takes, shorter than what the scheduler gives to who does not sleep.
  // Where the kernel has counted no switch since the last such time, no thread of this host took
  // it, but a hypervisor.
  static constexpr std::int64_t kTakenAwayNs = 100'000;
  // For tests of what happens meanwhile, which a busy host would have polled for no time.
  static inline std::atomic<std::int64_t> taken_away_ns{kTakenAwayNs};
  // Nothing is polled for so long where others took the processor, and twice as long if they take
  // it again within such a time.
  static constexpr std::int64_t kFirstPauseNs = 10'000'000;
  static constexpr std::int64_t kLongestPauseNs = 1'000'000'000;

  // Whether somebody who is about to wait is to poll first. To be asked once a wait, as those that are
  // told no are counted. A yes stays one until until() has used it.
  template <typename Host = SpinHost>
  bool pays(Host&& host = Host()) noexcept {
    if (score_.load(std::memory_order_relaxed) == 0) {
      const unsigned refused = refused_.load(std::memory_order_relaxed) + 1;
      if (refused < kProbeEvery - tries_.load(std::memory_order_relaxed) % kProbeSpread) {
        refused_.store(refused, std::memory_order_relaxed);
        return false;
      }
    }
    if (hardly_ever(signals::handlers_unseen.load(std::memory_order_relaxed) != 0)) return false;
    const std::int64_t resumes_ns = resumes_ns_.load(std::memory_order_relaxed);
    return resumes_ns == 0 || host.now_ns() >= resumes_ns;
  }

  // Polls until `look` has found something, for `longest_ns` at most. False: it has not, or was
  // interrupted, or others want the processor. REQUIRES: pays() has said yes.
  template <typename Find, typename Host = SpinHost>
  bool until(Find look, std::int64_t longest_ns, Host&& host = Host()) noexcept {
    if (longest_ns == 0) return false;
    if (refused_.load(std::memory_order_relaxed) != 0) {
      refused_.store(0, std::memory_order_relaxed);
      tries_.store(next_try(tries_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
    }
    std::int64_t now = host.now_ns();
    const std::int64_t end = now + longest_ns;
    std::int64_t offer = now + offer_every_ns_.load(std::memory_order_relaxed);
    // This thread's, in this poll: what has happened before says nothing of it.
    long switches = kNotCounted;
    const auto others_ran = [&]() noexcept {
      const long before = std::exchange(switches, host.switches());
      return before != kNotCounted && before != switches;
    };
    // What the last turn was: an offer, and one behind which others were found to have run.
    bool offers = false;
    bool taken = false;
    bool counted = false;         // since the last offer, and again at the next one
    bool counted_before = false;  // right before the last offer, so that what ran has taken it
    do {
      const Look found = look();
      if (found == Look::kReady) {
        // Perhaps by who took the offer, in less time than is asked for below.
        if (!offers || !(taken || others_ran())) {
          raise();
        } else if (counted_before) {
          score_.store(0, std::memory_order_relaxed);
        } else {
          lower();
        }
      }
      if (found != Look::kNothing) return found == Look::kReady;
      offers = now >= offer;
      taken = false;
      if (offers) {
        if (switches == kNotCounted || counted) {
          switches = host.switches();
          counted = true;
        }
        counted_before = std::exchange(counted, false);
        host.let_others_run();
      } else {
        host.relax();
      }
      const std::int64_t before = std::exchange(now, host.now_ns());
      const std::int64_t took = now - before;
      if (took > taken_away_ns.load(std::memory_order_relaxed)) {
        const bool ran = others_ran();
        taken = offers && ran;
        if (ran && (offers ? counted_before : counted)) {
          pause(now);
          return look() == Look::kReady;
        }
        counted = true;
        offer = now + offer_soon();
      } else if (offers && took > kOfferTakenNs) {
        taken = others_ran();
        if (taken && counted_before) {
          // Who has to give way to others, even to who then answers, is served sooner by a sleep.
          score_.store(0, std::memory_order_relaxed);
          offer_soon();
          return look() == Look::kReady;
        }
        // Others may have run long before: the next offer tells.
        counted = true;
        offer = now + (taken ? offer_soon() : next_offer(took));
      } else if (offers) {
        offer = now + next_offer(took);
      }
    } while (now < end);
    offer_soon();  // perhaps to who was to answer
    lower();
    return false;
  }

 private:
  static constexpr long kNotCounted = -1;

  // Each of kProbeSpread remainders once before any comes again.
  static constexpr unsigned next_try(unsigned last) noexcept { return last * 5 + 3; }

  void raise() noexcept {
    const unsigned score = score_.load(std::memory_order_relaxed);
    if (score < kMaxScore) score_.store(score + 1, std::memory_order_relaxed);
  }

  void lower() noexcept {
    const unsigned score = score_.load(std::memory_order_relaxed);
    if (score > 0) score_.store(score - 1, std::memory_order_relaxed);
  }

  // How long until the one after an offer that nobody took and that has taken so long, in this poll
  // and the next ones.
  std::int64_t next_offer(std::int64_t took) noexcept {
    const std::int64_t every = offer_every_ns_.load(std::memory_order_relaxed);
    const std::int64_t enough = std::clamp(kOfferPart * took, kOfferEveryNs, kLongestOfferNs);
    const std::int64_t next = std::min(2 * every, enough);  // a single one may take long by chance
    offer_every_ns_.store(next, std::memory_order_relaxed);
    return next;
  }

  std::int64_t offer_soon() noexcept {
    offer_every_ns_.store(kOfferEveryNs, std::memory_order_relaxed);
    return kOfferEveryNs;
  }

  void pause(std::int64_t now) noexcept {
    const std::int64_t last = pause_ns_.load(std::memory_order_relaxed);
    const bool soon = last > 0 && now < resumes_ns_.load(std::memory_order_relaxed) + last;
    const std::int64_t next = soon ? std::min(2 * last, kLongestPauseNs) : kFirstPauseNs;
    pause_ns_.store(next, std::memory_order_relaxed);
    resumes_ns_.store(now + next, std::memory_order_relaxed);
  }

  std::atomic<unsigned> score_{kMaxScore / 2};  // how often it paid lately
  std::atomic<unsigned> refused_{0};            // waits since the last poll
  std::atomic<unsigned> tries_{0};              // next_try() of the last one's
  std::atomic<std::int64_t> offer_every_ns_{kOfferEveryNs};
  std::atomic<std::int64_t> pause_ns_{0};
  std::atomic<std::int64_t> resumes_ns_{0};
};

}  // namespace ringroad
