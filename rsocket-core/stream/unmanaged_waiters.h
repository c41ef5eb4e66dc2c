// Threads that wait in the kernel, in an epoll instance that is no EpollSet's: outside. The instance may get
// its first stream meanwhile, and its set knows nothing of those that came before. So while one waits
// outside, of whatever instance, sets wake the sleepers in theirs even if they know of no sleeper.
//
// As long as there is no set at all, in most processes for good, nobody asks, and a wait should cost next to
// nothing: a thread has a seat, where it says that it waits by plain stores. The first set has all threads
// pass a barrier, membarrier(2), and then counts those that sit. From then on each wait counts itself.
//
// Thread rule: any thread; a seat is its thread's own, and that of handlers which run there.
#pragma once

#include <atomic>

#include "rsocket-core/base/hints.h"
#include "rsocket-core/base/histogram.h"

namespace ringroad::unmanaged_waiters {

inline std::atomic<int> count RR_HIDDEN{0};
inline bool anybody() noexcept { return count.load(std::memory_order_seq_cst) > 0; }
// How many of these are this thread's: all that are left in the child of a fork, which a handler may
// have made inside a wait.
inline thread_local constinit int own_waits __attribute__((tls_model("initial-exec"))) = 0;
// A wait that counts itself.
inline void enter() noexcept {
  ++own_waits;
  count.fetch_add(1, std::memory_order_seq_cst);
}
inline void leave() noexcept {
  count.fetch_sub(1, std::memory_order_relaxed);
  --own_waits;
}

struct alignas(64) WaiterSlot {
  std::atomic<unsigned> waits{0};    // its thread's, with those of handlers inside one; written by it alone
  std::atomic<bool> counted{false};  // in `count`, by count_seated()
  std::atomic<bool> taken{false};

  // Behind this, and only then, the thread asks whether there is a set. A handler leaves `waits` as it was.
  void enter() noexcept {
    stats::add_alone(waits, 1);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  // And behind this again; if there is one leave_seat() follows.
  void leave() noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    stats::add_alone(waits, -1U);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
};

// The thread's waits, of both kinds.
struct Waits {
  int counted = 0;
  unsigned seated = 0;
};
Waits waits_of_thread() noexcept;
// A handler of a signal has jumped out of those that have come since.
void go_back_to(const Waits& before) noexcept;

// The thread's own; null if it has none.
inline thread_local constinit WaiterSlot* seat __attribute__((tls_model("initial-exec"))) = nullptr;
// Gives the thread one, if there is one left. Keeps errno.
[[gnu::cold]] void take_seat() noexcept;
// The thread sits no more, and perhaps was counted.
[[gnu::cold]] void leave_seat() noexcept;
// The kernel takes some 10 ms to get ready for the first barrier of a process with threads, and no time where
// there is one thread: that one does it ahead, before there are others. Does nothing where there are.
void prepare() noexcept;
// The first set has just been made, and nobody has been told of it yet.
void count_seated() noexcept;
// In the child of a fork, where nobody else is.
void forget_after_fork() noexcept;

}  // namespace ringroad::unmanaged_waiters
