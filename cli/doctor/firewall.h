// What a host's packet filter says about RoCEv2's UDP port.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/filter_walk.h"

namespace ringroad::cli::doctor {

constexpr unsigned kRocePort = 4791;  // IANA: roce; RDMA packets and rdma_cm's

// One verdict for each base chain of hook input or output that may filter; none: all is open. Rules
// are followed in their order and through jumps: a drop or reject of the port filters, an accept of
// it opens. What depends on more than the port, also on the way to a chain that is jumped to, may
// or may not; a rule that itself names the port counts all the same.
//
// `text`: nft -j list ruleset. Chains of the families ip and ip6 count if they are asked for. False
// when it is none.
bool judge_nft(const std::string& text, bool ipv4, bool ipv6, std::vector<Verdict>& verdicts);

// `text`: iptables-save or ip6tables-save.
void judge_iptables(const std::string& text, std::vector<Verdict>& verdicts);

}  // namespace ringroad::cli::doctor
