#include "policy/document.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "policy/complaint.h"
#include "policy/precheck.h"

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
// Without this, one number would bring the C++ locales into every preloaded process.
#define TOML_FLOAT_CHARCONV 1
// rule > promote_after > key is the deepest that a policy goes.
#define TOML_MAX_NESTED_VALUES 16
// Version 3.3 asserts, and with NDEBUG promises to the compiler, what a file can make false ("[=]"
// is one). It also handles these cases, so that all it needs is to be left alone: a bad policy must
// neither abort the host process nor be undefined behaviour. The fuzz tests hold it to that.
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/toml.h>

namespace ringroad::policy {
namespace {

constexpr std::size_t kLongestBareValue = 64;

constexpr std::string_view kScopePrefix = "Error while parsing ";

// REQUIRES: number >= 1. Empty past the last line.
std::string_view line_at(std::string_view text, std::uint32_t number) noexcept {
  for (; number > 1; --number) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      return {};
    }
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

std::string_view trimmed(std::string_view text) noexcept {
  const std::size_t first = text.find_first_not_of(" \t\r");
  const std::size_t last = text.find_last_not_of(" \t\r");
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, last - first + 1);
}

// `via = rdma` is the likeliest mistake of all: a value without its quotes.
std::string remedy_for_bare_value(std::string_view line) {
  const std::string_view statement = line.substr(0, line.find('#'));
  const std::size_t equals = statement.find('=');
  if (equals == std::string_view::npos) {
    return {};
  }
  const std::string_view key = trimmed(statement.substr(0, equals));
  const std::string_view value = trimmed(statement.substr(equals + 1));
  const bool plain_key = !key.empty() && key.size() <= kLongestBareValue &&
                         std::all_of(key.begin(), key.end(),
                                     [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
  const bool plain_value =
      !value.empty() && value.size() <= kLongestBareValue &&
      std::all_of(value.begin(), value.end(), [](char c) {
        return c > ' ' && c <= '~' &&
               std::string_view("\"'[]{},=\\").find(c) == std::string_view::npos;
      });
  if (!plain_key || !plain_value || key == "version" || key == "traffic_class") {
    return {};
  }
  return "put the value in quotes: " + std::string(key) + " = " + in_quotes(value);
}

std::string remedy_for(std::string_view line, std::string_view description) {
  if (description.find("cannot redefine") != std::string_view::npos) {
    return "give each key once; every rule starts with its own [[rule]]";
  }
  if (description.starts_with("string: unescaped control") ||
      description.starts_with("string: encountered end-of-file")) {
    return "close the quotes on the same line";
  }
  return remedy_for_bare_value(line);
}

Error syntax_error(const toml::parse_error& failure, std::string_view text,
                   const std::string& file) {
  const toml::source_position at = failure.source().begin;
  std::string_view description = failure.description();
  std::string message = "TOML syntax";
  if (description.starts_with(kScopePrefix)) {
    description.remove_prefix(kScopePrefix.size());
    message += ", in ";
  } else {
    message += ": ";
  }
  // What the limit is called in the TOML library helps nobody here.
  message += printable(description.substr(0, description.find(" (TOML_MAX_NESTED_VALUES)")));
  const std::uint32_t line = std::max<std::uint32_t>(at.line, 1);
  return {file, line, std::max<std::uint32_t>(at.column, 1), message,
          remedy_for(line_at(text, line), description)};
}

Position position_of(const toml::source_region& region) noexcept {
  return {std::max<std::uint32_t>(region.begin.line, 1),
          std::max<std::uint32_t>(region.begin.column, 1)};
}

Value convert(const toml::node& node) {
  Value value;
  value.at = position_of(node.source());
  switch (node.type()) {
    case toml::node_type::string:
      value.kind = Value::Kind::kString;
      value.string = node.ref<std::string>();
      break;
    case toml::node_type::integer:
      value.kind = Value::Kind::kInteger;
      value.integer = node.ref<std::int64_t>();
      break;
    case toml::node_type::floating_point:
      value.kind = Value::Kind::kFloat;
      break;
    case toml::node_type::boolean:
      value.kind = Value::Kind::kBoolean;
      break;
    case toml::node_type::array:
      value.kind = Value::Kind::kArray;
      for (const toml::node& item : *node.as_array()) {
        value.items.push_back(convert(item));
      }
      break;
    case toml::node_type::table:
      value.kind = Value::Kind::kTable;
      for (const auto& [key, child] : *node.as_table()) {
        value.entries.push_back(
            {std::string(key.str()), position_of(key.source()), convert(child)});
      }
      break;
    default:
      value.kind = Value::Kind::kTime;
      break;
  }
  return value;
}

}  // namespace

std::string_view describe(Value::Kind kind) noexcept {
  switch (kind) {
    case Value::Kind::kString:
      return "a string";
    case Value::Kind::kInteger:
      return "an integer";
    case Value::Kind::kFloat:
      return "a floating-point number";
    case Value::Kind::kBoolean:
      return "a boolean";
    case Value::Kind::kTime:
      return "a date or time";
    case Value::Kind::kArray:
      return "an array";
    case Value::Kind::kTable:
      return "a table";
  }
  return "";
}

std::optional<Value> parse_document(std::string_view text, const std::string& file, Error& error) {
  if (std::optional<Error> refused = precheck(text, file)) {
    error = *std::move(refused);
    return std::nullopt;
  }
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    error = syntax_error(parsed.error(), text, file);
    return std::nullopt;
  }
  return convert(parsed.table());
}

}  // namespace ringroad::policy
