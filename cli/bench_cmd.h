// `ringroad bench`: compares TCP, Ringroad and its rivals. The benches are Python programs, in the
// folder `bench` beside what was built or installed; their options are told here.
#pragma once

namespace CLI {
class App;
}

namespace ringroad::cli {

// Adds the command to `app`. It replaces this process by the bench, so `exit_status` is only set
// when that cannot be: 1. Both must outlive `app`.
void add_bench_command(CLI::App& app, int& exit_status);

}  // namespace ringroad::cli
