#include "rsocket-core/mutex.h"

#include <linux/futex.h>

#include "rsocket-core/sys.h"

namespace ringroad {

// Whoever has slept cannot know whether others still do, and takes the lock as one that somebody awaits.
void Mutex::wait() noexcept {
  while (word_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
    sys::raw(SYS_futex, sys::word(&word_), FUTEX_WAIT_PRIVATE, kAwaited, 0);
  }
}

void Mutex::free_and_wake() noexcept {
  word_.store(kFree, std::memory_order_release);
  sys::raw(SYS_futex, sys::word(&word_), FUTEX_WAKE_PRIVATE, 1);
}

}  // namespace ringroad
