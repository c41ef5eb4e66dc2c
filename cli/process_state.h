// Whether the process that wrote something down is still there.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace ringroad::cli {

// True when `pid` runs and began at `start_ticks` (field 22 of /proc/PID/stat; 0: not known, any
// process of that number counts). A zombie does not run. Where /proc hides the process, its
// existence is all that can be told.
bool process_runs(pid_t pid, std::uint64_t start_ticks) noexcept;

}  // namespace ringroad::cli
