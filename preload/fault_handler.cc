#include "preload/fault_handler.h"

#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <optional>

#include "preload/process_state.h"
#include "preload/real.h"
#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/mutex.h"
#include "rsocket-core/base/signal_masks.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::fault_handler {
namespace {

using Handler = void (*)(int, siginfo_t*, void*);
constexpr Handler kDefault = nullptr;  // SIG_DFL

#if defined(__x86_64__)
constexpr int kByLibc = 0x04000000;  // SA_RESTORER, which libc adds and sigaction(2) tells
#else
constexpr int kByLibc = 0;
#endif
// What the kernel has otherwise than the program has asked for.
constexpr unsigned kOnce = SA_RESETHAND;
constexpr int kOurs = static_cast<int>(kOnce) | SA_SIGINFO | SA_ONSTACK | kByLibc;

// What the program has installed. As in wrap_signal.cc it is not one atomic.
struct Installed {
  std::atomic<Handler> handler{kDefault};
  std::atomic<int> flags{0};

  void set(const struct sigaction& action, int more_flags) noexcept {
    flags.store(action.sa_flags | more_flags, std::memory_order_relaxed);
    handler.store(action.sa_sigaction, std::memory_order_relaxed);
  }
};
Installed of_segv;
Installed of_bus;
std::atomic<bool> is_installed{false};

Installed& of_program(int signo) noexcept { return signo == SIGSEGV ? of_segv : of_bus; }

// As it would be without this handler: the fault comes again, and what was sent is sent again.
void end_by(int signo, const siginfo_t* info) noexcept {
  const bool comes_again = info->si_code > 0 && (signo != SIGBUS || info->si_code != BUS_MCEERR_AO);
  const pid_t self = sys::getpid();
  if (!comes_again && self == 1) return;  // nothing that is sent ends the first of a container
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  real().sigaction(signo, &action, nullptr);
  if (comes_again) return;
  sys::raw(SYS_rt_tgsigqueueinfo, self, sys::raw(SYS_gettid), signo, sys::word(info));
}

// One that was sent may have ended a sleep, which asks for that (signals.h).
void call_and_note(Handler handler, bool restarts, int signo, siginfo_t* info, void* context) {
  const unsigned ran = signals::thread_state.ran;
  handler(signo, info, context);
  signals::thread_state.ran = ran | (restarts ? signals::kRestarting : signals::kInterrupting);
}

void on_fault(int signo, siginfo_t* info, void* context) {
  const bool is_fault = info->si_code > 0;
  if (is_fault && faults::recover(info, context)) return;
  Installed& own = of_program(signo);
  const bool once = (static_cast<unsigned>(own.flags.load(std::memory_order_relaxed)) & kOnce) != 0;
  const Handler handler = once ? own.handler.exchange(kDefault, std::memory_order_relaxed)
                               : own.handler.load(std::memory_order_relaxed);
  if (handler != kDefault) {
    if (is_fault) return handler(signo, info, context);
    const bool restarts = (own.flags.load(std::memory_order_relaxed) & SA_RESTART) != 0;
    return call_and_note(handler, restarts, signo, info, context);
  }
  const int saved = errno;
  end_by(signo, info);
  errno = saved;
}

bool is_ours(const struct sigaction& action) noexcept { return action.sa_sigaction == on_fault; }

// What the kernel gets in the place of the program's `action`.
struct sigaction in_place_of(const struct sigaction& action) noexcept {
  struct sigaction ours = action;
  auto flags = (static_cast<unsigned>(action.sa_flags) & ~kOnce) | SA_SIGINFO;
  // The thread may have overrun its stack, and there may be another for that.
  if (action.sa_handler == SIG_DFL) flags |= SA_ONSTACK;
  ours.sa_flags = static_cast<int>(flags);
  ours.sa_sigaction = on_fault;
  return ours;
}

// What the program has installed and what the kernel has are changed together. Else install() could take a
// handler that another thread installs at that moment for what was there before, or be followed by one that
// knows nothing of it. Of sigaction(2) by its names none is under way while this is held, so each comes
// before install(), which finds its handler, or after it, and leaves this one in its place.
//
// A handler of the program's that may call sigaction(2) must not interrupt the thread that has it. Those that
// are wrapped are put off. From install() on the kernel delivers no others either: it costs two system calls,
// which a program that the library has nothing to do with would not make. Nothing inside changes the thread's
// mask.
Mutex actions_mutex RR_RANK(signal_actions);

class RR_SCOPED_CAPABILITY ActionsLock {
 public:
  explicit ActionsLock(bool none_runs) noexcept RR_ACQUIRE(actions_mutex) {
    if (none_runs) none_runs_.emplace();  // before it is taken
    actions_mutex.lock();
  }
  ~ActionsLock() RR_RELEASE() { actions_mutex.unlock(); }
  ActionsLock(const ActionsLock&) = delete;
  ActionsLock& operator=(const ActionsLock&) = delete;

 private:
  const signals::DeferHandlers put_off_;
  std::optional<signals::BlockAll> none_runs_;
};

void install(int signo) noexcept RR_REQUIRES(actions_mutex) {
  struct sigaction now {};
  if (real().sigaction(signo, nullptr, &now) != 0 || now.sa_handler == SIG_IGN || is_ours(now)) return;
  of_program(signo).set(now, 0);
  const struct sigaction ours = in_place_of(now);
  real().sigaction(signo, &ours, nullptr);
}

int change_locked(int signo, const struct sigaction* action, struct sigaction* old) noexcept
    RR_REQUIRES(actions_mutex) {
  if (!is_installed.load(std::memory_order_relaxed)) return real().sigaction(signo, action, old);
  Installed& own = of_program(signo);
  const Handler handler = own.handler.load(std::memory_order_relaxed);
  const int flags = own.flags.load(std::memory_order_relaxed);
  struct sigaction ours {};
  const struct sigaction* to_install = action;
  // A child of vfork(2) has handlers of its own and its parent's memory.
  if (action != nullptr && action->sa_handler != SIG_IGN && process_state::owns_memory()) {
    ours = in_place_of(*action);
    to_install = &ours;
    own.set(*action, kByLibc);  // first, as it may run at once
  }
  const int result = real().sigaction(signo, to_install, old);
  if (result != 0 && to_install == &ours) {
    own.flags.store(flags, std::memory_order_relaxed);
    own.handler.store(handler, std::memory_order_relaxed);
  }
  if (result == 0 && old != nullptr && is_ours(*old)) {
    old->sa_sigaction = handler;
    old->sa_flags = (old->sa_flags & ~kOurs) | (flags & kOurs);
    // libc has none where the program has installed nothing.
    if ((flags & kByLibc) == 0) old->sa_restorer = nullptr;
  }
  return result;
}

}  // namespace

void install() noexcept {
  if (is_installed.load(std::memory_order_relaxed) || !process_state::owns_memory()) return;
  const int saved = errno;
  {
    const ActionsLock lock(true);
    if (!is_installed.exchange(true, std::memory_order_relaxed)) {
      install(SIGSEGV);
      install(SIGBUS);
    }
  }
  errno = saved;
}

bool has(int signo) noexcept { return signo == SIGSEGV || signo == SIGBUS; }

int change(int signo, const struct sigaction* action, struct sigaction* old) noexcept {
  // The program's memory, which may not be there, is its own affair: outside of the lock.
  struct sigaction wanted {};
  struct sigaction told {};
  if (action != nullptr) wanted = *action;
  int result;
  {
    const ActionsLock lock(is_installed.load(std::memory_order_relaxed));
    result = change_locked(signo, action != nullptr ? &wanted : nullptr, old != nullptr ? &told : nullptr);
  }
  if (result == 0 && old != nullptr) *old = told;
  return result;
}

void after_fork_child() noexcept { actions_mutex.reset_after_fork(); }

sighandler_t known_as(int signo) noexcept {
  struct sigaction action {};
  action.sa_sigaction = of_program(signo).handler.load(std::memory_order_relaxed);
  return action.sa_handler;
}

sighandler_t after_change(int signo, sighandler_t before, sighandler_t returned) noexcept {
  if (returned == SIG_ERR) return returned;
  const int saved = errno;
  {
    const ActionsLock lock(is_installed.load(std::memory_order_relaxed));
    struct sigaction now {};
    const bool asks = is_installed.load(std::memory_order_relaxed);
    if (asks && real().sigaction(signo, nullptr, &now) == 0 && !is_ours(now)) {
      change_locked(signo, &now, nullptr);
    }
  }
  errno = saved;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  return returned == ours.sa_handler ? before : returned;
}

}  // namespace ringroad::preload::fault_handler
