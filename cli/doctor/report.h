// The findings as a person and as a script read them.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/finding.h"

namespace ringroad::cli::doctor {

// Worst first; those that are ok in one line each. `columns`: the terminal's, 0 for no terminal:
// then lines are not broken.
std::string report_text(const std::vector<Finding>& findings, unsigned columns);

// One object: "worst", "counts" and an array "findings", in the order of the checks.
std::string report_json(const std::vector<Finding>& findings);

}  // namespace ringroad::cli::doctor
