// Which end of a connection is meant: the one that connected, or the one that accepted.
#pragma once

#include <cstdint>
#include <string_view>

namespace ringroad {

// Also as a number in the statistics that `ringroad ss` reads.
enum class Role : std::uint8_t { kConnect = 0, kAccept = 1 };

// The words of the policy file and of all output.
constexpr std::string_view to_string(Role role) noexcept {
  return role == Role::kConnect ? "connect" : "accept";
}

}  // namespace ringroad
