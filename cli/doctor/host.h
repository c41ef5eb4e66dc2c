// The host as the checks see it: files, folders, commands and what few system calls tell.
//
// There is the live host, and one that was recorded into a folder; a check cannot tell which it
// looks at. Thread rule: one thread. Errors are values; std::bad_alloc may be thrown.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "cli/doctor/program_facts.h"

namespace ringroad::cli::doctor {

// What is longer is cut: no file or output that a check reads is.
constexpr std::size_t kMostBytes = 8U << 20;
constexpr std::chrono::milliseconds kCommandTime{5000};

struct FileText {
  int error = 0;     // errno
  std::string text;  // without white space at its end
  explicit operator bool() const noexcept { return error == 0; }
};

struct FolderNames {
  int error = 0;
  std::vector<std::string> names;  // in order: 2 before 10
  explicit operator bool() const noexcept { return error == 0; }
};

struct FileStatus {
  int error = 0;
  mode_t mode = 0;
  uid_t owner = 0;
  gid_t group = 0;
  explicit operator bool() const noexcept { return error == 0; }
};

struct Command {
  std::vector<std::string> words;        // "ringroad" first: this very command
  std::vector<std::string> environment;  // NAME=VALUE, besides what there is
  std::chrono::milliseconds time = kCommandTime;
};

struct CommandResult {
  enum class End : unsigned char { kExited, kMissing, kTimedOut, kKilled, kFailed };
  End end = End::kMissing;
  int status = 0;  // exit status, signal (kKilled) or errno (kFailed)
  std::string out;
  std::string err;
  explicit operator bool() const noexcept { return end == End::kExited && status == 0; }
  bool missing() const noexcept { return end == End::kMissing; }
  // "not installed", "no answer within 5 s", the first line that it said on stderr, ...
  std::string problem() const;
};

class Host {
 public:
  Host() = default;
  virtual ~Host() = default;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  virtual FileText read(const std::string& path) = 0;
  virtual FolderNames list(const std::string& path) = 0;
  virtual FileText link(const std::string& path) = 0;  // what readlink(2) says
  virtual FileStatus status(const std::string& path) = 0;
  // Writes the question to a file of the kernel's that answers through the same descriptor (selinuxfs).
  virtual FileText ask(const std::string& path, const std::string& question) = 0;
  // Without a shell, with LC_ALL=C, nothing on its standard input, and killed when its time is up.
  virtual CommandResult run(const Command& command) = 0;
  virtual ProgramFacts program(const ProgramPlace& place) = 0;
  // Lets counters count. What is read afterwards is later.
  virtual void pass(std::chrono::milliseconds time) = 0;

  CommandResult run(std::vector<std::string> words) { return run(Command{std::move(words), {}}); }
  // The text, or empty.
  std::string text(const std::string& path) { return read(path).text; }
};

// Natural order of names that may hold numbers.
bool name_less(const std::string& a, const std::string& b) noexcept;
// Without white space at both ends.
std::string trimmed(const std::string& text);
// The last part of a path.
std::string last_part(const std::string& path);

}  // namespace ringroad::cli::doctor
