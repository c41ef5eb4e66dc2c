// Brings a stream and a transport together, in either role, and gives every reason why not.
//
//   connector   start() -> Transport::connect() -> on_channel(), on_redirect() or on_refused()
//   listener    on_request() -> look_up() -> decide() -> Transport::accept() -> on_channel()
//                           \-> redirect(), refuse(), or it waits in pending_requests_
//
// Thread rule: the agent thread's, but for hold() and release(). No lock of the agent's is held on entry.
//
// Invariants:
//   1. A stream has at most one promotion: Stream::request is its id, or 0. promote() and
//      take_promotion() change both ends of that link together.
//   2. Every request of a peer is answered once: accepted, refused or redirected.
//   3. While hold() is in force no promotion begins.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "rsocket-core/agent/agent_host.h"
#include "rsocket-core/agent/agent_loop.h"
#include "rsocket-core/agent/channel_budget.h"
#include "rsocket-core/agent/kept_by_peer.h"
#include "rsocket-core/agent/listener_registry.h"
#include "rsocket-core/agent/request_turns.h"
#include "rsocket-core/agent/stream_registry.h"
#include "rsocket-core/agent/transports.h"
#include "rsocket-core/process/process_group.h"

namespace ringroad {

class PromotionBroker {
 public:
  // All live as long as the process.
  PromotionBroker(AgentHost& host, AgentLoop& loop, ProcessGroup& group, StreamRegistry& streams,
                  ListenerRegistry& listeners, Transports& transports) noexcept
      : host_(host), loop_(loop), group_(group), streams_(streams), listeners_(listeners),
        transports_(transports) {}
  PromotionBroker(const PromotionBroker&) = delete;
  PromotionBroker& operator=(const PromotionBroker&) = delete;

  // ---- Any thread
  // No promotion begins until as many calls of release(): forks and execs are under way.
  void hold() noexcept { held_.fetch_add(1); }
  void release() noexcept { held_.fetch_sub(1); }

  // ---- The channel quota
  void report_to(stats::Segment* segment) noexcept { budget_.report_to(segment); }
  void set_limit(unsigned channels) noexcept { budget_.set_limit(channels); }

  // ---- Streams
  // Asks the peer for a channel, if one may be asked for, when it is the stream's turn.
  void start(const AgentStreamPtr& stream) noexcept;
  // Does what follows from what Stream::service() has done.
  void after_service(const AgentStreamPtr& stream) noexcept;
  // A connection was accepted, or its program has read, or it is back on TCP: answers the request that
  // waits for it.
  void match_pending_requests(const AgentStreamPtr& stream) noexcept;
  // An operator or the policy may have let streams off: answers what waits for that.
  void look_at_once() noexcept;

  // ---- What a transport reports (TransportEvents)
  void on_request(Transport& transport, PromotionId id, const PromotionRequest& request) noexcept;
  void on_channel(PromotionId id, const Nonce& peer_nonce, std::unique_ptr<Channel> channel) noexcept;
  void on_refused(PromotionId id, Reason reason, Reason peer_reason) noexcept;
  void on_redirect(Transport& transport, PromotionId id, const Rendezvous& where) noexcept;

  // ---- The loop
  bool has_pending_requests() const noexcept { return !pending_requests_.empty(); }
  // When expire() is to be called next; CLOCK_MONOTONIC.
  std::int64_t next_deadline() const noexcept;
  void expire(std::int64_t now_ns) noexcept;
  // Cancels every promotion and drops every request, for good: a peer that asks finds nobody.
  void step_aside() noexcept;
  // What hangs on the parent's tables is left alone.
  void after_fork_child() noexcept;

 private:
  static constexpr std::int64_t kPendingRequestNs = 1'000'000'000;
  // An address where nobody answers is asked again after the first, then after twice the last, up
  // to the longest: a listener may be missing for a moment only.
  static constexpr std::int64_t kFirstPeerMemoryNs = 1'000'000'000;
  static constexpr std::int64_t kLongestPeerMemoryNs = 30'000'000'000;
  static constexpr std::size_t kPeerMemoryEntries = 1024;
  static constexpr std::size_t kMaxPendingRequests = 1024;
  // A connection that waits to be accepted may be accepted by another process of the group.
  static constexpr std::int64_t kFirstLookNs = 2'000'000;
  static constexpr std::int64_t kLongestLookNs = 100'000'000;
  static constexpr unsigned kMaxHops = 2;
  static constexpr std::size_t kMaxKeptRequests = 64;
  // Between two lines of the log that say that there are no channels left.
  static constexpr std::int64_t kFullNoticeNs = 10'000'000'000;

  // How the other end is asked.
  struct Way {
    bool rdma_next = false;  // when this one is refused
    bool by_path = false;    // in another network namespace
    unsigned hops = 0;       // redirects
  };
  struct Promotion {
    AgentStreamPtr stream;
    Transport* transport = nullptr;
    Way way;

    bool takes_turn() const noexcept {
      return stream->role() == Role::kConnect && transport->carrier() == Carrier::kShm;
    }
  };
  struct PendingRequest {
    Transport* transport = nullptr;
    PromotionRequest request;
    std::int64_t deadline_ns = 0;
    std::int64_t look_ns = 0;  // when the group's table is looked at again
    std::int64_t pause_ns = 0;
    bool waits_for_quota = false;
  };
  // A stream that has asked, and gets the channel of another as soon as that one has left it.
  struct Waiting {
    std::weak_ptr<AgentStream> stream;
    std::int64_t deadline_ns = 0;
  };
  // A peer that has no Ringroad, or is in another network namespace.
  struct Absent {
    Reason reason = Reason::kNone;
    std::int64_t until_ns = 0;
    std::int64_t pause_ns = 0;
  };
  enum class Look : std::uint8_t { kAnswered, kWaits, kWaitsForQuota };

  // ---- promotion_broker.cc
  void start_those_in_turn() noexcept;
  void connect(const AgentStreamPtr& stream, bool shm, bool rdma_next) noexcept;
  void connect_by_path(const AgentStreamPtr& stream) noexcept;
  // `where`: what to ask instead of the listener, after way.hops redirects; null: the listener.
  void connect(const AgentStreamPtr& stream, Transport& transport, Way way, const Rendezvous* where) noexcept;
  // Enters the promotion of a stream that has none. May throw std::bad_alloc.
  void promote(PromotionId id, const AgentStreamPtr& stream, Transport& transport, Way way);
  // A request that led to something, or will not. Empty: it was cancelled.
  std::optional<Promotion> take_promotion(PromotionId id) noexcept;
  // Cancels what the stream has asked for and does not want any more: its program has closed it, or it
  // stays on TCP. Otherwise its next request might get the answer.
  void drop_request(AgentStream& stream) noexcept;
  // The stream stays on TCP: tells it, the log and, if it was the envoy, the others that its peer keeps.
  void settle_refusal(const AgentStreamPtr& stream, Reason reason, Reason peer_reason) noexcept;
  void let_off_by_peer(const Endpoint& peer) noexcept;
  // Why it is not to be asked now; kNone: it may be.
  Reason remembered_without(const Endpoint& peer) noexcept;
  void remember_without(const Endpoint& peer, Reason reason) noexcept;
  // Whether there is a channel for one more stream.
  ChannelBudget::Quota channel_quota() noexcept;
  // False: no memory.
  bool wait_for_quota(const AgentStreamPtr& stream) noexcept;
  // Whether a stream that waits, for a channel or its turn, has still use for one. Else it has asked
  // meanwhile, or is kept.
  static bool still_waits(const AgentStream& stream) noexcept;
  // A channel is free: gives it to a peer's request that waits, else to a stream that does.
  void quota_is_freed() noexcept;
  // Refuses the streams for which no channel became free in time; they ask again.
  void stop_waiting_for_quota(std::int64_t now_ns) noexcept;

  // ---- pending_requests.cc
  // Why nothing is done for a request; kNone: it proves a key, where it has to.
  Reason why_unproven(const PromotionRequest& request) noexcept;
  // Answers if the request can be answered now; at the `last` look in any case.
  Look look_up(Transport& transport, PromotionId id, const PromotionRequest& request,
               bool last) noexcept;
  // The same for one of pending_requests_. It may change the table.
  void look_up_again(PromotionId id, bool last) noexcept;
  void look_again(std::int64_t now_ns) noexcept;
  AgentStreamPtr accepted(const FourTuple& tuple) noexcept;
  // Whether no other process has the stream or an epoll instance that it is lent to. It is lent no longer
  // then.
  bool has_back(Stream& stream) noexcept;
  // Accepts or refuses for a stream that is here.
  void decide(Transport& transport, PromotionId id, const PromotionRequest& request,
              const AgentStreamPtr& stream) noexcept;

  AgentHost& host_;
  AgentLoop& loop_;
  ProcessGroup& group_;
  StreamRegistry& streams_;
  ListenerRegistry& listeners_;
  Transports& transports_;

  std::atomic<int> held_{0};
  std::map<PromotionId, Promotion> promotions_;
  RequestTurns turns_;  // of those that take one
  std::map<PromotionId, PendingRequest> pending_requests_;
  ChannelBudget budget_;
  std::deque<Waiting> waiting_;  // for a channel; by deadline
  std::int64_t full_noted_ns_ = 0;
  std::map<Endpoint, Absent> peers_without_;
  KeptByPeer kept_by_peer_;
};

}  // namespace ringroad
