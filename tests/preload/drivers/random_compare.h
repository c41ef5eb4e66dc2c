// Runs random_operations plain or preloaded, and says where two transcripts part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/segment_reader.h"

namespace ringroad::test {

struct RandomRun {
  std::string mode;  // of random_operations
  std::uint64_t seed = 0;
  long count = 0;
  std::vector<long> only;  // of its operations, if any
  bool preloaded = false;
  bool from_the_first_byte = false;
};

struct RandomOutcome {
  std::string transcript;
  std::string errors;
  int status = -1;         // as Program::finish()
  bool ended = false;      // the transcript, in time
  cli::Snapshot snapshot;  // before the processes let go of their sockets
};

RandomOutcome run_random(const RandomRun& run, int timeout_ms);

// What to type to have the run again.
std::string command_of(const RandomRun& run);

// "": none. `more_edges`: edges that are told once more are no difference.
std::string first_difference(const std::string& plain, const std::string& preloaded, bool more_edges);

}  // namespace ringroad::test
