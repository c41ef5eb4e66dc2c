// What has to happen before a descriptor number is closed or taken over by dup2().
#pragma once

#include "preload/descriptors.h"

namespace ringroad::preload {

// If `fd` is managed, its table entry goes and its stream, if this was the last number of it, is
// closed; the caller then makes the real call, which frees the number. What it named, if anything, which
// may end with this reference: after a descriptors::Change.
SocketRef before_number_goes(int fd) noexcept;
// The same during `change`, which knows whose memory this is: without a question to the kernel.
SocketRef before_number_goes(int fd, const descriptors::Change& change) noexcept;
// The same where the number has gone already, and names something else or nothing by now: libc closed it out
// of our sight, or a thread did by a close() that began when it was another's.
void number_is_gone(int fd) noexcept;

}  // namespace ringroad::preload
