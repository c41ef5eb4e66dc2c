// Turns one policy file's root table into rules.
#pragma once

#include <vector>

#include "policy/document.h"
#include "policy/report.h"
#include "policy/rule.h"

namespace ringroad::policy {

// Appends to `rules`, which holds the rules of the files before this one, as `limits` does theirs.
// After an error both are only good for finding more errors.
void read_policy(const Value& root, Report& report, std::vector<Rule>& rules, Limits& limits);

}  // namespace ringroad::policy
