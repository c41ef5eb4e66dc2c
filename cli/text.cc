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

std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
  }
  const unsigned second = byte(1);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool outside = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || outside ? 0 : length;
}

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

std::string human_time(std::uint64_t ns) {
  if (ns < 1000) return std::to_string(ns) + "ns";
  constexpr const char* kUnits[] = {"us", "ms", "s"};
  double scaled = static_cast<double>(ns) / 1000;
  std::size_t unit = 0;
  // 999.5 would be printed as 1000.
  while (scaled >= 999.5 && unit + 1 < std::size(kUnits)) {
    scaled /= 1000;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof text, scaled < 99.95 ? "%.1f%s" : "%.0f%s", scaled, kUnits[unit]);
  return text;
}

std::string counted(std::uint64_t count, std::string_view noun, std::string_view plural) {
  const std::string many = plural.empty() ? std::string(noun) + "s" : std::string(plural);
  return std::to_string(count) + " " + (count == 1 ? std::string(noun) : many);
}

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    // U+0080 to U+009F steer a terminal, too; so do such bytes where it knows nothing of UTF-8.
    const bool steers = byte < 0x20 || byte == 0x7f ||
                        (byte == 0xc2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xa0);
    if (length == 0 || steers) {
      result += '?';
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

void Table::add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string cut(std::string_view text, std::size_t columns) {
  std::size_t used = 0;
  std::size_t bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    if ((static_cast<unsigned char>(text[bytes]) & 0xc0U) == 0x80U) continue;
    if (used++ == columns) break;
  }
  return std::string(text.substr(0, bytes));
}

std::string Table::to_string(bool titles) const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(titles ? width_of(column.title) : 1);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max({widths[i], width_of(row[i]), std::size_t{1}});
    }
  }
  std::string result;
  const auto add_line = [&](const auto& cell_of) {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string_view text = cell_of(i);
      const std::string_view cell = text.empty() ? "-" : text;
      const std::size_t padding = widths[i] - width_of(cell);
      if (i > 0) result += "  ";
      if (columns_[i].align == Align::kRight) result.append(padding, ' ');
      result += cell;
      if (columns_[i].align == Align::kLeft) result.append(padding, ' ');
    }
    while (result.ends_with(' ')) result.pop_back();
    result += '\n';
  };
  if (titles) add_line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) {
    add_line([&](std::size_t i) -> const std::string& { return row[i]; });
  }
  return result;
}

}  // namespace ringroad::cli
