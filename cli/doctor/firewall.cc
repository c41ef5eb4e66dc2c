#include "cli/doctor/firewall.h"

#include <map>
#include <sstream>

#include "cli/doctor/context.h"

namespace ringroad::cli::doctor {
namespace {

using nlohmann::json;

bool holds_port(const json& value) {
  if (value.is_number_integer()) return value.get<long long>() == kRocePort;
  if (value.is_array()) {
    for (const json& part : value) {
      if (holds_port(part)) return true;
    }
  }
  if (!value.is_object()) return false;
  if (value.contains("set")) return holds_port(value["set"]);
  const json range = value.value("range", json());
  return range.is_array() && range.size() == 2 && range[0].is_number_integer() &&
         range[1].is_number_integer() && range[0].get<long long>() <= kRocePort &&
         range[1].get<long long>() >= kRocePort;
}

bool is_field(const json& left, const char* protocol, const char* field) {
  const json payload = left.is_object() ? left.value("payload", json()) : json();
  return text_of(payload, "protocol") == protocol && text_of(payload, "field") == field;
}

bool holds_udp(const json& right) {
  const std::string text = right.dump();
  return text.find("udp") != std::string::npos || text == "17";
}

// By the first packet of another host to the port.
bool never_met(const json& left, const json& right) {
  if (!left.is_object()) return false;
  const std::string text = right.dump();
  const json payload = left.value("payload", json());
  const std::string protocol = text_of(payload, "protocol");
  const std::string field = text_of(payload, "field");
  if (protocol == "ip" || protocol == "ip6") {
    return (field == "protocol" || field == "nexthdr") && !holds_udp(right);
  }
  if (!protocol.empty() && protocol != "udp" && protocol != "th" && protocol != "ether")
    return true;
  if (left.contains("ct")) {
    return text_of(left["ct"], "key") == "state" && text.find("new") == std::string::npos;
  }
  const std::string key = left.contains("meta") ? text_of(left["meta"], "key") : std::string();
  return (key == "iif" || key == "iifname" || key == "oif" || key == "oifname") && text == "\"lo\"";
}

bool is_plain(const json& expression) {
  for (const char* name :
       {"match", "accept", "drop", "reject", "jump", "goto", "counter", "log", "return", "vmap"}) {
    if (expression.contains(name)) return true;
  }
  return false;
}

// Whether a packet to this host always meets it.
bool always_met(const json& left, const json& right) {
  const json fib = left.is_object() ? left.value("fib", json()) : json();
  return text_of(fib, "result") == "type" && right == json("local");
}

void add_match(const json& left, const json& right, bool same, FilterConditions& result) {
  if (is_field(left, "udp", "dport") || is_field(left, "th", "dport")) {
    const bool met = holds_port(right) == same;
    result.port = result.port && met;
    result.names_port = result.names_port || met;
  } else if (same && never_met(left, right)) {
    result.port = false;
  } else if (left.is_object() && left.contains("meta") &&
             text_of(left["meta"], "key") == "l4proto") {
    result.port = result.port && (!same || holds_udp(right));
  } else if (!same || !always_met(left, right)) {
    result.others = true;
  }
}

FilterConditions conditions_of(const json& expressions) {
  FilterConditions result;
  for (const json& expression : expressions) {
    if (!expression.is_object()) continue;
    if (!is_plain(expression)) result.others = true;
    if (!expression.contains("match")) continue;
    const json& match = expression["match"];
    add_match(match.is_object() ? match.value("left", json()) : json(),
              match.is_object() ? match.value("right", json()) : json(),
              text_of(match, "op") != "!=", result);
  }
  return result;
}

// The verdict of a rule, or of an element of a map.
void add_verdict(const json& verdict, const FilterConditions& conditions, bool of_a_map,
                 FilterChain& chain) {
  if (!verdict.is_object() || !conditions.port) return;
  FilterRule rule;
  rule.conditions = conditions;
  rule.of_a_map = of_a_map;
  if (verdict.contains("accept")) {
    rule.action = FilterRule::Action::kAccept;
  } else if (verdict.contains("drop") || verdict.contains("reject")) {
    rule.action = FilterRule::Action::kDrop;
  } else if (verdict.contains("return")) {
    rule.action = FilterRule::Action::kReturn;
  } else if (verdict.contains("jump") || verdict.contains("goto")) {
    const bool comes_back = verdict.contains("jump");
    rule.action = comes_back ? FilterRule::Action::kJump : FilterRule::Action::kGoto;
    rule.target = text_of(verdict[comes_back ? "jump" : "goto"], "target");
  } else {
    return;
  }
  chain.rules.push_back(std::move(rule));
}

// {"key": what is compared, "data": {"set": [[value, verdict], ...]}}; the data of a map that has
// a name is that name.
void add_map(const json& map, const FilterConditions& conditions, FilterChain& chain) {
  const json key = map.is_object() ? map.value("key", json()) : json();
  const json data = map.is_object() ? map.value("data", json()) : json();
  const json elements = data.is_object() ? data.value("set", json()) : json();
  if (!elements.is_array()) {
    // Whatever may stand in it, the map of another protocol's ports holds none of UDP's.
    if (!conditions.port || never_met(key, json("new udp"))) return;
    chain.rules.push_back({conditions, FilterRule::Action::kAnything, {}, true});
    return;
  }
  for (const json& element : elements) {
    if (!element.is_array() || element.size() != 2) continue;
    FilterConditions both = conditions;
    add_match(key, element[0], true, both);
    add_verdict(element[1], both, true, chain);
  }
}

void read_rule(const json& rule, FilterChain& chain) {
  if (!rule.contains("expr") || !rule["expr"].is_array()) return;
  const json& expressions = rule["expr"];
  const FilterConditions conditions = conditions_of(expressions);
  for (const json& expression : expressions) {
    if (!expression.is_object()) continue;
    if (expression.contains("vmap")) {
      add_map(expression["vmap"], conditions, chain);
    } else {
      add_verdict(expression, conditions, false, chain);
    }
  }
}

// A port, a range or a list of both.
bool lists_port(const std::string& value) {
  for (const std::string& part : split(value, ",")) {
    const std::size_t colon = part.find(':');
    const auto first = to_number(part.substr(0, colon));
    const auto last = colon == std::string::npos ? first : to_number(part.substr(colon + 1));
    if (first && last && *first <= kRocePort && kRocePort <= *last) return true;
  }
  return false;
}

// "-A CHAIN ...", as iptables-save writes it.
void read_line(const std::vector<std::string>& words, FilterChain& chain) {
  FilterRule rule;
  FilterConditions& conditions = rule.conditions;
  bool goes = false;
  for (std::size_t i = 2; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    const std::string& value = words[i + 1];
    const bool same = words[i - 1] != "!";
    if (word == "-p") {
      const bool met = value == "udp" || value == "all";
      conditions.port = conditions.port && met == same;
    } else if (word == "-j" || word == "-g") {
      rule.target = value;
      goes = word == "-g";
    } else if (word == "--dport" || word == "--dports") {
      const bool met = lists_port(value) == same;
      conditions.port = conditions.port && met;
      conditions.names_port = conditions.names_port || met;
    } else if ((word == "-i" || word == "-o") && value == "lo") {
      conditions.port = conditions.port && !same;
    } else if (word == "--ctstate" || word == "--state") {
      const bool met = value.find("NEW") != std::string::npos;
      conditions.port = conditions.port && met == same;
    } else if (word == "-m") {
      bool harmless = false;
      for (const char* name : {"udp", "multiport", "conntrack", "state", "comment"}) {
        harmless = harmless || value == name;
      }
      conditions.others = conditions.others || !harmless;
    } else {
      for (const char* other : {"-i", "-o", "-s", "-d", "--sport", "--sports", "--match-set"}) {
        conditions.others = conditions.others || word == other;
      }
    }
  }
  if (!conditions.port || rule.target.empty()) return;
  rule.action = rule.target == "ACCEPT"                            ? FilterRule::Action::kAccept
                : rule.target == "DROP" || rule.target == "REJECT" ? FilterRule::Action::kDrop
                : rule.target == "RETURN"                          ? FilterRule::Action::kReturn
                : goes                                             ? FilterRule::Action::kGoto
                                                                   : FilterRule::Action::kJump;
  chain.rules.push_back(std::move(rule));
}

}  // namespace

bool judge_nft(const std::string& text, bool ipv4, bool ipv6, std::vector<Verdict>& verdicts) {
  const json object = parse_json(text);
  if (!object.is_object() || !object.contains("nftables") || !object["nftables"].is_array()) {
    return false;
  }
  std::map<std::string, FilterChain> chains;
  for (const json& entry : object["nftables"]) {
    if (!entry.is_object()) continue;
    if (entry.contains("chain")) {
      const json& part = entry["chain"];
      const std::string name =
          text_of(part, "family") + " " + text_of(part, "table") + " " + text_of(part, "name");
      FilterChain& chain = chains[name];
      chain.name = "nftables chain " + name;
      const std::string hook = text_of(part, "hook");
      const std::string family = text_of(part, "family");
      chain.base = text_of(part, "type") == "filter" && (hook == "input" || hook == "output") &&
                   (family == "inet" || (ipv4 && family == "ip") || (ipv6 && family == "ip6"));
      chain.drops = text_of(part, "policy") == "drop";
    }
    if (entry.contains("rule")) {
      const json& rule = entry["rule"];
      const auto found = chains.find(text_of(rule, "family") + " " + text_of(rule, "table") + " " +
                                     text_of(rule, "chain"));
      if (found != chains.end()) read_rule(rule, found->second);
    }
  }
  judge_filters(chains, verdicts);
  return true;
}

void judge_iptables(const std::string& text, std::vector<Verdict>& verdicts) {
  std::map<std::string, FilterChain> chains;
  std::istringstream lines(text);
  bool filter = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('*')) filter = line == "*filter";
    if (!filter) continue;
    const std::vector<std::string> words = split(line);
    if (line.starts_with(':') && words.size() >= 2) {
      const std::string name = words[0].substr(1);
      FilterChain& chain = chains[name];
      chain.name = "iptables chain " + name;
      chain.base = name == "INPUT" || name == "OUTPUT";
      chain.drops = words[1] == "DROP";
      continue;
    }
    if (words.size() < 3 || words[0] != "-A" || !chains.contains(words[1])) continue;
    FilterChain& chain = chains[words[1]];
    read_line(words, chain);
  }
  judge_filters(chains, verdicts);
}

}  // namespace ringroad::cli::doctor
