#include "cli/doctor_cmd.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/answerer.h"
#include "cli/doctor/check.h"
#include "cli/doctor/live_host.h"
#include "cli/doctor/peer.h"
#include "cli/doctor/peer_probe.h"
#include "cli/doctor/probe.h"
#include "cli/doctor/recorded_host.h"
#include "cli/doctor/recording_host.h"
#include "cli/doctor/report.h"
#include "cli/text.h"
#include "cli/usage.h"
#include "policy/policy.h"

namespace ringroad::cli {
namespace {

using doctor::Context;
using doctor::Finding;
using doctor::Host;
using doctor::Level;

enum ExitStatus { kOk = 0, kFailed = 1, kWrongArguments = 2, kUnknown = 3, kWarn = 4, kFail = 5 };

struct Arguments {
  doctor::Questions questions;
  std::string policy;
  std::vector<std::string> only;
  std::string root;
  std::string record;
  std::string peer;
  std::optional<std::string> answer;
  double watch_s = 1;
  bool list = false;
  bool json = false;
  std::optional<std::string> probe_library;
  std::string probe_listen;
  std::string probe_peer;
  std::string serve;
};

int refuse(const std::string& message) {
  std::fprintf(stderr, "ringroad doctor: %s\n", message.c_str());
  return kWrongArguments;
}

int complain(const std::string& message) {
  std::fprintf(stderr, "ringroad doctor: %s\n", message.c_str());
  return kFailed;
}

int status_of(Level level) {
  switch (level) {
    case Level::kOk:
      return kOk;
    case Level::kUnknown:
      return kUnknown;
    case Level::kWarn:
      return kWarn;
    case Level::kFail:
      break;
  }
  return kFail;
}

unsigned columns_of_stdout() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

int list_checks(bool json) {
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const doctor::Check& check : doctor::all_checks()) {
      list.push_back({{"check", check.name}, {"group", check.group}, {"looks_at", check.looks_at}});
    }
    std::puts(list.dump(2).c_str());
    return kOk;
  }
  Table table({{"CHECK"}, {"GROUP"}, {"LOOKS AT"}});
  for (const doctor::Check& check : doctor::all_checks()) {
    table.add({check.name, check.group, check.looks_at});
  }
  std::fputs(table.to_string().c_str(), stdout);
  return kOk;
}

bool known_check(const std::string& name) {
  for (const doctor::Check& check : doctor::all_checks()) {
    if (name == check.name) return true;
  }
  return false;
}

bool is_folder(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

policy::LoadResult load_policy(const Arguments& arguments) {
  if (!arguments.policy.empty()) return policy::Policy::load({arguments.policy});
  if (!arguments.root.empty()) {
    const std::string recorded = arguments.root + "/policy";
    return is_folder(recorded) ? policy::Policy::load({recorded}) : policy::Policy::load({});
  }
  return policy::Policy::load_default(std::getenv("RINGROAD_POLICY"));
}

// The recorded host is shown to others: its keys' names and whereabouts are nobody's business.
void record_policy(const policy::LoadResult& loaded, doctor::RecordingHost& host) {
  if (!loaded) return;
  unsigned number = 10;
  for (const std::string& path : loaded.policy->sources()) {
    std::ifstream file(path);
    std::string text;
    for (std::string line; std::getline(file, line);) {
      const bool key = line.find("key_file") != std::string::npos;
      text += (key ? "# a key_file was here" : line) + "\n";
    }
    host.write("/policy/" + std::to_string(number++) + ".toml", text);
  }
}

int diagnose(Host& host, const Arguments& arguments, policy::LoadResult loaded) {
  Context context(host, arguments.questions, std::move(loaded));
  const std::vector<Finding> findings = arguments.peer.empty()
                                            ? doctor::run_checks(context, arguments.only)
                                            : doctor::examine_peer(context, arguments.peer);
  if (arguments.json) {
    std::fputs(doctor::report_json(findings).c_str(), stdout);
  } else {
    std::fputs(doctor::report_text(findings, columns_of_stdout()).c_str(), stdout);
  }
  return status_of(doctor::worst(findings));
}

int record(const Arguments& arguments) {
  std::string why;
  const std::string& root = arguments.record;
  if (mkdir(root.c_str(), 0700) != 0) {
    return complain(root + ": " + strerrordesc_np(errno) + "; name a folder that is not there yet");
  }
  doctor::LiveHost live;
  doctor::RecordingHost host(live, root);
  policy::LoadResult loaded = load_policy(arguments);
  record_policy(loaded, host);
  const int status = diagnose(host, arguments, std::move(loaded));
  if (!host.finish(why)) return complain(why);
  std::fprintf(stderr, "ringroad doctor: recorded in %s; look through it before you pass it on\n",
               root.c_str());
  return status;
}

// Otherwise the next file that is opened would take the place of one that is closed.
void fill_standard_descriptors() {
  for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = open("/dev/null", O_RDWR)) {
    if (fd > STDERR_FILENO) {
      close(fd);
      return;
    }
    if (fd != STDOUT_FILENO) continue;
    // So that what cannot be written is told.
    const int full = open("/dev/full", O_WRONLY);
    if (full < 0) continue;
    dup2(full, fd);
    if (full != fd) close(full);
  }
}

int run(Arguments arguments) {
  fill_standard_descriptors();
  if (arguments.probe_library) return doctor::probe_library(*arguments.probe_library);
  if (!arguments.probe_listen.empty()) return doctor::probe_listen(arguments.probe_listen);
  if (!arguments.probe_peer.empty()) return doctor::probe_peer(arguments.probe_peer);
  if (!arguments.serve.empty()) return doctor::serve_answers(arguments.serve);
  if (arguments.list) return list_checks(arguments.json);
  for (const std::string& name : arguments.only) {
    if (!known_check(name)) {
      return refuse("there is no check \"" + name + "\"; see ringroad doctor --list");
    }
  }
  arguments.questions.watch =
      std::chrono::milliseconds(static_cast<long>(arguments.watch_s * 1000));
  if (arguments.answer) {
    return doctor::answer(*arguments.answer, load_policy(arguments), arguments.questions.library);
  }
  if (!arguments.peer.empty()) {
    std::string why;
    if (!doctor::parse_peer(arguments.peer, why)) return refuse(why);
  }
  if (!arguments.record.empty()) return record(arguments);
  if (!arguments.root.empty()) {
    if (!is_folder(arguments.root)) return complain(arguments.root + ": no such folder");
    doctor::RecordedHost host(arguments.root);
    return diagnose(host, arguments, load_policy(arguments));
  }
  doctor::LiveHost host;
  return diagnose(host, arguments, load_policy(arguments));
}

void add_hidden(CLI::App& command, Arguments& arguments) {
  for (CLI::Option* option :
       {command.add_option("--probe-library", arguments.probe_library)->expected(0, 1),
        command.add_option("--probe-listen", arguments.probe_listen),
        command.add_option("--probe-peer", arguments.probe_peer),
        command.add_option("--serve-answers", arguments.serve)}) {
    option->group("");
  }
}

constexpr const char* kFooter =
    "Each finding is ok, warn, fail or unknown, with what was seen, what it means for Ringroad\n"
    "and what mends it; worst first. Nothing is changed. Run it as root: much is hidden from\n"
    "others, and is then unknown. docs/doctor.md describes every check.\n"
    "\n"
    "--peer connects to HOST, there to `ringroad doctor --answer` (started on it before), and\n"
    "sends 64 bytes and 64 KiB to and fro over TCP, then over RDMA. To another port that listens\n"
    "it only connects, and asks for a promotion.\n"
    "\n"
    "Examples:\n"
    "  ringroad doctor\n"
    "  ringroad doctor --unit mariadb --user mysql\n"
    "  ringroad doctor --pid 4711 --only numa,memlock,process\n"
    "  ringroad doctor --json | jq '.findings[] | select(.level == \"fail\")'\n"
    "  ringroad doctor --answer            # on the one host\n"
    "  ringroad doctor --peer 10.9.1.1     # on the other\n"
    "\n"
    "Exit status, by the worst finding:\n"
    "  0  all is ok\n"
    "  1  the command itself failed\n"
    "  2  wrong arguments\n"
    "  3  something is unknown\n"
    "  4  a warning\n"
    "  5  a failure\n";

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("doctor", "Find out whether this host, and a peer, are set up for RDMA");
  set_usage(*command, "ringroad doctor [OPTIONS]");
  command->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  command
      ->add_option("--policy", arguments->policy,
                   "policy file, or a directory of *.toml files; default: as\n"
                   "ringroad run")
      ->option_text("PATH");
  command
      ->add_option("--user", arguments->questions.user,
                   "the user that the programs run as; default: the\n"
                   "unit's, the process's, or yourself")
      ->option_text("NAME");
  command->add_option("--unit", arguments->questions.unit, "also look at this systemd service")
      ->option_text("NAME");
  command
      ->add_option("--program", arguments->questions.program,
                   "also look whether this program can be preloaded")
      ->option_text("FILE");
  command->add_option("--pid", arguments->questions.pid, "also look at this process")
      ->option_text("PID")
      ->check(CLI::Range(1, INT_MAX));
  command
      ->add_option("--watch", arguments->watch_s, "how long the counters are watched; default: 1")
      ->option_text("SECONDS")
      ->check(seconds_within(0, 3600));
  CLI::Option* only =
      command->add_option("--only", arguments->only, "these checks alone, with commas between them")
          ->option_text("CHECK,...")
          ->delimiter(',')
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_flag("--list", arguments->list, "name the checks, and do nothing else");
  command->add_flag("--json", arguments->json, "print the findings as JSON");
  command
      ->add_option("--library", arguments->questions.library,
                   "the libringroad.so in question; default: the one that came with\n"
                   "this command")
      ->option_text("FILE");
  CLI::Option* peer =
      command
          ->add_option("--peer", arguments->peer,
                       "probe this host instead, at this port; default: where --answer\n"
                       "listens")
          ->option_text("HOST[:PORT]");
  CLI::Option* answer =
      command
          ->add_option("--answer", arguments->answer,
                       "answer the probes of other hosts, until it is interrupted;\n"
                       "default: port 4790 of every address")
          ->option_text("[ADDRESS:]PORT")
          ->expected(0, 1);
  CLI::Option* recorded =
      command
          ->add_option("--record", arguments->record,
                       "also lay down what the checks looked at in this new folder, for\n"
                       "a person who helps you; without keys")
          ->option_text("DIR");
  CLI::Option* root = command
                          ->add_option("--root", arguments->root,
                                       "look at a host that was recorded there, not at this one")
                          ->option_text("DIR");
  root->excludes(recorded)->excludes(answer);
  peer->excludes(only);
  answer->excludes(peer)->excludes(recorded);
  add_hidden(*command, *arguments);
  command->footer(kFooter);
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
}

}  // namespace ringroad::cli
