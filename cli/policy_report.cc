#include "cli/policy_report.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "cli/text.h"
#include "policy/units.h"

namespace ringroad::cli {

using nlohmann::ordered_json;
using policy::Settings;
using policy::Via;

namespace {

template <typename Value>
ordered_json or_null(const std::optional<Value>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
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

void print_line(const char* key, const std::string& value) {
  std::printf("    %-14s %s\n", key, printable(value).c_str());
}

void print_settings(const Settings& rule) {
  if (rule.via != Via::kShm) {
    print_line("device", rule.device.empty() ? "chosen by route" : rule.device);
    print_line("traffic_class", describe_traffic_class(rule));
    print_line("detect", policy::format_duration(rule.detect));
  }
  print_line("ring", policy::format_size(rule.ring_bytes));
  print_line("spin", policy::format_duration(rule.spin));
  print_line("promote_after", describe(rule.promote_after));
  print_line("wait", policy::format_duration(rule.wait));
  print_line("idle", rule.idle.count() == 0 ? "keeps its channel" : policy::format_duration(rule.idle));
  if (!rule.key_file.empty()) print_line("key_file", rule.key_file);
}

void print_step(const policy::Consideration& step, const char* matches, const char* matches_not) {
  std::printf("rule %zu %s %s\n", step.rule->index + 1, place(*step.rule).c_str(),
              step.matches() ? matches : matches_not);
  if (step.matches() && !step.program.empty()) {
    print_line("program", step.program);
  }
  for (const policy::Mismatch& mismatch : step.mismatches) {
    print_line(std::string(to_string(mismatch.criterion)).c_str(), mismatch.reason);
  }
}

std::string or_else(const std::string& text, const char* otherwise) {
  return text.empty() ? otherwise : text;
}

}  // namespace

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

ordered_json to_json(const std::vector<policy::Consideration>& considered) {
  ordered_json list = ordered_json::array();
  for (const policy::Consideration& step : considered) {
    ordered_json mismatches = ordered_json::array();
    for (const policy::Mismatch& mismatch : step.mismatches) {
      mismatches.push_back({{"key", to_string(mismatch.criterion)}, {"reason", mismatch.reason}});
    }
    list.push_back({{"name", step.rule->name},
                    {"number", step.rule->index + 1},
                    {"file", step.rule->file},
                    {"line", step.rule->line},
                    {"matches", step.matches()},
                    {"program", step.program},
                    {"mismatches", mismatches}});
  }
  return list;
}

ordered_json to_json(const policy::Explanation& explanation) {
  const Settings* rule = explanation.decision;
  return {{"decision", to_string(rule == nullptr ? Via::kTcp : rule->via)},
          {"rule", rule == nullptr ? ordered_json(nullptr) : to_json(*rule)},
          {"considered", to_json(explanation.considered)},
          {"not_considered", explanation.not_considered}};
}

ordered_json to_json(const ProcessIdentity& process, const policy::Policy& policy) {
  return {{"file", process.file},       {"argv0", process.called},
          {"comm", process.comm},       {"cgroup", process.cgroup},
          {"labels", process.labels},   {"policy", policy.sources()},
          {"library", process.library}, {"left_alone", why_left_alone(process)}};
}

std::string why_left_alone(const ProcessIdentity& process) {
  if (process.is_disabled) return "RINGROAD_DISABLE is set in its environment";
  if (process.may_be_looked_at && process.library.empty()) return "the library is not loaded";
  return {};
}

void print_process(pid_t pid, const ProcessIdentity& process, const policy::Policy& policy) {
  const bool is_known = process.may_be_looked_at;
  std::string files;
  for (const std::string& source : policy.sources()) files += (files.empty() ? "" : " ") + source;
  std::printf("process %d\n", static_cast<int>(pid));
  print_line("file", process.file);
  print_line("argv[0]", process.called);
  print_line("comm", process.comm);
  print_line("cgroup", or_else(process.cgroup, "not known"));
  print_line("labels", or_else(process.labels, is_known ? "none" : "not known"));
  print_line("policy", or_else(files, "none"));
  print_line("library", or_else(process.library, is_known ? "not loaded" : "not known"));
  std::puts("");
}

void print_explanation(const policy::Explanation& explanation) {
  for (const policy::Consideration& step : explanation.considered) {
    print_step(step, "matches", "does not match");
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

void print_rules_for_process(const std::vector<policy::Consideration>& considered) {
  for (const policy::Consideration& step : considered) {
    print_step(step, "is for this process", "is not for this process");
  }
  const auto count = static_cast<std::size_t>(
      std::count_if(considered.begin(), considered.end(), [](const auto& step) { return step.matches(); }));
  if (count == 0) {
    std::puts("\ndecision: tcp, because no rule is for this process");
  } else {
    std::printf("\ndecision: by the ends of a connection, in %s: give LOCAL, REMOTE and --role\n",
                plural(count, "rule").c_str());
  }
}

void print_left_alone(const std::string& why) {
  std::printf("the process is not concerned: it stays on TCP, because %s\n", why.c_str());
}

}  // namespace ringroad::cli
