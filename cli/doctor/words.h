// Words of a text.
#pragma once

#include <string>
#include <vector>

namespace ringroad::cli::doctor {

std::string joined(const std::vector<std::string>& words, const std::string& between = ", ");
std::vector<std::string> split(const std::string& text, const char* separators = " \t\r\n");
bool contains(const std::vector<std::string>& list, const std::string& word);

}  // namespace ringroad::cli::doctor
