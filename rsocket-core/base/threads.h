// How many threads the process has.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include "rsocket-core/base/sys.h"

namespace ringroad {

// Those of the library included; 0 where /proc cannot tell. Any thread may ask, also in a handler.
// Errno is kept. The folder of the threads has a link for each (proc(5)), beside the two that any
// folder has. Libc's own __libc_single_threaded needs glibc 2.32.
inline unsigned thread_count() noexcept {
  struct stat tasks {};
  if (sys::raw(SYS_newfstatat, AT_FDCWD, reinterpret_cast<long>("/proc/self/task"),
               reinterpret_cast<long>(&tasks), 0) != 0) {
    return 0;
  }
  return tasks.st_nlink > 2 ? static_cast<unsigned>(tasks.st_nlink - 2) : 0;
}

}  // namespace ringroad
