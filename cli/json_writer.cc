#include "cli/json_writer.h"

#include <algorithm>
#include <cstdio>

#include "cli/text.h"

namespace ringroad::cli {
void JsonWriter::new_line() {
  out_ += '\n';
  out_.append(std::size_t{2} * depth_, ' ');
}

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (depth_ == 0) return;
  const bool line = (lines_ >> depth_ & 1U) != 0;
  if (!first_) out_ += line ? "," : ", ";
  if (line) new_line();
  first_ = false;
}

JsonWriter& JsonWriter::begin(char bracket, bool lines) {
  separate();
  out_ += bracket;
  ++depth_;
  lines_ = (lines_ & ~(std::uint64_t{1} << depth_)) | (std::uint64_t{lines} << depth_);
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::end(char bracket) {
  const bool line = (lines_ >> depth_ & 1U) != 0;
  --depth_;
  if (line && !first_) new_line();
  out_ += bracket;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  quote(name);
  out_ += ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  quote(text);
  return *this;
}

JsonWriter& JsonWriter::value(bool yes) { return raw(yes ? "true" : "false"); }

JsonWriter& JsonWriter::value(double number) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", number);
  return raw(text);
}

JsonWriter& JsonWriter::raw(std::string_view text) {
  separate();
  out_ += text;
  return *this;
}

void JsonWriter::quote(std::string_view text) {
  const auto is_plain = [](char c) { return c >= 0x20 && c != '"' && c != '\\'; };  // ASCII
  out_ += '"';
  while (!text.empty()) {
    const auto end = std::find_if_not(text.begin(), text.end(), is_plain);
    const auto plain = static_cast<std::size_t>(end - text.begin());
    out_.append(text.data(), plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const char c = text.front();
    std::size_t length = 1;
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out_ += escape;
    } else {
      length = utf8_length(text);
      if (length == 0) {
        out_ += "\xef\xbf\xbd";
        length = 1;
      } else {
        out_ += text.substr(0, length);
      }
    }
    text.remove_prefix(length);
  }
  out_ += '"';
}

}  // namespace ringroad::cli
