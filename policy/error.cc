#include "policy/error.h"

#include <algorithm>
#include <utility>

namespace ringroad::policy {

void sort_by_position(std::vector<Error>& errors) {
  for (auto first = errors.begin(); first != errors.end();) {
    const auto last = std::find_if(first, errors.end(),
                                   [&](const Error& error) { return error.file != first->file; });
    std::stable_sort(first, last, [](const Error& a, const Error& b) {
      return std::pair(a.line, a.column) < std::pair(b.line, b.column);
    });
    first = last;
  }
}

std::string to_string(const Error& error, std::string_view severity) {
  std::string text = error.file;
  if (error.line != 0) {
    text += ":" + std::to_string(error.line) + ":" + std::to_string(error.column);
  }
  text += ": ";
  text += severity;
  text += ": " + error.message;
  if (!error.remedy.empty()) {
    text += " (" + error.remedy + ")";
  }
  return text;
}

}  // namespace ringroad::policy
