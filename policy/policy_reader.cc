#include "policy/policy_reader.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "policy/rule_reader.h"
#include "policy/suggest.h"

namespace ringroad::policy {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::array<std::string_view, 3> kRootKeys = {"version", "max_channels", "rule"};

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

void read_max_channels(const Entry& entry, Report& report, Limits& limits) {
  const Value& value = entry.value;
  const std::string usual = std::to_string(kDefaultMaxChannels);
  if (value.kind != Value::Kind::kInteger) {
    report.error(value.at,
                 {"\"max_channels\" must be an integer, not " + std::string(describe(value.kind)),
                  "write max_channels = " + usual});
  } else if (value.integer < 1 || value.integer > std::int64_t{kMostChannels}) {
    report.error(value.at, {"max_channels = " + std::to_string(value.integer) +
                                " is not between 1 and " + std::to_string(kMostChannels),
                            value.integer == 0 ? R"(write via = "tcp" to have no channels)"
                                               : "the usual is " + usual});
  } else if (!limits.file.empty()) {
    report.error(entry.at, {"\"max_channels\" is given a second time",
                            "the first is at " + limits.file + ":" + std::to_string(limits.line) +
                                "; it holds for the whole process, so leave one of them out"});
  } else {
    limits = {static_cast<std::uint32_t>(value.integer), report.file(), entry.at.line};
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
                   {"a second rule is named " + quoted(rule.settings.name),
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
    } else if (entry.key == "max_channels") {
      read_max_channels(entry, report, limits);
    } else if (entry.key == "rule") {
      read_rules(entry.value, entry.at, report, rules);
    } else if (is_rule_key(entry.key)) {
      report.error(entry.at, {quoted(entry.key) + " stands outside of a rule",
                              "put it under a [[rule]] line"});
    } else {
      report.error(entry.at,
                   {"unknown key " + quoted(entry.key), suggestion(entry.key, kRootKeys)});
    }
  }
}

}  // namespace ringroad::policy
