// Sleeping on a word of memory that other processes may map too, futex(2).
//
// Thread rule: any thread.
#pragma once

#include <linux/futex.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include "rsocket-core/base/system_call.h"

namespace ringroad::sys {

// Sleeps while `word` has that `value`. As ppoll(2): 1 if it has another or was woken, 0 after the timeout,
// -1 with errno EINTR. A handler with SA_RESTART ends the sleep only where there is a timeout.
inline int futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t value,
                      const timespec* timeout) noexcept {
  const int saved = errno;
  if (call(SYS_futex, word, FUTEX_WAIT, value, timeout) == 0) return 1;
  if (errno == EINTR) return -1;
  const bool late = errno == ETIMEDOUT;
  errno = saved;
  return late ? 0 : 1;
}
// Changes `word`, and wakes all that sleep there.
inline void futex_ring(std::atomic<std::uint32_t>& word) noexcept {
  word.fetch_add(1, std::memory_order_seq_cst);
  raw(SYS_futex, sys::word(&word), FUTEX_WAKE, INT_MAX);
}

}  // namespace ringroad::sys
