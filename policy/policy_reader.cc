#include "policy/policy_reader.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "policy/process_reader.h"
#include "policy/rule_reader.h"
#include "policy/suggest.h"

namespace ringroad::policy {
namespace {

constexpr std::int64_t kVersion = 1;

std::vector<std::string_view> root_keys() {
  std::vector<std::string_view> keys = {"version"};
  for (const std::string_view key : process_keys()) keys.push_back(key);
  keys.push_back("rule");
  return keys;
}

void read_version(const Value& value, Report& report) {
  const std::string wanted = std::to_string(kVersion);
  if (value.kind != Value::Kind::kInteger) {
    report.error(value.at,
                 {"\"version\" must be an integer, not " + std::string(describe(value.kind)),
                  "write version = " + wanted});
  } else if (value.integer != kVersion) {
    report.error(value.at,
                 {"version " + std::to_string(value.integer) + " of the policy is not known",
                  "this release of Ringroad reads version = " + wanted});
  }
}

void refuse_known_name(const Rule& rule, const Value& table, Report& report,
                       const std::vector<Rule>& rules) {
  // Names that were not given, only made from the place, are not held to anything.
  const auto given = std::find_if(table.entries.begin(), table.entries.end(),
                                  [](const Entry& entry) { return entry.key == "name"; });
  if (given == table.entries.end()) {
    return;
  }
  for (const Rule& earlier : rules) {
    if (earlier.settings.name == rule.settings.name) {
      report.error(given->value.at,
                   {"a second rule is named " + in_quotes(rule.settings.name),
                    "the first is at " + earlier.settings.file + ":" +
                        std::to_string(earlier.settings.line) + "; rename one of them"});
      return;
    }
  }
}

void read_rules(const Value& value, Position key_at, Report& report, std::vector<Rule>& rules) {
  if (value.kind != Value::Kind::kArray) {
    const bool table = value.kind == Value::Kind::kTable;
    report.error(table ? value.at : key_at,
                 {"\"rule\" must be a list of tables, not " + std::string(describe(value.kind)),
                  "start every rule with [[rule]]"});
    return;
  }
  for (const Value& item : value.items) {
    if (item.kind != Value::Kind::kTable) {
      report.error(item.at, {"a rule must be a table, not " + std::string(describe(item.kind)),
                             "start every rule with [[rule]]"});
      continue;
    }
    Rule rule = read_rule(item, item.at, report);
    rule.settings.index = rules.size();
    refuse_known_name(rule, item, report, rules);
    rules.push_back(std::move(rule));
  }
}

}  // namespace

void read_policy(const Value& root, Report& report, std::vector<Rule>& rules, Limits& limits) {
  bool has_version = false;
  for (const Entry& entry : root.entries) {
    has_version = has_version || entry.key == "version";
  }
  if (!has_version) {
    report.error(Position{},
                 {"the policy does not say its version",
                  "write version = " + std::to_string(kVersion) + " on the first line"});
  }
  for (const Entry& entry : root.entries) {
    if (entry.key == "version") {
      read_version(entry.value, report);
    } else if (entry.key == "rule") {
      read_rules(entry.value, entry.at, report, rules);
    } else if (read_process_key(entry, report, limits)) {
      continue;
    } else if (is_rule_key(entry.key)) {
      report.error(entry.at, {in_quotes(entry.key) + " stands outside of a rule",
                              "put it under a [[rule]] line"});
    } else {
      report.error(entry.at,
                   {"unknown key " + in_quotes(entry.key), suggestion(entry.key, root_keys())});
    }
  }
}

}  // namespace ringroad::policy
