#include "cli/process_state.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ringroad::cli {
namespace {

struct Stat {
  char state = '?';
  long threads = 0;
  unsigned long long start_ticks = 0;
};

// proc(5): pid (name) state ..., where the name may hold anything, parentheses too.
bool read_stat(pid_t pid, Stat& out) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[1024];
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return false;
  text[n] = '\0';
  const char* after_name = std::strrchr(text, ')');
  return after_name != nullptr &&
         std::sscanf(after_name + 1,
                     " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s "
                     "%llu",
                     &out.state, &out.threads, &out.start_ticks) == 3;
}

}  // namespace

bool process_runs(pid_t pid, std::uint64_t start_ticks) noexcept {
  if (pid <= 0) return false;
  Stat stat;
  if (!read_stat(pid, stat)) return kill(pid, 0) == 0 || errno == EPERM;
  if (start_ticks != 0 && stat.start_ticks != start_ticks) return false;
  // The first thread of a running process can have ended before the others.
  const bool ended = (stat.state == 'Z' && stat.threads <= 1) || stat.state == 'X';
  return !ended;
}

}  // namespace ringroad::cli
