// What a network device does with priorities, from mlnx_qos or dcb, whichever is there.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/host.h"

namespace ringroad::cli::doctor {

struct Qos {
  std::string source;   // "mlnx_qos", "dcb"; empty: neither said anything
  std::string problem;  // why not
  std::string trust;    // "dscp", "pcp"; empty: not known
  std::map<unsigned, unsigned> priority_of_dscp;
  std::vector<bool> pfc;  // by priority; empty: not known

  // By the map, or the class selector that cards take where it says nothing; none when the
  // port trusts the VLAN tag.
  std::optional<unsigned> priority(unsigned dscp) const;
};

Qos read_qos(Host& host, const std::string& netdev);

// The parts of it, for what the two commands print.
void parse_mlnx_qos(const std::string& text, Qos& qos);
void parse_dcb_pfc(const std::string& json, Qos& qos);
void parse_dcb_app(const std::string& json, Qos& qos);

}  // namespace ringroad::cli::doctor
