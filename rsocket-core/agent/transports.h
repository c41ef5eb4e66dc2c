// The agent's transports, each made when it is needed first.
//
// Thread rule: the agent thread's.
#pragma once

#include <cstdint>
#include <memory>

#include "rsocket-core/agent/agent_host.h"
#include "rsocket-core/agent/agent_loop.h"
#include "rsocket-core/channel/transport.h"

namespace ringroad {

// Memory or descriptors were short.
inline bool is_short(Reason why) noexcept {
  return why == Reason::kNoDescriptors || why == Reason::kNoMemory;
}

// Whether what keeps a transport from its work may be over soon: a device may come up after the program,
// and a library cannot be loaded where descriptors are short.
inline bool may_pass(Reason why) noexcept {
  return is_short(why) || why == Reason::kNoRdmaDevice || why == Reason::kNoVerbsLibrary;
}

class Transports {
 public:
  // Each promotion of a process has an id of its own. Any thread.
  static PromotionId next_promotion_id() noexcept;

  // All three live as long as the process.
  Transports(AgentHost& host, AgentLoop& loop, TransportEvents& events) noexcept
      : host_(host), loop_(loop), events_(events) {}
  Transports(const Transports&) = delete;
  Transports& operator=(const Transports&) = delete;

  // Makes the transport if there is none. Null: `why` says why it cannot be made.
  Transport* shm(Reason& why) noexcept;
  Transport* verbs(Reason& why) noexcept;
  // Null: it has not been made.
  Transport* existing_shm() const noexcept { return shm_.get(); }
  Transport* existing_verbs() const noexcept { return verbs_.get(); }

  void dispatch_shm() noexcept {
    if (shm_ != nullptr) shm_->dispatch();
  }
  void dispatch_verbs() noexcept {
    if (verbs_ != nullptr) verbs_->dispatch();
  }
  // REQUIRES: the agent steps aside.
  void close_shm() noexcept { shm_.reset(); }
  // The parent's transports are left alone.
  void after_fork_child() noexcept;

 private:
  static constexpr std::int64_t kVerbsAgainNs = 1'000'000'000;

  AgentHost& host_;
  AgentLoop& loop_;
  TransportEvents& events_;
  std::unique_ptr<Transport> shm_;
  std::unique_ptr<Transport> verbs_;
  std::int64_t verbs_again_ns_ = 0;  // when loading is tried next, while verbs_ is null
  Reason verbs_why_ = Reason::kNone;
};

}  // namespace ringroad
