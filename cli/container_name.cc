#include "cli/container_name.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "policy/process.h"

namespace ringroad::cli {
namespace {

constexpr std::size_t kLongestName = 63;  // a column's; as of a host's name

// Of the words of RINGROAD_LABELS the value of this one.
std::string label_value_of(std::string_view labels, std::string_view key) {
  while (!labels.empty()) {
    const std::string_view word = policy::take_part(labels, policy::kLabelSeparators);
    if (word.size() > key.size() + 1 && word.starts_with(key) && word[key.size()] == '=') {
      return std::string(word.substr(key.size() + 1));
    }
  }
  return {};
}

// Without it a system call filter might end this process for the attempt.
bool may_enter_namespaces() {
  constexpr unsigned kSysAdmin = 21;
  constexpr const char* kKey = "\nCapEff:";
  const std::string status = ProcessFolder(getpid()).text("status");
  const std::size_t at = status.find(kKey);
  return at != std::string::npos &&
         (std::strtoull(status.c_str() + at + std::strlen(kKey), nullptr, 16) >> kSysAdmin & 1U) != 0;
}

}  // namespace

std::string end_of_cgroup(const std::string& cgroup) {
  constexpr std::size_t kDigits = 64;
  constexpr std::size_t kShown = 12;
  const std::string last = cgroup.substr(cgroup.rfind('/') + 1);
  std::size_t digits = 0;
  for (std::size_t i = 0; i < last.size(); ++i) {
    const bool is_digit = (last[i] >= '0' && last[i] <= '9') || (last[i] >= 'a' && last[i] <= 'f');
    digits = is_digit ? digits + 1 : 0;
    if (digits == kDigits) return last.substr(i + 1 - kDigits, kShown);
  }
  return last;
}

// Nothing but a process in that namespace is told its name.
std::string ContainerNames::host_name(const ProcessFolder& process) {
  const std::uint64_t its = process.name_space("uts");
  if (its == 0 || its == own_name_space("uts")) return {};
  if (const auto known = host_names_.find(its); known != host_names_.end()) return known->second;
  std::string& name = host_names_[its];
  if (!may_enter_namespaces()) return name;
  const std::string path = "/proc/" + std::to_string(process.pid()) + "/ns/uts";
  const int own = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
  const int other = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  char text[HOST_NAME_MAX + 1] = {};
  if (own >= 0 && other >= 0 && fstat(other, &status) == 0 && status.st_ino == its &&
      setns(other, CLONE_NEWUTS) == 0) {
    if (gethostname(text, sizeof text - 1) == 0) name = text;
    static_cast<void>(setns(own, CLONE_NEWUTS) == 0);
  }
  if (own >= 0) close(own);
  if (other >= 0) close(other);
  return name;
}

ContainerName ContainerNames::of(const ProcessFolder& process, const std::string& environment) {
  ContainerName result;
  result.cgroup = policy::cgroup_of(process.text("cgroup"));
  const std::string labels = variable_of(environment, "RINGROAD_LABELS");
  std::string& name = result.name;
  name = label_value_of(labels, "container");
  if (name.empty()) name = label_value_of(labels, "pod");
  if (name.empty()) name = host_name(process);
  if (name.empty()) name = end_of_cgroup(result.cgroup);
  if (name.empty()) name = "pid:[" + std::to_string(process.name_space("pid")) + "]";
  if (name.size() > kLongestName) name.resize(kLongestName);
  return result;
}

}  // namespace ringroad::cli
