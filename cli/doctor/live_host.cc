#include "cli/doctor/live_host.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <thread>

#include "cli/doctor/command_run.h"
#include "cli/doctor/tree.h"
#include "cli/library_file.h"

namespace ringroad::cli::doctor {

FileText read_text(const std::string& path) {
  FileText result;
  // A pipe somewhere below /sys or /etc must not hold this command up.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    result.error = errno;
    return result;
  }
  char bytes[16384];
  while (result.text.size() < kMostBytes) {
    const ssize_t n = ::read(fd, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) result.error = errno;
    if (n <= 0) break;
    result.text.append(bytes, static_cast<std::size_t>(n));
  }
  close(fd);
  if (result.error != 0) result.text.clear();
  const std::size_t end = result.text.find_last_not_of(" \t\r\n");
  result.text.resize(end == std::string::npos ? 0 : end + 1);
  return result;
}

FolderNames list_folder(const std::string& path) {
  FolderNames result;
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) {
    result.error = errno;
    return result;
  }
  errno = 0;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") result.names.push_back(name);
  }
  result.error = errno;
  closedir(folder);
  std::sort(result.names.begin(), result.names.end(), name_less);
  return result;
}

FileText LiveHost::read(const std::string& path) { return read_text(path); }

FolderNames LiveHost::list(const std::string& path) { return list_folder(path); }

FileText LiveHost::link(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t n = readlink(path.c_str(), target, sizeof target);
  if (n < 0) return {errno, {}};
  return {0, std::string(target, static_cast<std::size_t>(n))};
}

FileStatus LiveHost::status(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return {errno, 0, 0, 0};
  return {0, status.st_mode, status.st_uid, status.st_gid};
}

FileText LiveHost::ask(const std::string& path, const std::string& question) {
  FileText answer;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return {errno, {}};
  char bytes[4096];
  ssize_t n = write(fd, question.data(), question.size());
  if (n >= 0) n = ::read(fd, bytes, sizeof bytes);
  if (n < 0) {
    answer.error = errno;
  } else {
    answer.text = trimmed(std::string(bytes, static_cast<std::size_t>(n)));
  }
  close(fd);
  return answer;
}

CommandResult LiveHost::run(const Command& command) {
  const std::string name = file_name(command.words);
  const auto found = said_.find(name);
  if (found != said_.end()) return found->second;
  return said_.emplace(name, run_command(command)).first->second;
}

ProgramFacts LiveHost::program(const ProgramPlace& place) {
  std::string looked_at;
  const std::string library = place.library.empty() ? find_library(looked_at) : place.library;
  return inspect_program(place.name, Root(place.root), library);
}

void LiveHost::pass(std::chrono::milliseconds time) {
  constexpr std::chrono::seconds kLong{3};
  if (time >= kLong && isatty(STDERR_FILENO) != 0) {
    std::fprintf(stderr, "ringroad doctor: watching the counters for %lld s\n",
                 static_cast<long long>(time.count() / 1000));
  }
  std::this_thread::sleep_for(time);
}

}  // namespace ringroad::cli::doctor
