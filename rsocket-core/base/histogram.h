// Counts by powers of two, for statistics that a stopped or dead process leaves readable (segment_layout.h).
//
// Bucket i holds what is larger than 2^(i-1) and at most 2^i units; the first holds 0 and 1, the
// last everything above the one before it. Thread rule: one writer at a time, any readers, no lock:
// each count is exact, two of them may be from slightly different moments.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ringroad::stats {

#ifndef __has_feature
#define __has_feature(x) 0
#endif
// A count of one writer at a time: no read-modify-write is needed that others would see as one. A
// relaxed load and store become three instructions; here they are one, but where a sanitizer is to
// see them. The store is a release, as any store of x86-64 is: SendWindow::sent() needs that.
template <typename Count>
[[gnu::always_inline]] inline void add_alone(std::atomic<Count>& count,
                                             std::type_identity_t<Count> n) noexcept {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !__has_feature(thread_sanitizer)
  static_assert(sizeof count == sizeof n && std::atomic<Count>::is_always_lock_free);
  static_assert(sizeof n == 4 || sizeof n == 8);
  if constexpr (sizeof n == 8) {
    asm("addq %1, %0" : "+m"(count) : "er"(n) : "cc");
  } else {
    asm("addl %1, %0" : "+m"(count) : "er"(n) : "cc");
  }
#else
  count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_release);
#endif
}

struct Log2Histogram {
  static constexpr std::size_t kBuckets = 24;

  static constexpr std::uint64_t kLargest = std::uint64_t{1} << (kBuckets - 1);

  std::atomic<std::uint64_t> counts[kBuckets];

  static constexpr std::size_t bucket(std::uint64_t value) noexcept {
    // The width of value - 1, by way of an odd number: no zero to look out for.
    const std::uint64_t odd = (2 * std::min(value, kLargest) - (value != 0 ? 1 : 0)) | 1;
    return static_cast<std::size_t>(std::bit_width(odd) - 1);
  }
  // The largest value of a bucket, but for the last, which has none.
  static constexpr std::uint64_t bound(std::size_t bucket) noexcept {
    return std::uint64_t{1} << bucket;
  }

  void add(std::uint64_t value) noexcept { grow(bucket(value), 1); }
  // REQUIRES: 0 < value <= kLargest.
  [[gnu::always_inline]] void add_within(std::uint64_t value) noexcept {
    // The rest of a division by 64: the compiler need not extend the sign of what is never negative.
    grow((63U - static_cast<unsigned>(__builtin_clzll(2 * value - 1))) % 64U, 1);
  }
  void add(const Log2Histogram& other) noexcept {
    for (std::size_t i = 0; i < kBuckets; ++i) {
      if (const auto n = other.counts[i].load(std::memory_order_relaxed); n != 0) grow(i, n);
    }
  }
  void clear() noexcept {
    for (auto& count : counts) count.store(0, std::memory_order_relaxed);
  }

 private:
  [[gnu::always_inline]] void grow(std::size_t i, std::uint64_t n) noexcept {
    add_alone(counts[i], n);
  }
};

// A wait is counted in units of 1024 ns, begun ones as whole: bound(i) * kWaitUnitNs is exact.
inline constexpr std::uint64_t kWaitUnitNs = 1024;
constexpr std::uint64_t wait_units(std::uint64_t ns) noexcept {
  return ns / kWaitUnitNs + (ns % kWaitUnitNs != 0 ? 1 : 0);
}

// A time of AnswerTimer's is counted in units of 256 ns, as a wait in those of 1024.
inline constexpr std::uint64_t kLatencyUnitNs = 256;
constexpr std::uint64_t latency_units(std::uint64_t ns) noexcept {
  return ns / kLatencyUnitNs + (ns % kLatencyUnitNs != 0 ? 1 : 0);
}

}  // namespace ringroad::stats
