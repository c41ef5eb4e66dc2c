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
  static constexpr std::uint64_t kProbeEvery = 64;  // messages, where it has not paid
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

  // Whether until() would poll at all.
  template <typename Host = SpinHost>
  bool pays(std::uint64_t messages, Host&& host = Host()) const noexcept {
    if (score_.load(std::memory_order_relaxed) == 0 && messages % kProbeEvery != 0) return false;
    if (hardly_ever(signals::handlers_unseen.load(std::memory_order_relaxed) != 0)) return false;
    const std::int64_t resumes_ns = resumes_ns_.load(std::memory_order_relaxed);
    return resumes_ns == 0 || host.now_ns() >= resumes_ns;
  }

  // Polls until `look` has found something, for `longest_ns` at most. `messages`: how many have
  // come so far. False: it has not, or was interrupted, or others want the processor.
  template <typename Find, typename Host = SpinHost>
  bool until(Find look, std::int64_t longest_ns, std::uint64_t messages,
             Host&& host = Host()) noexcept {
    if (longest_ns == 0 || !pays(messages, host)) return false;
    const unsigned score = score_.load(std::memory_order_relaxed);
    std::int64_t now = host.now_ns();
    const std::int64_t end = now + longest_ns;
    std::int64_t offer = now + offer_every_ns_.load(std::memory_order_relaxed);
    bool offered = false;
    bool offers = false;
    do {
      const Look found = look();
      if (found == Look::kReady) {
        // Perhaps by who took the offer, in less time than is asked for below.
        if (offers && others_ran(host)) {
          score_.store(0, std::memory_order_relaxed);
        } else if (score < kMaxScore) {
          score_.store(score + 1, std::memory_order_relaxed);
        }
      }
      if (found != Look::kNothing) return found == Look::kReady;
      offers = now >= offer;
      if (offers) {
        // What has happened between two polls says nothing of this one.
        if (!std::exchange(offered, true)) {
          switches_.store(host.switches(), std::memory_order_relaxed);
        }
        host.let_others_run();
      } else {
        host.relax();
      }
      const std::int64_t before = std::exchange(now, host.now_ns());
      if (offers) offer = now + next_offer(now - before);
      if (now - before > taken_away_ns.load(std::memory_order_relaxed)) {
        const long switches = host.switches();
        // Who has not counted in this poll, as offers are rare, counts from here and offers again.
        const bool counted =
            offered || offer_every_ns_.load(std::memory_order_relaxed) == kOfferEveryNs;
        if (!counted) offer = now + offer_soon();
        offered = true;
        if (switches_.exchange(switches, std::memory_order_relaxed) != switches && counted) {
          pause(now);
          return look() == Look::kReady;
        }
      } else if (offers && now - before > kOfferTakenNs && others_ran(host)) {
        // Who has to give way to others, even to who then answers, is served sooner by a sleep.
        score_.store(0, std::memory_order_relaxed);
        return look() == Look::kReady;
      }
    } while (now < end);
    offer_soon();  // perhaps to who was to answer
    if (score > 0) score_.store(score - 1, std::memory_order_relaxed);
    return false;
  }

 private:
  // Since that was last asked, or counted.
  template <typename Host>
  bool others_ran(Host&& host) noexcept {
    const long switches = host.switches();
    return switches_.exchange(switches, std::memory_order_relaxed) != switches;
  }

  // How long until the one after an offer that has taken so long, in this poll and the next ones.
  std::int64_t next_offer(std::int64_t took) noexcept {
    if (took > kOfferTakenNs) return offer_soon();
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
  std::atomic<long> switches_{0};               // as they were when they were last asked for
  std::atomic<std::int64_t> offer_every_ns_{kOfferEveryNs};
  std::atomic<std::int64_t> pause_ns_{0};
  std::atomic<std::int64_t> resumes_ns_{0};
};

}  // namespace ringroad
