// A packet filter's chains, and what becomes of a packet to RoCEv2's port in them.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace ringroad::cli::doctor {

// What a rule asks of a packet, as far as a packet of another host to the port is concerned.
struct FilterConditions {
  bool port = true;  // could be met by a packet to the port
  bool names_port = false;
  bool others = false;  // besides the port and the protocol
};

struct FilterRule {
  enum class Action : unsigned char { kAccept, kDrop, kJump, kGoto, kReturn, kAnything };
  FilterConditions conditions;
  Action action = Action::kAccept;
  std::string target;     // of a jump or goto
  bool of_a_map = false;  // one of the verdicts of a verdict map
};

struct FilterChain {
  std::string name;  // "inet filter input"
  bool base = false;
  bool drops = false;  // its policy
  std::vector<FilterRule> rules;
};

// What a chain does with the packets to the port.
struct Verdict {
  enum class Kind : unsigned char { kOpen, kFiltered, kMaybe };
  Kind kind = Kind::kOpen;
  std::string reason;  // the rule or chain
};

// A verdict for each base chain. They are named "FAMILY TABLE NAME", or by their name alone where
// there is one table.
void judge_filters(const std::map<std::string, FilterChain>& chains,
                   std::vector<Verdict>& verdicts);

}  // namespace ringroad::cli::doctor
