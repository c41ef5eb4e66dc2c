// Mutexes with clang's thread-safety annotations (-Wthread-safety), and the order in which they are
// taken. A lock is never held across a call that may sleep in the kernel, nor while a signal
// handler of the program's runs.
//
// Rank (take in this order only):
//   0 descriptors::Change      a number changes its meaning, in the kernel and here
//   1 DescriptorTable::mutex_  who has which number
//   2 Agent::mutex_            which streams and listeners there are
//   3 EpollSet::mutex_         one epoll instance's streams
//   4 Stream::tx_mutex_        one stream's transmit side
//   5 Stream::rx_mutex_        one stream's receive side
//   6 WaitList::mutex_         who sleeps on a stream
//   7 EpollSet::dirty_mutex_   streams of an epoll instance that have news
//   8 inside a channel         receive-queue lock, then send-queue lock
//   9 Agent::queue_mutex_      the agent's commands
#pragma once

#include <pthread.h>

#include "rsocket-core/signals.h"

#if defined(__clang__)
#define RR_ANNOTATE(x) __attribute__((x))
#else
#define RR_ANNOTATE(x)
#endif
#define RR_CAPABILITY(x) RR_ANNOTATE(capability(x))
#define RR_SCOPED_CAPABILITY RR_ANNOTATE(scoped_lockable)
#define RR_GUARDED_BY(x) RR_ANNOTATE(guarded_by(x))
#define RR_PT_GUARDED_BY(x) RR_ANNOTATE(pt_guarded_by(x))
#define RR_REQUIRES(...) RR_ANNOTATE(requires_capability(__VA_ARGS__))
#define RR_EXCLUDES(...) RR_ANNOTATE(locks_excluded(__VA_ARGS__))
#define RR_ACQUIRE(...) RR_ANNOTATE(acquire_capability(__VA_ARGS__))
#define RR_TRY_ACQUIRE(...) RR_ANNOTATE(try_acquire_capability(__VA_ARGS__))
#define RR_RELEASE(...) RR_ANNOTATE(release_capability(__VA_ARGS__))
#define RR_NO_THREAD_SAFETY_ANALYSIS RR_ANNOTATE(no_thread_safety_analysis)

namespace ringroad {

class RR_CAPABILITY("mutex") Mutex {
 public:
  constexpr Mutex() noexcept = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() noexcept RR_ACQUIRE() {
    signals::begin();
    pthread_mutex_lock(&mutex_);
  }
  bool try_lock() noexcept RR_TRY_ACQUIRE(true) {
    signals::begin();
    if (pthread_mutex_trylock(&mutex_) == 0) return true;
    signals::end();
    return false;
  }
  void unlock() noexcept RR_RELEASE() {
    pthread_mutex_unlock(&mutex_);
    signals::end();
  }

  // In the child of a fork only: nobody else is left who could hold it. See
  // signals::forget_after_fork().
  void reset_after_fork() noexcept { mutex_ = PTHREAD_MUTEX_INITIALIZER; }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class RR_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) noexcept RR_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RR_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace ringroad
