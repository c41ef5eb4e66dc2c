// What an operator does to this running process: `ringroad set`, and edits of the policy.
//
// Thread rule: the agent thread's, but for the section "Any thread".
//
// Invariant: no stream misses a change. A change is stored before apply_to_all() goes through the
// registry. A new stream is entered in the registry before settle() reads what holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "rsocket-core/agent/agent_host.h"
#include "rsocket-core/agent/agent_loop.h"
#include "rsocket-core/agent/listener_registry.h"
#include "rsocket-core/agent/promotion_broker.h"
#include "rsocket-core/agent/stream_registry.h"
#include "rsocket-core/process/control_socket.h"
#include "rsocket-core/process/process_group.h"

namespace ringroad {

class OperatorControl {
 public:
  // All live as long as the process. `mode`: what an operator has asked of the program that this process was.
  OperatorControl(AgentHost& host, AgentLoop& loop, ProcessGroup& group, StreamRegistry& streams,
                  ListenerRegistry& listeners, PromotionBroker& broker, control::Mode mode) noexcept
      : host_(host), loop_(loop), group_(group), streams_(streams), listeners_(listeners),
        broker_(broker), mode_(mode) {}
  OperatorControl(const OperatorControl&) = delete;
  OperatorControl& operator=(const OperatorControl&) = delete;

  // ---- Any thread
  control::Mode mode() const noexcept { return mode_.load(std::memory_order_relaxed); }
  // Whether this process watches the policy for its group.
  bool watches_policy() const noexcept { return policy_fd_.load(std::memory_order_relaxed) >= 0; }
  // Brings a stream that was just entered to what holds.
  void settle(AgentStream& stream) noexcept;
  // Where requests come in and the mode is told; null: nowhere. Before the agent's thread begins.
  void report_to(stats::Segment* segment) noexcept;

  // ---- Agent thread
  void begin() noexcept;
  // kControlCookie has come.
  void obey() noexcept;
  // kPolicyCookie has come.
  void policy_has_events() noexcept;
  // kLeaderCookie has come: the policy may be edited, or its watcher has ended.
  void group_has_news() noexcept;
  // When expire() is to be called next; CLOCK_MONOTONIC.
  std::int64_t next_deadline() const noexcept { return reload_ns_; }
  void expire(std::int64_t now_ns) noexcept;
  // Closes its descriptors, for good.
  void step_aside() noexcept;
  // The mode stays. The parent's socket and statistics are left alone.
  void after_fork_child() noexcept;

 private:
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
  // An editor writes in several steps.
  static constexpr std::int64_t kPolicySettlesNs = 20'000'000;

  // Also for the program that this process becomes (stats.h).
  void publish_mode() noexcept;
  // One process of a group does, and tells the others: a user has few inotify instances, and other
  // programs of the same user need them, too (inotify(7), max_user_instances).
  void watch_policy() noexcept;
  void policy_may_be_edited() noexcept;
  void apply_to_all() noexcept;
  void apply_to(const AgentStreamPtr& stream) noexcept;
  // Why the stream stays on TCP; kNone: it need not. Any thread.
  Reason why_kept(const AgentStream& stream) noexcept;

  AgentHost& host_;
  AgentLoop& loop_;
  ProcessGroup& group_;
  StreamRegistry& streams_;
  ListenerRegistry& listeners_;
  PromotionBroker& broker_;

  std::atomic<control::Mode> mode_;
  std::atomic<bool> policy_edited_{false};  // since the process started
  std::atomic<int> policy_fd_{-1};          // read by a thread that forks
  stats::Segment* segment_ = nullptr;
  control::ControlSocket* control_ = nullptr;
  std::int64_t reload_ns_ = kForever;
};

}  // namespace ringroad
