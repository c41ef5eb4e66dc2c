#include "rsocket-core/base/signals.h"

#include <ucontext.h>

#include <cerrno>
#include <utility>

#include "rsocket-core/base/sys.h"

namespace ringroad::signals {
namespace {

constexpr std::uint64_t bit(int signo) noexcept { return std::uint64_t{1} << (signo - 1); }

}  // namespace

bool put_off(int signo, siginfo_t* info, void* context) noexcept {
  if (thread_state.depth == 0) return false;
  // Sent once more, to this thread, which has it blocked from the handler's return on: the kernel
  // keeps it, with all that is known about it.
  auto* interrupted = static_cast<ucontext_t*>(context);
  if (sys::raw(SYS_rt_tgsigqueueinfo, sys::getpid(), sys::raw(SYS_gettid), signo,
               sys::word(info)) != 0) {
    return false;  // RLIMIT_SIGPENDING: rather now than never
  }
  sigaddset(&interrupted->uc_sigmask, signo);
  thread_state.put_off |= bit(signo);
  return true;
}

void deliver() noexcept {
  if (thread_state.depth != 0) return;
  const int saved = errno;
  const std::uint64_t mask = std::exchange(thread_state.put_off, 0);
  sys::raw(SYS_rt_sigprocmask, SIG_UNBLOCK, sys::word(&mask), 0, sizeof mask);
  errno = saved;
}

void forget_after_fork() noexcept {
  thread_state.depth = 0;
  if (thread_state.put_off != 0) deliver();  // the parent's signals; the child has but the mask
}

}  // namespace ringroad::signals
