#include "cli/doctor/peer.h"

#include <algorithm>
#include <cstdio>

#include "cli/doctor/answerer.h"
#include "cli/doctor/check.h"
#include "cli/doctor/probe_policy.h"

namespace ringroad::cli::doctor {
namespace {

constexpr std::chrono::seconds kProbeTime{45};

// The address of a name, by whatever the host asks for names.
std::string resolve(Host& host, const std::string& name, std::string& why) {
  if (Address::parse(name)) return name;
  const CommandResult result = host.run({"getent", "ahosts", "--", name});
  const std::vector<std::string> words = split(result.out);
  if (result && !words.empty() && Address::parse(words.front())) return words.front();
  why = result.missing() ? "getent: not installed" : "getent ahosts finds no address";
  return {};
}

// The rules that hold one peer's address, in their order, as far as one of them decides.
struct PeerRules {
  std::vector<const policy::Rule*> rdma;
  bool of_port = true;                         // they hold the port that was asked for
  std::vector<const policy::Rule*> sometimes;  // come before these and keep some of it on TCP
  const policy::Rule* never = nullptr;         // keeps all of it on TCP; there is no RDMA rule
};

bool share_a_port(const policy::Rule& a, const policy::Rule& b) {
  if (a.ports.empty() || b.ports.empty()) return true;
  for (const policy::PortRange& one : a.ports) {
    for (const policy::PortRange& other : b.ports) {
      if (one.first <= other.last && other.first <= one.last) return true;
    }
  }
  return false;
}

// Without a port, whichever the rules have is meant.
PeerRules rules_for(const Context& context, const Address& address,
                    const std::optional<std::uint16_t>& port) {
  PeerRules result;
  if (!context.loaded()) return result;
  const policy::Policy& policy = *context.loaded().policy;
  std::vector<const policy::Rule*> other_ports;
  for (std::size_t i = 0; i < policy.rule_count(); ++i) {
    const policy::Rule& rule = policy.conditions(i);
    if (!rule.subnet_matches(address)) continue;
    const bool holds_port = !port || rule.port_matches(*port);
    if (is_for_rdma(rule)) {
      (holds_port ? result.rdma : other_ports).push_back(&rule);
    } else if (holds_port) {
      const bool any_port = port || rule.ports.empty();
      if (any_port && rule.programs.empty() && rule.roles == policy::kAnyRole) {
        if (result.rdma.empty() && other_ports.empty()) result.never = &rule;
        break;
      }
      if (result.rdma.empty()) result.sometimes.push_back(&rule);
    }
  }
  if (result.rdma.empty() && result.never == nullptr) {
    result.rdma = other_ports;
    result.of_port = false;
  }
  // A rule for other ports than theirs takes nothing from them.
  std::erase_if(result.sometimes, [&](const policy::Rule* first) {
    return std::none_of(result.rdma.begin(), result.rdma.end(),
                        [&](const policy::Rule* rule) { return share_a_port(*first, *rule); });
  });
  return result;
}

std::string conditions_of(const policy::Rule& rule, bool with_ports) {
  std::vector<std::string> parts;
  std::vector<std::string> ports;
  for (const policy::PortRange& range : rule.ports) ports.push_back(range.to_string());
  if (with_ports && !ports.empty()) parts.push_back("port " + joined(ports));
  if (!rule.programs.empty()) parts.push_back("program " + joined(rule.programs));
  if (rule.roles != policy::kAnyRole) {
    const Role role = rule.role_matches(Role::kConnect) ? Role::kConnect : Role::kAccept;
    parts.push_back("role " + std::string(to_string(role)));
  }
  return joined(parts, "; ");
}

void judge_rules(const PeerRules& rules, const std::string& name,
                 const std::optional<std::uint16_t>& port, Findings& findings) {
  constexpr const char* kOnTcp = "connections with it stay on TCP (policy)";
  if (rules.never != nullptr) {
    findings.fail(name,
                  "rule " + rules.never->settings.name + " holds it first and keeps it on TCP",
                  kOnTcp, "ringroad policy explain; take it out of that rule's subnet");
    return;
  }
  if (rules.rdma.empty()) {
    findings.fail(name, "no RDMA rule's subnet holds it", kOnTcp,
                  "add it to the subnet of a rule; ringroad policy explain");
    return;
  }
  const std::string rule = rules.rdma.front()->settings.name;
  bool clean = true;
  for (const policy::Rule* first : rules.sometimes) {
    clean = false;
    findings.warn(name,
                  "before rule " + rule + ", rule " + first->settings.name + " keeps " +
                      conditions_of(*first, !port) + " on TCP",
                  "such connections with it stay on TCP (policy)", "ringroad policy explain");
  }
  if (!rules.of_port) {
    clean = false;
    findings.warn(name,
                  "no RDMA rule for it holds port " + std::to_string(port.value_or(0)) +
                      "; what follows is as if rule " + rule + " did",
                  "connections with this port stay on TCP (policy)",
                  "add the port to the rule; ringroad policy explain");
  }
  if (clean) findings.ok(name, "in the subnet of rule " + rule);
}

void examine_route(Context& context, const Path& path, std::vector<Finding>& list) {
  Findings routes("peer-route", kPeerGroup, list);
  judge_route(context, routes, path, false);
  Findings gids("peer-gid", kPeerGroup, list);
  judge_gid(context, gids, path);
}

}  // namespace

std::optional<Peer> parse_peer(const std::string& text, std::string& why) {
  Peer peer;
  peer.host = text;
  peer.port = kAnswerPort;
  peer.default_port = true;
  std::string port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end != std::string::npos) {
      peer.host = text.substr(1, end - 1);
      port = text.substr(end + 1);
      if (!port.empty() && (port[0] != ':' || port.size() == 1)) peer.host.clear();
      if (!port.empty()) port.erase(0, 1);
    } else {
      peer.host.clear();
    }
  } else if (const std::size_t colon = text.find(':');
             colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    peer.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) peer.host.clear();
  }
  if (!port.empty()) {
    const auto number = to_number(port);
    if (!number || *number == 0 || *number > 65535) {
      why = "--peer: \"" + port + "\" is no port";
      return std::nullopt;
    }
    peer.port = static_cast<std::uint16_t>(*number);
    peer.default_port = false;
  }
  const bool odd = peer.host.empty() || peer.host.starts_with('-') ||
                   peer.host.find_first_of(" \t\n/") != std::string::npos;
  if (odd) {
    why = "--peer: \"" + text + "\" is no HOST[:PORT] (write 10.9.1.1:4790 or [fd00::1]:4790)";
    return std::nullopt;
  }
  return peer;
}

std::vector<Finding> examine_peer(Context& context, const std::string& text) {
  std::vector<Finding> list;
  std::string why;
  const std::optional<Peer> peer = parse_peer(text, why);
  const std::string name = peer ? resolve(context.host(), peer->host, why) : std::string();
  const auto address = Address::parse(name);
  if (!peer || !address) {
    Findings("peer-name", kPeerGroup, list)
        .fail(text, why, "nobody can be asked", "getent ahosts " + (peer ? peer->host : text));
    return list;
  }
  std::optional<std::uint16_t> port;
  if (!peer->default_port) port = peer->port;
  const PeerRules decided = rules_for(context, *address, port);
  const std::vector<const policy::Rule*>& rules = decided.rdma;
  const std::string rule = rules.empty() ? std::string() : rules.front()->settings.name;
  Findings policy_findings("peer-policy", kPeerGroup, list);
  judge_rules(decided, name, port, policy_findings);
  Path path;
  path.rule = rule.empty() ? "(none)" : rule;
  path.subnet = name;
  path.address = name;
  ask_route(context.host(), path);
  examine_route(context, path, list);

  Command command;
  command.words = {"ringroad", "doctor", "--probe-peer",
                   Endpoint{*address, peer->port}.to_string()};
  command.time = kProbeTime;
  const ProbeEnvironment environment(context.about().library, probe_policy_text(rules, peer->port));
  if (!rules.empty()) {
    command.environment = environment.variables();
    if (command.environment.empty()) {
      Findings("peer-promotion", kPeerGroup, list)
          .unknown(name, environment.why(), "whether the peer is reached over RDMA",
                   "install libringroad.so, or name it with --library");
    }
  }
  const CommandResult said = context.host().run(command);
  ProbeResult result;
  if (said && probe_result_from_text(said.out, result)) {
    Peer numbered = *peer;
    numbered.host = name;
    judge_probe(result, numbered, rule, list);
  } else {
    Findings("peer-tcp", kPeerGroup, list)
        .unknown(name, "the probe: " + (said ? "it printed no result" : said.problem()),
                 "whether the peer is reached",
                 "RINGROAD_LOG=stderr ringroad doctor --peer " + text);
  }
  return list;
}

}  // namespace ringroad::cli::doctor
