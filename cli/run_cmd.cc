#include "cli/run_cmd.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/library_file.h"
#include "cli/program_file.h"
#include "cli/usage.h"
#include "policy/policy.h"

namespace ringroad::cli {
namespace {

constexpr const char* kCommand = "run";

enum ExitStatus { kRefused = 2, kCannotRun = 126, kNotFound = 127 };

struct Arguments {
  std::string policy;
  std::string log;
  std::string log_level;
  std::string library;
  bool disable = false;
};

int refuse(const std::string& message) {
  std::fprintf(stderr, "ringroad run: %s\n", message.c_str());
  return kRefused;
}

// The program may change its folder before the library looks.
std::string absolute(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal();
}

const char* from_environment(const char* name) noexcept {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

bool set(const char* name, const std::string& value) {
  return setenv(name, value.c_str(), 1) == 0;
}

// A program under a policy that the library would refuse would silently run on TCP.
bool policy_is_valid(const char* named, policy::Limits& limits) {
  const policy::LoadResult loaded = policy::Policy::load_default(named);
  for (const policy::Error& error : loaded.errors) {
    std::fprintf(stderr, "%s\n", to_string(error).c_str());
  }
  if (!loaded) {
    std::fprintf(stderr, "ringroad run: the policy is refused, nothing was started\n");
    return false;
  }
  if (loaded.policy->rule_count() == 0) {
    std::fprintf(stderr, "ringroad run: warning: %s, so every connection stays on TCP\n",
                 loaded.policy->sources().empty()
                     ? "there is no policy (see --policy)"
                     : "the policy has no rule");
  }
  limits = loaded.policy->limits();
  return true;
}

// Where the log goes: a word, or a file.
bool resolve_log(std::string& log) {
  const auto& words = policy::kLogWords;
  if (std::find(words.begin(), words.end(), log) != words.end()) return true;
  if (log.find('/') == std::string::npos) return false;
  log = absolute(log);
  return true;
}

bool set_environment(const Arguments& arguments, const policy::Limits& limits,
                     const std::string& library, const char* policy) {
  const char* preload = from_environment("LD_PRELOAD");
  bool done = set("LD_PRELOAD", preload == nullptr ? library : library + ":" + preload);
  if (policy != nullptr) done = done && set("RINGROAD_POLICY", policy);
  // What the policy says about the log is for the library to read, then and after edits.
  if (!arguments.log.empty() ||
      (from_environment("RINGROAD_LOG") == nullptr && limits.log.empty())) {
    done = done && set("RINGROAD_LOG", arguments.log.empty() ? "stderr" : arguments.log);
  }
  if (!arguments.log_level.empty() ||
      (from_environment("RINGROAD_LOG_LEVEL") == nullptr && limits.log_level.empty())) {
    done = done &&
           set("RINGROAD_LOG_LEVEL", arguments.log_level.empty() ? "warn" : arguments.log_level);
  }
  return done && (!arguments.disable || set("RINGROAD_DISABLE", "1"));
}

int start(std::vector<std::string> command) {
  int error = 0;
  const std::string program = find_program(command.front(), error);
  if (error != 0) {
    const bool exists = error == EACCES;
    std::fprintf(stderr, "ringroad run: %s: %s\n", command.front().c_str(),
                 exists ? "not an executable file" : "no such program");
    return exists ? kCannotRun : kNotFound;
  }
  const std::string obstacle = preload_obstacle(program);
  if (!obstacle.empty()) {
    std::fprintf(stderr, "ringroad run: warning: %s\n", obstacle.c_str());
  }
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  execvp(program.c_str(), words.data());
  error = errno;
  std::fprintf(stderr, "ringroad run: %s: %s\n", program.c_str(), strerrordesc_np(error));
  return error == ENOENT ? kNotFound : kCannotRun;
}

int run(Arguments arguments, const std::vector<std::string>& program) {
  if (program.empty()) {
    return refuse("name the program to start, after --; see ringroad run --help");
  }
  if (!arguments.log.empty() && !resolve_log(arguments.log)) {
    return refuse("--log is stderr, syslog, journal, off or a file's path with a slash, not \"" +
                  arguments.log + "\"");
  }
  std::string looked_at;
  const std::string library =
      arguments.library.empty() ? find_library(looked_at) : absolute(arguments.library);
  if (library.empty()) {
    return refuse("no libringroad.so at " + looked_at +
                  ": build or install it, or name it with --library");
  }
  const std::string problem = library_problem(library);
  if (!problem.empty()) return refuse("cannot preload " + library + ": " + problem);

  const char* inherited = from_environment("RINGROAD_POLICY");
  const std::string policy = !arguments.policy.empty() ? absolute(arguments.policy)
                             : inherited != nullptr    ? absolute(inherited)
                                                       : std::string();
  const char* named = policy.empty() ? nullptr : policy.c_str();
  policy::Limits limits;
  if (!policy_is_valid(named, limits)) return kRefused;
  if (!set_environment(arguments, limits, library, named)) return refuse("out of memory");
  return start(program);
}

}  // namespace

void add_run_command(CLI::App& app, const std::vector<std::string>& program, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(kCommand, "Start a program with the library preloaded");
  set_usage(*command, "ringroad run [OPTIONS] [--] PROGRAM [ARGUMENTS...]");
  command->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  command->add_option("--policy", arguments->policy,
                      "policy file, or a directory of *.toml files; default:\n"
                      "$RINGROAD_POLICY, else /etc/ringroad/policy.d and\n"
                      "/etc/ringroad/policy.toml")
      ->option_text("PATH");
  command
      ->add_option("--log", arguments->log,
                   "where the library reports: stderr, syslog, journal, off or a\n"
                   "file's path; default: $RINGROAD_LOG, else the policy's log,\n"
                   "else stderr")
      ->option_text("DEST");
  command
      ->add_option("--log-level", arguments->log_level,
                   "error, warn, info or debug; default: $RINGROAD_LOG_LEVEL,\n"
                   "else the policy's log_level, else warn")
      ->option_text("LEVEL")
      ->check(CLI::IsMember({"error", "warn", "info", "debug"}));
  command->add_option("--library", arguments->library,
                      "the libringroad.so to preload; default: the one that came\n"
                      "with this command")
      ->option_text("FILE");
  command->add_flag("--disable", arguments->disable,
                    "preload it, but switched off: every connection stays on TCP");
  command->footer(
      "The policy is checked first, and nothing is started under one with an error. The\n"
      "program then replaces this command: same process, same descriptors, its own exit\n"
      "status. Programs that it starts are preloaded too.\n"
      "\n"
      "Sets LD_PRELOAD (before what is there already), RINGROAD_POLICY, RINGROAD_LOG,\n"
      "RINGROAD_LOG_LEVEL and, with --disable, RINGROAD_DISABLE=1.\n"
      "\n"
      "A program that cannot be preloaded (linked statically, setuid, with file\n"
      "capabilities) is started all the same, on TCP, with a warning.\n"
      "\n"
      "Examples:\n"
      "  ringroad run -- mariadbd --defaults-file=/etc/mysql/my.cnf\n"
      "  ringroad run --policy ./policy.toml --log-level info -- redis-server --port 6379\n"
      "  ringroad run --policy ./policy.d --log syslog -- sysbench oltp_read_write run\n"
      "\n"
      "Exit status:\n"
      "  2    an error in the arguments or the policy, or no library: nothing was started\n"
      "  126  the program is there but cannot be run\n"
      "  127  the program is not there\n"
      "  otherwise the program's own\n");
  command->callback(
      [arguments, &program, &exit_status] { exit_status = run(*arguments, program); });
}

std::vector<std::string> take_program(const CLI::App& app, std::vector<std::string>& words) {
  if (words.empty() || words.front() != kCommand) return {};
  const CLI::App* command = app.get_subcommand(kCommand);
  std::size_t at = 1;
  while (at < words.size() && words[at].starts_with('-') && words[at] != "--") {
    const CLI::Option* option = command->get_option_no_throw(words[at]);
    const bool takes_next = option != nullptr && option->get_items_expected_max() > 0;
    at = std::min(words.size(), at + (takes_next ? 2 : 1));
  }
  const auto begin = words.begin() + static_cast<std::ptrdiff_t>(at);
  const bool marked = begin != words.end() && *begin == "--";
  std::vector<std::string> program(begin + (marked ? 1 : 0), words.end());
  words.erase(begin, words.end());
  return program;
}

}  // namespace ringroad::cli
