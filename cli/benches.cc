#include "cli/benches.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

namespace ringroad::cli {
namespace {

constexpr std::size_t kColumns = 63;  // beside the names

void replace(std::string& text, std::string_view place, const std::string& with) {
  const std::size_t at = text.find(place);
  if (at != std::string::npos) text.replace(at, place.size(), with);
}

// In lines that end behind a word, or behind a comma of a list.
std::string in_lines(const std::string& text) {
  std::string lines;
  std::size_t begin = 0;
  while (text.size() - begin > kColumns) {
    std::size_t end = text.find_last_of(" ,", begin + kColumns);
    if (end == std::string::npos || end <= begin) break;
    if (text[end] == ',') ++end;
    lines.append(text, begin, end - begin).append("\n");
    begin = end + (text[end] == ' ');
  }
  return lines.append(text, begin);
}

}  // namespace

std::vector<BenchOption> bench_options(std::string_view bench) {
  std::vector<BenchOption> result;
  static const nlohmann::json declared = nlohmann::json::parse(kBenchesJson);
  for (const nlohmann::json& option : declared.at(std::string(bench))) {
    std::string choices;
    for (const nlohmann::json& choice : option.value("choices", nlohmann::json::array())) {
      choices += (choices.empty() ? "" : ",") + choice.get<std::string>();
    }
    std::string help = option.at("help");
    replace(help, "{choices}", choices);
    replace(help, "{default}", option.value("default", std::string()));
    result.push_back({option.at("name"), option.value("value", std::string()), in_lines(help)});
  }
  return result;
}

}  // namespace ringroad::cli
