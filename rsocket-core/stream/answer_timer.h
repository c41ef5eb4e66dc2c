// How long a request waits for its answer, and what a wake-up brought for the program to read it: by samples.
//
//   asks      a call of the program's that moves bytes in the direction of requests: of a client its sends,
//             of a server its receives
//   answers   one in the other direction
//
//   idle ──(each kEvery-th that answers)──▶ armed ──(one that asks)──▶ asked ──(one that answers)──▶ idle
//                                                                       ▲  │
//                                (a further one that asks: kMostCalls) ─┘──┘
//
// So a request of many calls is timed from its last. Requests that are never answered cost no more than
// kMostCalls samples.
//
// At a client that is the time of its server and of the way there and back, at a server the server's alone.
//
// Thread rule: each direction has its SampleCountdown and its lock, and calls of the two may be at the same
// time. At worst a sample is lost, or is of the request before. Times are CLOCK_MONOTONIC, in nanoseconds.
#pragma once

#include <atomic>
#include <cstdint>

#include "rsocket-core/base/histogram.h"

namespace ringroad {

// Says when a direction's call is to be looked at. One writer at a time, but for set().
class SampleCountdown {
 public:
  // One call more.
  [[gnu::always_inline]] bool due() noexcept {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !__has_feature(thread_sanitizer)
    bool zero;  // two instructions, and the branch
    asm("subl $1, %0" : "+m"(left_), "=@ccz"(zero));
    return zero;
#else
    const std::uint32_t left = left_.load(std::memory_order_relaxed) - 1;
    left_.store(left, std::memory_order_relaxed);
    return left == 0;
#endif
  }
  // The call that is due; 1: the next. kNever: far beyond any.
  void set(std::uint32_t calls) noexcept { left_.store(calls, std::memory_order_relaxed); }
  static constexpr std::uint32_t kNever = 1U << 31;

 private:
  std::atomic<std::uint32_t> left_{kNever};
};

class AnswerTimer {
 public:
  static constexpr std::uint32_t kEvery = 64;    // calls that answer
  static constexpr unsigned kMostCalls = 16;     // of one request
  static constexpr unsigned kWakeUpsEvery = 16;  // sleeps that end with something to read
  static constexpr std::int64_t kNothing = -1;

  // Of the streams of a process, each begins at another answer: those that have few are sampled alike.
  static std::uint32_t first(std::uint64_t stream) noexcept {
    return 1 + static_cast<std::uint32_t>(stream % kEvery);
  }

  // A call that asks was due.
  void asked(std::int64_t now_ns, SampleCountdown& asking, SampleCountdown& answering) noexcept {
    asking.set(SampleCountdown::kNever);
    if (asked_ns_.load(std::memory_order_relaxed) == kIdle) return;
    const unsigned before = calls_.load(std::memory_order_relaxed);
    calls_.store(before + 1, std::memory_order_relaxed);
    const bool goes_on = before < kMostCalls;
    asked_ns_.store(goes_on ? now_ns : kIdle, std::memory_order_relaxed);
    if (goes_on) asking.set(1);
    answering.set(goes_on ? 1 : kEvery);
  }
  // A call that answers was due: how long the request has waited, or kNothing.
  std::int64_t answered(std::int64_t now_ns, SampleCountdown& asking, SampleCountdown& answering) noexcept {
    const std::int64_t asked_ns = asked_ns_.load(std::memory_order_relaxed);
    if (asked_ns < 0) {
      answering.set(SampleCountdown::kNever);  // until something is asked
      calls_.store(0, std::memory_order_relaxed);
      asked_ns_.store(kArmed, std::memory_order_relaxed);
      asking.set(1);
      return kNothing;
    }
    asked_ns_.store(kIdle, std::memory_order_relaxed);
    asking.set(SampleCountdown::kNever);
    answering.set(kEvery);
    return now_ns - asked_ns;
  }

  // A sleep has ended, as there is something to read. True: woken() is to be called. What an earlier sleep
  // brought is not timed any longer: another thread may have read it.
  bool times_wake_up() noexcept {
    const unsigned before = wake_ups_.load(std::memory_order_relaxed);
    wake_ups_.store(before + 1, std::memory_order_relaxed);
    woken_ns_.store(kNothing, std::memory_order_relaxed);
    return before % kWakeUpsEvery == 0;
  }
  void woken(std::int64_t now_ns, SampleCountdown& receiving) noexcept {
    woken_ns_.store(now_ns, std::memory_order_relaxed);
    receiving.set(1);
  }
  // How long the program has had it to read, or kNothing.
  std::int64_t read(std::int64_t now_ns) noexcept {
    const std::int64_t woken_ns = woken_ns_.exchange(kNothing, std::memory_order_relaxed);
    return woken_ns == kNothing ? kNothing : now_ns - woken_ns;
  }

 private:
  static constexpr std::int64_t kArmed = -1;
  static constexpr std::int64_t kIdle = -2;

  std::atomic<std::int64_t> asked_ns_{kIdle};  // one of these, or when
  std::atomic<unsigned> calls_{0};             // of the request that is timed
  std::atomic<std::int64_t> woken_ns_{kNothing};
  std::atomic<unsigned> wake_ups_{0};
};

}  // namespace ringroad
