// Turns one rule's table into a Rule.
#pragma once

#include "policy/document.h"
#include "policy/report.h"
#include "policy/rule.h"

namespace ringroad::policy {

// Reads on after an error, so that one run reports them all; what it answers after an error is
// only good for finding more errors. `at` is where the rule starts.
Rule read_rule(const Value& table, Position at, Report& report);

// Whether `key` may stand in a rule.
bool is_rule_key(std::string_view key) noexcept;

}  // namespace ringroad::policy
