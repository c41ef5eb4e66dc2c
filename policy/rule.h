// One rule as it is matched: the conditions, and the settings that they lead to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policy/prefix.h"
#include "policy/program.h"
#include "policy/settings.h"

namespace ringroad::policy {

struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;  // inclusive

  bool contains(std::uint16_t port) const noexcept { return first <= port && port <= last; }
  std::string to_string() const;
};

// A set of Role, as bits.
using Roles = std::uint8_t;
constexpr Roles roles_of(Role role) noexcept { return role == Role::kConnect ? 1U : 2U; }
constexpr Roles kAnyRole = 3U;

struct Rule {
  Settings settings;
  Roles roles = kAnyRole;
  std::vector<Prefix> subnets;        // never empty
  std::vector<PortRange> ports;       // empty: every port
  std::vector<std::string> programs;  // fnmatch(3) patterns; empty: every program

  std::uint32_t column = 1;  // of the rule's header, with settings.line

  bool role_matches(Role role) const noexcept { return (roles & roles_of(role)) != 0; }
  bool subnet_matches(const Address& remote) const noexcept;
  bool port_matches(std::uint16_t service_port) const noexcept;
  bool program_matches(const Program& program) const noexcept;
};

// False too for a name that no file can have (longer than NAME_MAX or with a zero byte).
bool glob_matches(const std::string& pattern, std::string_view name) noexcept;

}  // namespace ringroad::policy
