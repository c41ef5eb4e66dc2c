#include "policy/policy.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "policy/coverage.h"
#include "policy/rule.h"

namespace ringroad::policy {
namespace {

std::uint16_t service_port(Role role, const Endpoint& local, const Endpoint& remote) noexcept {
  return role == Role::kConnect ? remote.port : local.port;
}

// A rule may list thousands of subnets; a reason is one line to read.
constexpr std::size_t kListedItems = 8;

template <typename Items, typename Text>
std::string joined(const Items& items, Text text) {
  std::string result;
  std::size_t listed = 0;
  for (const auto& item : items) {
    if (listed == kListedItems) {
      result += " and " + std::to_string(items.size() - listed) + " more";
      break;
    }
    result += listed == 0 ? "" : ", ";
    result += text(item);
    ++listed;
  }
  return result;
}

std::string names_of(const Program& program) {
  std::string text = "\"" + std::string(program.file()) + "\"";
  if (program.has_two_names()) text += ", started as \"" + std::string(program.called()) + "\",";
  return text;
}

// Which of the rule's patterns fits which of the program's names; "" where the rule has none.
std::string program_match(const Rule& rule, const Program& program) {
  for (const std::string& pattern : rule.programs) {
    const bool by_file = glob_matches(pattern, program.file());
    if (!by_file && !glob_matches(pattern, program.called())) continue;
    return std::string(by_file ? "its file \"" : "its argv[0] \"") +
           std::string(by_file ? program.file() : program.called()) + "\" is like \"" + pattern +
           "\"";
  }
  return {};
}

Consideration consider(const Rule& rule, Role role, const Program& program, std::uint16_t port,
                       const Address& remote) {
  Consideration result{&rule.settings, {}, program_match(rule, program)};
  if (!rule.role_matches(role)) {
    const Role other = role == Role::kConnect ? Role::kAccept : Role::kConnect;
    result.mismatches.push_back({Criterion::kRole, "role " + std::string(to_string(role)) +
                                                       " is not " + std::string(to_string(other))});
  }
  if (!rule.subnet_matches(remote)) {
    result.mismatches.push_back(
        {Criterion::kSubnet,
         "remote address " + remote.to_string() + " is not in " +
             joined(rule.subnets, [](const Prefix& prefix) { return prefix.to_string(); })});
  }
  if (!rule.port_matches(port)) {
    const char* whose = role == Role::kConnect ? "remote port " : "local port ";
    result.mismatches.push_back(
        {Criterion::kPort,
         whose + std::to_string(port) + " is not in " +
             joined(rule.ports, [](const PortRange& range) { return range.to_string(); })});
  }
  if (!rule.programs.empty() && result.program.empty()) {
    result.mismatches.push_back(
        {Criterion::kProgram,
         "program " + names_of(program) + " is not like " +
             joined(rule.programs, [](const std::string& glob) { return "\"" + glob + "\""; })});
  }
  return result;
}

}  // namespace

std::string_view to_string(Criterion criterion) noexcept {
  switch (criterion) {
    case Criterion::kRole:
      return "role";
    case Criterion::kSubnet:
      return "subnet";
    case Criterion::kPort:
      return "port";
    case Criterion::kProgram:
      return "program";
  }
  return "";
}

Policy::Policy(std::vector<Rule> rules, Limits limits, std::vector<Error> warnings,
               std::vector<std::string> sources)
    : rules_(std::move(rules)),
      limits_(std::move(limits)),
      warnings_(std::move(warnings)),
      sources_(std::move(sources)) {}

Policy::~Policy() = default;

const Settings* Policy::match(Role role, const Program& program, const Endpoint& local,
                              const Endpoint& remote) const noexcept {
  const std::uint16_t port = service_port(role, local, remote);
  for (const Rule& rule : rules_) {
    if (rule.role_matches(role) && rule.port_matches(port) && rule.subnet_matches(remote.addr) &&
        rule.program_matches(program)) {
      return &rule.settings;
    }
  }
  return nullptr;
}

Reach Policy::reach(Role role, const Program& program,
                    std::uint16_t service_port) const noexcept {
  Reach result;
  for (const Rule& rule : rules_) {
    if (!rule.role_matches(role) || !rule.port_matches(service_port) ||
        !rule.program_matches(program)) {
      continue;
    }
    const Via via = rule.settings.via;
    result.shm |= via == Via::kShm || via == Via::kAuto;
    result.rdma |= via == Via::kRdma || via == Via::kAuto;
  }
  return result;
}

Explanation Policy::explain(Role role, const Program& program, const Endpoint& local,
                            const Endpoint& remote) const {
  const std::uint16_t port = service_port(role, local, remote);
  Explanation result;
  for (const Rule& rule : rules_) {
    result.considered.push_back(consider(rule, role, program, port, remote.addr));
    if (result.considered.back().matches()) {
      result.decision = &rule.settings;
      break;
    }
  }
  result.not_considered = rules_.size() - result.considered.size();
  return result;
}

std::vector<Error> Policy::warnings() const {
  const std::vector<Error> unreachable = unreachable_rules(rules_);
  std::vector<Error> result;
  for (const std::string& source : sources_) {
    for (const std::vector<Error>* list : {&warnings_, &unreachable}) {
      std::copy_if(list->begin(), list->end(), std::back_inserter(result),
                   [&](const Error& warning) { return warning.file == source; });
    }
  }
  sort_by_position(result);
  return result;
}

std::size_t Policy::rule_count() const noexcept { return rules_.size(); }

const Settings& Policy::rule(std::size_t index) const noexcept { return rules_[index].settings; }

const Rule& Policy::conditions(std::size_t index) const noexcept { return rules_[index]; }

}  // namespace ringroad::policy
