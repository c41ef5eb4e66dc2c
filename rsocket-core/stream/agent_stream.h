// The agent's face of a stream: what Stream has, and what only the agent and its thread call
// (agent_stream.cc). Every Stream is one.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>

#include "rsocket-core/stream/stream.h"

namespace ringroad {

class AgentStream;
using AgentStreamPtr = std::shared_ptr<AgentStream>;

// What the agent has to watch for a stream, besides its deadline.
struct StreamInterest {
  bool tcp_in = false;
  bool tcp_out = false;
  bool channel = false;
  bool done = false;  // nothing is left to do: the agent may forget the stream
  std::int64_t deadline_ns = std::numeric_limits<std::int64_t>::max();  // CLOCK_MONOTONIC
};

class AgentStream final : public Stream {
 public:
  // `fd` is the connected socket, the program's number for it; not owned. `segment` may be null.
  AgentStream(StreamHost* host, stats::Segment* segment, std::uint64_t id, int fd, Role role,
              const FourTuple& tuple, const StreamConfig& config, bool nonblocking,
              const DeferredUse& early = {}) noexcept
      : Stream(host, segment, id, fd, role, tuple, config, nonblocking, early) {}

  // What a StreamHost is called with.
  static AgentStream& of(Stream& stream) noexcept { return static_cast<AgentStream&>(stream); }
  static AgentStreamPtr of(const StreamPtr& stream) noexcept {
    return std::static_pointer_cast<AgentStream>(stream);
  }

  // ---- Promotion
  Reason may_promote() noexcept;  // kNone, or why not now
  bool is_connected() noexcept;   // neither end has closed, or shut a direction down
  // Whether the program has read all that came over TCP. If not, attend() is called when it has read
  // next, and read_since_asked() says so, once.
  bool all_read() noexcept;
  bool read_since_asked() noexcept;
  // The listener was asked, or the connector asks: CONNECTING. False with a reason.
  Reason promotion_started(const Nonce& nonce) noexcept;
  void promotion_refused(Reason reason, Reason peer_reason) noexcept;
  void channel_up(std::unique_ptr<Channel> channel, const Nonce& peer_nonce) noexcept;
  const Nonce& nonce() const noexcept { return nonce_; }

  // ---- The agent's loop; service() is Stream's
  StreamInterest interest() noexcept;
  void deadline_passed() noexcept;
  bool arm_channel() noexcept;
  // The channel has woken the agent, which waits by edges.
  void take_wake_up() noexcept;
  // Registers the TCP descriptor with the agent's epoll instance for `events`, or removes it (0).
  void watch_tcp(int epoll_fd, std::uint64_t cookie, std::uint32_t events) noexcept;
  // The agent sleeps on the channel too: a thread that takes its wake-up must tell.
  void agent_sleeps_on_channel(bool yes) noexcept { agent_on_channel_.store(yes, std::memory_order_relaxed); }
  bool closed_by_program() const noexcept { return app_closed_; }
  // True once: the caller is the one to queue this stream for the agent.
  bool claim_attention() noexcept {
    known_to_agent_.store(true, std::memory_order_relaxed);
    return !queued_.exchange(true, std::memory_order_acq_rel);
  }
  // An exchange, so that what was asked for before a claim_attention() that came too early is seen after
  // this.
  void attention_given() noexcept { queued_.exchange(false, std::memory_order_acq_rel); }

  // ---- Back to TCP
  // As demote_for_good(), without sleeping and for the time being.
  void leave_channel(Reason reason) noexcept;
  // The program has closed it, and the process ends: what the peer's program has not read shall not end with
  // it, and goes to the kernel. Does not wait.
  void leave_closed(Reason reason) noexcept;
  // The same of one that is not used. False: it keeps its channel; its peer has closed, say, and
  // no end is left that would answer.
  bool leave_idle() noexcept;
  // No channel, and every frame is out of the kernel's hands on its way in and in them on its way out:
  // what the kernel has left is the program's. Or the connection is over.
  bool settled() noexcept;
  // A fork has waited in vain for it to come back, and the next one does not. Until it is back.
  using Stream::kept_a_fork_waiting;

  // ---- What an operator asks for
  // Leaves the channel, and has none until let_off_tcp(). Does not wait.
  void keep_on_tcp(Reason reason) noexcept;
  // As the rule says, with the next use; or `at_once`, whatever the rule's threshold. True: the
  // agent should start the promotion now.
  bool let_off_tcp(bool at_once) noexcept;
  // True once after the peer has said that it is kept on TCP there: the agent finds out when that ends.
  bool take_peer_keeps() noexcept;

  // ---- fork(2)
  // The program has done nothing with it yet in this process that shows which process sends and receives
  // there.
  bool awaits_use() noexcept;
  // In the child, before anything uses it: as become_shared().
  void begin_shared(std::uint64_t share) noexcept;

  // The next in the agent's queue, and whether it is there for start_promotion(); the agent's.
  AgentStreamPtr next_queued;
  std::atomic<bool> wants_promotion{false};
  // The request that is under way for it; 0: none. The agent thread's.
  std::uint64_t request = 0;

 private:
  bool wake_up_stands() noexcept RR_REQUIRES(rx_mutex_);

  std::atomic<bool> queued_{false};
};

}  // namespace ringroad
