// A thread that sleeps until something about a stream changes.
//
// Sleepers wait in the kernel on the stream's own descriptors (its TCP socket or its channel's
// wait_fd) *and* on one eventfd of their thread. The eventfd is how another thread of the process
// (the agent, a shutdown(), a reader that found credits for a writer) tells a sleeper to look
// again. It is per thread, so that no wake-up can be swallowed by another sleeper.
#pragma once

#include <atomic>
#include <boost/intrusive/list.hpp>

#include "rsocket-core/mutex.h"

namespace ringroad {

// The calling thread's eventfd (non-blocking, high number), made on first use and closed when the
// thread ends; -1 with errno when there is none to be had.
int thread_wake_fd() noexcept;
// In the child of a fork: the parent's eventfds are shared with it and must not be used.
void forget_wake_fds_after_fork() noexcept;

// Lives on the sleeping thread's stack, or in an EpollSet, in at most one WaitList at a time.
struct Waiter : boost::intrusive::list_base_hook<> {
  int wake_fd = -1;
  short events = 0;  // POLLIN and POLLOUT bits that it sleeps for
  // Called instead of writing to wake_fd, if it is set: by any thread, with the stream's locks held.
  void (*woken)(Waiter&) noexcept = nullptr;
};

// Thread rule: any thread.
class WaitList {
 public:
  void add(Waiter& waiter) noexcept RR_EXCLUDES(mutex_);
  void remove(Waiter& waiter) noexcept RR_EXCLUDES(mutex_);
  // Wakes the waiters that sleep for one of `events`, `except` one. Costs one load when nobody sleeps.
  void wake(short events, const Waiter* except = nullptr) noexcept RR_EXCLUDES(mutex_);
  bool empty() const noexcept { return count_.load(std::memory_order_seq_cst) == 0; }

 private:
  Mutex mutex_;
  boost::intrusive::list<Waiter> waiters_ RR_GUARDED_BY(mutex_);
  std::atomic<unsigned> count_{0};
};

}  // namespace ringroad
