// `ringroad set`: moves the streams of running processes to TCP or to their channels.
#pragma once

namespace CLI {
class App;
}

namespace ringroad::cli {

// Adds the command to `app`. It sets `exit_status`: 0 every process has done it, 1 one could not, 2
// wrong arguments. Both must outlive `app`.
void add_set_command(CLI::App& app, int& exit_status);

}  // namespace ringroad::cli
