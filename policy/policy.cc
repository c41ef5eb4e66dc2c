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

template <typename Patterns>
std::string quoted(const Patterns& patterns) {
  return joined(patterns, [](const std::string& glob) { return "\"" + glob + "\""; });
}

// What the rule asks of the process and does not find there.
void consider_process(const Rule& rule, const Process& process, Consideration& result) {
  const auto mismatch = [&](Criterion criterion, bool is_known, std::string reason, const char* unknown) {
    result.mismatches.push_back({criterion, is_known ? std::move(reason) : std::string(unknown)});
  };
  const std::string cgroup(process.cgroup);
  result.program = program_match(rule, process.program);
  if (!rule.programs.empty() && result.program.empty()) {
    mismatch(Criterion::kProgram, true,
             "program " + names_of(process.program) + " is not like " + quoted(rule.programs), "");
  }
  if (!rule.comm_matches(process.comm)) {
    mismatch(Criterion::kComm, !process.comm.empty(),
             "comm \"" + std::string(process.comm) + "\" is not like " + quoted(rule.comms),
             "the comm is not known");
  }
  if (!rule.unit_matches(process.cgroup)) {
    mismatch(Criterion::kUnit, !cgroup.empty(),
             "cgroup " + cgroup + " is in no unit like " + quoted(rule.units), "the cgroup is not known");
  }
  if (!rule.cgroup_matches(process.cgroup)) {
    mismatch(Criterion::kCgroup, !cgroup.empty(), "cgroup " + cgroup + " is not in " + quoted(rule.cgroups),
             "the cgroup is not known");
  }
  if (!rule.label_matches(process.labels)) {
    mismatch(Criterion::kLabel, !process.labels.empty(),
             "none of the labels \"" + std::string(process.labels) + "\" is like " + quoted(rule.labels),
             "there are no labels");
  }
}

Consideration consider(const Rule& rule, Role role, const Process& process, std::uint16_t port,
                       const Address& remote) {
  Consideration result{&rule.settings, {}, {}};
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
  consider_process(rule, process, result);
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
    case Criterion::kComm:
      return "comm";
    case Criterion::kUnit:
      return "unit";
    case Criterion::kCgroup:
      return "cgroup";
    case Criterion::kLabel:
      return "label";
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

const Settings* Policy::match(Role role, const Process& process, const Endpoint& local,
                              const Endpoint& remote) const noexcept {
  const std::uint16_t port = service_port(role, local, remote);
  for (const Rule& rule : rules_) {
    if (rule.role_matches(role) && rule.port_matches(port) && rule.subnet_matches(remote.addr) &&
        rule.process_matches(process)) {
      return &rule.settings;
    }
  }
  return nullptr;
}

Reach Policy::reach(Role role, const Process& process,
                    std::uint16_t service_port) const noexcept {
  Reach result;
  for (const Rule& rule : rules_) {
    if (!rule.role_matches(role) || !rule.port_matches(service_port) ||
        !rule.process_matches(process)) {
      continue;
    }
    const Via via = rule.settings.via;
    result.shm |= via == Via::kShm || via == Via::kAuto;
    result.rdma |= via == Via::kRdma || via == Via::kAuto;
  }
  return result;
}

Explanation Policy::explain(Role role, const Process& process, const Endpoint& local,
                            const Endpoint& remote) const {
  const std::uint16_t port = service_port(role, local, remote);
  Explanation result;
  for (const Rule& rule : rules_) {
    result.considered.push_back(consider(rule, role, process, port, remote.addr));
    if (result.considered.back().matches()) {
      result.decision = &rule.settings;
      break;
    }
  }
  result.not_considered = rules_.size() - result.considered.size();
  return result;
}

std::vector<Consideration> Policy::explain_process(const Process& process) const {
  std::vector<Consideration> result;
  for (const Rule& rule : rules_) {
    result.push_back({&rule.settings, {}, {}});
    consider_process(rule, process, result.back());
  }
  return result;
}

bool Policy::asks_for_facts() const noexcept {
  return std::any_of(rules_.begin(), rules_.end(), [](const Rule& rule) { return rule.asks_for_facts(); });
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
