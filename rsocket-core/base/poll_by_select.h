// ppoll(2) for a process that may have fewer descriptors open than the set has entries.
//
// The kernel refuses a set that is larger than RLIMIT_NOFILE with EINVAL. The library adds descriptors of its
// own to the program's, and to a receive's one; a program may set the limit to 1 when it has opened all it
// needs. select(2) knows no such bound.
//
// Thread rule: any thread.
#pragma once

#include <poll.h>
#include <sys/select.h>

#include <csignal>

namespace ringroad {

// As pselect(2). Null, below: by system call.
using SelectCall = int (*)(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*);

// After ppoll(2) has said EINVAL: what it would have said without the limit. `asked`: entries that are the
// program's own; EINVAL if these are too many. Of POLLRDHUP, POLLHUP and POLLERR only what poll(2) still
// tells of one entry.
[[gnu::cold]] int poll_by_select(pollfd* fds, nfds_t count, const timespec* timeout,
                                 const sigset_t* mask, nfds_t asked, SelectCall call) noexcept;

}  // namespace ringroad
