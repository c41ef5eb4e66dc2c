// What an operator calls the container that a process is in.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cli/process_folder.h"

namespace ringroad::cli {

struct ContainerName {
  std::string name;    // the container's own words, or the end of `cgroup`; may hold control characters
  std::string cgroup;  // as this command sees it: the kernel's word, which the container cannot choose
};

// Thread rule: one thread; for the time of of() the caller may be in the process' UTS namespace.
class ContainerNames {
 public:
  // Of a process in another pid namespace than this command's; `environment` is the text of its
  // /proc/PID/environ. The name is the first that there is of: the word container=NAME or pod=NAME of its
  // RINGROAD_LABELS; the host's name in its UTS namespace, where that is not this command's; the last part of
  // its cgroup, of an identifier of 64 digits the first 12; its pid namespace.
  ContainerName of(const ProcessFolder& process, const std::string& environment);

 private:
  std::string host_name(const ProcessFolder& process);
  std::map<std::uint64_t, std::string> host_names_;  // by UTS namespace
};

// "/system.slice/docker-0123...f.scope" is 0123456789ab.
std::string end_of_cgroup(const std::string& cgroup);

}  // namespace ringroad::cli
