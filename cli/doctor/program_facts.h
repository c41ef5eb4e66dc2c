// What the files of a program say about preloading, written down.
#pragma once

#include <string>

#include "cli/preflight.h"

namespace ringroad::cli::doctor {

using cli::ProgramFacts;

// Where a program is looked for.
struct ProgramPlace {
  std::string name;        // a path, or a name to look for in PATH
  std::string root = "/";  // of the process in question, or "/proc/PID/root"
  std::string library;     // libringroad.so; empty: the one that came with this command
};

// As a line of a file, and back; what cannot be read gives EINVAL as its error.
std::string to_text(const ProgramFacts& facts);
ProgramFacts program_facts_from_text(const std::string& text);

}  // namespace ringroad::cli::doctor
