// How many descriptors this process has open: what a test leaks shows as a difference.
#pragma once

#include <sched.h>

#include <cstdint>

#include "rsocket-core/base/deferred_close.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {

// Strange descriptors are closed on threads of their own (deferred_close.h): waits for those first, for
// ten seconds at most.
inline int open_descriptors() {
  const std::int64_t until = sys::now_ns() + 10'000'000'000;
  while (foreign_closes_under_way() > 0 && sys::now_ns() < until) sched_yield();
  int count = 0;
  for (int fd = 0; fd < 8192; ++fd) count += sys::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

}  // namespace ringroad
