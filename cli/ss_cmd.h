// `ringroad ss`: the streams of every preloaded process of this host.
#pragma once

namespace CLI {
class App;
}

namespace ringroad::cli {

// Adds the command to `app`. When it runs it sets `exit_status`, which must outlive `app`, to 0.
void add_ss_command(CLI::App& app, int& exit_status);

}  // namespace ringroad::cli
