// What the exporter tells about the preloaded processes of this host: one table in metrics.cc, one
// entry a metric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cli/exporter/exposition.h"
#include "cli/segment_reader.h"

namespace ringroad::cli::exporter {

// A program chooses its rules' names, and anybody may start programs: what is beyond these bounds
// is counted, but gets no labels of its own.
inline constexpr std::size_t kMostProcesses = 1000;
inline constexpr std::size_t kMostRules = 64;                // of one process
inline constexpr const char* kOtherRules = "(other rules)";  // no rule can have that name

// Reads the segments again and again. Thread rule: one thread at a time.
class Collector {
 public:
  Collector(SegmentSource source, std::size_t most_processes)
      : source_(std::move(source)), most_processes_(most_processes) {}

  // Reads every segment. Counters are never less than the last time, for as long as the process
  // lives.
  std::string collect(Format format);

 private:
  SegmentSource source_;
  std::size_t most_processes_;
  History history_;
  std::uint64_t collections_ = 0;
};

}  // namespace ringroad::cli::exporter
