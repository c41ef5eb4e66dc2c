// The `ringroad` command.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "cli/ab_cmd.h"
#include "cli/bench_cmd.h"
#include "cli/doctor_cmd.h"
#include "cli/exporter/exporter_cmd.h"
#include "cli/library_file.h"
#include "cli/policy_cmd.h"
#include "cli/reasons_cmd.h"
#include "cli/run_cmd.h"
#include "cli/set_cmd.h"
#include "cli/ss_cmd.h"
#include "cli/top_cmd.h"

namespace ringroad::cli {
namespace {

enum ExitStatus { kFailed = 1, kWrongArguments = 2 };

constexpr const char* kVersion = "ringroad " RINGROAD_VERSION;

void print_version() {
  std::string looked_at;
  const std::string library = find_library(looked_at);
  std::printf("%s\n", kVersion);
  if (library.empty()) {
    std::printf("library: none at %s\n", looked_at.c_str());
  } else {
    std::printf("library: %s\n", library.c_str());
  }
}

bool has_command(const CLI::App& app, const std::string& name) {
  const auto is_it = [&](const CLI::App* command) { return command->get_name() == name; };
  return !app.get_subcommands(is_it).empty();
}

int run_command(std::vector<std::string> words) {
  int status = 0;
  std::vector<std::string> program;
  std::vector<std::string> load;
  CLI::App app(
      "Ringroad carries TCP connections of unmodified programs over RDMA queue pairs or shared\n"
      "memory, as a policy says, and gives them back to TCP whenever that is needed.",
      "ringroad");
  app.require_subcommand(1);
  app.set_version_flag("--version", kVersion);
  app.get_formatter()->column_width(26);
  add_run_command(app, program, status);
  add_policy_command(app, status);
  add_ss_command(app, status);
  add_reasons_command(app, status);
  add_top_command(app, status);
  add_set_command(app, status);
  add_ab_command(app, load, status);
  add_bench_command(app, status);
  add_doctor_command(app, status);
  add_exporter_command(app, status);
  app.add_subcommand("version", "Show the version, and the library that `ringroad run` preloads")
      ->callback(print_version);
  app.footer(
      "Examples:\n"
      "  ringroad policy check policy.toml\n"
      "  ringroad run --policy policy.toml -- mariadbd\n"
      "  ringroad ss\n"
      "  ringroad set all tcp\n"
      "\n"
      "`ringroad COMMAND --help` has more, also on exit statuses. Wrong arguments give 2.\n");
  if (!words.empty() && !words.front().starts_with('-') && !has_command(app, words.front())) {
    std::fprintf(stderr, "ringroad: there is no command \"%s\"; see ringroad --help\n",
                 words.front().c_str());
    return kWrongArguments;
  }
  program = take_program(app, words);
  load = take_load(words);
  try {
    std::reverse(words.begin(), words.end());  // as the parser wants it
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongArguments;
  }
  return status;
}

}  // namespace
}  // namespace ringroad::cli

int main(int argc, char** argv) {
  using namespace ringroad::cli;
  try {
    const int status = run_command(std::vector<std::string>(argv + (argc > 0), argv + argc));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      std::fprintf(stderr, "ringroad: cannot write the output: %s\n", strerrordesc_np(errno));
      return status != 0 ? status : kFailed;
    }
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ringroad: %s\n", error.what());
    return kFailed;
  }
}
