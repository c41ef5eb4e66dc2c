#include "policy/precheck.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "policy/complaint.h"

namespace ringroad::policy {
namespace {

constexpr std::size_t kMostDotsInALine = 16;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The length of the UTF-8 character that `text` starts with; 0 if it is none (RFC 3629, 3).
std::size_t character_length(std::string_view text) noexcept {
  const auto byte = [text](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xc0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80U) {
    return 1;
  }
  if (lead >= 0xc2U && lead <= 0xdfU && continues(1)) {
    return 2;
  }
  const bool overlong = (lead == 0xe0U && byte(1) < 0xa0U) || (lead == 0xf0U && byte(1) < 0x90U);
  const bool surrogate = lead == 0xedU && byte(1) >= 0xa0U;
  const bool too_large = lead == 0xf4U && byte(1) >= 0x90U;
  if (overlong || surrogate || too_large || !continues(1) || !continues(2)) {
    return 0;
  }
  if (lead >= 0xe0U && lead <= 0xefU) {
    return 3;
  }
  return lead >= 0xf0U && lead <= 0xf4U && continues(3) ? 4U : 0U;
}

// REQUIRES: `character` is one whole UTF-8 character.
std::uint32_t code_point(std::string_view character) noexcept {
  const auto lead = static_cast<unsigned char>(character.front());
  std::uint32_t code = character.size() == 1 ? lead : lead & (0x7fU >> character.size());
  for (const char c : character.substr(1)) {
    code = (code << 6U) | (static_cast<unsigned char>(c) & 0x3fU);
  }
  return code;
}

// "U+00E9", "U+1F600".
std::string name_of(std::uint32_t code) {
  char name[16];
  std::snprintf(name, sizeof(name), "U+%04X", code);
  return name;
}

// What to write for a character that is not ASCII.
std::string replacement(std::uint32_t code) {
  if (code >= 0x2018U && code <= 0x201fU) {
    return "quotes are the plain \" or '";
  }
  if (code == 0xa0U || (code >= 0x2000U && code <= 0x200bU) || code == 0x202fU) {
    return "write a plain space";
  }
  char escape[16];
  std::snprintf(escape, sizeof(escape), code <= 0xffffU ? "\\u%04x" : "\\U%08x", code);
  return "in a string write " + std::string(escape);
}

// Reads the text once, character by character, line by line.
class Scanner {
 public:
  Scanner(std::string_view text, const std::string& file) : rest_(text), file_(file) {}

  std::optional<Error> scan() {
    if (rest_.starts_with(kByteOrderMark)) {
      rest_.remove_prefix(kByteOrderMark.size());
    }
    while (!rest_.empty()) {
      const std::size_t length = character_length(rest_);
      if (length == 0) {
        return refused("the file is not UTF-8", "save it as UTF-8");
      }
      if (length > 1 && context_ != Context::kComment) {
        const std::string_view character = rest_.substr(0, length);
        const std::uint32_t code = code_point(character);
        return refused(in_quotes(character) + " (" + name_of(code) + ") may only stand in a comment",
                       replacement(code));
      }
      if (rest_.front() == '\n') {
        start_line();
      } else if (context_ != Context::kPlain) {
        inside();
      } else if (std::optional<Error> error = plain()) {
        return error;
      }
      rest_.remove_prefix(length);
      ++column_;
    }
    return std::nullopt;
  }

 private:
  enum class Context { kPlain, kComment, kBasicString, kLiteralString };

  void start_line() noexcept {
    ++line_;
    column_ = 0;
    dots_ = 0;
    context_ = Context::kPlain;
    escaped_ = false;
  }

  std::optional<Error> plain() {
    const char c = rest_.front();
    if (rest_.starts_with("\"\"\"") || rest_.starts_with("'''")) {
      return refused("a policy has no multi-line strings", "write the value on one line");
    }
    if (c == '.' && ++dots_ > kMostDotsInALine) {
      return refused("too many dots outside of quotes", "put addresses in quotes, one key a line");
    }
    if (c == '#') {
      context_ = Context::kComment;
    } else if (c == '"') {
      context_ = Context::kBasicString;
    } else if (c == '\'') {
      context_ = Context::kLiteralString;
    }
    return std::nullopt;
  }

  void inside() noexcept {
    const char c = rest_.front();
    const bool escaped = std::exchange(escaped_, false);
    if (context_ == Context::kLiteralString && c == '\'') {
      context_ = Context::kPlain;
    } else if (context_ == Context::kBasicString && !escaped) {
      escaped_ = c == '\\';
      context_ = c == '"' ? Context::kPlain : context_;
    }
  }

  Error refused(std::string message, std::string remedy) const {
    return {file_, line_, column_, std::move(message), std::move(remedy)};
  }

  std::string_view rest_;
  const std::string& file_;
  std::uint32_t line_ = 1;
  std::uint32_t column_ = 1;
  std::size_t dots_ = 0;  // of this line, outside of strings and comments
  Context context_ = Context::kPlain;
  bool escaped_ = false;  // by the backslash before
};

}  // namespace

std::optional<Error> precheck(std::string_view text, const std::string& file) {
  return Scanner(text, file).scan();
}

}  // namespace ringroad::policy
