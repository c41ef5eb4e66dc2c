// Runs one command of the live host.
#pragma once

#include "cli/doctor/host.h"

namespace ringroad::cli::doctor {

// As Host::run. The command and what it started are killed together when its time is up.
CommandResult run_command(const Command& command);

}  // namespace ringroad::cli::doctor
