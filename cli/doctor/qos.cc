#include "cli/doctor/qos.h"

#include <sstream>

#include "cli/doctor/context.h"

namespace ringroad::cli::doctor {
namespace {

using nlohmann::json;

constexpr std::size_t kPriorities = 8;
constexpr unsigned kDscps = 64;

std::optional<unsigned> small_number(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.get<long long>();
  if (number < 0 || number >= kDscps) return std::nullopt;
  return static_cast<unsigned>(number);
}

bool is_on(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<long long>() != 0;
  return value.is_string() && (value == "on" || value == "true");
}

}  // namespace

std::optional<unsigned> Qos::priority(unsigned dscp) const {
  if (!trust.empty() && trust != "dscp") return std::nullopt;
  const auto found = priority_of_dscp.find(dscp);
  if (found != priority_of_dscp.end()) return found->second;
  return dscp >> 3U;
}

// Priority trust state: dscp
// dscp2prio mapping:
//         prio:3 dscp:31,30,29,28,27,26,25,24,
// PFC configuration:
//         priority    0   1   2   3   4   5   6   7
//         enabled     0   0   0   1   0   0   0   0
void parse_mlnx_qos(const std::string& text, Qos& qos) {
  std::istringstream lines(text);
  bool in_pfc = false;
  for (std::string line; std::getline(lines, line);) {
    line = trimmed(line);
    constexpr const char* kTrust = "Priority trust state:";
    if (line.starts_with(kTrust)) qos.trust = trimmed(line.substr(std::string(kTrust).size()));
    if (line.starts_with("PFC configuration")) in_pfc = true;
    if (in_pfc && line.starts_with("enabled")) {
      const std::vector<std::string> words = split(line.substr(7));
      for (std::size_t i = 0; i < words.size() && i < kPriorities; ++i) {
        qos.pfc.push_back(words[i] != "0");
      }
      in_pfc = false;
    }
    const std::size_t list = line.find(" dscp:");
    if (!line.starts_with("prio:") || list == std::string::npos) continue;
    const auto priority = to_number(line.substr(5, list - 5));
    if (!priority || *priority >= kPriorities) continue;
    for (const std::string& word : split(line.substr(list + 6), ", \t")) {
      const auto dscp = to_number(word);
      if (dscp && *dscp < kDscps) {
        qos.priority_of_dscp[static_cast<unsigned>(*dscp)] = static_cast<unsigned>(*priority);
      }
    }
  }
}

void parse_dcb_pfc(const std::string& text, Qos& qos) {
  const json object = parse_json(text);
  if (!object.is_object() || !object.contains("prio_pfc") || !object["prio_pfc"].is_array()) return;
  qos.pfc.clear();
  for (const json& entry : object["prio_pfc"]) {
    // An entry is the state, or a pair of priority and state.
    if (entry.is_array() && entry.size() == 2) {
      const auto priority = small_number(entry[0]);
      if (!priority || *priority >= kPriorities) continue;
      if (qos.pfc.size() <= *priority) qos.pfc.resize(*priority + 1);
      qos.pfc[*priority] = is_on(entry[1]);
    } else if (qos.pfc.size() < kPriorities) {
      qos.pfc.push_back(is_on(entry));
    }
  }
}

void parse_dcb_app(const std::string& text, Qos& qos) {
  const json object = parse_json(text);
  if (!object.is_object() || !object.contains("dscp_prio") || !object["dscp_prio"].is_array()) {
    return;
  }
  for (const json& entry : object["dscp_prio"]) {
    if (!entry.is_array() || entry.size() != 2) continue;
    const auto dscp = small_number(entry[0]);
    const auto priority = small_number(entry[1]);
    if (dscp && priority && *priority < kPriorities) qos.priority_of_dscp[*dscp] = *priority;
  }
  // A map of DSCPs is what makes drivers trust them.
  if (!qos.priority_of_dscp.empty()) qos.trust = "dscp";
}

Qos read_qos(Host& host, const std::string& netdev) {
  Qos qos;
  const CommandResult mlnx = host.run({"mlnx_qos", "-i", netdev});
  if (mlnx) {
    qos.source = "mlnx_qos -i " + netdev;
    parse_mlnx_qos(mlnx.out, qos);
    return qos;
  }
  const CommandResult pfc = host.run({"dcb", "-j", "pfc", "show", "dev", netdev});
  if (!pfc) {
    qos.problem = "dcb pfc show dev " + netdev + ": " + pfc.problem() +
                  (mlnx.missing() ? "" : "; mlnx_qos -i " + netdev + ": " + mlnx.problem());
    return qos;
  }
  qos.source = "dcb";
  parse_dcb_pfc(pfc.out, qos);
  parse_dcb_app(host.run({"dcb", "-j", "app", "show", "dev", netdev}).out, qos);
  return qos;
}

}  // namespace ringroad::cli::doctor
