// A systemd service as `systemctl show` tells it.
#pragma once

#include <map>
#include <string>

#include "cli/doctor/host.h"

namespace ringroad::cli::doctor {

struct Unit {
  std::string problem;                            // why nothing is known
  std::map<std::string, std::string> properties;  // several lines of one name: joined by "; "

  std::string operator[](const char* name) const {
    const auto found = properties.find(name);
    return found == properties.end() ? std::string() : found->second;
  }
  // What its ExecStart= runs, or has `ringroad run` start; empty: not known.
  std::string program() const;
};

// `name`: "mariadb" or "mariadb.service".
Unit read_unit(Host& host, const std::string& name);
Unit parse_unit(const std::string& text);

}  // namespace ringroad::cli::doctor
