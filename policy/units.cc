#include "policy/units.h"

#include <array>
#include <cstddef>
#include <span>

namespace ringroad::policy {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::array<Unit, 4> kSizeUnits = {
    {{"B", 1}, {"KiB", 1U << 10}, {"MiB", 1U << 20}, {"GiB", 1U << 30}}};
constexpr std::array<Unit, 4> kTimeUnits = {
    {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}}};

// Other spellings, in lower case, and the unit that they are taken to mean in a remedy.
constexpr std::array<std::pair<std::string_view, std::string_view>, 24> kAliases = {{
    {"b", "B"},     {"byte", "B"},  {"bytes", "B"},    {"k", "KiB"},      {"kb", "KiB"},
    {"kib", "KiB"}, {"m", "MiB"},   {"mb", "MiB"},     {"mib", "MiB"},    {"g", "GiB"},
    {"gb", "GiB"},  {"gib", "GiB"}, {"nsec", "ns"},    {"usec", "us"},    {"u", "us"},
    {"msec", "ms"}, {"sec", "s"},   {"ns", "ns"},      {"us", "us"},      {"ms", "ms"},
    {"s", "s"},     {"secs", "s"},  {"\u00b5s", "us"}, {"\u03bcs", "us"},
}};

constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;

struct Parts {
  std::string_view digits;
  std::string_view unit;
};

Parts split(std::string_view text) noexcept {
  std::size_t end = 0;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') {
    ++end;
  }
  return {text.substr(0, end), text.substr(end)};
}

// Saturates above kLargest.
std::uint64_t to_number(std::string_view digits) noexcept {
  std::uint64_t number = 0;
  for (const char digit : digits) {
    number = number * 10 + static_cast<std::uint64_t>(digit - '0');
    if (number > kLargest) {
      return kLargest + 1;
    }
  }
  return number;
}

const Unit* find_unit(std::span<const Unit> units, std::string_view name) noexcept {
  for (const Unit& unit : units) {
    if (unit.name == name) {
      return &unit;
    }
  }
  return nullptr;
}

std::string format(std::uint64_t value, std::span<const Unit> units) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (value % units[i].factor == 0) {
      best = i;
    }
  }
  return std::to_string(value / units[best].factor) + std::string(units[best].name);
}

// What a person who wrote `text` should have written, or empty.
std::string corrected(std::string_view text, std::span<const Unit> units,
                      std::string_view unit_if_none) {
  std::string compact;
  for (const char c : text) {
    if (c != ' ' && c != '_') {
      compact += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  const Parts parts = split(compact);
  const std::uint64_t number = to_number(parts.digits);
  if (parts.digits.empty() || number > kLargest) {
    return {};
  }
  std::string_view unit_name = parts.unit.empty() ? unit_if_none : std::string_view();
  for (const auto& [alias, name] : kAliases) {
    if (alias == parts.unit) {
      unit_name = name;
    }
  }
  const Unit* unit = find_unit(units, unit_name);
  if (unit == nullptr || number > kLargest / unit->factor) {
    return {};
  }
  return number == 0 ? "0" + std::string(unit->name) : format(number * unit->factor, units);
}

std::optional<std::uint64_t> parse(std::string_view text, std::span<const Unit> units) noexcept {
  const Parts parts = split(text);
  const Unit* unit = find_unit(units, parts.unit);
  const std::uint64_t number = to_number(parts.digits);
  if (parts.digits.empty() || unit == nullptr || number > kLargest / unit->factor) {
    return std::nullopt;
  }
  return number * unit->factor;
}

}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text, Complaint& complaint) {
  const std::optional<std::uint64_t> size = parse(text, kSizeUnits);
  if (!size) {
    const std::string better = corrected(text, kSizeUnits, "B");
    complaint.message = in_quotes(text) + " is not a size";
    complaint.remedy = better.empty()
                           ? "a size is a whole number and B, KiB, MiB or GiB, such as \"256KiB\""
                           : "write " + in_quotes(better);
  }
  return size;
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text,
                                                       Complaint& complaint) {
  const std::optional<std::uint64_t> count = parse(text, kTimeUnits);
  if (!count) {
    // A bare number could be any unit; only zero is the same in all of them.
    const std::string better = corrected(text, kTimeUnits, text == "0" ? "us" : "");
    complaint.message = in_quotes(text) + " is not a duration";
    complaint.remedy = better.empty()
                           ? "a duration is a whole number and ns, us, ms or s, such as \"20us\""
                           : "write " + in_quotes(better);
    return std::nullopt;
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(*count));
}

std::string format_size(std::uint64_t bytes) {
  return bytes == 0 ? "0B" : format(bytes, kSizeUnits);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const std::int64_t count = duration.count();
  return count == 0 ? "0us" : format(static_cast<std::uint64_t>(count), kTimeUnits);
}

}  // namespace ringroad::policy
