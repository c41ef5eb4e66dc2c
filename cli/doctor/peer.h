// `ringroad doctor --peer`: one peer from end to end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/context.h"
#include "cli/doctor/finding.h"
#include "cli/doctor/peer_probe.h"

namespace ringroad::cli::doctor {

// What the report calls these checks together.
inline constexpr const char* kPeerGroup = "peer";

struct Peer {
  std::string host;  // an address or a name
  std::uint16_t port = 0;
  bool default_port = false;
};

// "10.9.1.1", "db1:3306", "fd00::1", "[fd00::1]:3306".
std::optional<Peer> parse_peer(const std::string& text, std::string& why);

// REQUIRES: parse_peer() takes it.
std::vector<Finding> examine_peer(Context& context, const std::string& peer);

// What a probe's result means; `rule` is the rule that it ran under.
void judge_probe(const ProbeResult& result, const Peer& peer, const std::string& rule,
                 std::vector<Finding>& list);

}  // namespace ringroad::cli::doctor
