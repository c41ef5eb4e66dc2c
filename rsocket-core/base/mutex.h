// Mutexes for clang's thread-safety analysis; lock_ranks.h tells in which order they are taken. No lock is
// held across a call that may sleep in the kernel, nor while a signal handler of the program's runs.
#pragma once

#include <atomic>
#include <cstdint>

#include "rsocket-core/base/hints.h"
#include "rsocket-core/base/lock_ranks.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/thread_annotations.h"

namespace ringroad {

// A word and the kernel's futex(2). Most locks of a stream are free when they are taken: libc's mutex costs
// some sixty instructions then, as it has kinds to tell apart and calls between them.
class RR_CAPABILITY("mutex") Mutex {
 public:
  constexpr Mutex() noexcept = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() noexcept RR_ACQUIRE() {
    signals::begin();
    if (!take()) wait();
  }
  // The same. True: nobody had it. A thread that has waited takes it as one that is awaited.
  bool lock_and_tell() noexcept RR_ACQUIRE() {
    signals::begin();
    if (take()) return true;
    wait();
    return false;
  }
  bool try_lock() noexcept RR_TRY_ACQUIRE(true) {
    signals::begin();
    if (take()) return true;
    signals::end();
    return false;
  }
  void unlock() noexcept RR_RELEASE() {
    give();
    signals::end();
  }
  // As unlock(). What others have left meanwhile: kAwaited, and of a MarkedMutex kMarked.
  std::uint32_t unlock_and_tell() noexcept RR_RELEASE() {
    const std::uint32_t left = give();
    signals::end();
    return left;
  }
  // The same in a stretch that no handler interrupts, which the caller has begun and does not end before.
  bool try_lock_within() noexcept RR_TRY_ACQUIRE(true) { return take(); }
  void unlock_within() noexcept RR_RELEASE() { give(); }
  std::uint32_t unlock_within_and_tell() noexcept RR_RELEASE() { return give(); }

  // In the child of a fork only: no other thread is left that could hold it. See
  // signals::forget_after_fork().
  void reset_after_fork() noexcept { word_.store(kFree, std::memory_order_relaxed); }

  static constexpr std::uint32_t kAwaited = 2;  // somebody may sleep until it is free
  static constexpr std::uint32_t kMarked = 4;   // somebody has passed by

 protected:
  bool try_lock_or_mark() noexcept RR_TRY_ACQUIRE(true);

 private:
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kTaken =
      1;  // a bit beside the two others; without it, it is being freed

  bool take() noexcept {
    std::uint32_t free = kFree;
    return word_.compare_exchange_strong(free, kTaken, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  std::uint32_t give() noexcept {
    if (hardly_ever(word_.fetch_sub(kTaken, std::memory_order_release) != kTaken)) {
      return free_and_wake();
    }
    return 0;
  }
  [[gnu::cold]] void wait() noexcept;
  [[gnu::cold]] std::uint32_t free_and_wake() noexcept;

  std::atomic<std::uint32_t> word_{kFree};
};

// For a thread that only passes by: takes it, or leaves a mark for the holder, which is told of the mark
// when it lets go, in whichever way it does.
class RR_CAPABILITY("mutex") MarkedMutex : private Mutex {
 public:
  using Mutex::kAwaited;
  using Mutex::kMarked;
  using Mutex::lock;
  using Mutex::try_lock_or_mark;
  using Mutex::try_lock_within;
  using Mutex::unlock_and_tell;
  using Mutex::unlock_within_and_tell;
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
