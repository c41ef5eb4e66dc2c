// What is tried out in a process of its own, because libraries that are loaded may hang or crash:
// `ringroad doctor --probe-...`, which checks run as commands. Each prints one line, the result on
// stdout or the reason on stderr, and returns the exit status.
#pragma once

#include <string>

namespace ringroad::cli::doctor {

// Loads libringroad-verbs.so from beside `library` (libringroad.so; empty: this command's).
int probe_library(const std::string& library);

// Has rdma_cm listen at this address, on a port of its choice, and stops again.
int probe_listen(const std::string& address);

}  // namespace ringroad::cli::doctor
