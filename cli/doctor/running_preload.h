// What a running process has preloaded, and which of those comes first.
//
// The loader takes LD_PRELOAD before /etc/ld.so.preload, each from left to right; of a function that several
// have, the first one's is called (ld.so(8)).
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/host.h"

namespace ringroad::cli::doctor {

struct Preloaded {
  std::string name;  // as it is asked for
  bool is_loaded = false;
};

struct RunningPreload {
  int error = 0;                  // why nothing is known
  std::string value;              // the LD_PRELOAD that it was started with
  std::vector<Preloaded> order;   // the first one first
  bool is_named = false;          // the library, somewhere in it
  bool is_loaded = false;         // the library

  std::string text() const;  // "libjemalloc.so.2, then libringroad.so"
};

// `folder`: "/proc/4711".
RunningPreload read_running_preload(Host& host, const std::string& folder);

}  // namespace ringroad::cli::doctor
