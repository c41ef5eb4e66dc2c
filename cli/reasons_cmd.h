// `ringroad reasons`: what each reason for TCP means, and what to do about it.
#pragma once

#include <CLI/CLI.hpp>

namespace ringroad::cli {

// Adds the command to `app`. The status to exit with is in `exit_status` when the command has run.
void add_reasons_command(CLI::App& app, int& exit_status);

}  // namespace ringroad::cli
