#include "cli/policy_cmd.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/policy_report.h"
#include "cli/process_identity.h"
#include "policy/policy.h"

namespace ringroad::cli {
namespace {

using nlohmann::ordered_json;
using policy::LoadResult;
using policy::Policy;
using policy::Via;

enum ExitStatus { kChosen = 0, kValid = 0, kStaysOnTcp = 1, kError = 2 };

struct Arguments {
  std::vector<std::string> files;
  std::string file;
  std::string role;
  std::string program;
  std::string local;
  std::string remote;
  std::string comm;
  std::string cgroup;
  std::string labels;
  int pid = 0;
  bool json = false;
};

int report_errors(const LoadResult& loaded, bool json) {
  std::vector<policy::Error> errors = loaded.errors;
  if (errors.empty()) {
    errors.push_back({"policy", 0, 0, "out of memory", ""});
  }
  if (json) {
    print({{"valid", false}, {"errors", to_json(errors)}});
    return kError;
  }
  for (const policy::Error& error : errors) {
    std::fprintf(stderr, "%s\n", to_string(error).c_str());
  }
  return kError;
}

int bad_argument(const std::string& message) {
  std::fprintf(stderr, "ringroad policy explain: %s\n", message.c_str());
  return kError;
}

int check(const Arguments& arguments) {
  const LoadResult loaded = arguments.files.empty()
                                ? Policy::load_default(std::getenv("RINGROAD_POLICY"))
                                : Policy::load(arguments.files);
  if (!loaded) {
    return report_errors(loaded, arguments.json);
  }
  const std::vector<policy::Error> warnings = loaded.policy->warnings();
  const std::size_t rules = loaded.policy->rule_count();
  if (arguments.json) {
    ordered_json list = ordered_json::array();
    for (std::size_t i = 0; i < rules; ++i) {
      list.push_back(to_json(loaded.policy->rule(i)));
    }
    print({{"valid", true},
           {"files", loaded.policy->sources()},
           {"max_channels", loaded.policy->limits().max_channels},
           {"log", loaded.policy->limits().log},
           {"log_level", loaded.policy->limits().log_level},
           {"warnings", to_json(warnings)},
           {"rules", list}});
    return kValid;
  }
  for (const policy::Error& warning : warnings) {
    std::fprintf(stderr, "%s\n", to_string(warning, "warning").c_str());
  }
  std::printf("ok: %s in %s, %s%s\n", plural(rules, "rule").c_str(),
              plural(loaded.policy->sources().size(), "file").c_str(),
              plural(warnings.size(), "warning").c_str(),
              rules == 0 ? "; every connection stays on TCP" : "");
  return kValid;
}

// The two ends, and which of them is the program's role.
struct Connection {
  Role role;
  Endpoint local;
  Endpoint remote;
};

// None, with `problem`: the arguments do not name one.
std::optional<Connection> connection_of(const Arguments& arguments, std::string& problem) {
  if (arguments.role != "connect" && arguments.role != "accept") {
    problem = "--role is connect or accept, not \"" + arguments.role + "\"";
    return std::nullopt;
  }
  const std::optional<Endpoint> local = Endpoint::parse(arguments.local);
  const std::optional<Endpoint> remote = Endpoint::parse(arguments.remote);
  if (!local || !remote) {
    problem = "\"" + (local ? arguments.remote : arguments.local) +
              "\" is not an address and port (write 10.9.0.1:3306 or [fd00::1]:3306)";
    return std::nullopt;
  }
  return Connection{arguments.role == "connect" ? Role::kConnect : Role::kAccept, *local, *remote};
}

// `about`: what is told of a running process, as JSON; null: there is none.
int explain_for(const policy::Process& process, const Connection& connection, const Policy& policy,
                bool json, const ordered_json& about = nullptr) {
  const policy::Explanation explanation =
      policy.explain(connection.role, process, connection.local, connection.remote);
  if (json) {
    ordered_json said = to_json(explanation);
    if (!about.is_null()) said["process"] = about;
    print(said);
  } else {
    print_explanation(explanation);
  }
  const bool chosen = explanation.decision != nullptr && explanation.decision->via != Via::kTcp;
  return chosen ? kChosen : kStaysOnTcp;
}

int explain_program(const Arguments& arguments) {
  if (arguments.remote.empty() || arguments.program.empty() || arguments.role.empty()) {
    return bad_argument("FILE, LOCAL, REMOTE, --role and --program are required, or --pid");
  }
  std::string problem;
  const std::optional<Connection> connection = connection_of(arguments, problem);
  if (!connection) return bad_argument(problem);
  const LoadResult loaded = Policy::load_file(arguments.file);
  if (!loaded) return report_errors(loaded, arguments.json);
  // A path is followed to its file, as the kernel does; a bare name stands for both.
  std::error_code missing;
  const std::string file = std::filesystem::canonical(arguments.program, missing);
  const bool is_path = arguments.program.find('/') != std::string::npos && !missing;
  policy::Process process(policy::Program(is_path ? file : arguments.program, arguments.program));
  process.comm = arguments.comm;
  process.cgroup = arguments.cgroup;
  process.labels = arguments.labels;
  return explain_for(process, *connection, *loaded.policy, arguments.json);
}

// What the rules ask of the process alone.
int explain_without_connection(const policy::Process& process, const Policy& policy, bool json,
                               const ordered_json& about) {
  const std::vector<policy::Consideration> considered = policy.explain_process(process);
  if (json) {
    print({{"process", about}, {"considered", to_json(considered)}});
  } else {
    print_rules_for_process(considered);
  }
  const bool may_leave_tcp = std::any_of(considered.begin(), considered.end(), [](const auto& step) {
    return step.matches() && step.rule->via != Via::kTcp;
  });
  return may_leave_tcp ? kChosen : kStaysOnTcp;
}

// FILE is left out where two are given: LOCAL and REMOTE.
Arguments with_optional_file(Arguments arguments) {
  if (!arguments.local.empty() && arguments.remote.empty()) {
    arguments.remote = std::exchange(arguments.local, std::exchange(arguments.file, {}));
  }
  return arguments;
}

int explain_process(const Arguments& given) {
  const Arguments arguments = with_optional_file(given);
  if (!(arguments.program + arguments.comm + arguments.cgroup + arguments.labels).empty()) {
    return bad_argument("--pid tells the program, its comm, cgroup and labels");
  }
  std::string problem;
  std::optional<Connection> connection;
  if (!arguments.remote.empty() || !arguments.role.empty()) {
    connection = connection_of(arguments, problem);
    if (!connection) return bad_argument(problem);
  }
  const ProcessIdentity process = identify(arguments.pid);
  if (!process.problem.empty()) return bad_argument(process.problem);
  const LoadResult loaded =
      arguments.file.empty()
          ? Policy::load_default(process.policy.c_str(), (process.root + "/etc/ringroad").c_str())
          : Policy::load_file(arguments.file);
  if (!loaded) return report_errors(loaded, arguments.json);
  if (!arguments.json) print_process(arguments.pid, process, *loaded.policy);
  const ordered_json about = to_json(process, *loaded.policy);
  const int status =
      connection ? explain_for(process.facts(), *connection, *loaded.policy, arguments.json, about)
                 : explain_without_connection(process.facts(), *loaded.policy, arguments.json, about);
  const std::string why = why_left_alone(process);
  if (why.empty()) return status;
  if (!arguments.json) print_left_alone(why);
  return kStaysOnTcp;
}

}  // namespace

void add_policy_command(CLI::App& app, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("policy", "Check a policy file, or ask what it decides");
  command->require_subcommand(1);

  CLI::App* checker =
      command->add_subcommand("check", "Report every error and warning of a policy");
  checker->add_option("FILE", arguments->files,
                      "policy file, or a directory of *.toml files; without one, what this\n"
                      "host uses: $RINGROAD_POLICY, else /etc/ringroad/policy.d and\n"
                      "/etc/ringroad/policy.toml");
  checker->add_flag("--json", arguments->json, "print errors, warnings and rules as JSON");
  checker->footer(
      "Several FILEs are read as one policy, in the order given: a rule's name may be used\n"
      "once in all of them, and the first matching rule of all of them decides.\n"
      "\n"
      "Exit status:\n"
      "  0  valid (warnings go to stderr)\n"
      "  2  an error: the library would refuse the policy as a whole\n");
  checker->callback([arguments, &exit_status] { exit_status = check(*arguments); });

  CLI::App* explainer = command->add_subcommand(
      "explain", "Say what a policy decides for one connection, or a running process, and why");
  explainer->add_option("FILE", arguments->file,
                        "policy file, or a directory of *.toml files; with --pid it\n"
                        "may be left out: the one that the process reads");
  explainer->add_option("LOCAL", arguments->local, "the program's own end, ADDRESS:PORT");
  explainer->add_option("REMOTE", arguments->remote, "the other end, ADDRESS:PORT");
  explainer->add_option("--role", arguments->role,
                        "connect: the program called connect; accept: it accepted");
  explainer->add_option("--program", arguments->program,
                        "the program's name or path; a path that is a link has\n"
                        "two names, its own and its file's");
  explainer->add_option("--comm", arguments->comm, "the comm of the process, if rules ask for it");
  explainer->add_option("--cgroup", arguments->cgroup, "its cgroup, as /proc/PID/cgroup has it");
  explainer->add_option("--labels", arguments->labels, "its $RINGROAD_LABELS");
  explainer->add_option("--pid", arguments->pid,
                        "a running process instead of --program and the three\n"
                        "above; without LOCAL and REMOTE: which rules are for it");
  explainer->add_flag("--json", arguments->json, "print the explanation as JSON");
  explainer->footer(
      "Examples:\n"
      "  ringroad policy explain policy.toml --role connect --program mariadbd \\\n"
      "      10.9.0.1:40000 10.9.1.1:3306\n"
      "  ringroad policy explain /etc/ringroad/policy.d --role accept --program tikv-server \\\n"
      "      '[fd00::1]:20160' '[fd00::2]:51234'\n"
      "  ringroad policy explain --pid $(pidof mariadbd)\n"
      "\n"
      "Exit status:\n"
      "  0  a rule matches and takes the connection off TCP, or may do so for the process\n"
      "  1  the connection stays on TCP: no rule matches, or the one that does says via =\n"
      "     \"tcp\", or the process is without the library\n"
      "  2  an error in the policy or in the arguments\n");
  explainer->callback([arguments, &exit_status] {
    exit_status = arguments->pid != 0 ? explain_process(*arguments) : explain_program(*arguments);
  });
}

}  // namespace ringroad::cli
