#include "cli/policy_cmd.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "policy/policy.h"
#include "policy/units.h"

namespace ringroad::cli {
namespace {

using nlohmann::ordered_json;
using policy::LoadResult;
using policy::Policy;
using policy::Settings;
using policy::Via;

enum ExitStatus { kChosen = 0, kValid = 0, kStaysOnTcp = 1, kError = 2 };

struct Arguments {
  std::vector<std::string> files;
  std::string file;
  std::string role;
  std::string program;
  std::string local;
  std::string remote;
  bool json = false;
};

void print(const ordered_json& json) {
  // File names need not be UTF-8.
  std::puts(json.dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
}

std::string plural(std::size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

ordered_json to_json(const std::vector<policy::Error>& errors) {
  ordered_json list = ordered_json::array();
  for (const policy::Error& error : errors) {
    list.push_back({{"file", error.file},
                    {"line", error.line},
                    {"column", error.column},
                    {"message", error.message},
                    {"remedy", error.remedy}});
  }
  return list;
}

template <typename Value>
ordered_json or_null(const std::optional<Value>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json to_json(const Settings& rule) {
  return {{"name", rule.name},
          {"number", rule.index + 1},
          {"file", rule.file},
          {"line", rule.line},
          {"via", to_string(rule.via)},
          {"device", rule.device.empty() ? ordered_json(nullptr) : ordered_json(rule.device)},
          {"traffic_class", or_null(rule.traffic_class)},
          {"ring_bytes", rule.ring_bytes},
          {"spin_ns", rule.spin.count()},
          {"promote_after",
           {{"messages", or_null(rule.promote_after.messages)},
            {"bytes", or_null(rule.promote_after.bytes)}}},
          {"wait_ns", rule.wait.count()},
          {"idle_ns", rule.idle.count()},
          {"detect_ns", rule.detect.count()},
          {"key_file", rule.key_file.empty() ? ordered_json(nullptr) : ordered_json(rule.key_file)}};
}

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

std::string place(const Settings& rule) {
  return "\"" + rule.name + "\" (" + rule.file + ":" + std::to_string(rule.line) + ")";
}

std::string describe(const policy::PromoteAfter& threshold) {
  std::string text;
  if (threshold.messages) {
    text = plural(static_cast<std::size_t>(*threshold.messages), "message");
  }
  if (threshold.bytes) {
    text += (text.empty() ? "" : " or ") + policy::format_size(*threshold.bytes);
  }
  return text;
}

std::string describe_traffic_class(const Settings& rule) {
  if (!rule.traffic_class) {
    return "the device's default";
  }
  const unsigned value = *rule.traffic_class;
  return std::to_string(value) + " (DSCP " + std::to_string(value >> 2U) + ", ECN " +
         std::to_string(value & 3U) + ")";
}

void print_settings(const Settings& rule) {
  const auto line = [](const char* key, const std::string& value) {
    std::printf("    %-14s %s\n", key, value.c_str());
  };
  if (rule.via != Via::kShm) {
    line("device", rule.device.empty() ? "chosen by route" : rule.device);
    line("traffic_class", describe_traffic_class(rule));
    line("detect", policy::format_duration(rule.detect));
  }
  line("ring", policy::format_size(rule.ring_bytes));
  line("spin", policy::format_duration(rule.spin));
  line("promote_after", describe(rule.promote_after));
  line("wait", policy::format_duration(rule.wait));
  line("idle", rule.idle.count() == 0 ? "keeps its channel" : policy::format_duration(rule.idle));
  if (!rule.key_file.empty()) line("key_file", rule.key_file);
}

void print_explanation(const policy::Explanation& explanation) {
  for (const policy::Consideration& step : explanation.considered) {
    std::printf("rule %zu %s %s\n", step.rule->index + 1, place(*step.rule).c_str(),
                step.matches() ? "matches" : "does not match");
    if (step.matches() && !step.program.empty()) {
      std::printf("    %-14s %s\n", "program", step.program.c_str());
    }
    for (const policy::Mismatch& mismatch : step.mismatches) {
      std::printf("    %-14s %s\n", std::string(to_string(mismatch.criterion)).c_str(),
                  mismatch.reason.c_str());
    }
  }
  if (explanation.not_considered != 0) {
    std::printf("%s after it not looked at\n", plural(explanation.not_considered, "rule").c_str());
  }
  const Settings* rule = explanation.decision;
  if (rule == nullptr) {
    std::puts("\ndecision: tcp, because no rule matches");
    return;
  }
  std::printf("\ndecision: %s%s, by rule %s\n", std::string(to_string(rule->via)).c_str(),
              rule->via == Via::kAuto ? " (shm if the peer is on this host, else rdma)" : "",
              place(*rule).c_str());
  if (rule->via != Via::kTcp) {
    print_settings(*rule);
  }
}

ordered_json to_json(const policy::Explanation& explanation) {
  ordered_json considered = ordered_json::array();
  for (const policy::Consideration& step : explanation.considered) {
    ordered_json mismatches = ordered_json::array();
    for (const policy::Mismatch& mismatch : step.mismatches) {
      mismatches.push_back({{"key", to_string(mismatch.criterion)}, {"reason", mismatch.reason}});
    }
    considered.push_back({{"name", step.rule->name},
                          {"number", step.rule->index + 1},
                          {"file", step.rule->file},
                          {"line", step.rule->line},
                          {"matches", step.matches()},
                          {"program", step.program},
                          {"mismatches", mismatches}});
  }
  const Settings* rule = explanation.decision;
  return {{"decision", to_string(rule == nullptr ? Via::kTcp : rule->via)},
          {"rule", rule == nullptr ? ordered_json(nullptr) : to_json(*rule)},
          {"considered", considered},
          {"not_considered", explanation.not_considered}};
}

int explain(const Arguments& arguments) {
  if (arguments.role != "connect" && arguments.role != "accept") {
    return bad_argument("--role is connect or accept, not \"" + arguments.role + "\"");
  }
  const Role role = arguments.role == "connect" ? Role::kConnect : Role::kAccept;
  const std::optional<Endpoint> local = Endpoint::parse(arguments.local);
  const std::optional<Endpoint> remote = Endpoint::parse(arguments.remote);
  if (!local || !remote) {
    return bad_argument("\"" + (local ? arguments.remote : arguments.local) +
                        "\" is not an address and port (write 10.9.0.1:3306 or [fd00::1]:3306)");
  }
  const LoadResult loaded = Policy::load_file(arguments.file);
  if (!loaded) {
    return report_errors(loaded, arguments.json);
  }
  // A path is followed to its file, as the kernel does; a bare name stands for both.
  std::error_code missing;
  const std::string file = std::filesystem::canonical(arguments.program, missing);
  const bool is_path = arguments.program.find('/') != std::string::npos && !missing;
  const policy::Program program(is_path ? file : arguments.program, arguments.program);
  const policy::Explanation explanation =
      loaded.policy->explain(role, program, *local, *remote);
  if (arguments.json) {
    print(to_json(explanation));
  } else {
    print_explanation(explanation);
  }
  const bool chosen = explanation.decision != nullptr && explanation.decision->via != Via::kTcp;
  return chosen ? kChosen : kStaysOnTcp;
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

  CLI::App* explainer =
      command->add_subcommand("explain", "Say what a policy decides for one connection, and why");
  explainer->add_option("FILE", arguments->file, "policy file, or a directory of *.toml files")
      ->required();
  explainer->add_option("LOCAL", arguments->local, "the program's own end, ADDRESS:PORT")
      ->required();
  explainer->add_option("REMOTE", arguments->remote, "the other end, ADDRESS:PORT")->required();
  explainer
      ->add_option("--role", arguments->role,
                   "connect: the program called connect; accept: it accepted")
      ->required();
  explainer
      ->add_option("--program", arguments->program,
                   "the program's name or path; a path that is a link has\n"
                        "two names, its own and its file's")
      ->required();
  explainer->add_flag("--json", arguments->json, "print the explanation as JSON");
  explainer->footer(
      "Examples:\n"
      "  ringroad policy explain policy.toml --role connect --program mariadbd \\\n"
      "      10.9.0.1:40000 10.9.1.1:3306\n"
      "  ringroad policy explain /etc/ringroad/policy.d --role accept --program tikv-server \\\n"
      "      '[fd00::1]:20160' '[fd00::2]:51234'\n"
      "\n"
      "Exit status:\n"
      "  0  a rule matches and takes the connection off TCP\n"
      "  1  the connection stays on TCP: no rule matches, or the one that does says via = \"tcp\"\n"
      "  2  an error in the policy or in the arguments\n");
  explainer->callback([arguments, &exit_status] { exit_status = explain(*arguments); });
}

}  // namespace ringroad::cli
