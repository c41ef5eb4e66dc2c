#include "cli/process_state.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "cli/process_folder.h"

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

// A time namespace has another begin of the time by which a process' start is told.
bool has_other_clock(pid_t pid) noexcept {
  const std::uint64_t its = ProcessFolder(pid).name_space("time");
  return its != 0 && its != own_name_space("time");
}

// The user that is root in the process' user namespace, as this process sees it; -1: not known.
uid_t root_of(pid_t pid) {
  std::ifstream map("/proc/" + std::to_string(pid) + "/uid_map");
  for (unsigned long inside, outside, length; map >> inside >> outside >> length;) {
    if (inside == 0) return static_cast<uid_t>(outside);
  }
  return static_cast<uid_t>(-1);
}

}  // namespace

bool process_runs(pid_t pid, std::uint64_t start_ticks) noexcept {
  if (pid <= 0) return false;
  Stat stat;
  if (!read_stat(pid, stat)) return kill(pid, 0) == 0 || errno == EPERM;
  if (start_ticks != 0 && stat.start_ticks != start_ticks && !has_other_clock(pid)) return false;
  // The first thread of a running process can have ended before the others.
  const bool ended = (stat.state == 'Z' && stat.threads <= 1) || stat.state == 'X';
  return !ended;
}

bool may_be_of(pid_t pid, uid_t owner) {
  if (owner == 0) return true;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    unsigned users[4];
    if (std::sscanf(line.c_str(), "Uid: %u %u %u %u", &users[0], &users[1], &users[2], &users[3]) == 4) {
      return std::find(std::begin(users), std::end(users), owner) != std::end(users) || owner == root_of(pid);
    }
  }
  return true;
}

std::string mapped_library(pid_t pid) {
  constexpr std::string_view kLibrary = "/libringroad.so";
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t begin = line.find('/');
    const std::size_t name = line.rfind('/');
    if (begin != std::string::npos && line.substr(name).starts_with(kLibrary)) {
      return line.substr(begin);
    }
  }
  return {};
}

std::string why_no_segment(pid_t pid, const std::string& path) {
  const std::string number = std::to_string(pid);
  if (!process_runs(pid, 0)) return "there is no process " + number;
  const std::string none = ": there is no " + path;
  if (!mapped_library(pid).empty()) {
    return "process " + number +
           " is preloaded, but has met no connection and no listener yet, or uses another "
           "directory, or cannot write to this one (its log says so)" +
           none;
  }
  std::ifstream maps("/proc/" + number + "/maps");
  if (maps.get() == std::ifstream::traits_type::eof()) {
    return "process " + number +
           (geteuid() == 0
                ? " has no segment here, and not even root may see whether it is preloaded: it is the "
                  "kernel's own, or protected"
                : " has no segment here, and belongs to another user, so that nobody but that user and root "
                  "can tell whether it is preloaded") +
           none;
  }
  return "process " + number + " is not preloaded" + none;
}

}  // namespace ringroad::cli
