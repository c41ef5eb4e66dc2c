// What is noted of a connection that has hardly been used (preload/deferred_stream.h), in a word, so that one
// operation takes it:
//
//   63      settled: it is a stream by now, or none any more, and nothing is noted here
//   7..57   up to three calls that have returned: bytes (16 bits), and whether they were sent (1)
//   5..6    how many of these there are
//   0..4    calls that are inside of the kernel
//
// Thread rule: any thread at any time, but for begin(), before anybody else knows of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "rsocket-core/base/deferred_use.h"

namespace ringroad {

class DeferredSelector {
 public:
  static constexpr std::size_t kMostBytes = 0xffff;  // of one call

  void begin() noexcept { word_.store(0, std::memory_order_relaxed); }

  // A call is about to be made. False: settled, or too many are inside.
  bool enter() noexcept {
    std::uint64_t now = word_.load(std::memory_order_relaxed);
    do {
      if ((now & kSettled) != 0 || (now & kInside) == kInside) return false;
    } while (!word_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
    return true;
  }

  // It has returned, and has transferred so many bytes, or none. kFull, and nothing is done: it is
  // the one of number `limit`. Nor is anything where it is settled.
  enum class Left : std::uint8_t { kNoted, kFull, kSettled };
  Left leave(bool sent, std::size_t bytes, unsigned limit) noexcept {
    std::uint64_t now = word_.load(std::memory_order_relaxed);
    std::uint64_t next;
    do {
      if ((now & kSettled) != 0) return Left::kSettled;
      next = now - 1;
      if (bytes > 0) {
        const unsigned made = made_of(now);
        if (made + 1 >= limit) return Left::kFull;
        const std::uint64_t call = (std::uint64_t{sent} << 16) | bytes;
        next += (std::uint64_t{1} << kMadeAt) + (call << (kCallsAt + made * kCallBits));
      }
    } while (!word_.compare_exchange_weak(now, next, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
    return Left::kNoted;
  }

  // True: nobody has done that before, and this is what there was. Seq_cst as settled() is:
  // Stream::sleep_early() looks without a lock (WaitList).
  bool settle(DeferredUse& early) noexcept {
    const std::uint64_t was = word_.fetch_or(kSettled, std::memory_order_seq_cst);
    early.in_flight_calls = static_cast<unsigned>(was & kInside);
    early.count = made_of(was);
    for (unsigned i = 0; i < early.count; ++i) {
      const std::uint64_t call = was >> (kCallsAt + i * kCallBits);
      early.calls[i] = {(call >> 16 & 1) != 0, static_cast<std::uint32_t>(call & kMostBytes)};
    }
    return (was & kSettled) == 0;
  }

  // Calls that have returned, having transferred something.
  unsigned made() const noexcept { return made_of(word_.load(std::memory_order_relaxed)); }
  bool settled() const noexcept { return (word_.load(std::memory_order_seq_cst) & kSettled) != 0; }
  // In the child of a fork: the threads that were inside are not there.
  void forget_guests() noexcept { word_.fetch_and(~kInside, std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kSettled = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kInside = 31;
  static constexpr unsigned kMadeAt = 5;
  static constexpr unsigned kCallsAt = 7;
  static constexpr unsigned kCallBits = 17;
  static_assert(kCallsAt + DeferredUse::kMostCalls * kCallBits < 63);
  static_assert(DeferredUse::kMostCalls < 4);

  static unsigned made_of(std::uint64_t word) noexcept {
    return static_cast<unsigned>(word >> kMadeAt) & 3;
  }

  std::atomic<std::uint64_t> word_{0};
};

}  // namespace ringroad
