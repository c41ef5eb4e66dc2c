// Connections that have hardly been used yet. Such a one is the kernel's alone: the program's calls
// are libc's, and what they transfer is noted beside it. It becomes a stream with the use that may
// promote it, before a call that has to know of streams (socket_lifecycle::find() sees to that), when its
// peer asks for it, and when it has been there for a while. Most connections that ask once and are
// answered never do, and cost next to nothing.
//
// Thread rule: any thread at any time.
#pragma once

#include "policy/settings.h"
#include "preload/fd_table.h"
#include "rsocket-core/agent/agent.h"

namespace ringroad::preload::deferred_stream {

// Makes `fd`, which has just been connected, or accepted from `remote`, a deferred one of `rule`.
// False: it cannot be one, and is to be a stream at once. `forks`: from before it was made.
// `nonblocking`: it was accepted so.
bool begin(int fd, Role role, const Endpoint& remote, const policy::Settings& rule,
           bool nonblocking, unsigned forks) noexcept;
// Makes it a stream. False: it is none, and the table does not know the number any more. REQUIRES:
// it is kDeferred, or was.
bool become_stream(int fd, const SocketRef& socket) noexcept;
// AgentHost::materialise. REQUIRES: no number changes its meaning meanwhile (fd_table::FdMutation).
bool materialise(AgentHost::Deferred which, const Endpoint& remote) noexcept;
// The table does not know the number any more. It may be a stream then, by what another thread had
// begun.
void closed(FdEntry& socket) noexcept;
// The number will not be the connection's any more.
void before_number_goes(int fd) noexcept;
// close(2) of a number that is one. False: it is none, and nothing was done.
bool close(int fd, int& result) noexcept;
// In the child of a fork.
void after_fork_child() noexcept;

inline bool is(int fd) noexcept {
  const FdEntry* socket = fd_table::peek(fd);
  return socket != nullptr && socket->kind.load(std::memory_order_acquire) == FdEntry::Kind::kDeferred;
}

// send(2) and write(2), and recv(2) and read(2), of one, with flags that take what is there. False:
// it is for a stream to do, as which find() gives it, and nothing was done. No frame of theirs has
// anything for an unwinder to do while libc can end the thread: not within cancellation::point(), nor
// where may_be_cancelled().
bool sends(int fd, const void* buf, std::size_t n, int flags, ssize_t& result);
bool receives(int fd, void* buf, std::size_t n, int flags, ssize_t& result);
// A receive for which it would sleep, where that can be woken. Within cancellation::point().
bool receives_later(int fd, void* buf, std::size_t n, int flags, ssize_t& result);

}  // namespace ringroad::preload::deferred_stream
