// One complaint about a policy: where, what, and what to write instead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringroad::policy {

struct Error {
  std::string file;
  std::uint32_t line = 0;    // from 1; 0 when the complaint is about the file as a whole
  std::uint32_t column = 0;  // from 1, in characters; 0 together with line
  std::string message;
  std::string remedy;  // may be empty
};

// Orders what one file causes by line and column, and leaves files in the order they come in.
void sort_by_position(std::vector<Error>& errors);

// `file:line:col: error: message (remedy)`, without a final newline.
std::string to_string(const Error& error, std::string_view severity = "error");

}  // namespace ringroad::policy
