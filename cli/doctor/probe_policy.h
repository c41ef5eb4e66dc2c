// The policy under which a peer is probed: the operator's RDMA rules, as if they were for the
// probe's port and program, and the rules that keep addresses from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "policy/rule.h"

namespace ringroad::cli::doctor {

// May take a connection with another host over RDMA.
bool is_for_rdma(const policy::Rule& rule) noexcept;
// Holds for whatever port, program and role.
bool is_unconditional(const policy::Rule& rule) noexcept;

// Which rules decide over a probe, in their order: those for RDMA, and those that keep whole
// subnets off it. They live as long as the policy.
std::vector<const policy::Rule*> probe_rules(const policy::Policy& policy);

// TOML. The first rule that holds an address decides, as in the operator's own. A stream stays on
// TCP until it is told to leave it.
std::string probe_policy_text(const std::vector<const policy::Rule*>& rules, std::uint16_t port);

// The variables that preload `library` under that policy, which stands in memory as long as this
// object, and what is exec'ed meanwhile.
class ProbeEnvironment {
 public:
  ProbeEnvironment(const std::string& library, const std::string& policy);
  ~ProbeEnvironment();
  ProbeEnvironment(const ProbeEnvironment&) = delete;
  ProbeEnvironment& operator=(const ProbeEnvironment&) = delete;

  // Empty: it could not be made, and why() tells.
  const std::vector<std::string>& variables() const noexcept { return variables_; }
  const std::string& why() const noexcept { return why_; }

 private:
  int fd_ = -1;
  std::vector<std::string> variables_;
  std::string why_;
};

}  // namespace ringroad::cli::doctor
