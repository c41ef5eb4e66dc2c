// The program's epoll instances that hold streams, and the descriptors that they are named by.
#pragma once

#include <sys/epoll.h>

#include "preload/fd_table.h"

namespace ringroad::preload::epolls {

// epoll_ctl() on a stream. False: the kernel answers for it. Else `result`, and errno if that is
// -1: ECANCELED where the number is being closed, and is something else after that
// fd_table::FdMutation.
bool control(int epfd, int op, int fd, const SocketRef& socket, const epoll_event* event,
             int& result) noexcept;
// Before a lock under which take_over() follows: the instance that `fd` is in may have a number that is
// known here as something else, which it was before. That ends, and may need the same lock. Keeps errno.
void end_stale_instance_of(int fd) noexcept;
// `fd`, which the program may have put into an instance before, has become a stream.
void take_over(int fd, const StreamPtr& stream) noexcept;
// The last number of the stream is about to be closed.
void forget(Stream& stream) noexcept;
// The number `fd` of a stream that has others is about to be closed, or is `gone` already.
void number_goes(Stream& stream, int fd, bool gone) noexcept;
// Whether a wait on `epfd` is the library's affair. Costs two loads where it is not.
bool holds_streams(int epfd) noexcept;
// How many sets there were when the number was last looked up among them.
extern std::atomic<unsigned> looked_up[fd_table::kLimit];
// False where holds_streams() has to tell.
inline bool holds_none(int epfd) noexcept {
  if (fd_table::managed(epfd)) return false;
  const unsigned made = EpollSet::made();
  return made == 0 || static_cast<unsigned>(epfd) >= static_cast<unsigned>(fd_table::kLimit) ||
         looked_up[epfd].load(std::memory_order_relaxed) == made;
}
// After a wait of libc's on `epfd`, which knew of no stream there, that found `count` events: takes the
// library's own event out, if it is among them. True: it was.
bool found_inner(int epfd, epoll_event* events, int& count) noexcept;
// The streams are the kernel's for good: so are the instances.
void retire() noexcept;
// Before a fork: the kernel answers for all streams that it can serve, as a child will need them there.
void lend_all() noexcept;
// With the table locked: `member` will have the instance as well.
void share_with_child(EpollSet& set, ProcessGroup& family, ProcessGroup::Member member) noexcept;
// The sets answer again for a stream that is lent. False: another process has one of the instances, or the
// program is to modify it first.
bool take_back(Stream& stream) noexcept;
// AgentHost::waits_past: the kernel has it in an instance of the program's, a thread is in a receive or
// in a poll of the kernel's with it, or io_uring(7) is there that may be asked for it. Or /proc cannot be
// read. Of one that calls have come for, only the thread is a sign: the rest may be the library's, or for
// something else.
bool waits_past(int fd, bool awaited) noexcept;
void after_fork_child() noexcept;

}  // namespace ringroad::preload::epolls
