// The library's own threads, and how many the process has.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include <cstddef>

#include "rsocket-core/base/signal_masks.h"
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

enum class Ends : int { kAlone = PTHREAD_CREATE_DETACHED, kJoined = PTHREAD_CREATE_JOINABLE };

// As pthread_create(3), with a stack of that size. No handler of the program's ever runs on the new thread,
// which begins with its maker's mask. Not in a handler. False: the process may have no more.
inline bool start_thread(pthread_t& thread, Ends ends, std::size_t stack_bytes, void* (*body)(void*),
                         void* argument) noexcept {
  const signals::BlockAll none_runs;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, static_cast<int>(ends));
  pthread_attr_setstacksize(&attributes, stack_bytes);
  const int error = pthread_create(&thread, &attributes, body, argument);
  pthread_attr_destroy(&attributes);
  return error == 0;
}

}  // namespace ringroad
