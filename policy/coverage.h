// Finds rules that no connection can reach.
#pragma once

#include <vector>

#include "policy/error.h"
#include "policy/rule.h"

namespace ringroad::policy {

// A warning for each rule that can never match because the earlier ones, alone or together, match
// everything that it does. Never warns of a rule that can match. Misses a rule only where one glob
// is contained in a different one ("a*" in "?*") or where the remainders grow past a bound.
std::vector<Error> unreachable_rules(const std::vector<Rule>& rules);

}  // namespace ringroad::policy
