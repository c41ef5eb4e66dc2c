// What the policy asks of a running process, read from outside.
//
// Thread rule: one thread; for the time of identify() the caller is in the process' cgroup namespace.
#pragma once

#include <sys/types.h>

#include <string>

#include "policy/process.h"

namespace ringroad::cli {

struct ProcessIdentity {
  std::string problem;  // why nothing is known
  std::string file;     // the executable file's path
  std::string called;   // argv[0]
  std::string comm;
  std::string cgroup;   // as the process sees it
  std::string labels;   // RINGROAD_LABELS
  std::string policy;   // RINGROAD_POLICY, by a path that leads there from here
  std::string root;     // in front of its other paths: "", or "/proc/PID/root" where its files are others
  // The preloaded library; "" where there is none, or where it may not be looked at.
  std::string library;
  bool may_be_looked_at = false;  // its map and its environment
  bool is_disabled = false;       // by RINGROAD_DISABLE

  // Refers to this object.
  policy::Process facts() const;
};

// As it is now. The library keeps what it has read at first.
ProcessIdentity identify(pid_t pid);

}  // namespace ringroad::cli
