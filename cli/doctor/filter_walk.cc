#include "cli/doctor/filter_walk.h"

#include <set>
#include <utility>

namespace ringroad::cli::doctor {
namespace {

using Kind = Verdict::Kind;

// Follows a packet to the port through the chains, with what is not known of it left open.
class Walk {
 public:
  // `table`: what stands before the names of its chains.
  Walk(const std::map<std::string, FilterChain>& chains, std::string table, const FilterChain& base)
      : chains_(chains), table_(std::move(table)), base_(base) {}

  Verdict verdict() {
    enter(base_, false, false);
    const std::string none = ", and no rule accepts UDP 4791";
    if (named_drop_) return {Kind::kFiltered, base_.name + " " + drop_};
    if (!opens_ && (!drop_.empty() || base_.drops)) {
      const std::string why = base_.name + " " + (drop_.empty() ? "has the policy drop" : drop_);
      if (!accepts_some_) return {Kind::kFiltered, why + none};
      return {Kind::kMaybe, why + none + ", though some accept other things"};
    }
    const std::string& perhaps = drops_some_.empty() && !opens_ ? drops_the_rest_ : drops_some_;
    if (!perhaps.empty()) return {Kind::kMaybe, base_.name + " perhaps " + perhaps};
    return {Kind::kOpen, base_.name};
  }

 private:
  using Action = FilterRule::Action;

  // `perhaps`: only some packets to the port come here. `named`: they come here for the port. True
  // when a rule decides over every packet that comes here.
  bool enter(const FilterChain& chain, bool perhaps, bool named) {
    bool some_left = false;  // by a return with conditions
    for (const FilterRule& rule : chain.rules) {
      // No set of rules that people write needs as many; where every rule jumps, their number
      // doubles with each chain. nftables itself allows for 16 jumps within each other.
      constexpr unsigned kMostSteps = 20000;
      constexpr std::size_t kDeepest = 64;
      if (++steps_ > kMostSteps || within_.size() > kDeepest) {
        drops_some_ = "drops something: it jumps too often to be followed";
        return true;
      }
      const bool names = named || rule.conditions.names_port;
      const bool others = rule.conditions.others;
      // The operator who names the port means it.
      const bool sure = (names || !others) && !some_left;
      switch (rule.action) {
        case Action::kAccept:
          (sure && !perhaps ? opens_ : accepts_some_) = true;
          if (sure) return true;
          break;
        case Action::kDrop:
          drop(chain, rule, names, sure, perhaps, some_left);
          if (sure) return true;
          break;
        case Action::kReturn:
          if (!others || names) return false;
          some_left = true;
          break;
        case Action::kJump:
        case Action::kGoto: {
          const auto target = chains_.find(table_ + rule.target);
          const bool goes = rule.action == Action::kGoto;
          bool decided = false;
          if (target != chains_.end() && within_.insert(&target->second).second) {
            decided = enter(target->second, perhaps || others || some_left, names);
            within_.erase(&target->second);
          }
          if (!others && !some_left && decided) return true;
          if (goes && !others) return false;
          // Some are gone, to meet what stands behind the chain that jumped here.
          if (goes && !decided) some_left = true;
          break;
        }
        case Action::kAnything:
          accepts_some_ = true;
          drops_some_ = "drops it: a verdict map decides";
          break;
      }
    }
    return false;
  }

  void drop(const FilterChain& chain, const FilterRule& rule, bool names, bool sure, bool perhaps,
            bool some_left) {
    const std::string text = (&chain == &base_ ? "" : "jumps to " + chain.name + ", which ") +
                             (names ? "drops UDP 4791" : "drops everything else");
    if (sure && !perhaps) {
      drop_ = text;
      named_drop_ = names;
    } else if (names || rule.of_a_map || (perhaps && !rule.conditions.others && !some_left)) {
      drops_some_ = text;
    } else if (!rule.conditions.others) {
      drops_the_rest_ = text;
    }
  }

  const std::map<std::string, FilterChain>& chains_;
  const std::string table_;
  const FilterChain& base_;
  std::set<const FilterChain*> within_;
  unsigned steps_ = 0;

  bool opens_ = false;          // it is accepted
  bool accepts_some_ = false;   // it may be, by something else: an interface, an address
  bool named_drop_ = false;     // for the port
  std::string drop_;            // the rule that drops it
  std::string drops_some_;      // a rule that may drop it
  std::string drops_the_rest_;  // one that drops what no rule before it sent back
};

}  // namespace

void judge_filters(const std::map<std::string, FilterChain>& chains,
                   std::vector<Verdict>& verdicts) {
  for (const auto& [key, chain] : chains) {
    if (!chain.base) continue;
    verdicts.push_back(Walk(chains, key.substr(0, key.rfind(' ') + 1), chain).verdict());
  }
}

}  // namespace ringroad::cli::doctor
