// Asks a preloaded process to move its streams (rsocket-core/process/control_socket.h), and watches it do so.
//
// Thread rule: free functions without state. Errors are values; std::bad_alloc may be thrown.
#pragma once

#include <chrono>
#include <string>

#include "cli/process_report.h"
#include "cli/segment_place.h"
#include "rsocket-core/process/control_socket.h"

namespace ringroad::cli {

// False with `why`, a sentence without its full stop, when nobody can be asked there.
bool ask(const SegmentSource& source, pid_t pid, control::Mode mode, std::uint64_t serial,
         std::string& why);

// What has become of it, in the process' own words.
struct Progress {
  bool obeys = false;       // the process has told every stream; what follows holds only then
  std::size_t there = 0;    // streams on the carrier that was asked for
  std::size_t moving = 0;   // on their way
  std::size_t waiting = 0;  // the connecting end has to begin, or will try again
  std::size_t staying = 0;  // on TCP, with a reason

  bool over() const noexcept { return obeys && moving == 0 && waiting == 0; }
};
// What is said of a process that was asked and does not obey.
std::string no_answer(const ProcessReport& process);

Progress progress_of(const ProcessReport& process, control::Mode mode,
                     std::uint64_t serial) noexcept;

// Reads the process' segment until its progress is over() or `until` has passed; `process` and
// `progress` are what was seen last. False with `why` when it cannot be read any more.
bool watch(const SegmentSource& source, pid_t pid, control::Mode mode, std::uint64_t serial,
           std::chrono::steady_clock::time_point until, ProcessReport& process, Progress& progress,
           std::string& why);

// For one request: differs from all others of this host, for all that matters. Not 0.
std::uint64_t new_serial() noexcept;

}  // namespace ringroad::cli
