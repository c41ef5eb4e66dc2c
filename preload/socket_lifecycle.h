// How an entry of the table begins, becomes a stream and ends: it is adopted when the connection is made,
// inherited over a fork, materialised when it was deferred, and taken out when its number is closed. find()
// is the one entry for wrappers: what a program's call names, as something that the call can use.
//
// Thread rule: any thread at any time. take_out() and its like after a FdMutation, where the number is
// closed.
#pragma once

#include "preload/fd_table.h"
#include "rsocket-core/agent/agent.h"

namespace ringroad::preload::socket_lifecycle {

// Makes it a stream, if it is one that has not been one before (kInherited, kDeferred).
SocketRef find_slow(int fd) noexcept;
// What `fd` names; null: it is the kernel's alone.
inline SocketRef find(int fd) noexcept {
  return fd_table::managed(fd) ? find_slow(fd) : SocketRef();
}

// ---- beginning

// Makes `fd`, a connected TCP socket, a managed stream if it can be. `fresh`: the number was made by
// this very call (accept), so nothing can have been done with it yet.
SocketRef adopt(int fd, Role role, const FourTuple& tuple, const StreamConfig& config,
                bool nonblocking, bool fresh) noexcept;
// connect() has succeeded for a kConnecting socket: make it a stream, and honour the rule's
// promote_after and wait. False if it is not connected (yet).
bool establish(int fd, const SocketRef& socket) noexcept;
// AgentHost::materialise.
bool materialise(AgentHost::Deferred which, const Endpoint& remote) noexcept;
inline void materialise_all() noexcept { materialise(AgentHost::Deferred::kAll, {}); }

// ---- leaving the library

// What `fd` stands for is about to be used by something other than this library's callers: another
// program, stdio. Its stream, if it is one, is on TCP for good on return (after at most 2 s), with that
// reason. Also in a vfork child, on its parent's behalf. Keeps errno.
void give_away(int fd, Reason reason) noexcept;
// The program is about to have its system calls filtered (seccomp(2)), and has not reckoned with those of
// the library: every stream returns to the kernel, and none is made any more.
void use_the_kernel_only(Reason reason = Reason::kDescriptorUse) noexcept;
// Leaves what this process has inherited and not used to the kernel.
void leave_inherited() noexcept;

// ---- ending

// Before a descriptor number is closed or taken over by dup2(). If `fd` is managed, its table entry goes
// and its stream, if this was the last number of it, is closed; the caller then makes the real call, which
// frees the number. What it named, if anything, which may end with this reference: after a FdMutation.
SocketRef take_out(int fd) noexcept;
// The same during `change`, which knows whose memory this is: without a question to the kernel.
SocketRef take_out(int fd, const fd_table::FdMutation& change) noexcept;
// The same where the number has gone already, and names something else or nothing by now: libc closed it out
// of our sight, or a thread did by a close() that began when it was another's.
void take_out_closed(int fd) noexcept;

void after_fork_child() noexcept;

}  // namespace ringroad::preload::socket_lifecycle
