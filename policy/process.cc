#include "policy/process.h"

#include <algorithm>

namespace ringroad::policy {

std::string_view take_part(std::string_view& text, std::string_view separators) noexcept {
  text.remove_prefix(std::min(text.find_first_not_of(separators), text.size()));
  const std::string_view part = text.substr(0, text.find_first_of(separators));
  text.remove_prefix(part.size());
  return part;
}

std::string_view cgroup_of(std::string_view proc_cgroup) noexcept {
  std::string_view unified;
  std::string_view systemd;
  // NUMBER:CONTROLLERS:PATH, one a hierarchy (cgroups(7)). A line without its end is cut short.
  for (std::size_t end = proc_cgroup.find('\n'); end != std::string_view::npos;
       end = proc_cgroup.find('\n')) {
    const std::string_view line = proc_cgroup.substr(0, end);
    proc_cgroup.remove_prefix(end + 1);
    const std::size_t controllers = line.find(':');
    const std::size_t path = line.find(":/");
    if (path == std::string_view::npos) continue;
    if (line.starts_with("0::")) unified = line.substr(path + 1);
    if (line.substr(controllers, path - controllers) == ":name=systemd") systemd = line.substr(path + 1);
  }
  return unified.size() <= 1 && systemd.size() > 1 ? systemd : unified;
}

}  // namespace ringroad::policy
