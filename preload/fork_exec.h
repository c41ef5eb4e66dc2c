// What becomes of the sockets when the process is forked, becomes another program, or ends.
//
// The parts of a fork run in this order: before_fork() in the parent, then after_fork_parent() there and
// after_fork_child() in the child. The table is locked from the first to the second.
#pragma once

#include "rsocket-core/protocol/reason.h"

namespace ringroad::preload::fork_exec {

// Handlers of pthread_atfork(3). The start registers them twice: only the first before_fork() has an effect.
void before_fork() noexcept;
void after_fork_parent() noexcept;
void after_fork_child() noexcept;
// Whether this thread is between before_fork() and what follows it, in a process that has an agent.
bool is_prepared() noexcept;

// What the program that a child becomes has as standard input, output and error: those streams are on TCP
// for good.
void give_away_stdio() noexcept;

// The process is about to end or to become another program. True: exec_failed() must follow if it does
// not become one.
bool leave(Reason reason) noexcept;
// After a leave(kExec) that was true: there was no such program. Keeps errno.
void exec_failed() noexcept;
// `call` is an exec: it returns where it fails.
template <typename Call>
int become(Call call) {
  const bool has_left = leave(Reason::kExec);
  const int result = call();
  if (has_left) exec_failed();
  return result;
}

}  // namespace ringroad::preload::fork_exec
