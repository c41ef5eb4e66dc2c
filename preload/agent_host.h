// What this process tells its agent: the policy, the log, the statistics and the program's descriptors.
//
// Thread rule: as AgentHost. The object is there before any constructor runs, and is never destroyed.
#pragma once

#include "rsocket-core/agent/agent_host.h"

namespace ringroad::preload {

class ProcessHost final : public AgentHost {
 public:
  constexpr ProcessHost() noexcept = default;

  Transport* load_verbs(TransportEvents& events, Reason& why) noexcept override;
  stats::Segment* segment() noexcept override;
  void log(const char* line) noexcept override;
  bool wants_log() noexcept override;
  int watch_policy() noexcept override;
  void take_policy_events(int watch_fd) noexcept override;
  bool reload_policy(int watch_fd) noexcept override;
  bool allows(Role role, const FourTuple& tuple) noexcept override;
  SharedKey key_for(const FourTuple& accepted) noexcept override;
  unsigned max_channels() noexcept override;
  // Also called by a thread that forks or gives the process to the kernel.
  bool materialise(Deferred which, const Endpoint& remote) noexcept override;
  const char* rendezvous_directory() noexcept override;
  bool take_back(Stream& stream) noexcept override;
  bool sees_waits() noexcept override { return true; }
  bool waits_past(int fd, bool awaited) noexcept override;
};

extern constinit ProcessHost agent_host;

}  // namespace ringroad::preload
