// JSON written straight into a string: for documents of thousands of objects, which a tree of
// values would make slow. The caller sees to the order: key() in objects, begin and end in
// pairs.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace ringroad::cli {

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  // `lines`: each member on a line of its own.
  JsonWriter& begin_object(bool lines = false) { return begin('{', lines); }
  JsonWriter& end_object() { return end('}'); }
  JsonWriter& begin_array(bool lines = false) { return begin('[', lines); }
  JsonWriter& end_array() { return end(']'); }

  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);  // what is no UTF-8 becomes U+FFFD
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(bool yes);
  JsonWriter& value(double number);  // at most three digits behind the point
  template <std::integral Number>
  JsonWriter& value(Number number) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    return raw(std::string_view(digits, static_cast<std::size_t>(end - digits)));
  }
  JsonWriter& null() { return raw("null"); }

  template <typename Value>
  JsonWriter& member(std::string_view name, const Value& content) {
    return key(name).value(content);
  }

 private:
  JsonWriter& begin(char bracket, bool lines);
  JsonWriter& end(char bracket);
  JsonWriter& raw(std::string_view text);
  void separate();
  void quote(std::string_view text);
  void new_line();

  std::string& out_;
  std::uint64_t lines_ =
      0;  // a bit for each level: whether its members stand on lines of their own
  unsigned depth_ = 0;
  bool first_ = true;
  bool after_key_ = false;
};

}  // namespace ringroad::cli
