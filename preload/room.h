// Room for the program's descriptors, where its soft limit on them is its hard one: what the library has is given
// back as soon as the program comes near to the limit, or meets it. Of runtime.h, for the outermost wrappers: no frame
// here has anything for an unwinder to do.
#pragma once

#include <atomic>
#include <cerrno>
#include <limits>

#include "preload/cancellation.h"
#include "preload/real.h"
#include "preload/runtime.h"
#include "rsocket-core/signals.h"

namespace ringroad::preload::room {

// What the library itself opens is given back with the rest. And a handler of a fault may have interrupted who has
// a lock.
inline bool may_give_back() { return !cancellation::inside && signals::thread_state.depth == 0; }

inline bool come_near(int number) noexcept {
  runtime::come_near(number);
  return true;
}
RR_NOINLINE inline void note_near(int number) {
  if (may_give_back()) cancellation::no_point<come_near>(number);
}

// A call has failed, with its errno. True: the library had what it lacked, and it is to be made again.
RR_NOINLINE inline bool came_free() {
  return errno == EMFILE && may_give_back() && cancellation::no_point<runtime::made_room>();
}

// Whether there is a limit that the program may come near to.
inline bool is_looked_at() noexcept {
  return runtime::near_limit.load(std::memory_order_relaxed) != std::numeric_limits<int>::max();
}

// What a call has returned: a number that the program has got, or -1.
inline void look_at(int number) {
  if (hardly_ever(number >= runtime::near_limit.load(std::memory_order_relaxed))) note_near(number);
}

}  // namespace ringroad::preload::room
