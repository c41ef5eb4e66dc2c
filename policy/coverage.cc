#include "policy/coverage.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "policy/complaint.h"

namespace ringroad::policy {
namespace {

// Every rule is a union of boxes; what earlier rules leave of them is again a union of boxes.
struct Box {
  Roles roles = kAnyRole;
  Prefix subnet;
  PortRange ports;
  const std::string* program = nullptr;  // null: every program
};

// Cutting a prefix out of another leaves up to 128 pieces, so remainders are kept in bounds.
constexpr std::size_t kMostBoxes = 20000;

constexpr PortRange kEveryPort{1, 65535};

// Whether every name that `inner` (null: any name) matches is also matched by `outer`.
bool covers(const std::string& outer, const std::string* inner) noexcept {
  if (outer == "*") {
    return true;
  }
  return inner != nullptr &&
         (outer == *inner || (is_literal(*inner) && glob_matches(outer, *inner)));
}

bool covers_program(const Rule& rule, const std::string* inner) noexcept {
  return rule.programs.empty() ||
         std::any_of(rule.programs.begin(), rule.programs.end(),
                     [&](const std::string& glob) { return covers(glob, inner); });
}

// Whether the outer patterns let in each process that the inner ones do.
template <typename Covers>
bool all_covered(const std::vector<std::string>& outer, const std::vector<std::string>& inner,
                 Covers covers_one) {
  if (outer.empty()) return true;
  return !inner.empty() && std::all_of(inner.begin(), inner.end(), [&](const std::string& narrow) {
    return std::any_of(outer.begin(), outer.end(),
                       [&](const std::string& wide) { return covers_one(wide, narrow); });
  });
}

// Besides the program. One that is not known fits no pattern, so "*" covers a rule only that asks, too.
bool covers_facts(const Rule& outer, const Rule& inner) {
  const auto by_glob = [](const std::string& wide, const std::string& narrow) {
    return covers(wide, &narrow);
  };
  const auto by_path = [](const std::string& wide, const std::string& narrow) {
    return wide == narrow || (is_literal(narrow) && is_within(wide, narrow));
  };
  return all_covered(outer.comms, inner.comms, by_glob) && all_covered(outer.units, inner.units, by_glob) &&
         all_covered(outer.cgroups, inner.cgroups, by_path) &&
         all_covered(outer.labels, inner.labels, by_glob);
}

std::vector<PortRange> ports_of(const Rule& rule) {
  return rule.ports.empty() ? std::vector<PortRange>{kEveryPort} : rule.ports;
}

std::vector<Box> boxes_of(const Rule& rule) {
  std::vector<Box> boxes;
  for (const Prefix& subnet : rule.subnets) {
    for (const PortRange& ports : ports_of(rule)) {
      if (rule.programs.empty()) {
        boxes.push_back({rule.roles, subnet, ports, nullptr});
      }
      for (const std::string& program : rule.programs) {
        boxes.push_back({rule.roles, subnet, ports, &program});
      }
    }
  }
  return boxes;
}

// Appends what is left of `box` once everything in (roles, subnet, ports) is taken away. False if
// that is the whole box.
bool subtract(const Box& box, Roles roles, const Prefix& subnet, PortRange ports,
              std::vector<Box>& left) {
  const Roles shared_roles = box.roles & roles;
  const std::uint16_t first = std::max(box.ports.first, ports.first);
  const std::uint16_t last = std::min(box.ports.last, ports.last);
  const bool outer = subnet.contains(box.subnet);
  if (shared_roles == 0 || first > last || !(outer || box.subnet.contains(subnet))) {
    left.push_back(box);
    return false;
  }
  Box rest = box;
  if (shared_roles != box.roles) {
    rest.roles = static_cast<Roles>(box.roles & ~roles);
    left.push_back(rest);
    rest.roles = shared_roles;
  }
  if (box.ports.first < first) {
    rest.ports = {box.ports.first, static_cast<std::uint16_t>(first - 1)};
    left.push_back(rest);
  }
  if (box.ports.last > last) {
    rest.ports = {static_cast<std::uint16_t>(last + 1), box.ports.last};
    left.push_back(rest);
  }
  if (outer) {
    return true;
  }
  rest.ports = {first, last};
  // Walking from the box's prefix down to the subnet, the other branch is left at every step.
  for (unsigned depth = box.subnet.length; depth < subnet.length; ++depth) {
    rest.subnet = Prefix::of(subnet.addr, depth + 1);
    rest.subnet.addr.flip(depth);
    if (rest.subnet.addr.is_v4() != subnet.addr.is_v4()) {
      continue;  // ::ffff:0:0/96, where no IPv6 address is
    }
    left.push_back(rest);
  }
  return true;
}

enum class Outcome { kUntouched, kReduced, kTooMany };

// Takes everything that `rule` matches away from the boxes.
Outcome subtract(const Rule& rule, std::vector<Box>& boxes) {
  Outcome outcome = Outcome::kUntouched;
  const std::vector<PortRange> ports = ports_of(rule);
  for (const Prefix& subnet : rule.subnets) {
    for (const PortRange& range : ports) {
      std::vector<Box> left;
      for (const Box& box : boxes) {
        if (!covers_program(rule, box.program)) {
          left.push_back(box);
        } else if (subtract(box, rule.roles, subnet, range, left)) {
          outcome = Outcome::kReduced;
        }
        if (left.size() > kMostBoxes) {
          return Outcome::kTooMany;
        }
      }
      boxes = std::move(left);
    }
  }
  return outcome;
}

std::string place(const Rule& rule) {
  return in_quotes(rule.settings.name) + " (" + rule.settings.file + ":" +
         std::to_string(rule.settings.line) + ")";
}

// The earlier rules that leave nothing for `rules[index]`; none if it can match.
std::vector<const Rule*> rules_covering(const std::vector<Rule>& rules, std::size_t index) {
  std::vector<Box> boxes = boxes_of(rules[index]);
  std::vector<const Rule*> covering;
  for (std::size_t i = 0; i < index && !boxes.empty(); ++i) {
    if (!covers_facts(rules[i], rules[index])) continue;
    const Outcome outcome = subtract(rules[i], boxes);
    if (outcome == Outcome::kTooMany) {
      return {};
    }
    if (outcome == Outcome::kReduced) {
      covering.push_back(&rules[i]);
    }
  }
  return boxes.empty() ? covering : std::vector<const Rule*>();
}

}  // namespace

std::vector<Error> unreachable_rules(const std::vector<Rule>& rules) {
  std::vector<Error> warnings;
  for (std::size_t index = 0; index < rules.size(); ++index) {
    const std::vector<const Rule*> covering = rules_covering(rules, index);
    if (covering.empty()) {
      continue;
    }
    std::string names;
    for (const Rule* rule : covering) {
      names += (names.empty() ? "" : ", ") + place(*rule);
    }
    const Rule& rule = rules[index];
    warnings.push_back({rule.settings.file, rule.settings.line, rule.column,
                        "rule " + in_quotes(rule.settings.name) + " can never match: " + names +
                            (covering.size() == 1 ? " matches" : " together match") +
                            " everything that it does",
                        "move it up, or remove it"});
  }
  return warnings;
}

}  // namespace ringroad::policy
