// The options of `ringroad bench`, as integration/bench/benches.json declares them: the programs that measure
// read the same file, and the command is built with its text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringroad::cli {

struct BenchOption {
  std::string name;   // "--rounds"
  std::string value;  // what the help calls its value; empty: a flag
  std::string help;   // in lines
};

// Of one bench, "net" for one, or of all that measure: "shared".
std::vector<BenchOption> bench_options(std::string_view bench);

// The file's text; defined in what cmake makes of benches_json.cc.in.
extern const char* const kBenchesJson;

}  // namespace ringroad::cli
