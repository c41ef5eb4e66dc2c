// `ringroad run`: starts a program with the library preloaded.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ringroad::cli {

// Adds the command to `app`. When it runs, it replaces this process by `program`; if that fails
// it sets `exit_status`: 2 an error in the arguments or the policy, 126 the program cannot be run,
// 127 it is not there. Both must outlive `app`.
void add_run_command(CLI::App& app, const std::vector<std::string>& program, int& exit_status);

// Where `words` (the arguments of `ringroad`) are those of `ringroad run`, takes the program and
// its arguments out of them: what stands after "--", or after the last option of `run`. To be
// called before the arguments are parsed, because the parser would interpret the program's too.
std::vector<std::string> take_program(const CLI::App& app, std::vector<std::string>& words);

}  // namespace ringroad::cli
