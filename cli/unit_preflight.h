// Whether the library can be preloaded into a systemd service: into each command that the unit
// runs, as all of them get the unit's LD_PRELOAD.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/host.h"
#include "cli/unit_preload.h"

namespace ringroad::cli {

struct UnitCommands {
  std::string problem;               // why nothing is known
  std::string root = "/";            // RootDirectory=
  UnitPreload preload;
  std::vector<std::string> main;     // the programs of ExecStart=
  std::vector<std::string> helpers;  // those of ExecStartPre=, ExecReload= and their like
};

// `environment_file`: the one that write_environment_file() writes, or empty.
UnitCommands read_unit_commands(doctor::Host& host, const std::string& name,
                                const std::string& environment_file);

struct UnitVerdict {
  bool left_out = false;  // it is to be started without the library
  std::string text;       // one line about it
};

UnitVerdict judge_unit(const std::string& name, const UnitCommands& commands,
                       const std::string& library);

// The entries of an LD_PRELOAD but for those of the library. `had_it`: set to true if there was one.
std::string without_library(const std::string& preload, const std::string& library, bool* had_it = nullptr);

// An EnvironmentFile= for the unit: it takes the library out of its LD_PRELOAD, or adds it to what the unit
// preloads already, which Environment=LD_PRELOAD= of the generator's drop-in has replaced, or lost against.
// Without a need for it the file is removed. False with `why`.
bool write_environment_file(const std::string& path, const UnitCommands& commands,
                            const UnitVerdict& verdict, const std::string& library,
                            std::string& why);

}  // namespace ringroad::cli
