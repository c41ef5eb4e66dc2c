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

#include "cli/doctor/live_host.h"
#include "cli/library_file.h"
#include "cli/preflight.h"
#include "cli/program_file.h"
#include "cli/text.h"
#include "cli/unit_preflight.h"
#include "cli/usage.h"
#include "policy/policy.h"

namespace ringroad::cli {
namespace {

constexpr const char* kCommand = "run";

enum ExitStatus { kOk = 0, kNotPreloaded = 1, kRefused = 2, kCannotRun = 126, kNotFound = 127 };

struct Arguments {
  std::string policy;
  std::string log;
  std::string log_level;
  std::string library;
  bool disable = false;
  bool check = false;
  std::string root;
  std::string unit;
  std::string environment_file;
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
                     const std::string& preload, const char* policy) {
  bool done = preload.empty() ? unsetenv("LD_PRELOAD") == 0 : set("LD_PRELOAD", preload);
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

int cannot_start(const std::string& name, int error) {
  const bool exists = error == EACCES;
  std::fprintf(stderr, "ringroad run: %s: %s\n", name.c_str(),
               exists ? "not an executable file" : "no such program");
  return exists ? kCannotRun : kNotFound;
}

ProgramFacts look_at(const std::string& program, const Root& root, const std::string& library) {
  const ProgramFacts facts = inspect_program(program, root, library);
  // execvp(3) hands to the shell what the kernel does not know.
  if (facts.error != 0 || facts.is_elf || !privileges_of(facts).empty()) return facts;
  return inspect_program("/bin/sh", root, library);
}

// "mysqld_safe: /bin/sh": the program that was named, and the one that is judged.
std::string named_with(const std::string& program, const ProgramFacts& facts) {
  return facts.file.empty() || facts.file == program ? program : program + ": " + facts.file;
}

// What is in LD_PRELOAD already stays, but for another build of the library: a process has one. With a line
// on stderr where the library is not preloaded.
std::string preload_for(const std::string& program, const ProgramFacts& facts,
                        const std::string& library) {
  const char* inherited = from_environment("LD_PRELOAD");
  const std::string others = without_library(inherited != nullptr ? inherited : "", library);
  const Obstacle obstacle = obstacle_of(facts);
  const std::string privileges = privileges_of(facts);
  const bool left_out = must_be_left_out(obstacle);
  if (obstacle != Obstacle::kNone) {
    std::fprintf(stderr, "ringroad run: warning: %s %s: it %s on TCP; what helps: %s\n",
                 named_with(program, facts).c_str(), reason_of(facts).c_str(),
                 left_out ? "is started without the library," : "runs", remedy_of(facts).c_str());
  } else if (!privileges.empty()) {
    std::fprintf(stderr,
                 "ringroad run: warning: %s %s: the loader drops the preloaded library, and it "
                 "runs on TCP. Start it as the user that it changes to\n",
                 named_with(program, facts).c_str(), privileges.c_str());
  }
  if (left_out) return others;
  return library + (others.empty() ? "" : ":" + others);
}

// The library itself has nowhere to say so. The file is not made here: the program may become another user
// before the library opens it.
void warn_of_lost_log(const policy::Limits& limits) {
  const char* log = from_environment("RINGROAD_LOG");
  const std::string path = log != nullptr ? log : limits.log;
  const std::size_t name = path.rfind('/');
  if (name == std::string::npos) return;
  int error = access(path.c_str(), W_OK) == 0 ? 0 : errno;
  if (error == ENOENT) error = access(path.substr(0, name + 1).c_str(), W_OK | X_OK) == 0 ? 0 : errno;
  if (error == 0 && std::filesystem::is_directory(path)) error = EISDIR;
  if (error == 0) return;
  std::fprintf(stderr,
               "ringroad run: warning: the log is lost: %s: %s (name a file that this user may write)\n",
               path.c_str(), strerrordesc_np(error));
}

// "./start.sh: its interpreter "/bin/sh?": No such file or directory (its lines end in CR LF)"
std::string why_not_started(const std::string& program, const ProgramFacts& facts, int error) {
  const std::string why = strerrordesc_np(error);
  if (facts.error == 0 || facts.file.empty() || facts.file == program) return program + ": " + why;
  return program + ": its interpreter \"" + printable(facts.file) + "\": " + why +
         (facts.file.ends_with('\r') ? " (its lines end in CR LF: save it with LF alone)" : "");
}

int execute(const std::string& program, const ProgramFacts& facts, std::vector<std::string> command) {
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  execvp(program.c_str(), words.data());
  const int error = errno;
  std::fprintf(stderr, "ringroad run: %s\n", why_not_started(program, facts, error).c_str());
  return error == ENOENT ? kNotFound : kCannotRun;
}

int check_program(const std::string& name, const Root& root, const std::string& library) {
  const ProgramFacts facts = look_at(name, root, library);
  const std::string subject = named_with(name, facts);
  std::string reason = reason_of(facts);
  if (reason.empty()) reason = privileges_of(facts);
  if (facts.error != 0 && reason.empty()) {
    std::fprintf(stderr, "ringroad run: %s\n", why_not_started(name, facts, facts.error).c_str());
    return facts.error == EACCES ? kCannotRun : kNotFound;
  }
  if (!reason.empty()) {
    const std::string remedy = remedy_of(facts);
    std::printf("%s would not be preloaded: it %s%s%s\n", subject.c_str(), reason.c_str(),
                remedy.empty() ? "" : "; what helps: ", remedy.c_str());
    return kNotPreloaded;
  }
  const std::string versions = versions_of(facts);
  std::printf("%s would be preloaded%s%s\n", subject.c_str(), versions.empty() ? "" : ": ",
              versions.c_str());
  return kOk;
}

int check_unit(const Arguments& arguments, const std::string& library) {
  doctor::LiveHost host;
  const std::string& name = arguments.unit;
  const UnitCommands commands = read_unit_commands(host, name, arguments.environment_file);
  if (!commands.problem.empty()) return refuse(name + ": " + commands.problem);
  const UnitVerdict verdict = judge_unit(name, commands, library);
  std::printf("%s\n", verdict.text.c_str());
  std::string why;
  if (!arguments.environment_file.empty() &&
      !write_environment_file(arguments.environment_file, commands, verdict, library, why)) {
    return refuse(why);
  }
  return verdict.left_out ? kNotPreloaded : kOk;
}

// Empty: there is none that can be preloaded, which was said.
std::string library_of(const Arguments& arguments) {
  std::string looked_at;
  const std::string library =
      arguments.library.empty() ? find_library(looked_at) : absolute(arguments.library);
  if (library.empty()) {
    refuse("no libringroad.so at " + looked_at +
           ": build or install it, or name it with --library");
    return {};
  }
  const std::string problem = library_problem(library);
  if (problem.empty()) return library;
  refuse("cannot preload " + library + ": " + problem);
  return {};
}

int check(const Arguments& arguments, const std::vector<std::string>& program) {
  if (program.empty() == arguments.unit.empty()) {
    return refuse("--check looks at a program or at a --unit, and at one of them");
  }
  const std::string library = library_of(arguments);
  if (library.empty()) return kRefused;
  if (!arguments.unit.empty()) return check_unit(arguments, library);
  return check_program(program.front(), Root(arguments.root), library);
}

int run(Arguments arguments, const std::vector<std::string>& command) {
  if (arguments.check) return check(arguments, command);
  if (command.empty()) {
    return refuse("name the program to start, after --; see ringroad run --help");
  }
  if (!arguments.log.empty() && !resolve_log(arguments.log)) {
    return refuse("--log is stderr, syslog, journal, off or a file's path with a slash, not \"" +
                  arguments.log + "\"");
  }
  const std::string library = library_of(arguments);
  if (library.empty()) return kRefused;

  const char* inherited = from_environment("RINGROAD_POLICY");
  const std::string policy = !arguments.policy.empty() ? absolute(arguments.policy)
                             : inherited != nullptr    ? absolute(inherited)
                                                       : std::string();
  const char* named = policy.empty() ? nullptr : policy.c_str();
  policy::Limits limits;
  if (!policy_is_valid(named, limits)) return kRefused;
  int error = 0;
  const std::string program = find_program(command.front(), error);
  if (error != 0) return cannot_start(command.front(), error);
  const ProgramFacts facts = look_at(program, Root(), library);
  const std::string preload = preload_for(program, facts, library);
  if (!set_environment(arguments, limits, preload, named)) return refuse("out of memory");
  warn_of_lost_log(limits);
  return execute(program, facts, command);
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
  CLI::Option* check = command->add_flag(
      "--check", arguments->check,
      "start nothing, and tell whether the program would be preloaded");
  CLI::Option* root =
      command
          ->add_option("--root", arguments->root,
                       "with --check: the program's root directory, such as an image\n"
                       "or /proc/PID/root; the library is looked for outside of it")
          ->option_text("DIR")
          ->needs(check);
  CLI::Option* unit = command
                          ->add_option("--unit", arguments->unit,
                                       "with --check: look at what this systemd service runs")
                          ->option_text("NAME")
                          ->needs(check)
                          ->excludes(root);
  command
      ->add_option("--environment-file", arguments->environment_file,
                   "with --unit: an EnvironmentFile= to write for a service that has\n"
                   "to be started without the library, or that preloads others\n"
                   "too; without such a need the file is removed")
      ->option_text("FILE")
      ->needs(unit);
  command->footer(
      "The policy is checked first, and nothing is started under one with an error. The\n"
      "program then replaces this command: same process, same descriptors, its own exit\n"
      "status. Programs that it starts are preloaded too.\n"
      "\n"
      "Sets LD_PRELOAD (before what is there already, without another libringroad.so), RINGROAD_POLICY,\n"
      "RINGROAD_LOG, RINGROAD_LOG_LEVEL and, with --disable, RINGROAD_DISABLE=1.\n"
      "\n"
      "The program, its loader and its libc are looked at first. One that cannot be preloaded\n"
      "is started all the same, on TCP, with a warning. LD_PRELOAD is left without the library\n"
      "where the loader would end the program or complain: linked against musl, with a glibc\n"
      "that is too old, of another machine or word size. It is set for one that is linked\n"
      "statically, setuid or has file capabilities: what that starts may be preloaded.\n"
      "\n"
      "Examples:\n"
      "  ringroad run -- mariadbd --defaults-file=/etc/mysql/my.cnf\n"
      "  ringroad run --policy ./policy.toml --log-level info -- redis-server --port 6379\n"
      "  ringroad run --policy ./policy.d --log syslog -- sysbench oltp_read_write run\n"
      "  ringroad run --check --root /proc/4711/root -- mysqld\n"
      "\n"
      "Exit status:\n"
      "  1    with --check: it would not be preloaded\n"
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
