#include "policy/rule.h"

#include <fnmatch.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace ringroad::policy {
namespace {

bool is_name(std::string_view text) noexcept {
  return text.size() <= NAME_MAX && text.find('\0') == std::string_view::npos;
}

bool fits(std::string_view pattern, std::string_view name, int flags) noexcept {
  char terminated[2][NAME_MAX + 1];
  if (!is_name(pattern) || !is_name(name)) {
    return false;
  }
  terminated[0][pattern.copy(terminated[0], pattern.size())] = '\0';
  terminated[1][name.copy(terminated[1], name.size())] = '\0';
  // fnmatch sets errno when a name is not text in the host's locale.
  const int saved_errno = errno;
  const bool matched = fnmatch(terminated[0], terminated[1], flags) == 0;
  errno = saved_errno;
  return matched;
}

}  // namespace

std::string PortRange::to_string() const {
  return first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
}

bool Rule::subnet_matches(const Address& remote) const noexcept {
  return std::any_of(subnets.begin(), subnets.end(),
                     [&](const Prefix& subnet) { return subnet.contains(remote); });
}

bool Rule::port_matches(std::uint16_t service_port) const noexcept {
  return ports.empty() || std::any_of(ports.begin(), ports.end(), [&](const PortRange& range) {
           return range.contains(service_port);
         });
}

bool Rule::program_matches(const Program& program) const noexcept {
  return programs.empty() ||
         std::any_of(programs.begin(), programs.end(), [&](const std::string& pattern) {
           return glob_matches(pattern, program.file()) ||
                  (program.has_two_names() && glob_matches(pattern, program.called()));
         });
}

bool Rule::comm_matches(std::string_view comm) const noexcept {
  return comms.empty() || (!comm.empty() && std::any_of(comms.begin(), comms.end(),
                                                        [&](const std::string& pattern) {
                                                          return glob_matches(pattern, comm);
                                                        }));
}

bool Rule::unit_matches(std::string_view cgroup) const noexcept {
  if (units.empty()) return true;
  for (auto part = take_part(cgroup, "/"); !part.empty(); part = take_part(cgroup, "/")) {
    if (std::any_of(units.begin(), units.end(),
                    [&](const std::string& pattern) { return fits(pattern, part, FNM_NOESCAPE); })) {
      return true;
    }
  }
  return false;
}

bool Rule::cgroup_matches(std::string_view cgroup) const noexcept {
  return cgroups.empty() || std::any_of(cgroups.begin(), cgroups.end(), [&](const std::string& pattern) {
           return is_within(pattern, cgroup);
         });
}

bool Rule::label_matches(std::string_view all_labels) const noexcept {
  if (labels.empty()) return true;
  for (auto label = take_part(all_labels, kLabelSeparators); !label.empty();
       label = take_part(all_labels, kLabelSeparators)) {
    if (std::any_of(labels.begin(), labels.end(),
                    [&](const std::string& pattern) { return glob_matches(pattern, label); })) {
      return true;
    }
  }
  return false;
}

bool Rule::process_matches(const Process& process) const noexcept {
  return program_matches(process.program) && comm_matches(process.comm) && unit_matches(process.cgroup) &&
         cgroup_matches(process.cgroup) && label_matches(process.labels);
}

bool glob_matches(std::string_view pattern, std::string_view name) noexcept { return fits(pattern, name, 0); }

bool is_within(std::string_view pattern, std::string_view cgroup) noexcept {
  for (auto part = take_part(pattern, "/"); !part.empty(); part = take_part(pattern, "/")) {
    const std::string_view name = take_part(cgroup, "/");
    if (name.empty() || !fits(part, name, FNM_NOESCAPE)) return false;
  }
  return true;
}

bool is_literal(std::string_view pattern) noexcept {
  return pattern.find_first_of("*?[\\") == std::string_view::npos;
}

}  // namespace ringroad::policy
