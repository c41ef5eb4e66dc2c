// Room for the program's descriptors, where its soft limit on them is its hard one: what the library has is
// given back as soon as the program comes near to the limit, or meets it.
//
// make_room(), come_near() and give_way() do it. The inline functions are for the outermost wrappers: no
// frame there has anything for an unwinder to do.
#pragma once

#include <atomic>
#include <cerrno>
#include <limits>

#include "preload/cancellation.h"
#include "rsocket-core/base/hints.h"
#include "rsocket-core/base/signals.h"

namespace ringroad::preload::fd_room {

// A call of the program's has found no free descriptor (EMFILE). True: the library has given back some of its
// own, and the call is to be made again. Keeps errno.
bool make_room() noexcept;
// From this number on the program comes near to its limit on descriptors, where the library's count for
// that, too.
extern std::atomic<int> near_limit;
// It has got such a one: if it has, the library gives back its own. Keeps errno.
void come_near(int number) noexcept;
// The program wants one of the library's own numbers for a descriptor. False: it is in use still, or beyond
// the program's limit. Keeps errno.
bool give_way(int number) noexcept;

// The next descriptor finds out how near the limit is.
inline void ask_again() noexcept { near_limit.store(0, std::memory_order_relaxed); }
void after_fork_child() noexcept;

// `call` makes a descriptor. It is made again where the library had what it lacked.
template <typename Call>
inline int with_room(Call call) {
  const int result = call();
  if (hardly_ever(result < 0)) return errno == EMFILE && make_room() ? call() : result;
  if (hardly_ever(result >= near_limit.load(std::memory_order_relaxed))) come_near(result);
  return result;
}

// ---- for the outermost wrappers

// What the library itself opens is given back with the rest. And a handler of a fault may have interrupted
// a thread that has a lock.
inline bool may_give_back() { return !cancellation::inside && signals::thread_state.depth == 0; }

inline bool note_number(int number) noexcept {
  come_near(number);
  return true;
}
RR_NOINLINE inline void note_near(int number) {
  if (may_give_back()) cancellation::no_point<note_number>(number);
}

// A call has failed, with its errno. True: the library had what it lacked, and it is to be made again.
RR_NOINLINE inline bool came_free() {
  return errno == EMFILE && may_give_back() && cancellation::no_point<make_room>();
}

// Whether there is a limit that the program may come near to.
inline bool is_looked_at() noexcept {
  return near_limit.load(std::memory_order_relaxed) != std::numeric_limits<int>::max();
}

// What a call has returned: a number that the program has got, or -1.
inline void look_at(int number) {
  if (hardly_ever(number >= near_limit.load(std::memory_order_relaxed))) note_near(number);
}

}  // namespace ringroad::preload::fd_room
