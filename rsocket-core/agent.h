// The library's face to the preload layer, and its one thread.
//
// The agent thread does everything that is nobody's call: it builds channels, answers peers, watches
// the idle TCP connections of promoted streams, drains what a closed socket left behind. It starts
// when the first connection or listener matches the policy, never in a constructor, and not at all
// in a process that meets none.
//
// Thread rule: public functions may be called by any thread. Members under "agent thread" are
// touched by that thread alone.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "rsocket-core/channel_budget.h"
#include "rsocket-core/control.h"
#include "rsocket-core/endpoint.h"
#include "rsocket-core/family.h"
#include "rsocket-core/mutex.h"
#include "rsocket-core/stats.h"
#include "rsocket-core/stream.h"
#include "rsocket-core/transport.h"

namespace ringroad {

struct AgentOptions {
  // Loads the verbs transport, or says why not. Called once, on the agent thread; may be null.
  Transport* (*load_verbs)(TransportEvents& events, Reason& why) noexcept = nullptr;
  // The process' statistics, null where they cannot be kept. Asked once, when the process needs the
  // agent's thread, and once more in each child of a fork that needs it: a child that becomes a
  // helper program leaves no file. Not owned; may be null: there are none.
  stats::Segment* (*segment)() noexcept = nullptr;
  // One line about a decision, for the log. Called on any thread; may be null.
  void (*log)(const char* line) noexcept = nullptr;
  // Whether such a line would be written, now; null: always.
  bool (*wants_log)() noexcept = nullptr;
  // What an operator has asked of the program that this process was before.
  control::Mode mode = control::Mode::kAuto;
  // The policy's edits; all null, or none. watch_policy: a descriptor that is readable when the
  // policy may have been edited, until take_policy_events, or -1; its owner is the caller, the
  // agent thread. reload_policy: true if there is another policy now. allows: whether the one that
  // holds lets the connection off TCP; any thread.
  int (*watch_policy)() noexcept = nullptr;
  void (*take_policy_events)(int watch_fd) noexcept = nullptr;
  bool (*reload_policy)(int watch_fd) noexcept = nullptr;
  bool (*allows)(StreamRole role, const FourTuple& tuple) noexcept = nullptr;
  // How many channels the process may have, by the policy that holds; null: the usual.
  unsigned (*max_channels)() noexcept = nullptr;
  // Makes streams of the connections that were not told of yet (Agent::may_tell_later()): of all, of
  // those that were there at the last such call already, or of those that were accepted from
  // `remote`. True: there are others. Called on the agent thread; null: there are never any.
  enum class Untold : std::uint8_t { kAll, kOld, kAccepted };
  bool (*tell)(Untold which, const Endpoint& remote) noexcept = nullptr;
  // Takes a stream back that is lent to the kernel's epoll instances; false: another process has one of them, or
  // the program is to modify it first. Called on the agent thread; null: none is ever lent.
  bool (*take_back)(Stream& stream) noexcept = nullptr;
  // Whether the program waits for what the number `fd` names by means that did not come through the caller, or
  // there is no telling; of one that is `awaited` by calls that did, whether it surely does. Called on the agent
  // thread; null: nobody knows of any waits (StreamHost::sees_waits()).
  bool (*waits_past)(int fd, bool awaited) noexcept = nullptr;
};

class Agent final : public StreamHost, public TransportEvents {
 public:
  explicit Agent(const AgentOptions& options) noexcept;
  ~Agent() = delete;  // lives as long as the process

  // A connection that the policy lets off the kernel. Null when out of memory.
  StreamPtr open_stream(int fd, StreamRole role, const FourTuple& tuple,
                        const StreamConfig& config, bool nonblocking,
                        const EarlyUse& early = {}) noexcept;
  // Whether a connection may be told of later, by open_stream(): the agent asks for it when it is
  // looked for, and when it has been there for a while. Of one that was made nevertheless while
  // somebody looked, told_late() is false: it is to be told of at once.
  bool may_tell_later() const noexcept {
    return running_.load(std::memory_order_acquire) && !family_.joined() &&
           mode_.load(std::memory_order_relaxed) == control::Mode::kAuto;
  }
  bool told_late(StreamRole role) noexcept;
  // The same connection, in a child that has inherited it. `share`: 0 or Family::Share.
  StreamPtr inherit_stream(int fd, StreamRole role, const FourTuple& tuple,
                           const StreamConfig& config, std::uint64_t share) noexcept;
  // The program closed it: the listener does not offer it to peers any more. `over`: what
  // Stream::close_by_program() said; if not, the process does not end before it is (leave_all()).
  void stream_closed(Stream& stream, bool over) noexcept;

  // Answers promotion requests for a listening socket bound to `local`. If it `waits`, it returns when requests
  // are answered, or cannot be, but within kListenWaitNs: a client that asks too early is told that nobody is
  // there, and remembers it.
  void listen(const Endpoint& local, bool via_shm, bool via_rdma, bool waits = true) noexcept;
  // The program has closed it. Requests are answered for as long as what it accepted is open: peers
  // ask under its address, and a program may close it after the one connection that it waits for.
  void unlisten(const Endpoint& local) noexcept;

  // Brings every stream back to TCP, so that the kernel delivers what was sent after the process is
  // gone, and waits for it, and for those that the program has closed, at most `timeout_ns`.
  void leave_all(Reason reason, std::int64_t timeout_ns) noexcept;
  // After leave_all(kExec): the process goes on as it was.
  void stay() noexcept { held_.fetch_sub(1); }
  // Keeps every stream on TCP for good that a child that is about to be forked could not take over,
  // without waiting.
  void pin_unshareable() noexcept;
  // The same for every stream, whatever it is on.
  void pin_all(Reason reason) noexcept;
  // After leave_all(kNoDescriptors): closes the agent's own descriptors, and those of its transports, as far as
  // they are not in use, and waits for that at most `timeout_ns`. No stream is promoted any more.
  void step_aside(std::int64_t timeout_ns) noexcept;
  bool has_streams() noexcept;
  // Whether this is the agent thread. The verbs libraries run there, and call what a program calls.
  bool runs_here() const noexcept;

  // fork(2): prepare, then parent or child. In the child no stream of the parent's is touched
  // again, and the agent starts anew when it is needed.
  // expect_child() makes the family if there is anything to share; 0: there is not, or no room.
  Family::Member expect_child() noexcept RR_EXCLUDES(mutex_);
  void before_fork() noexcept RR_NO_THREAD_SAFETY_ANALYSIS;
  void after_fork_parent() noexcept RR_NO_THREAD_SAFETY_ANALYSIS;
  void after_fork_child() noexcept RR_NO_THREAD_SAFETY_ANALYSIS;
  Family& family() noexcept { return family_; }

  // StreamHost
  void attend(Stream& stream) noexcept override;
  void start_promotion(Stream& stream) noexcept override;
  void unwatch(Stream& stream, int old_fd) noexcept override;
  bool holds_alone(const Stream& stream) noexcept override;
  void release_share(std::uint64_t share) noexcept override { family_.release(share); }
  void keep_share(std::uint64_t share) noexcept override { family_.keep(share); }
  bool sees_waits() noexcept override { return options_.waits_past != nullptr; }
  bool waits_past(const Stream& stream, bool awaited) noexcept override {
    return options_.waits_past(stream.fd(), awaited);
  }

  // TransportEvents
  void on_request(Transport& transport, PromotionId id,
                  const PromotionRequest& request) noexcept override;
  void on_channel(Transport& transport, PromotionId id, const Nonce& peer_nonce,
                  std::unique_ptr<Channel> channel) noexcept override;
  void on_refused(Transport& transport, PromotionId id, Reason reason,
                  Reason peer_reason) noexcept override;
  void on_redirect(Transport& transport, PromotionId id, const Rendezvous& where) noexcept override;
  void on_channel_event(Transport& transport, PromotionId id) noexcept override;

  static PromotionId next_promotion_id() noexcept;

 private:
  static constexpr std::int64_t kUnknownRequestNs = 1'000'000'000;
  // An address where nobody answers is asked again after the first, then after twice the last, up
  // to the longest: a listener may be missing for a moment only.
  static constexpr std::int64_t kFirstPeerMemoryNs = 1'000'000'000;
  static constexpr std::int64_t kLongestPeerMemoryNs = 30'000'000'000;
  static constexpr std::size_t kPeerMemoryEntries = 1024;
  static constexpr std::size_t kMaxUnknownRequests = 1024;
  static constexpr std::int64_t kListenWaitNs = 3'000'000'000;  // verbs libraries may take one
  // A listener's address that another process answers for, of which nobody tells when it stops, or for
  // which something was short: from the first to the longest pause.
  static constexpr std::int64_t kListenAgainNs = 1'000'000'000;
  static constexpr std::int64_t kLongestListenPauseNs = 32'000'000'000;
  // A connection that waits to be accepted may be accepted by another process of the family.
  static constexpr std::int64_t kFirstLookNs = 2'000'000;
  static constexpr std::int64_t kLongestLookNs = 100'000'000;
  static constexpr unsigned kMaxHops = 2;
  // A request for a stream that the operator keeps on TCP waits for that to end, so that the other
  // side need not ask all the time. The other side waits for kAnswerNs (shm_transport.h), less the
  // time that the request takes.
  static constexpr std::int64_t kKeptRequestNs = 2'000'000'000;
  static constexpr std::size_t kMaxKeptRequests = 64;
  static constexpr std::size_t kTidyKept = 256;
  // Until such a request follows another that was not left to wait.
  static constexpr std::int64_t kKeptPauseNs = 200'000'000;
  // After which another stream asks for those that a peer keeps, whatever became of the one that was sent.
  static constexpr std::int64_t kEnvoyNs = 8'000'000'000;
  static constexpr long kNapNs = 1'000'000;
  static constexpr std::int64_t kReturnPauseNs = 5'000'000;
  // Between two lines of the log that say that there are no channels left.
  static constexpr std::int64_t kFullNoticeNs = 10'000'000'000;
  // For connections that ask once to be over.
  static constexpr std::int64_t kTellOldNs = 50'000'000;
  // An editor writes in several steps.
  static constexpr std::int64_t kPolicySettlesNs = 20'000'000;

  // What an epoll event is about: the low two bits of its cookie; the rest is a stream's id, or one
  // of the agent's own.
  enum Cookie : std::uint64_t {
    kTcpCookie = 0,
    kChannelCookie = 1,
    kOtherCookie = 2,
    kWakeCookie = (1 << 2) | kOtherCookie,
    kShmCookie = (2 << 2) | kOtherCookie,
    kVerbsCookie = (3 << 2) | kOtherCookie,
    kLeaderCookie = (4 << 2) | kOtherCookie,
    kControlCookie = (5 << 2) | kOtherCookie,
    kPolicyCookie = (6 << 2) | kOtherCookie,
  };
  struct Listener {
    bool shm = false;
    bool rdma = false;
    unsigned count = 0;   // 0: closed, see unlisten()
    int rendezvous = -1;  // what answers over shm; a child has it too
  };
  // What became of a listener at each transport; agent thread.
  struct Answering {
    enum class At : std::uint8_t {
      kNowhere,
      kHere,
      kElsewhere,
      kNotYet,  // memory or descriptors were short; tried again
      kFailed
    };
    At shm = At::kNowhere;
    At rdma = At::kNowhere;
  };
  enum class Task : std::uint8_t { kListen, kUnlisten, kOffer, kStepAside };
  // An eventfd that is signalled when a command was carried out.
  struct Done {
    ~Done();
    int fd = -1;
  };
  struct Command {
    Task task;
    StreamPtr stream;
    Endpoint endpoint{};
    int rendezvous = -1;
    std::shared_ptr<Done> done{};
  };
  struct Watched {
    StreamPtr stream;
    std::uint32_t tcp_events = 0;
    int tcp_fd = -1;
    int channel_fd = -1;
    std::int64_t deadline_ns = 0;  // as it stands in deadlines_
    PromotionId promotion = 0;
    bool told_of_channel = false;  // the log was, and of no return yet
    bool told_of_reset = false;
  };
  struct Promotion {
    StreamPtr stream;
    Transport* transport = nullptr;
    bool try_rdma_next = false;
    unsigned hops = 0;  // redirects
  };
  struct Unknown {
    Transport* transport = nullptr;
    PromotionRequest request;
    std::int64_t deadline_ns = 0;
    std::int64_t look_ns = 0;  // when the family's table is looked at again
    std::int64_t pause_ns = 0;
    bool waits_for_room = false;
  };
  // A stream that has asked, and gets the channel of another as soon as that one has left it.
  struct Waiting {
    std::weak_ptr<Stream> stream;
    std::int64_t deadline_ns = 0;
  };

  // Streams that the other end keeps on TCP; one of them asks for all.
  struct KeptByPeer {
    std::deque<std::weak_ptr<Stream>> streams;
    // Those that have ended are let go when there are so many: each holds a stream's memory.
    std::size_t tidy_at = kTidyKept;
    std::uint64_t envoy = 0;  // the id of the one that has been sent
    std::int64_t asked_ns = 0;
    std::int64_t next_ns = 0;  // when the next one asks
  };

  StreamPtr make_stream(int fd, StreamRole role, const FourTuple& tuple, const StreamConfig& config,
                        bool nonblocking, bool inherited, std::uint64_t share,
                        const EarlyUse& early) noexcept;
  template <typename Act>
  void each_stream(Act act) noexcept RR_EXCLUDES(mutex_);  // until act(stream) is false
  bool ensure_thread() noexcept RR_EXCLUDES(mutex_);
  void post(Command command) noexcept;
  void wake_thread() noexcept RR_EXCLUDES(queue_mutex_);
  static void* thread_main(void* self) noexcept;

  // ---- agent thread (agent.cc)
  void run() noexcept;
  void run_commands() noexcept;
  bool tell(AgentOptions::Untold which, const Endpoint& remote = {}) noexcept;
  void tell_old(std::int64_t now_ns) noexcept;
  std::int64_t next_deadline() noexcept;
  void expire(std::int64_t now_ns) noexcept;
  void serve(const StreamPtr& stream) noexcept;
  void forget(std::uint64_t id) noexcept;
  void forget_closed(std::uint64_t id) noexcept RR_EXCLUDES(mutex_);
  std::optional<Promotion> take_promotion(PromotionId id) noexcept;
  void drop_request(Stream& stream) noexcept;
  void set_deadline(Watched& watched, std::int64_t deadline_ns) noexcept;
  void watch_channel(Watched& watched, bool wanted) noexcept;

  // ---- agent thread (agent_aside.cc)
  void close_what_it_can() noexcept RR_EXCLUDES(mutex_);
  bool has_ended() noexcept RR_EXCLUDES(mutex_, queue_mutex_);

  // ---- agent thread (agent_operator.cc)
  void watch_operator() noexcept;
  void publish_mode() noexcept;
  bool watch(int fd, Cookie cookie) noexcept;
  void watch_policy() noexcept;
  void policy_may_be_edited() noexcept;
  void note(const char* line) noexcept;
  void obey_operator() noexcept;
  void reload_policy(std::int64_t now_ns) noexcept;
  void apply_to_all() noexcept RR_EXCLUDES(mutex_);
  void apply_to(const StreamPtr& stream) noexcept;
  Reason why_kept(const Stream& stream) noexcept;
  void note_kept_by_peer(const StreamPtr& stream) noexcept;
  void ask_for_kept(std::int64_t now_ns) noexcept;
  void peer_lets_off(const Endpoint& peer) noexcept;
  std::int64_t next_operator_deadline() const noexcept;

  // ---- agent thread (agent_promotion.cc)
  Transport* shm_transport(Reason& why) noexcept;
  Transport* verbs_transport(Reason& why) noexcept;
  void start(const StreamPtr& stream) noexcept;
  void connect(const StreamPtr& stream, bool shm, bool rdma_next) noexcept;
  void connect(const StreamPtr& stream, Transport& transport, bool rdma_next,
               const Rendezvous* where, unsigned hops) noexcept;
  void do_listen(const Endpoint& local) noexcept;
  Reason listen_shm(const Endpoint& local) noexcept RR_EXCLUDES(mutex_);
  Reason listen_rdma(const Endpoint& local) noexcept;
  bool lead(const Endpoint& local, Carrier carrier) noexcept;
  void do_unlisten(const Endpoint& local, int rendezvous) noexcept;
  bool has_accepted_at(const Endpoint& listener) noexcept RR_REQUIRES(mutex_);
  // Ends the closed listeners that may have accepted a connection at `local` if none of theirs is
  // left, or in any case. True: there was one.
  bool end_closed_listeners(const Endpoint& local, bool in_any_case) noexcept RR_REQUIRES(mutex_);
  // A closed listener accepts nothing: who asks there for a connection that is not known means
  // another process, which listens there by now. True: it can answer from now on.
  bool leave_closed(const Endpoint& local) noexcept RR_EXCLUDES(mutex_);
  void listen_again(std::int64_t now_ns) noexcept;
  bool watch_leader(pid_t process) noexcept;
  void forget_leaders() noexcept;
  void offer(const StreamPtr& stream) noexcept;
  bool needs_to_be_found(const Stream& stream) noexcept;
  void be_found() noexcept;
  StreamPtr accepted(const FourTuple& tuple) noexcept RR_EXCLUDES(mutex_);
  enum class Look : std::uint8_t { kAnswered, kWaits, kWaitsForRoom };
  // Whether no other process has the stream or an epoll instance that it is lent to; if so, it is lent no longer.
  bool has_back(Stream& stream) noexcept;
  Look look_up(Transport& transport, PromotionId id, const PromotionRequest& request,
               bool last) noexcept;
  void look_up_again(PromotionId id, bool last) noexcept;
  void look_again(std::int64_t now_ns) noexcept;
  void decide(Transport& transport, PromotionId id, const PromotionRequest& request,
              const StreamPtr& stream) noexcept;
  void settle_refusal(const StreamPtr& stream, Reason reason, Reason peer_reason) noexcept;
  ChannelBudget::Room room_for_one_more() noexcept;
  bool wait_for_room(const StreamPtr& stream) noexcept;
  static bool still_waits(const Stream& stream) noexcept;
  void room_is_made() noexcept;
  void stop_waiting_for_room(std::int64_t now_ns) noexcept;
  bool remembered_without(const Endpoint& peer) noexcept;
  void remember_without(const Endpoint& peer) noexcept;
  void log_decision(const Stream& stream, const char* what, Reason reason,
                    Reason peer_reason) noexcept;
  // That it has moved since it was looked at last.
  void log_move(Watched& watched) noexcept;

  const AgentOptions options_;
  stats::Segment* segment_ = nullptr;  // null until ensure_thread()

  Mutex mutex_;
  bool started_ RR_GUARDED_BY(mutex_) = false;
  std::map<FourTuple, std::weak_ptr<Stream>> accepted_ RR_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::weak_ptr<Stream>> streams_ RR_GUARDED_BY(mutex_);
  std::map<Endpoint, Listener> listeners_ RR_GUARDED_BY(mutex_);
  // What answers over shm for this process alone: not for a child to keep.
  int lone_rendezvous_ RR_GUARDED_BY(mutex_) = -1;
  Family family_;

  // A leaf: taken with streams' locks held.
  Mutex queue_mutex_;
  std::vector<Command> queue_ RR_GUARDED_BY(queue_mutex_);
  // Streams for serve(), in a list of their own: nothing is allocated on the data path, nor for
  // what a signal handler may call, such as _exit(2).
  StreamPtr attended_ RR_GUARDED_BY(queue_mutex_);
  Stream* last_attended_ RR_GUARDED_BY(queue_mutex_) = nullptr;
  std::atomic<int> epoll_fd_{-1};
  std::atomic<int> wake_fd_{-1};
  std::atomic<bool> running_{false};
  std::atomic<pid_t> thread_id_{0};
  std::atomic<bool> steps_aside_{false};  // for good
  std::atomic<bool> closed_what_it_can_{false};
  // unknown_ may have something in it: whoever enters a connection in accepted_ tells the agent thread.
  // Set with mutex_ held before accepted_ is looked at, so that one of the two sees the other.
  std::atomic<bool> requests_wait_{false};
  // Some were not told of, and tell_old() has not been called since.
  std::atomic<bool> some_untold_{false};
  // The agent thread's.
  std::int64_t tell_old_at_ns_ = std::numeric_limits<std::int64_t>::max();
  std::atomic<bool> found_over_shm_{false};  // or will be: the agent thread has been told, see be_found()
  std::atomic<bool> found_over_rdma_{false};
  std::atomic<int> held_{0};  // while it is not 0 no promotion begins: forks and execs under way

  std::atomic<control::Mode> mode_{control::Mode::kAuto};
  std::atomic<bool> policy_edited_{false};  // since the process started

  // Agent thread only.
  control::Socket* control_ = nullptr;
  std::atomic<int> policy_fd_{-1};  // read by a thread that forks
  std::int64_t reload_ns_ = std::numeric_limits<std::int64_t>::max();
  std::map<Endpoint, KeptByPeer> kept_by_peer_;
  std::map<std::uint64_t, Watched> watched_;
  std::set<std::pair<std::int64_t, std::uint64_t>> deadlines_;  // of watched_, by time
  std::map<PromotionId, Promotion> promotions_;
  std::map<PromotionId, std::uint64_t> channels_;  // promotion -> stream id, while watched
  std::map<PromotionId, Unknown> unknown_;
  ChannelBudget budget_;
  std::deque<Waiting> waiting_;  // for room; by deadline
  std::int64_t full_noted_ns_ = 0;
  struct Absent {
    std::int64_t until_ns = 0;
    std::int64_t pause_ns = 0;
  };
  std::map<Endpoint, Absent> peers_without_;
  std::map<Endpoint, Answering> answering_;
  std::int64_t listen_again_ns_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t listen_pause_ns_ = kListenAgainNs;
  bool family_watched_ = false;
  bool told_of_leader_ = false;  // when the one that answers for the listener just tried stops
  std::map<pid_t, int> leaders_;  // who answers instead of this process: pidfd_open(2)
  Rendezvous found_at_;
  Answering found_;  // whether found_at_ was asked for
  std::unique_ptr<Transport> shm_;
  std::unique_ptr<Transport> verbs_;
  std::int64_t verbs_again_ns_ = 0;  // when a transport is tried for next, while there is none
  Reason verbs_why_ = Reason::kNone;
};

// Each that there is now, oldest first, with no lock held.
template <typename Act>
void Agent::each_stream(Act act) noexcept {
  std::uint64_t done = 0;
  std::uint64_t last = 0;
  for (;;) {
    StreamPtr stream;
    {
      MutexLock lock(mutex_);
      if (last == 0 && !streams_.empty()) last = streams_.rbegin()->first;
      auto next = streams_.upper_bound(done);
      while (next != streams_.end() && (stream = next->second.lock()) == nullptr) ++next;
      if (next == streams_.end() || next->first > last) return;
      done = next->first;
    }
    if (!act(stream)) return;
  }
}

}  // namespace ringroad
