// Jumps out of handlers of signals: siglongjmp(3), longjmp(3), setcontext(3).
//
// A handler that has interrupted a call of the library's may jump to a place outside of that call. The
// library's frames hold references, counts and entries of lists, so they have to return first: the jump is
// noted, lands at the nearest pad (cancellation.h), and the outermost wrapper makes it. A jump that stays
// within the handler is libc's alone. Where a jump goes is told by the stack pointer in its target.
//
// What can not be told is a handler that leaves the call by other means: it throws, or it switches to another
// stack for good.
//
// Thread rule: everything here concerns the calling thread alone.
#pragma once

#include "rsocket-core/stream/unmanaged_waiters.h"

namespace ringroad::preload::jumps {

// A jump was caught, and is to be made.
bool is_pending() noexcept;
void forget() noexcept;
// Makes it. Nothing of the library's is between here and its target, but perhaps an outer call's.
[[noreturn]] void make();
// The handler's mask of signals is to hold after it returns, as it would after the jump. `context` is its
// third argument.
void keep_mask(void* context) noexcept;
// A handler that has forked is the child's main program from now on: PostgreSQL's postmaster starts its
// processes so. fork() has made libc's locks whole, so the child may make threads there.
void after_fork_child() noexcept;

// A wrapped handler that runs. A jump out of it also leaves the wait in libc that it has interrupted, which
// has no pad: this knows how many there were (unmanaged_waiters.h). No destructor ends it, as an unwinder
// would have to call that.
struct HandlerFrame {
  HandlerFrame* outer;
  unmanaged_waiters::Waits waits;

  void begin() noexcept;
  void end() noexcept;
};

}  // namespace ringroad::preload::jumps
