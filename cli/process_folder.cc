#include "cli/process_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace ringroad::cli {

ProcessFolder::ProcessFolder(pid_t pid) noexcept : pid_(pid) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d", static_cast<int>(pid));
  fd_ = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

ProcessFolder::~ProcessFolder() {
  if (fd_ >= 0) close(fd_);
}

std::uint64_t ProcessFolder::name_space(const char* kind) const noexcept {
  char path[32];
  std::snprintf(path, sizeof path, "ns/%s", kind);
  struct stat status;
  return fd_ >= 0 && fstatat(fd_, path, &status, 0) == 0 ? status.st_ino : 0;
}

bool ProcessFolder::root(struct stat& status) const noexcept {
  return fd_ >= 0 && fstatat(fd_, "root/.", &status, 0) == 0;
}

std::string ProcessFolder::text(const char* name) const {
  std::string text;
  const int file = fd_ < 0 ? -1 : openat(fd_, name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char part[4096];
  for (ssize_t n; (n = read(file, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
  close(file);
  return text;
}

pid_t ProcessFolder::own_pid() const {
  constexpr const char* kKey = "\nNSpid:";
  const std::string status = text("status");
  const std::size_t begin = status.find(kKey);
  if (begin == std::string::npos) return 0;
  const std::string line = status.substr(begin + 1, status.find('\n', begin + 1) - begin - 1);
  return static_cast<pid_t>(std::strtol(line.c_str() + line.find_last_of("\t :") + 1, nullptr, 10));
}

std::uint64_t own_name_space(const char* kind) noexcept {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
  struct stat status;
  return stat(path, &status) == 0 ? status.st_ino : 0;
}

std::string variable_of(const std::string& environment, const std::string& name) {
  const std::string start = name + "=";
  for (std::size_t at = 0; at < environment.size(); at = environment.find('\0', at) + 1) {
    const std::string entry = environment.c_str() + at;
    if (entry.starts_with(start)) return entry.substr(start.size());
    if (environment.find('\0', at) == std::string::npos) break;
  }
  return {};
}

}  // namespace ringroad::cli
