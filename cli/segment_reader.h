// Reads what preloaded processes say about themselves: the segments of rsocket-core/stats/segment_layout.h,
// as plain values for `ringroad ss` and whatever else shows them.
//
// The files belong to the processes, and anybody may put a file into their directory, so nothing
// in them is believed: sizes and enumerations are checked, and strings are cut at their NUL. How
// they are read while they change is segment_file.h's.
//
// Thread rule: free functions without state. Errors are values, in Snapshot::skipped;
// std::bad_alloc may be thrown.
#pragma once

#include <string>
#include <vector>

#include "cli/process_report.h"
#include "cli/segment_place.h"

namespace ringroad::cli {

struct SkippedFile {
  std::string path;
  std::string why;  // a sentence without its full stop
  bool of_running = false;  // the process is there, with the library preloaded
};

struct Snapshot {
  std::vector<ProcessReport> processes;  // by pid
  std::vector<SkippedFile> skipped;
  bool no_directory = false;  // it is there, but cannot be listed: `skipped` says why
};

// RINGROAD_RUNTIME_DIR, or the default.
std::string segment_directory();
// Whether that variable names one.
bool names_segment_directory();

// Of an ended process' segment kRunning looks at the header alone: what others left behind, however
// many and large, does not hold up a caller that asks for those that run.
enum class Which { kAll, kRunning };

// The segments of `source`; files whose name is none of a process (file_name.h) are none. A directory that
// does not exist holds none. `skipped` names those that cannot be read, also with kRunning. What belongs to a
// pid namespace of which this command sees no process is left out.
Snapshot read_segments(const SegmentSource& source, Which which = Which::kAll);

// Those of these processes only, also ended ones; each that has none that can be read is in
// `skipped`.
Snapshot read_segments_of(const SegmentSource& source, const std::vector<pid_t>& pids);

// The segment of one process. False with `why` set when it cannot be read.
bool read_segment(const SegmentPlace& place, ProcessReport& out, std::string& why);
// As this command's own pid namespace has it, by its path.
bool read_segment(const std::string& path, ProcessReport& out, std::string& why);

}  // namespace ringroad::cli
