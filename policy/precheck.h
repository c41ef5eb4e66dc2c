// Refuses what must not reach the TOML library, which is not made for hostile files: it recurses
// once for each part of a dotted key, and its answer to some characters is undefined behaviour.
// None of this occurs in a sensible policy.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "policy/error.h"

namespace ringroad::policy {

// None if the text is valid UTF-8 and has
// - only ASCII outside of comments: version 3.3 calls __builtin_unreachable() for U+00E9 and many
//   others wherever it looks for white space (is_non_ascii_horizontal_whitespace), which is also
//   within what only looks like a string ('x = 1"');
// - no multi-line string: every string ends on its line or is a syntax error there, so that where
//   comments begin can be told line by line, up to the first syntax error;
// - few dots outside of strings and comments in each line.
// A byte order mark may come first. Throws std::bad_alloc only.
std::optional<Error> precheck(std::string_view text, const std::string& file);

}  // namespace ringroad::policy
