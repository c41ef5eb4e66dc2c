// A TOML document as plain values that know where they stand.
//
// The TOML library appears in document.cc only: it is large, and nothing else needs it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"

namespace ringroad::policy {

struct Position {
  std::uint32_t line = 1;
  std::uint32_t column = 1;

  friend bool operator==(const Position&, const Position&) = default;
};

struct Entry;

struct Value {
  enum class Kind : std::uint8_t { kString, kInteger, kFloat, kBoolean, kTime, kArray, kTable };

  Kind kind = Kind::kTable;
  Position at;                 // first character; of `[[x]]` tables, the header
  std::string string;          // kString
  std::int64_t integer = 0;    // kInteger
  std::vector<Value> items;    // kArray
  std::vector<Entry> entries;  // kTable, in no particular order
};

struct Entry {
  std::string key;
  Position at;
  Value value;
};

// "a string", "an integer", ...
std::string_view describe(Value::Kind kind) noexcept;

// The document's root table, or the first syntax error. Throws std::bad_alloc only.
// Safe for any text.
std::optional<Value> parse_document(std::string_view text, const std::string& file, Error& error);

}  // namespace ringroad::policy
