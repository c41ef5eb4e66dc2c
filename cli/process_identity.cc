#include "cli/process_identity.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "cli/process_folder.h"
#include "cli/process_state.h"

namespace ringroad::cli {
namespace {

// False: it cannot be read.
bool read_text(const std::string& path, std::string& text) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  text.assign(std::istreambuf_iterator<char>(file), {});
  return !file.bad();
}

std::string link_of(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::read_symlink(path, ignored);
}

// False, too, where one of them may not be looked at.
bool are_two_files(const std::string& a, const std::string& b) {
  struct stat one;
  struct stat other;
  return stat(a.c_str(), &one) == 0 && stat(b.c_str(), &other) == 0 &&
         (one.st_dev != other.st_dev || one.st_ino != other.st_ino);
}

// The kernel shows a cgroup as the reader's namespace has it, so the caller goes into the process'.
// "" where it may not.
std::string cgroup_as_seen_by(const std::string& folder) {
  const int own = open("/proc/self/ns/cgroup", O_RDONLY | O_CLOEXEC);
  const int its = open((folder + "/ns/cgroup").c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_other = are_two_files("/proc/self/ns/cgroup", folder + "/ns/cgroup");
  const bool entered = is_other && its >= 0 && own >= 0 && setns(its, CLONE_NEWCGROUP) == 0;
  std::string text;
  if (!is_other || entered) read_text(folder + "/cgroup", text);
  if (entered && setns(own, CLONE_NEWCGROUP) != 0) text.clear();
  if (own >= 0) close(own);
  if (its >= 0) close(its);
  return std::string(policy::cgroup_of(text));
}

}  // namespace

policy::Process ProcessIdentity::facts() const {
  policy::Process process(policy::Program(file, called));
  process.comm = comm;
  process.cgroup = cgroup;
  process.labels = labels;
  return process;
}

ProcessIdentity identify(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  ProcessIdentity process;
  if (!read_text(folder + "/comm", process.comm)) {
    process.problem = "there is no process " + std::to_string(pid) + ", or /proc hides it";
    return process;
  }
  if (process.comm.ends_with('\n')) process.comm.pop_back();
  process.file = link_of(folder + "/exe");
  if (process.file.empty()) {
    process.problem = folder + "/exe cannot be read: only root and the process' user may";
    return process;
  }
  std::string words;
  if (read_text(folder + "/cmdline", words)) process.called = words.c_str();
  process.cgroup = cgroup_as_seen_by(folder);
  std::string environment;
  std::string maps;
  process.may_be_looked_at =
      read_text(folder + "/environ", environment) && read_text(folder + "/maps", maps) && !maps.empty();
  process.library = mapped_library(pid);
  process.labels = variable_of(environment, "RINGROAD_LABELS");
  const std::string disable = variable_of(environment, "RINGROAD_DISABLE");
  process.is_disabled = !disable.empty() && disable != "0";
  if (are_two_files(folder + "/root/.", "/.")) process.root = folder + "/root";
  const std::string named = variable_of(environment, "RINGROAD_POLICY");
  if (named.starts_with('/')) {
    process.policy = process.root + named;
  } else if (!named.empty()) {
    process.policy = folder + "/cwd/" + named;
  }
  return process;
}

}  // namespace ringroad::cli
