// A process as /proc shows it. It is held open: all that is read here is of one process, though its number
// may come to name another.
//
// Thread rule: one thread. Errors are values.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace ringroad::cli {

class ProcessFolder {
 public:
  explicit ProcessFolder(pid_t pid) noexcept;
  ~ProcessFolder();
  ProcessFolder(const ProcessFolder&) = delete;
  ProcessFolder& operator=(const ProcessFolder&) = delete;

  pid_t pid() const noexcept { return pid_; }
  // The inode of its namespace of this kind: "pid", "mnt". 0: there is none, or it may not be looked at.
  std::uint64_t name_space(const char* kind) const noexcept;
  // Its root directory. False: it may not be looked at.
  bool root(struct stat& status) const noexcept;
  // "" where it may not be read.
  std::string text(const char* name) const;
  // Its number in its own pid namespace; 0: not known.
  pid_t own_pid() const;

 private:
  pid_t pid_;
  int fd_;
};

// The same of this process.
std::uint64_t own_name_space(const char* kind) noexcept;

// The value of a variable in the text of /proc/PID/environ; "" where it has none.
std::string variable_of(const std::string& environment, const std::string& name);

}  // namespace ringroad::cli
