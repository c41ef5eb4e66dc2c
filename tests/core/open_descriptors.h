// How many descriptors this process has open: what a test leaks shows as a difference.
#pragma once

#include <sched.h>

#include <cstdint>

#include "rsocket-core/sys.h"

namespace ringroad {

inline int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 8192; ++fd) count += sys::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// Strange descriptors are closed on a thread of their own (foreign_fd.h), so it may take a moment.
inline bool open_descriptors_return_to(int count) {
  const std::int64_t until = sys::now_ns() + 10'000'000'000;
  while (open_descriptors() != count) {
    if (sys::now_ns() > until) return false;
    sched_yield();
  }
  return true;
}

}  // namespace ringroad
