#include "cli/doctor/report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/text.h"

namespace ringroad::cli::doctor {
namespace {

using nlohmann::ordered_json;

constexpr Level kWorstFirst[] = {Level::kFail, Level::kWarn, Level::kUnknown, Level::kOk};
constexpr std::size_t kIndent = 9;
constexpr unsigned kNarrowest = 40;

// `text` behind `head`, its further lines indented as far as it is wide; broken at spaces.
std::string wrapped(const std::string& head, const std::string& text, unsigned columns) {
  std::string result = head;
  std::size_t width = head.size();
  bool fresh = true;
  const auto new_line = [&](std::size_t indent) {
    result += "\n" + std::string(indent, ' ');
    width = indent;
    fresh = true;
  };
  std::istringstream lines(text);
  bool first_line = true;
  for (std::string line; std::getline(lines, line); first_line = false) {
    if (!first_line) new_line(head.size());
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      word = printable(word);
      if (!fresh && columns != 0 && width + 1 + word.size() > columns) new_line(head.size());
      if (!fresh) result += ' ';
      result += word;
      width += word.size() + (fresh ? 0U : 1U);
      fresh = false;
    }
  }
  while (result.ends_with(' ')) result.pop_back();
  return result + "\n";
}

std::array<std::size_t, 4> counts_of(const std::vector<Finding>& findings) {
  std::array<std::size_t, 4> counts{};
  for (const Finding& finding : findings) ++counts[static_cast<std::size_t>(finding.level)];
  return counts;
}

}  // namespace

std::string report_text(const std::vector<Finding>& findings, unsigned columns) {
  if (columns != 0) columns = std::max(columns, kNarrowest);
  std::size_t longest = 0;
  for (const Finding& finding : findings) longest = std::max(longest, finding.check.size());
  std::string text;
  for (const Level level : kWorstFirst) {
    for (const Finding& finding : findings) {
      if (finding.level != level) continue;
      std::string head = level_name(level);
      head.resize(kIndent, ' ');
      head += finding.check + std::string(longest - finding.check.size() + 2, ' ');
      text += wrapped(
          head,
          finding.subject.empty() ? finding.evidence : finding.subject + ": " + finding.evidence,
          columns);
      const std::string indent(kIndent, ' ');
      if (level == Level::kOk) continue;
      if (!finding.consequence.empty()) {
        text += wrapped(indent + (level == Level::kUnknown ? "not known: " : "means: "),
                        finding.consequence, columns);
      }
      if (!finding.remedy.empty()) text += wrapped(indent + "mend: ", finding.remedy, columns);
    }
  }
  const auto counts = counts_of(findings);
  if (!text.empty()) text += "\n";
  for (const Level level : kWorstFirst) {
    text += std::to_string(counts[static_cast<std::size_t>(level)]) + " " + level_name(level) +
            (level == Level::kOk ? "\n" : ", ");
  }
  return text;
}

std::string report_json(const std::vector<Finding>& findings) {
  ordered_json list = ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.check},
                    {"group", finding.group},
                    {"level", level_name(finding.level)},
                    {"subject", finding.subject},
                    {"evidence", finding.evidence},
                    {"consequence", finding.consequence},
                    {"remedy", finding.remedy}});
  }
  const auto counts = counts_of(findings);
  ordered_json count = ordered_json::object();
  for (const Level level : kWorstFirst) {
    count[level_name(level)] = counts[static_cast<std::size_t>(level)];
  }
  const ordered_json object = {
      {"worst", level_name(worst(findings))}, {"counts", count}, {"findings", list}};
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ringroad::cli::doctor
