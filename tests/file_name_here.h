// The name of the statistics file of a process of this pid namespace, which need not be the initial one.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "rsocket-core/stats/file_name.h"

namespace ringroad::test {

inline std::string file_name_here(pid_t pid) {
  struct stat status {};
  const std::uint64_t own = ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
  char text[stats::FileName::kBytes];
  stats::FileName::of(static_cast<std::uint32_t>(pid), own).write(text);
  return text;
}

}  // namespace ringroad::test
