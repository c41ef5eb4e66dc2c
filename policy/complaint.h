// What is wrong with a value, before it is known where the value stands.
#pragma once

#include <string>
#include <string_view>

namespace ringroad::policy {

struct Complaint {
  std::string message;
  std::string remedy;
};

// Fit for one line of a terminal or a log, whatever the text is: control characters are escaped
// as TOML does it, and a long text is cut. `text` is UTF-8, but may end within a character.
std::string printable(std::string_view text);

// In the quotes that the policy file would need; otherwise like printable().
std::string in_quotes(std::string_view text);

}  // namespace ringroad::policy
