// Where the preloaded library of this build or installation is.
#pragma once

#include <string>
#include <vector>

namespace ringroad::cli {

// The folder that this command is in.
std::string own_directory();

// Where it may be, best first, for a command in the folder `command_directory`: beside it in a
// build tree (../lib), then where it is installed.
std::vector<std::string> library_candidates(const std::string& command_directory);

// The first candidate that exists, for this very command. Empty when there is none; `looked_at`
// then tells where it was looked for.
std::string find_library(std::string& looked_at);

// Where a file of share/ringroad is for this very command, or would be if it were installed.
std::string share_file(const std::string& name);

// Why the loader would not preload this file ("it does not exist", ...); empty when it would.
std::string library_problem(const std::string& path);

}  // namespace ringroad::cli
