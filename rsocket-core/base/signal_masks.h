// A mask of signals that is to be in force in a sleep, as ppoll(2) has it, and a thread that polls before it,
// under its own mask.
//
// The kernel puts the mask in force, looks, and sleeps. A signal that the mask lets in ends the sleep; one
// that it blocks does not run. No program may tell polling from that. So a thread polls only if the mask
// blocks nothing that the thread does not block already. Then a handler that runs while it polls would have
// run in the sleep, and ends the wait likewise. What only the mask lets in is pending while the thread polls.
// That ends the polling, and the kernel delivers it in the sleep that follows.
//
// Thread rule: the calling thread's own mask and signals. A system call or two each; errno is left as it was.
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "rsocket-core/base/system_call.h"

namespace ringroad::signals {

inline std::uint64_t bits_of(const sigset_t& mask) noexcept {
  std::uint64_t bits;  // the kernel's sets; libc's have room for more
  std::memcpy(&bits, &mask, sizeof bits);
  return bits;
}

// False also where there is no mask at that address.
inline bool blocks_no_more(const sigset_t& mask) noexcept {
  constexpr int kNoWay = 99;  // the kernel looks at the address before it says EINVAL
  std::uint64_t own = 0;
  if (sys::raw(SYS_rt_sigprocmask, kNoWay, sys::word(&mask), 0, sizeof own) == -EFAULT) return false;
  sys::raw(SYS_rt_sigprocmask, SIG_BLOCK, 0, sys::word(&own), sizeof own);
  return (bits_of(mask) & ~own) == 0;
}

inline bool lets_one_in(const sigset_t& mask) noexcept {
  std::uint64_t pending = 0;
  sys::raw(SYS_rt_sigpending, sys::word(&pending), sizeof pending);
  return (pending & ~bits_of(mask)) != 0;
}

// A part of the library in which the kernel delivers no signal to this thread, for what a stretch (signals.h)
// cannot do: a thread that is made here begins with this mask, and so does another process.
class BlockAll {
 public:
  BlockAll() noexcept {
    // Not the two that libc sends to its own threads, for setuid(2) and pthread_cancel(3).
    constexpr std::uint64_t kLibcs = std::uint64_t{3} << 31;
    constexpr std::uint64_t kAll = ~kLibcs;
    sys::raw(SYS_rt_sigprocmask, SIG_SETMASK, sys::word(&kAll), sys::word(&before_), sizeof kAll);
  }
  ~BlockAll() { sys::raw(SYS_rt_sigprocmask, SIG_SETMASK, sys::word(&before_), 0, sizeof before_); }
  BlockAll(const BlockAll&) = delete;
  BlockAll& operator=(const BlockAll&) = delete;

 private:
  std::uint64_t before_ = 0;
};

}  // namespace ringroad::signals
