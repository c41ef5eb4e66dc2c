// Handlers of signals: each that the program installs is wrapped, so that none runs while the
// thread holds a lock of the library's (rsocket-core/base/signals.h). The program is told of its own.
#include <atomic>
#include <cerrno>
#include <csignal>

#include "preload/cancellation.h"
#include "preload/fault_handler.h"
#include "preload/jumps.h"
#include "preload/process_state.h"
#include "preload/real.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/stream/waiter.h"

namespace {

using namespace ringroad;
using namespace ringroad::preload;

using Handler = void (*)(int, siginfo_t*, void*);
constexpr int kSignals = 65;  // 1 to 64, signal(7)

// What the program has installed. Not one atomic: a program that installs two at once cannot tell which came
// first, and a handler of either kind may be called with three arguments.
struct Installed {
  std::atomic<Handler> handler{nullptr};
  std::atomic<int> flags{0};
};
Installed installed[kSignals];

// A fault does not wait, abort(3) neither.
bool can_wait(int signo) noexcept {
  switch (signo) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:
    case SIGABRT:
      return false;
    default:
      return signo > 0 && signo < kSignals;
  }
}

int call_handler(Handler handler, int signo, siginfo_t* info, void* context) {
  handler(signo, info, context);
  return 0;
}

// The thread's stack cannot be unwound through the library that the handler has interrupted: if it ends the
// thread or jumps, the call that is under way does so when it is through.
RR_NOINLINE void run_inside(Handler handler, int signo, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool was_inside = cancellation::inside;
  if (cancellation::caught_call<true>(call_handler, handler, signo, info, context) != 0) {
    errno = saved;
    if (jumps::is_pending()) jumps::keep_mask(context);
    if (!was_inside) signals::look_at_the_end();
  }
}

void run_or_put_off(int signo, siginfo_t* info, void* context) {
  if (signals::put_off(signo, info, context)) return;
  const Installed& own = installed[signo];
  const unsigned ran = signals::thread_state.ran;
  jumps::HandlerFrame frame;
  frame.begin();
  const Handler handler = own.handler.load(std::memory_order_relaxed);
  const bool begun = handler_begins();
  if (cancellation::inside || signals::thread_state.depth != 0) {
    run_inside(handler, signo, info, context);
  } else {
    handler(signo, info, context);
  }
  handler_has_ended(begun);
  frame.end();
  // Whatever ran inside of it did not interrupt what it has interrupted.
  const bool restarts = (own.flags.load(std::memory_order_relaxed) & SA_RESTART) != 0;
  signals::thread_state.ran = ran | (restarts ? signals::kRestarting : signals::kInterrupting);
}

// One that the kernel takes away as it runs (SA_RESETHAND) would be gone where it was put off: it
// runs unseen.
enum class Handling : std::uint8_t { kNone, kWrapped, kUnseen };

Handling handling(const struct sigaction& action) noexcept {
  const sighandler_t handler = action.sa_handler;
  if (handler == SIG_DFL || handler == SIG_IGN || handler == SIG_HOLD || handler == SIG_ERR ||
      action.sa_sigaction == run_or_put_off) {
    return Handling::kNone;
  }
  const bool unseen = (static_cast<unsigned>(action.sa_flags) & SA_RESETHAND) != 0;
  return unseen ? Handling::kUnseen : Handling::kWrapped;
}

std::uint64_t bit_of(int signo) noexcept { return std::uint64_t{1} << (signo - 1); }

void note_unseen(int signo) noexcept {
  signals::handlers_unseen.fetch_or(bit_of(signo), std::memory_order_relaxed);
}

// Whether it still is so. Looked at behind the change: another thread may change the same, and a
// vfork child has handlers of its own and its parent's memory.
void review_unseen(int signo) noexcept {
  if ((signals::handlers_unseen.load(std::memory_order_relaxed) & bit_of(signo)) == 0) return;
  if (!process_state::owns_memory()) return;
  signals::handlers_unseen.fetch_and(~bit_of(signo), std::memory_order_relaxed);
  const int saved = errno;
  struct sigaction now {};
  if (real().sigaction(signo, nullptr, &now) == 0 && handling(now) == Handling::kUnseen) {
    note_unseen(signo);
  }
  errno = saved;
}

// signal(3) and its like have installed a handler as it is.
void wrap_installed(int signo) noexcept {
  const int saved = errno;
  struct sigaction action {};
  if (can_wait(signo) && real().sigaction(signo, nullptr, &action) == 0) {
    const Handling wanted = handling(action);
    if (wanted == Handling::kUnseen) note_unseen(signo);
    if (wanted == Handling::kWrapped) rr_sigaction(signo, &action, nullptr);
    if (wanted == Handling::kNone) review_unseen(signo);
  }
  errno = saved;
}

// The same, as signal(3) knows it.
sighandler_t plain(Handler handler) noexcept {
  struct sigaction action {};
  action.sa_sigaction = handler;
  return action.sa_handler;
}

template <typename Install>
sighandler_t install(int signo, Install call) noexcept {
  if (fault_handler::has(signo)) return fault_handler::changed_by(signo, call);
  const Handler before =
      can_wait(signo) ? installed[signo].handler.load(std::memory_order_relaxed) : nullptr;
  const sighandler_t old = call();
  if (old == SIG_ERR) return old;
  wrap_installed(signo);
  return old == plain(run_or_put_off) ? plain(before) : old;
}

}  // namespace

int rr_sigaction(int signo, const struct sigaction* action, struct sigaction* old) {
  if (fault_handler::has(signo)) return fault_handler::change(signo, action, old);
  if (!can_wait(signo)) return real().sigaction(signo, action, old);
  Installed& own = installed[signo];
  const Handler handler = own.handler.load(std::memory_order_relaxed);
  const int flags = own.flags.load(std::memory_order_relaxed);
  struct sigaction wrapped {};
  const struct sigaction* to_install = action;
  const Handling wanted = action != nullptr ? handling(*action) : Handling::kNone;
  if (wanted == Handling::kUnseen) note_unseen(signo);
  if (wanted == Handling::kWrapped) {
    wrapped = *action;
    wrapped.sa_sigaction = run_or_put_off;
    wrapped.sa_flags |= SA_SIGINFO;
    to_install = &wrapped;
    // First, as it may run at once.
    own.handler.store(action->sa_sigaction, std::memory_order_relaxed);
    own.flags.store(action->sa_flags, std::memory_order_relaxed);
  }
  const int result = real().sigaction(signo, to_install, old);
  if (action != nullptr) review_unseen(signo);
  if (result != 0 && to_install == &wrapped) {
    own.handler.store(handler, std::memory_order_relaxed);
    own.flags.store(flags, std::memory_order_relaxed);
  }
  if (result == 0 && old != nullptr && old->sa_sigaction == run_or_put_off) {
    old->sa_sigaction = handler;
    old->sa_flags = (old->sa_flags & ~SA_SIGINFO) | (flags & SA_SIGINFO);
  }
  return result;
}

sighandler_t rr_signal(int signo, sighandler_t handler) {
  return install(signo, [&] { return real().signal(signo, handler); });
}

sighandler_t rr___sysv_signal(int signo, sighandler_t handler) {
  return install(signo, [&] { return real().__sysv_signal(signo, handler); });
}

sighandler_t rr_sigset(int signo, sighandler_t handler) {
  return install(signo, [&] { return real().sigset(signo, handler); });
}

int rr_siginterrupt(int signo, int interrupts) {
  const int result = real().siginterrupt(signo, interrupts);
  struct sigaction action {};
  const int saved = errno;
  if (result == 0 && can_wait(signo) && real().sigaction(signo, nullptr, &action) == 0 &&
      action.sa_sigaction == run_or_put_off) {
    std::atomic<int>& flags = installed[signo].flags;
    flags.store(
        (flags.load(std::memory_order_relaxed) & ~SA_RESTART) | (action.sa_flags & SA_RESTART),
        std::memory_order_relaxed);
  }
  errno = saved;
  return result;
}
