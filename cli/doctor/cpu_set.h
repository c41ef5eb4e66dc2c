// Lists of CPUs as the kernel writes them: "0-3,8".
#pragma once

#include <set>
#include <string>

namespace ringroad::cli::doctor {

// Parts that make no sense are passed over.
std::set<unsigned> parse_cpus(const std::string& text);

// How many of `some` are in `all`.
std::size_t common_cpus(const std::set<unsigned>& some, const std::set<unsigned>& all);

}  // namespace ringroad::cli::doctor
