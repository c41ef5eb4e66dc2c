// Whether another process sleeps, for the programs of these tests that have one wake the other.
//
// Thread rule: one thread's.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/preload/programs/loopback.h"

namespace ringroad::test {

class OtherProcess {
 public:
  explicit OtherProcess(pid_t pid)
      : stat_(open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC)) {
    if (stat_ < 0) fail("open");
  }
  ~OtherProcess() { close(stat_); }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  // proc(5): the state stands behind the name in parentheses.
  void wait_until_asleep() const {
    for (char state = 0; state != 'S'; sched_yield()) {
      char text[256];
      const ssize_t n = pread(stat_, text, sizeof text - 1, 0);
      if (n <= 0) fail("stat");
      text[n] = '\0';
      const char* name_ends = std::strrchr(text, ')');
      if (name_ends == nullptr) fail("stat");
      state = name_ends[2];
    }
  }

 private:
  const int stat_;
};

}  // namespace ringroad::test
