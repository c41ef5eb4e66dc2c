// The measurement of `ringroad ab`: the processes' streams alternate between TCP and their channels
// while a load runs, and each phase is counted.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "cli/load_command.h"
#include "cli/paired.h"
#include "cli/segment_place.h"
#include "rsocket-core/process/control_socket.h"

namespace ringroad::cli {

struct AbPlan {
  SegmentSource source;
  std::vector<pid_t> pids;
  std::chrono::milliseconds period{5000};
  unsigned rounds = 6;  // at most 20
  std::chrono::milliseconds warm_up{5000};
  std::chrono::milliseconds move{2000};  // longest wait for the streams to be on their carrier
};

// One carrier's part of one round, counted from when every stream was there.
struct Phase {
  unsigned round = 0;  // from 1
  control::Mode mode = control::Mode::kTcp;
  double seconds = 0;
  double move_ms = 0;         // from the request until every stream was there
  std::size_t elsewhere = 0;  // streams that were not, when the counting began
  double messages_per_s = 0;  // receive calls of the processes that returned bytes
  double bytes_per_s = 0;     // both directions
  double channel_share = 0;   // of those bytes; 0 .. 1
  double cpu_s_per_s = 0;     // of the processes, user and system
  double cpu_us_per_message = 0;
  double tps = 0;         // as sysbench reported; 0: it did not
  double latency_ms = 0;  // the same
  double errors_per_s = 0;
};

struct AbResult {
  std::vector<Phase> phases;  // in the order in which they ran
  std::string problem;        // why there are fewer than planned; empty: there are all
};

// Sends progress to stderr. The processes get back the mode that they had. May throw
// std::bad_alloc.
AbResult run_ab(const AbPlan& plan, LoadCommand& load);

// One measure of the two carriers: tcp as a, the channel as b, paired by round.
std::vector<Pair> pairs_of(const AbResult& result, double Phase::*measure);

}  // namespace ringroad::cli
