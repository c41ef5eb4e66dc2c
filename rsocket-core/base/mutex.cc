#include "rsocket-core/base/mutex.h"

#include <linux/futex.h>

#include "rsocket-core/base/sys.h"

namespace ringroad {

// A thread that has slept cannot know whether others do, and takes the lock as one that somebody awaits.
void Mutex::wait() noexcept {
  std::uint32_t now = word_.load(std::memory_order_relaxed);
  for (;;) {
    const std::uint32_t wanted = now == kFree ? kTaken | kAwaited : now | kAwaited;
    if (now != wanted && !word_.compare_exchange_weak(now, wanted, std::memory_order_acquire,
                                                      std::memory_order_relaxed)) {
      continue;
    }
    if (now == kFree) return;
    sys::raw(SYS_futex, sys::word(&word_), FUTEX_WAIT_PRIVATE, wanted, 0);
    now = word_.load(std::memory_order_relaxed);
  }
}

bool Mutex::try_lock_or_mark() noexcept {
  signals::begin();
  std::uint32_t now = word_.load(std::memory_order_relaxed);
  for (;;) {
    // What a thread that passes by has seen, the holder is to see, too.
    if (word_.compare_exchange_weak(now, now == kFree ? kTaken : now | kMarked,
                                    std::memory_order_acq_rel, std::memory_order_relaxed)) {
      break;
    }
  }
  if (now == kFree) return true;
  signals::end();
  return false;
}

// Until the word is free nobody takes the lock, but a thread that comes may still leave something.
std::uint32_t Mutex::free_and_wake() noexcept {
  const std::uint32_t left = word_.exchange(kFree, std::memory_order_acq_rel);
  if ((left & kAwaited) != 0) {
    sys::raw(SYS_futex, sys::word(&word_), FUTEX_WAKE_PRIVATE, 1);
  }
  return left;
}

}  // namespace ringroad
