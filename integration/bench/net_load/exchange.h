// A ping-pong's messages on a set of connections, at either end.
#pragma once

#include <chrono>
#include <vector>

#include "integration/bench/net_load/run.h"
#include "integration/bench/net_load/samples.h"

namespace net_load {

enum class End { kAsks, kAnswers };

using Clock = std::chrono::steady_clock;

inline std::int64_t nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Every message of the run on each connection; the times are the round trips of the end that asks.
// Throws std::system_error.
Samples exchange(const std::vector<int>& connections, const Run& run, End end);

}  // namespace net_load
