#include "cli/doctor/unit.h"

#include <sstream>

namespace ringroad::cli::doctor {

Unit parse_unit(const std::string& text) {
  Unit unit;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    std::string& value = unit.properties[line.substr(0, equals)];
    value += (value.empty() ? "" : "; ") + line.substr(equals + 1);
  }
  return unit;
}

std::string Unit::program() const {
  // { path=/usr/sbin/mariadbd ; argv[]=/usr/sbin/mariadbd --x ; ignore_errors=no ; ... }
  const std::string start = (*this)["ExecStart"];
  const std::size_t at = start.find("path=");
  if (at == std::string::npos) return {};
  const std::string path = start.substr(at + 5, start.find_first_of(" ;", at) - at - 5);
  const std::size_t dashes = start.find(" -- ", at);
  if (last_part(path) != "ringroad" || dashes == std::string::npos) return path;
  return start.substr(dashes + 4, start.find(' ', dashes + 4) - dashes - 4);
}

Unit read_unit(Host& host, const std::string& name) {
  const CommandResult result = host.run(
      {"systemctl", "show", "--no-pager", "--property",
       "LoadState,ActiveState,MainPID,User,DynamicUser,PrivateDevices,DevicePolicy,DeviceAllow,"
       "RestrictAddressFamilies,PrivateNetwork,LimitMEMLOCK,LimitMEMLOCKSoft,LimitNOFILE,"
       "Environment,ExecStart,ProtectHome,RootDirectory,IPAddressDeny,NoNewPrivileges,"
       "AmbientCapabilities,CapabilityBoundingSet,SystemCallFilter,JoinsNamespaceOf,"
       "ProtectKernelModules,InaccessiblePaths,TemporaryFileSystem,AppArmorProfile",
       "--", name});
  Unit unit;
  if (!result) {
    unit.problem = "systemctl show " + name + ": " + result.problem();
    return unit;
  }
  unit = parse_unit(result.out);
  const std::string state = unit["LoadState"];
  if (state != "loaded") {
    unit.problem = "there is no such unit (" + (state.empty() ? "no LoadState" : state) + ")";
  }
  return unit;
}

}  // namespace ringroad::cli::doctor
