// The file that a rule's key_file names: a secret that both ends of a promotion have to know.
//
// Thread rule: a free function without state. Errors are values; std::bad_alloc may be thrown.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "policy/complaint.h"

namespace ringroad::policy {

// Without a final line end. What is shorter can be guessed, what is longer is another file.
constexpr std::size_t kShortestKeyBytes = 16;
constexpr std::size_t kLongestKeyBytes = 4096;

// The key, or nothing and what is wrong: a relative path, no regular file, one that others may read or
// change, one of another user's than root and the one that runs the program, a key of the wrong length.
std::optional<std::string> read_key(const std::string& path, Complaint& complaint);

}  // namespace ringroad::policy
