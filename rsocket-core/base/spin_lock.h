// A lock for some instructions at a time. A thread that finds it taken tries again, as the caller says.
#pragma once

#include <atomic>

#include "rsocket-core/base/lock_ranks.h"
#include "rsocket-core/base/thread_annotations.h"

namespace ringroad {

class RR_CAPABILITY("mutex") SpinLock {
 public:
  bool try_lock() noexcept RR_TRY_ACQUIRE(true) { return !busy_.test_and_set(std::memory_order_acquire); }
  void unlock() noexcept RR_RELEASE() { busy_.clear(std::memory_order_release); }

 private:
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace ringroad
