// `ringroad ab`: compares TCP with the channel under one load that is never interrupted.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ringroad::cli {

// Adds the command to `app`. `load`: the command to run, see take_load(). It sets `exit_status`: 0
// every round was measured, 1 one was not, 2 wrong arguments. All must outlive `app`.
void add_ab_command(CLI::App& app, const std::vector<std::string>& load, int& exit_status);

// Where `words` (the arguments of `ringroad`) are those of `ringroad ab`, takes what stands after
// "--" out of them: the parser would interpret it.
std::vector<std::string> take_load(std::vector<std::string>& words);

}  // namespace ringroad::cli
