// What the kernel says of the memory that a call names, before any of it is touched here.
//
// Lengths are judged as the kernel judges them. Of addresses only those that no program has are known
// at no cost; where a call names more than it could ever move, each page is asked for. Any other address
// is found by the copy that faults (rsocket-core/base/faults.h).
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <csignal>
#include <cstddef>
#include <cstdint>

#include "rsocket-core/base/faults.h"
#include "rsocket-core/stream/stream.h"

namespace ringroad::preload::arguments {

// No call moves more (MAX_RW_COUNT, read(2)).
inline constexpr std::size_t kMostBytes = 0x7ffff000;

// NULL, or -1, or a member of what one of them was taken for: no memory of a program's.
inline bool is_nowhere(const void* address) noexcept {
#if defined(__x86_64__)
  // The upper half is the kernel's: one comparison.
  return reinterpret_cast<std::intptr_t>(address) < 4096;
#else
  // There may be a tag in the upper bits.
  constexpr std::uintptr_t kPage = 4096;
  return reinterpret_cast<std::uintptr_t>(address) + kPage < 2 * kPage;
#endif
}
// Of these, what the kernel refuses before it looks at anything else. NULL is a pointer as any other to it.
inline bool is_beyond(const void* address) noexcept {
  return is_nowhere(address) && reinterpret_cast<std::intptr_t>(address) < 0;
}
// Whether what may be left out cannot be read. REQUIRES: fault_handler::install().
inline bool is_wrong(const void* address, std::size_t bytes) noexcept {
  return address != nullptr && !faults::can_read(address, bytes);
}
inline bool is_wrong(const sigset_t* mask) noexcept {
  constexpr std::size_t kKernels = 8;  // what the kernel reads of a set of signals
  return is_wrong(mask, kKernels);
}
// Whether a call of `n` bytes at `buffer` needs a closer look.
inline bool is_odd(const void* buffer, std::size_t n) noexcept {
  return n > kMostBytes || (is_nowhere(buffer) && n != 0);
}
// The same of vectors. `total` is theirs, where it says no.
bool is_odd(const iovec* iov, int count, std::size_t& total) noexcept;

// What comes first: read() and write() look at the whole length, recv() and send() at what can be moved.
enum class Judged : std::uint8_t { kWhole, kMovable };

// The calls of those that need it.
ssize_t send_odd(Stream& stream, const void* buffer, std::size_t n, int flags, Judged judged);
ssize_t send_odd(Stream& stream, const iovec* iov, int count, int flags);
ssize_t recv_odd(Stream& stream, void* buffer, std::size_t n, int flags, Judged judged);
ssize_t recv_odd(Stream& stream, const iovec* iov, int count, int flags);

}  // namespace ringroad::preload::arguments
