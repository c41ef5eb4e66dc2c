#include "policy/rule.h"

#include <fnmatch.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace ringroad::policy {

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

bool glob_matches(const std::string& pattern, std::string_view name) noexcept {
  char terminated[NAME_MAX + 1];
  if (name.size() > NAME_MAX || name.find('\0') != std::string_view::npos) {
    return false;
  }
  name.copy(terminated, name.size());
  terminated[name.size()] = '\0';
  // fnmatch sets errno when a name is not text in the host's locale.
  const int saved_errno = errno;
  const bool matched = fnmatch(pattern.c_str(), terminated, 0) == 0;
  errno = saved_errno;
  return matched;
}

}  // namespace ringroad::policy
