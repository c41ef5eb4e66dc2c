// Guesses what a misspelt word was meant to be.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ringroad::policy {

// The closest of `known`, ignoring case, or an empty view if none is close. Words that are
// usual elsewhere for the same thing ("cidr" for "subnet") count as close.
std::string_view nearest(std::string_view word, std::span<const std::string_view> known);

// `did you mean "subnet"?`, or the list of all that is known.
std::string suggestion(std::string_view word, std::span<const std::string_view> known);

}  // namespace ringroad::policy
