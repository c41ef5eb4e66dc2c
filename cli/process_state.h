// Whether the process that wrote something down is still there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace ringroad::cli {

// True when `pid` runs and began at `start_ticks` (field 22 of /proc/PID/stat; 0: not known, any
// process of that number counts). A zombie does not run. Where /proc hides the process, its
// existence is all that can be told.
bool process_runs(pid_t pid, std::uint64_t start_ticks) noexcept;

// Whether a file of user `owner` can be the process' own: root's, also the root's of its user namespace, or
// of one of the users that the process has been (its real, effective, saved or file-system user). True where
// the process has ended or /proc hides it.
bool may_be_of(pid_t pid, uid_t owner);

// The file of the library that a process has preloaded, as its memory map names it; empty: none, or
// it may not be looked at.
std::string mapped_library(pid_t pid);

// Why a running process, or a number that is none, has no segment, which would be `path`. A sentence without
// its full stop.
std::string why_no_segment(pid_t pid, const std::string& path);

}  // namespace ringroad::cli
