// Which descriptor numbers are the library's own: a program that closes everything it did not open
// (daemons do, from 3 up) must not close these. One bit a number.
//
// Thread rule: any thread. Numbers beyond kLimit are never marked.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "rsocket-core/base/hints.h"

namespace ringroad::reserved_fds {

inline constexpr int kLimit = 1 << 20;

inline std::atomic<std::uint64_t> bits[kLimit / 64] RR_HIDDEN;
inline std::atomic<std::uint64_t> inherited[kLimit / 64] RR_HIDDEN;  // of these: a forked child keeps it
// Of these: the program has closed it, as far as it knows.
inline std::atomic<std::uint64_t> told_closed[kLimit / 64] RR_HIDDEN;
// That were marked, and that the program has not closed since.
inline std::atomic<std::uint64_t> gone[kLimit / 64] RR_HIDDEN;
// That were ever marked.
inline std::atomic<int> highest RR_HIDDEN{-1};
inline std::atomic<int> lowest RR_HIDDEN{kLimit};

inline bool covers(int fd) noexcept { return fd >= 0 && fd < kLimit; }

inline void mark(int fd) noexcept {
  if (!covers(fd)) return;
  int known = highest.load(std::memory_order_relaxed);
  while (fd > known && !highest.compare_exchange_weak(known, fd, std::memory_order_relaxed)) {
  }
  known = lowest.load(std::memory_order_relaxed);
  while (fd < known && !lowest.compare_exchange_weak(known, fd, std::memory_order_relaxed)) {
  }
  bits[fd / 64].fetch_or(std::uint64_t{1} << (fd % 64), std::memory_order_relaxed);
}

inline void unmark(int fd) noexcept {
  if (covers(fd) && bits[fd / 64].load(std::memory_order_relaxed) != 0) {
    const std::uint64_t bit = std::uint64_t{1} << (fd % 64);
    const std::uint64_t others = ~bit;
    if ((bits[fd / 64].fetch_and(others, std::memory_order_relaxed) & bit) != 0) {
      gone[fd / 64].fetch_or(bit, std::memory_order_relaxed);
    }
    inherited[fd / 64].fetch_and(others, std::memory_order_relaxed);
    told_closed[fd / 64].fetch_and(others, std::memory_order_relaxed);
  }
}

// The program closes a marked `fd`, which it has from /proc/self/fd, or by counting. It stays open. True: the
// first time, when the kernel would have closed it; else the number names nothing of the program's.
inline bool tell_closed(int fd) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << (fd % 64);
  return (told_closed[fd / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

// A marked `fd` is of use in a forked child.
inline void keep_in_children(int fd) noexcept {
  if (!covers(fd)) return;
  inherited[fd / 64].fetch_or(std::uint64_t{1} << (fd % 64), std::memory_order_relaxed);
}

// A marked `fd` came from a peer, and is what it should be.
inline void close_in_children(int fd) noexcept {
  if (covers(fd)) {
    inherited[fd / 64].fetch_and(~(std::uint64_t{1} << (fd % 64)), std::memory_order_relaxed);
  }
}

// In a forked child: calls `close` for each other number, and forgets them. What stands behind them
// would outlive the parent here.
template <typename Close>
void leave_to_parent(Close close) noexcept {
  for (int word = 0; word <= highest.load(std::memory_order_relaxed) / 64; ++word) {
    for (std::uint64_t left = bits[word].load(std::memory_order_relaxed) &
                              ~inherited[word].load(std::memory_order_relaxed);
         left != 0; left &= left - 1) {
      const int fd = word * 64 + std::countr_zero(left);
      unmark(fd);
      close(fd);
    }
  }
}

// Whether a number below `end` is marked.
inline bool any_below(int end) noexcept {
  for (int word = 0; word * 64 < end; ++word) {
    const int left = end - word * 64;
    const std::uint64_t part = left < 64 ? (std::uint64_t{1} << left) - 1 : ~std::uint64_t{0};
    if ((bits[word].load(std::memory_order_relaxed) & part) != 0) return true;
  }
  return false;
}

// Nearly all of a program's own numbers are below all that are marked.
inline bool is_marked(int fd) noexcept {
  return fd >= lowest.load(std::memory_order_relaxed) && covers(fd) &&
         ((bits[fd / 64].load(std::memory_order_relaxed) >> (fd % 64)) & 1) != 0;
}

// Or was. A program may have it from /proc/self/fd still.
inline bool was_marked(int fd) noexcept {
  return fd >= lowest.load(std::memory_order_relaxed) && covers(fd) &&
         (((bits[fd / 64].load(std::memory_order_relaxed) | gone[fd / 64].load(std::memory_order_relaxed)) >>
           (fd % 64)) & 1) != 0;
}
inline void forget_gone(int fd) noexcept {
  gone[fd / 64].fetch_and(~(std::uint64_t{1} << (fd % 64)), std::memory_order_relaxed);
}

}  // namespace ringroad::reserved_fds
