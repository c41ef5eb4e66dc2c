#include "cli/text.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace ringroad::cli {
namespace {

// UTF-8 text takes as many columns as it has bytes that begin a character.
std::size_t width_of(std::string_view text) noexcept {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

}  // namespace

std::string human_count(std::uint64_t value) {
  if (value < 1024) return std::to_string(value);
  constexpr std::string_view kUnits = "KMGTPE";
  double scaled = static_cast<double>(value) / 1024;
  std::size_t unit = 0;
  // 1023.5 would be printed as 1024.
  while (scaled >= 1023.5 && unit + 1 < kUnits.size()) {
    scaled /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, scaled < 99.95 ? "%.1f%c" : "%.0f%c", scaled, kUnits[unit]);
  return text;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return result;
}

void Table::add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::to_string() const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(width_of(column.title));
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max({widths[i], width_of(row[i]), std::size_t{1}});
    }
  }
  std::string result;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& text = cell_of(i);
      const std::string cell = text.empty() ? "-" : text;
      const std::string padding(widths[i] - width_of(cell), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::kLeft ? cell + padding : padding + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  };
  add_line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) {
    add_line([&](std::size_t i) -> const std::string& { return row[i]; });
  }
  return result;
}

}  // namespace ringroad::cli
