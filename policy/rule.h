// One rule as it is matched: the conditions, and the settings that they lead to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policy/prefix.h"
#include "policy/process.h"
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
  // fnmatch(3) patterns, of which one has to fit; none: every process.
  std::vector<std::string> programs;
  std::vector<std::string> comms;
  std::vector<std::string> units;    // fits a part of the cgroup's path; '\\' stands for itself
  std::vector<std::string> cgroups;  // fits the first parts of it, one by one; the same
  std::vector<std::string> labels;

  std::uint32_t column = 1;  // of the rule's header, with settings.line

  bool role_matches(Role role) const noexcept { return (roles & roles_of(role)) != 0; }
  bool subnet_matches(const Address& remote) const noexcept;
  bool port_matches(std::uint16_t service_port) const noexcept;
  bool program_matches(const Program& program) const noexcept;
  bool comm_matches(std::string_view comm) const noexcept;
  bool unit_matches(std::string_view cgroup) const noexcept;
  bool cgroup_matches(std::string_view cgroup) const noexcept;
  bool label_matches(std::string_view all_labels) const noexcept;
  // All of these.
  bool process_matches(const Process& process) const noexcept;
  // Whether it asks for a fact that has to be read from /proc.
  bool asks_for_facts() const noexcept { return !(comms.empty() && units.empty() && cgroups.empty()); }
  bool asks_for_process() const noexcept {
    return asks_for_facts() || !programs.empty() || !labels.empty();
  }
};

// False too for a name that no file can have (longer than NAME_MAX or with a zero byte).
bool glob_matches(std::string_view pattern, std::string_view name) noexcept;
// Whether `cgroup` is what the pattern describes, or below that: "/system.slice/*" is each unit there.
bool is_within(std::string_view pattern, std::string_view cgroup) noexcept;
// Whether the pattern fits one text only, itself.
bool is_literal(std::string_view pattern) noexcept;

}  // namespace ringroad::policy
