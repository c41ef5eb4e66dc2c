// `ringroad exporter`: metrics of every preloaded process, for Prometheus.
#pragma once

#include <CLI/CLI.hpp>

namespace ringroad::cli {

// Adds the command to `app`. The status to exit with is in `exit_status` when the command has run.
void add_exporter_command(CLI::App& app, int& exit_status);

}  // namespace ringroad::cli
