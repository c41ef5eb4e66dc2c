// Copies from and to the program's memory that end where there is none, as a system call would.
//
// "False" is an answer of theirs: EFAULT, or less than the whole. A handler of SIGSEGV and SIGBUS makes that
// true: it asks recover() before anything else (preload/fault_handler.h). Without one such a copy ends the
// program. What is inline here costs nothing for it: the instructions that may fault are rows of a table that
// only recover() reads. copy() of more than a few bytes notes where to go on, in some thirty instructions.
//
// Thread rule: any thread at any time.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rsocket-core/base/hints.h"

// Of an inline assembly: its instruction that may fault is labelled `1:`, and `label` of the C++ code takes
// over then. The row is in the group of the function that it is of, so that both are kept, or left out,
// together.
#define RR_FAULTS_AT(label)                        \
  "\n\t.pushsection rr_faults,\"a?\",%%progbits\n\t" \
  ".balign 4\n\t"                                  \
  ".long 1b - .\n\t"                               \
  ".long %l[" #label "] - .\n\t"                   \
  ".popsection"

namespace ringroad::faults {

// As memcpy(3). False: a part of the memory cannot be read, or written, and how much was copied is not known.
// REQUIRES: a stretch (signals.h), so that no handler that copies as well, or jumps, comes in between.
bool copy(void* to, const void* from, std::size_t n) noexcept;
// The same with a stretch of its own.
bool copy_apart(void* to, const void* from, std::size_t n) noexcept;

// For the handler: has the copy that has faulted return false, when the handler returns. False: it was none.
// Both are the handler's arguments.
bool recover(const siginfo_t* info, void* context) noexcept;
// Has recover() ask this one, too: that of an object with copies, and a table, of its own. Once.
using Recover = bool (*)(const siginfo_t* info, void* context) noexcept;
void recover_also_by(Recover other) noexcept;

// ---- By single instructions

template <typename T>
[[gnu::always_inline]] inline bool load(T& to, const void* from) noexcept {
  using Loose [[gnu::aligned(1), gnu::may_alias]] = T;
  const Loose& there = *static_cast<const Loose*>(from);
#if defined(__x86_64__)
  if constexpr (sizeof(T) == 16) {
    asm volatile goto("1:\tmovdqu %1, %0" RR_FAULTS_AT(faults) : "=x"(to) : "m"(there) : : faults);
  } else {
    asm volatile goto("1:\tmov %1, %0" RR_FAULTS_AT(faults) : "=r"(to) : "m"(there) : : faults);
  }
#else
  if constexpr (sizeof(T) == 16) {
    asm volatile goto("1:\tldr %q0, %1" RR_FAULTS_AT(faults) : "=w"(to) : "Q"(there) : : faults);
  } else if constexpr (sizeof(T) == 8) {
    asm volatile goto("1:\tldr %x0, %1" RR_FAULTS_AT(faults) : "=r"(to) : "Q"(there) : : faults);
  } else if constexpr (sizeof(T) == 4) {
    asm volatile goto("1:\tldr %w0, %1" RR_FAULTS_AT(faults) : "=r"(to) : "Q"(there) : : faults);
  } else if constexpr (sizeof(T) == 2) {
    asm volatile goto("1:\tldrh %w0, %1" RR_FAULTS_AT(faults) : "=r"(to) : "Q"(there) : : faults);
  } else {
    static_assert(sizeof(T) == 1);
    asm volatile goto("1:\tldrb %w0, %1" RR_FAULTS_AT(faults) : "=r"(to) : "Q"(there) : : faults);
  }
#endif
  return true;
faults:
  RR_COLD_LABEL;
  return false;
}

template <typename T>
[[gnu::always_inline]] inline bool store(void* to, T value) noexcept {
  using Loose [[gnu::aligned(1), gnu::may_alias]] = T;
  Loose& there = *static_cast<Loose*>(to);
#if defined(__x86_64__)
  if constexpr (sizeof(T) == 16) {
    asm volatile goto("1:\tmovdqu %1, %0" RR_FAULTS_AT(faults) : "=m"(there) : "x"(value) : : faults);
  } else {
    asm volatile goto("1:\tmov %1, %0" RR_FAULTS_AT(faults) : "=m"(there) : "r"(value) : : faults);
  }
#else
  if constexpr (sizeof(T) == 16) {
    asm volatile goto("1:\tstr %q1, %0" RR_FAULTS_AT(faults) : "=Q"(there) : "w"(value) : : faults);
  } else if constexpr (sizeof(T) == 8) {
    asm volatile goto("1:\tstr %x1, %0" RR_FAULTS_AT(faults) : "=Q"(there) : "r"(value) : : faults);
  } else if constexpr (sizeof(T) == 4) {
    asm volatile goto("1:\tstr %w1, %0" RR_FAULTS_AT(faults) : "=Q"(there) : "r"(value) : : faults);
  } else if constexpr (sizeof(T) == 2) {
    asm volatile goto("1:\tstrh %w1, %0" RR_FAULTS_AT(faults) : "=Q"(there) : "r"(value) : : faults);
  } else {
    static_assert(sizeof(T) == 1);
    asm volatile goto("1:\tstrb %w1, %0" RR_FAULTS_AT(faults) : "=Q"(there) : "r"(value) : : faults);
  }
#endif
  return true;
faults:
  RR_COLD_LABEL;
  return false;
}

// Calls `touch` for a byte of each page that the `n` bytes at `from` are in, as long as it says true.
template <typename Touch>
[[gnu::always_inline]] inline bool on_each_page(const void* from, std::size_t n, Touch touch) noexcept {
  constexpr std::size_t kPage = 4096;
  auto* bytes = static_cast<char*>(const_cast<void*>(from));
  for (std::size_t at = 0; at < n; at += kPage) {
    if (!touch(bytes + at)) return false;
  }
  return n == 0 || touch(bytes + n - 1);
}

// Whether each of these bytes can be read. What another thread unmaps meanwhile is still a fault.
[[gnu::always_inline]] inline bool can_read(const void* from, std::size_t n) noexcept {
  return on_each_page(from, n, [](const char* at) noexcept {
    char byte;
    return load(byte, at);
  });
}
// The same of writing. Bytes are written as they are: for what the call is to write in any case.
[[gnu::always_inline]] inline bool can_write(void* to, std::size_t n) noexcept {
  return on_each_page(to, n, [](char* at) noexcept {
    char byte;
    return load(byte, at) && store(at, byte);
  });
}

// As copy(). What most messages are goes through registers, in pieces that may overlap: without a call, a
// caller that makes no other has nothing to save.
[[gnu::always_inline]] inline bool copy_short(void* to, const void* from, std::size_t n) noexcept {
  using Piece [[gnu::vector_size(16)]] = long long;
  constexpr std::size_t kPiece = sizeof(Piece);
  if (hardly_ever(n < kPiece || n > 4 * kPiece)) return copy(to, from, n);
  const auto* const source = static_cast<const std::byte*>(from);
  auto* const target = static_cast<std::byte*>(to);
  Piece first;
  Piece last;
  if (!load(first, source) || !load(last, source + n - kPiece)) return false;
  if (n > 2 * kPiece) {
    Piece second;
    Piece third;
    if (!load(second, source + kPiece) || !load(third, source + n - 2 * kPiece)) return false;
    if (!store(target + kPiece, second) || !store(target + n - 2 * kPiece, third)) return false;
  }
  return store(target, first) && store(target + n - kPiece, last);
}

}  // namespace ringroad::faults
