#include "cli/doctor/running_preload.h"

#include <sstream>
#include <string_view>

#include "cli/doctor/words.h"

namespace ringroad::cli::doctor {
namespace {

constexpr std::string_view kLibrary = "libringroad.so";

// Whether a line of the map ends with that file, or with one of that name where only a name is given.
bool is_mapped(const std::string& maps, const std::string& file) {
  const std::string name = file.find('/') == std::string::npos ? "/" + file : file;
  for (std::size_t at = maps.find(name); at != std::string::npos; at = maps.find(name, at + 1)) {
    const std::string_view rest = std::string_view(maps).substr(at + name.size());
    if (rest.empty() || rest.front() == '\n' || rest.starts_with(" (deleted)\n")) return true;
  }
  return false;
}

// The file behind a link is what the map names; /lib may be one to /usr/lib.
bool is_loaded(Host& host, const std::string& root, const std::string& maps, const std::string& file) {
  if (is_mapped(maps, file)) return true;
  const FileText target = host.link(root + file);
  const std::string folder = file.substr(0, file.rfind('/') + 1);
  const std::string named = target.text.starts_with('/') ? target.text : folder + target.text;
  if (target && is_mapped(maps, named)) return true;
  return file.starts_with("/lib") && is_loaded(host, root, maps, "/usr" + file);
}

}  // namespace

std::string RunningPreload::text() const {
  std::string result;
  for (const Preloaded& one : order) {
    result += (result.empty() ? "" : ", then ") + one.name + (one.is_loaded ? "" : " (not loaded)");
  }
  return result.empty() ? "nothing" : result;
}

RunningPreload read_running_preload(Host& host, const std::string& folder) {
  constexpr std::string_view kVariable = "LD_PRELOAD=";
  RunningPreload preload;
  const FileText maps = host.read(folder + "/maps");
  const FileText environment = host.read(folder + "/environ");
  if (!maps || !environment) {
    preload.error = maps ? environment.error : maps.error;
    return preload;
  }
  std::istringstream variables(environment.text);
  for (std::string variable; std::getline(variables, variable, '\0');) {
    if (variable.starts_with(kVariable)) preload.value = variable.substr(kVariable.size());
  }
  const std::string root = folder + "/root";
  std::vector<std::string> names = split(preload.value, ": ");
  for (const std::string& line : split(host.text(root + "/etc/ld.so.preload"), "\n")) {
    for (const std::string& name : split(line.substr(0, line.find('#')), " \t:")) names.push_back(name);
  }
  for (const std::string& name : names) {
    preload.order.push_back({name, is_loaded(host, root, maps.text, name)});
    preload.is_named |= last_part(name) == kLibrary;
  }
  preload.is_loaded = maps.text.find("/" + std::string(kLibrary)) != std::string::npos;
  return preload;
}

}  // namespace ringroad::cli::doctor
