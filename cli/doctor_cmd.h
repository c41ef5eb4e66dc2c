// `ringroad doctor`: whether this host, and one peer, are set up for Ringroad.
#pragma once

namespace CLI {
class App;
}

namespace ringroad::cli {

// Adds the command to `app`. When it has run, `exit_status` is 0 (all ok), 3 (something is not
// known), 4 (a warning), 5 (a failure), 1 (it could not be carried out) or 2 (wrong arguments).
void add_doctor_command(CLI::App& app, int& exit_status);

}  // namespace ringroad::cli
