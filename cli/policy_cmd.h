// `ringroad policy check` and `ringroad policy explain`: the dry run of a policy file.
#pragma once

namespace CLI {
class App;
}

namespace ringroad::cli {

// Adds the commands to `app`. When one of them runs it sets `exit_status`, which must outlive
// `app`: 0 valid, or a rule takes the connection off TCP; 1 the connection stays on TCP; 2 an
// error in the policy or in the arguments.
void add_policy_command(CLI::App& app, int& exit_status);

}  // namespace ringroad::cli
