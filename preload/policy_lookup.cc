#include "preload/policy_lookup.h"

#include <cstdint>

#include "preload/policy_file.h"
#include "preload/process_facts.h"
#include "preload/process_state.h"
#include "preload/text.h"

namespace ringroad::preload::policy_lookup {
namespace {

// The rule that was found last for either role, and what is the same for each connection that it is found
// for.
struct Found {
  const policy::Policy* policy = nullptr;
  const policy::Settings* rule = nullptr;
  Address remote;
  std::uint16_t port = 0;
};
constinit thread_local Found found[2] __attribute__((tls_model("initial-exec")));

// Null: no rule is for it.
const policy::Settings* rule_for(Role role, const Endpoint& local,
                                 const Endpoint& remote) noexcept {
  const policy::Policy* policy = policy_file::current();
  if (policy == nullptr) return nullptr;
  const bool connects = role == Role::kConnect;
  const std::uint16_t port = connects ? remote.port : local.port;  // the service's
  Found& last = found[connects ? 0 : 1];
  if (last.policy != policy || last.port != port || last.remote != remote.addr) {
    const policy::Settings* rule =
        policy->match(role, process_facts::current(), local, remote);
    last = {policy, rule, remote.addr, port};
  }
  return last.rule;
}

}  // namespace

const policy::Settings* rule_of(Role role, const Endpoint& local,
                                const Endpoint& remote) noexcept {
  if (process_state::on_kernel_only()) return nullptr;
  const policy::Settings* rule = rule_for(role, local, remote);
  return rule == nullptr || rule->via == policy::Via::kTcp ? nullptr : rule;
}

SharedKey key_for(const FourTuple& accepted) noexcept {
  const policy::Settings* const rule = rule_of(Role::kAccept, accepted.local, accepted.remote);
  if (rule == nullptr || rule->key.empty()) return {};
  return SharedKey::of(rule->key.data(), rule->key.size());
}

void configure(const policy::Settings& rule, StreamConfig& config) noexcept {
  config = StreamConfig{};
  copy_text(config.rule, sizeof config.rule, rule.name.c_str());
  copy_text(config.device, sizeof config.device, rule.device.c_str());
  config.via_shm = rule.via == policy::Via::kShm || rule.via == policy::Via::kAuto;
  config.via_rdma = rule.via == policy::Via::kRdma || rule.via == policy::Via::kAuto;
  if (!rule.key.empty()) config.key = SharedKey::of(rule.key.data(), rule.key.size());
  config.has_traffic_class = rule.traffic_class.has_value();
  config.traffic_class = rule.traffic_class.value_or(0);
  config.ring_bytes = rule.ring_bytes;
  config.spin_ns = rule.spin.count();
  config.wait_ns = rule.wait.count();
  config.idle_ns = rule.idle.count();
  config.detect_ns = rule.detect.count();
  config.promote_messages = rule.promote_after.messages.value_or(config.promote_messages);
  config.promote_bytes = rule.promote_after.bytes.value_or(config.promote_bytes);
}

bool may_accept(const Endpoint& local, bool& via_shm, bool& via_rdma) noexcept {
  via_shm = via_rdma = false;
  const policy::Policy* policy = policy_file::current();
  if (policy == nullptr) return false;
  const policy::Reach reach = policy->reach(Role::kAccept, process_facts::current(), local.port);
  via_shm = reach.shm;
  via_rdma = reach.rdma;
  return via_shm || via_rdma;
}

bool allows(Role role, const FourTuple& tuple) noexcept {
  const policy::Settings* rule = rule_for(role, tuple.local, tuple.remote);
  return rule != nullptr && rule->via != policy::Via::kTcp;
}

unsigned max_channels() noexcept { return policy_file::current()->limits().max_channels; }

}  // namespace ringroad::preload::policy_lookup
