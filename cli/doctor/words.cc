#include "cli/doctor/words.h"

#include <algorithm>

namespace ringroad::cli::doctor {

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::vector<std::string> split(const std::string& text, const char* separators) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    begin = text.find_first_not_of(separators, begin);
    if (begin == std::string::npos) break;
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

}  // namespace ringroad::cli::doctor
