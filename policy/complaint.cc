#include "policy/complaint.h"

#include <cstddef>

namespace ringroad::policy {
namespace {

constexpr std::size_t kLongestText = 400;
constexpr std::size_t kLongestQuote = 120;

bool continues_character(char c) noexcept {
  return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U;
}

// At most `limit` bytes, but not a part of a UTF-8 character.
std::string_view cut(std::string_view text, std::size_t limit) noexcept {
  std::size_t end = limit;
  if (text.size() <= limit) {
    return text;
  }
  while (end > 0 && continues_character(text[end])) {
    --end;
  }
  return text.substr(0, end);
}

std::string escaped(std::string_view text, std::string_view also) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string result;
  const auto append_code = [&](unsigned code) {
    result += "\\u00";
    result += kHexDigits[code >> 4U];
    result += kHexDigits[code & 15U];
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (byte < 0x20 || byte == 0x7f) {
      append_code(byte);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {
      // U+0080 to U+009F: some terminals obey them.
      append_code(next);
      ++i;
    } else {
      result += also.find(text[i]) == std::string_view::npos ? "" : "\\";
      result += text[i];
    }
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text) {
  const std::string_view shown = cut(text, kLongestText);
  return escaped(shown, "") + (shown.size() < text.size() ? "..." : "");
}

std::string in_quotes(std::string_view text) {
  const std::string_view shown = cut(text, kLongestQuote);
  return "\"" + escaped(shown, "\"\\") + (shown.size() < text.size() ? "...\"" : "\"");
}

}  // namespace ringroad::policy
