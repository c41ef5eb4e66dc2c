#include "rsocket-core/stream/adaptive_poller.h"

#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>

namespace ringroad {
namespace {

// The waits up to the next probe, negative. The clock's digits, well mixed, are as good as random.
int until_probe(std::int64_t now_ns) noexcept {
  const std::uint64_t mixed = static_cast<std::uint64_t>(now_ns) * 0x9e37'79b9'7f4a'7c15;
  return static_cast<int>((mixed >> 32) % AdaptivePoller::kMostCredit) - AdaptivePoller::kProbeEvery;
}

}  // namespace

void PollerHost::yield() noexcept { sys::raw(SYS_sched_yield); }

long PollerHost::switches() noexcept {
  rusage usage{};
  sys::raw(SYS_getrusage, RUSAGE_THREAD, sys::word(&usage));
  return usage.ru_nivcsw;
}

void AdaptivePoller::in_vain(std::int64_t now_ns) noexcept {
  const int credit = credit_.load(std::memory_order_relaxed);
  credit_.store(credit > 0 ? credit - 1 : until_probe(now_ns), std::memory_order_relaxed);
}

void AdaptivePoller::others_want_it(std::int64_t from_ns, std::int64_t now_ns) noexcept {
  credit_.store(until_probe(now_ns), std::memory_order_relaxed);
  const std::int64_t last = pause_ns_.load(std::memory_order_relaxed);
  const bool again = from_ns < resumes_ns_.load(std::memory_order_relaxed) + last;
  const std::int64_t next = std::min(again ? 2 * last : now_ns - from_ns, kLongestPauseNs);
  pause_ns_.store(next, std::memory_order_relaxed);
  resumes_ns_.store(now_ns + next, std::memory_order_relaxed);
}

}  // namespace ringroad
