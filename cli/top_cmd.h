// `ringroad top`: rates of streams, processes or rules, over and over.
#pragma once

namespace CLI {
class App;
}

namespace ringroad::cli {

// Adds the command to `app`. When it runs it sets `exit_status`, which must outlive `app`.
void add_top_command(CLI::App& app, int& exit_status);

}  // namespace ringroad::cli
