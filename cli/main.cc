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

// "policy chekc": the words that should name a command and do not; empty: they do.
std::string unknown_command(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string named;
  for (const std::string& word : words) {
    if (word.starts_with('-') || at->get_subcommands({}).empty()) return {};
    named += (named.empty() ? "" : " ") + word;
    const auto is_it = [&](const CLI::App* command) { return command->get_name() == word; };
    const auto below = at->get_subcommands(is_it);
    if (below.empty()) return named;
    at = below.front();
  }
  return {};
}

// A script's variable that is not set must not turn into the default. What `policy explain` is told of a
// process may well be nothing.
void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (!option->nonpositional() || option->get_items_expected_min() == 0) continue;
    option->check([](const std::string& value) -> std::string {
      return value.empty() ? "the value is empty" : "";
    });
  }
  for (CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() != "explain") refuse_empty_values(*command);
  }
}

// "ringroad ss: --carrier: foo not in {tcp,shm,rdma}; see ringroad ss --help"
std::string failure_message(const CLI::App* app, const CLI::Error& error) {
  std::string name = app->get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    name += " " + app->get_name();
  }
  return name + ": " + error.what() + "; see " + name + " --help\n";
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
  if (const std::string unknown = unknown_command(app, words); !unknown.empty()) {
    const std::size_t last = unknown.rfind(' ');
    std::fprintf(stderr, "ringroad: there is no command \"%s\"; see ringroad%s --help\n", unknown.c_str(),
                 last == std::string::npos ? "" : (" " + unknown.substr(0, last)).c_str());
    return kWrongArguments;
  }
  refuse_empty_values(app);
  app.failure_message(failure_message);
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
