// The library's face to the preload layer, and its one thread.
//
// The agent thread does everything that is no call of the program's: it builds channels, answers peers,
// watches the idle TCP connections of promoted streams, drains what a closed socket left behind. It
// starts when the first connection or listener matches the policy, never in a constructor, and not at all
// in a process that meets none.
//
// The agent keeps the thread, its queue, its loop and what the loop watches. The rest is in its parts:
//
//   StreamRegistry     the streams that there are
//   ListenerRegistry   the listeners, and which process answers for them
//   Transports         the transports, made when they are needed
//   PromotionBroker    brings streams and transports together
//   OperatorControl    `ringroad set` and edits of the policy
//
// Thread rule: any thread may call public functions; what overrides TransportEvents or AgentLoop is the agent
// thread's. README.md has the rules for the parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "rsocket-core/agent/agent_host.h"
#include "rsocket-core/agent/agent_loop.h"
#include "rsocket-core/agent/listener_registry.h"
#include "rsocket-core/agent/operator_control.h"
#include "rsocket-core/agent/promotion_broker.h"
#include "rsocket-core/agent/stream_registry.h"
#include "rsocket-core/agent/transports.h"
#include "rsocket-core/base/mutex.h"
#include "rsocket-core/channel/transport.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/process/process_group.h"
#include "rsocket-core/stats/stats.h"
#include "rsocket-core/stream/agent_stream.h"

namespace ringroad {

class Agent final : public StreamHost, public TransportEvents, private AgentLoop {
 public:
  // `host` lives as long as the process. `mode`: what an operator has asked of the program that this
  // process was before.
  explicit Agent(AgentHost& host, control::Mode mode = control::Mode::kAuto) noexcept;
  ~Agent() = delete;  // lives as long as the process

  // ---- Streams
  // A connection that the policy lets off the kernel. Null when out of memory.
  StreamPtr open_stream(int fd, Role role, const FourTuple& tuple,
                        const StreamConfig& config, bool nonblocking,
                        const DeferredUse& early = {}) noexcept;
  // Whether a connection may be deferred: the agent has it made a stream, by open_stream(), when it looks
  // for it and when it has been there for a while.
  bool may_defer() const noexcept {
    return running_.load(std::memory_order_acquire) && !process_group_.joined() &&
           operator_.mode() == control::Mode::kAuto;
  }
  // A connection was deferred. False: the agent has looked for it meanwhile, and it is to be made a
  // stream at once.
  bool note_deferred(Role role) noexcept;
  // The same connection, in a child that has inherited it. `share`: 0 or ProcessGroup::ConnectionId.
  StreamPtr inherit_stream(int fd, Role role, const FourTuple& tuple,
                           const StreamConfig& config, std::uint64_t share) noexcept;
  // The program closed it: the listener does not offer it to peers any more. `over`: what
  // Stream::close_by_program() said; if not, the process does not end before it is (leave_all()).
  void stream_closed(Stream& stream, bool over) noexcept;
  bool has_streams() noexcept { return !streams_.empty(); }

  // ---- Listeners
  // Answers promotion requests for a listening socket bound to `local`. If it `waits`, it returns when
  // requests are answered, or cannot be, but within kListenWaitNs: a client that asks too early is told
  // that nobody is there, and remembers it.
  void listen(const Endpoint& local, bool via_shm, bool via_rdma, bool waits = true,
              const ListenerFacts& facts = {}) noexcept;
  // The program has closed it. Requests are answered for as long as what it accepted is open.
  void unlisten(const Endpoint& local) noexcept RR_EXCLUDES(mutex_);

  // ---- The program needs the kernel
  // Brings every stream back to TCP, so that the kernel delivers what was sent after the process is
  // gone, and waits for it, and for those that the program has closed, at most `timeout_ns`.
  void leave_all(Reason reason, std::int64_t timeout_ns) noexcept;
  // After leave_all(kExec): the process goes on as it was.
  void stay() noexcept { broker_.release(); }
  // Keeps every stream on TCP for good that a child that is about to be forked could not take over,
  // without waiting.
  void pin_unshareable() noexcept;
  // The same for every stream, whatever it is on.
  void pin_all(Reason reason) noexcept;
  // After leave_all(kNoDescriptors): closes the agent's own descriptors, and those of its transports, as
  // far as they are not in use, and waits for that at most `timeout_ns`. No stream is promoted any more.
  void step_aside(std::int64_t timeout_ns) noexcept;
  // Whether this is the agent thread. The verbs libraries run there, and call what a program calls.
  bool runs_here() const noexcept;

  // ---- fork(2): prepare, then parent or child (agent_fork.cc). In the child no stream of the parent's
  // is touched again, and the agent starts anew when it is needed.
  // expect_child() makes the group if there is anything to share. 0: there is not, or the group is full.
  // REQUIRES: one thread at a time calls it.
  ProcessGroup::Member expect_child() noexcept;
  void before_fork() noexcept RR_NO_THREAD_SAFETY_ANALYSIS;
  void after_fork_parent() noexcept RR_NO_THREAD_SAFETY_ANALYSIS;
  void after_fork_child() noexcept RR_NO_THREAD_SAFETY_ANALYSIS;
  ProcessGroup& process_group() noexcept { return process_group_; }

  // ---- StreamHost
  void attend(Stream& stream) noexcept override;
  void start_promotion(Stream& stream) noexcept override;
  void unwatch(Stream& stream, int old_fd) noexcept override;
  bool holds_alone(const Stream& stream) noexcept override {
    return process_group_.alone(stream.share());
  }
  void release_share(std::uint64_t share) noexcept override { process_group_.release(share); }
  void keep_share(std::uint64_t share) noexcept override { process_group_.keep(share); }
  bool sees_waits() noexcept override { return host_.sees_waits(); }
  bool waits_past(const Stream& stream, bool awaited) noexcept override {
    return host_.waits_past(stream.fd(), awaited);
  }

  // ---- TransportEvents
  void on_request(Transport& transport, PromotionId id,
                  const PromotionRequest& request) noexcept override {
    broker_.on_request(transport, id, request);
  }
  void on_channel(Transport&, PromotionId id, const Nonce& peer_nonce,
                  std::unique_ptr<Channel> channel) noexcept override {
    broker_.on_channel(id, peer_nonce, std::move(channel));
  }
  void on_refused(Transport&, PromotionId id, Reason reason, Reason peer_reason) noexcept override {
    broker_.on_refused(id, reason, peer_reason);
  }
  void on_redirect(Transport& transport, PromotionId id, const Rendezvous& where) noexcept override {
    broker_.on_redirect(transport, id, where);
  }
  void on_channel_event(Transport& transport, PromotionId id) noexcept override;

  static PromotionId next_promotion_id() noexcept { return Transports::next_promotion_id(); }

 private:
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t kListenWaitNs = 3'000'000'000;  // verbs libraries may take one
  static constexpr long kNapNs = 1'000'000;
  // For connections that ask once to be over.
  static constexpr std::int64_t kMaterialiseOldNs = 50'000'000;

  enum class Task : std::uint8_t { kListen, kUnlisten, kOffer, kStepAside };
  // An eventfd that is signalled when a command was carried out.
  struct Done {
    ~Done();
    int fd = -1;
  };
  struct Command {
    Task task;
    AgentStreamPtr stream;
    Endpoint endpoint{};
    int rendezvous = -1;
    std::shared_ptr<Done> done{};
  };
  struct Watched {
    AgentStreamPtr stream;
    std::uint32_t tcp_events = 0;
    int tcp_fd = -1;
    int channel_fd = -1;
    std::int64_t deadline_ns = 0;  // as it stands in deadlines_
    PromotionId promotion = 0;
    bool told_of_channel = false;  // the log was, and of no return yet
    bool told_of_reset = false;
  };

  // ---- Any thread (agent.cc)
  AgentStreamPtr make_stream(int fd, Role role, const FourTuple& tuple, const StreamConfig& config,
                        bool nonblocking, bool inherited, std::uint64_t share,
                        const DeferredUse& early) noexcept;
  // Starts the thread if it has not started. False: it cannot be started now.
  bool ensure_thread() noexcept RR_EXCLUDES(mutex_);
  // Has the agent thread carry out the command; without a thread, or memory, nothing does.
  void post(Command command) noexcept RR_EXCLUDES(queue_mutex_);
  void wake_thread() noexcept RR_EXCLUDES(queue_mutex_);
  static void* thread_main(void* self) noexcept;

  // ---- Agent thread (agent_thread.cc)
  void run() noexcept;
  void dispatch(std::uint64_t cookie) noexcept;
  void run_commands() noexcept RR_EXCLUDES(queue_mutex_);
  // Has old deferred connections made streams.
  void materialise_old(std::int64_t now_ns) noexcept;
  std::int64_t next_deadline() noexcept;
  void expire(std::int64_t now_ns) noexcept;
  // Does what can be done for a stream, then arranges to be woken for what cannot be done yet.
  void serve(const AgentStreamPtr& stream) noexcept;
  // Watches the stream no longer.
  void forget(std::uint64_t id) noexcept;
  void set_deadline(Watched& watched, std::int64_t deadline_ns) noexcept;
  void watch_channel(Watched& watched, bool wanted) noexcept;
  // Writes the log if the stream has changed its carrier since the last call.
  void log_move(Watched& watched) noexcept;
  // AgentLoop
  bool watch(int fd, Cookie cookie, std::uint32_t events) noexcept override;
  void channel_is_up(const AgentStreamPtr& stream, PromotionId id) noexcept override;
  void stop_answering_soon(const Endpoint& local, int rendezvous) noexcept override;
  bool steps_aside() const noexcept override {
    return steps_aside_.load(std::memory_order_relaxed);
  }

  // ---- Agent thread (agent_aside.cc)
  void close_what_it_can() noexcept;
  // Whether the thread ends: all is closed, and nothing is left in the queue.
  bool has_ended() noexcept RR_EXCLUDES(queue_mutex_);

  AgentHost& host_;
  stats::Segment* segment_ = nullptr;  // null until ensure_thread()
  ProcessGroup process_group_;
  StreamRegistry streams_;
  Transports transports_;
  ListenerRegistry listeners_;
  PromotionBroker broker_;
  OperatorControl operator_;

  // Held while the thread starts, and while unlisten() goes by whether it has.
  Mutex mutex_ RR_RANK(agent) RR_ACQUIRED_BEFORE(queue_mutex_);
  bool started_ RR_GUARDED_BY(mutex_) = false;
  std::atomic<bool> running_{false};
  std::atomic<pid_t> thread_id_{0};
  std::atomic<bool> steps_aside_{false};  // for good
  std::atomic<bool> closed_what_it_can_{false};

  // A leaf: taken with streams' locks held.
  Mutex queue_mutex_ RR_RANK(agent_queue);
  std::vector<Command> queue_ RR_GUARDED_BY(queue_mutex_);
  // Streams for serve(), in a list of their own: nothing is allocated on the data path, nor for
  // what a signal handler may call, such as _exit(2).
  AgentStreamPtr attended_ RR_GUARDED_BY(queue_mutex_);
  AgentStream* last_attended_ RR_GUARDED_BY(queue_mutex_) = nullptr;
  std::atomic<int> epoll_fd_{-1};
  std::atomic<int> wake_fd_{-1};
  // Connections were deferred, and materialise_old() has not been called since.
  std::atomic<bool> some_deferred_{false};

  // Agent thread only.
  std::int64_t materialise_old_at_ns_ = kForever;
  std::map<std::uint64_t, Watched> watched_;
  std::set<std::pair<std::int64_t, std::uint64_t>> deadlines_;  // of watched_, by time
  std::map<PromotionId, std::uint64_t> channels_;  // promotion -> stream id, while watched
};

}  // namespace ringroad
