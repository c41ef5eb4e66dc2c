// Whether the library can be preloaded into a systemd service: into each command that the unit
// runs, as all of them get the unit's LD_PRELOAD.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/host.h"

namespace ringroad::cli {

struct UnitCommands {
  std::string problem;               // why nothing is known
  std::string root = "/";            // RootDirectory=
  std::string preload;               // LD_PRELOAD of its Environment=
  std::vector<std::string> main;     // the programs of ExecStart=
  std::vector<std::string> helpers;  // those of ExecStartPre=, ExecReload= and their like
};

UnitCommands read_unit_commands(doctor::Host& host, const std::string& name);

struct UnitVerdict {
  bool left_out = false;  // it is to be started without the library
  std::string text;       // one line about it
};

UnitVerdict judge_unit(const std::string& name, const UnitCommands& commands,
                       const std::string& library);

// The entries of an LD_PRELOAD but for those of the library.
std::string without_library(const std::string& preload, const std::string& library);

// An EnvironmentFile= for the unit: it takes the library out of its LD_PRELOAD. Without a need for
// it the file is removed. False with `why`.
bool write_environment_file(const std::string& path, const UnitCommands& commands,
                            const UnitVerdict& verdict, const std::string& library,
                            std::string& why);

}  // namespace ringroad::cli
