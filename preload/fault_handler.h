// The handler of SIGSEGV and SIGBUS that rsocket-core/base/faults.h needs: a copy that meets memory which is
// not there ends with EFAULT, as it would in the kernel. Any other fault, and such a signal that a process
// sends, is the program's: its handler is called, or it ends as it would have.
//
// The program is told of its own actions only. A handler that it installs without libc takes this one's
// place; a copy that faults is a fault of the program's then. So it is where the program ignores the signal,
// or blocks it. An action that an exec hands on is handed on as the program has it.
//
// Thread rule: by any thread at any time.
#pragma once

#include <csignal>

namespace ringroad::preload::fault_handler {

// Before the library first looks at memory that a program names. A second time it does nothing.
void install() noexcept;
// Whether this is one of its signals. Of those every change goes by what follows, from the first on.
bool has(int signo) noexcept;
// In the child of a fork: no other thread is left that changes an action.
void after_fork_child() noexcept;

// sigaction(2) of such a signal.
int change(int signo, const struct sigaction* action, struct sigaction* old) noexcept;
// Around signal(3) and its like, which install a handler as it is: the program's before it, and what they
// have returned, as the program knows it.
sighandler_t known_as(int signo) noexcept;
sighandler_t after_change(int signo, sighandler_t before, sighandler_t returned) noexcept;

template <typename Install>
sighandler_t changed_by(int signo, Install call) noexcept {
  const sighandler_t before = known_as(signo);
  return after_change(signo, before, call());
}

}  // namespace ringroad::preload::fault_handler
