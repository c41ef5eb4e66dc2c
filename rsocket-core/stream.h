// One TCP connection that the policy lets off the kernel: the program's descriptor stays the real,
// connected socket, and each direction is carried by the kernel or by a channel. docs/protocol.md
// describes the exchange; state.h has the states.
//
// Thread rule. Any thread may call anything. A send takes tx_mutex_, a receive rx_mutex_; whatever
// changes who carries the bytes takes both, in that order. Neither is held while sleeping.
//
// Invariants (check() verifies them in builds with RINGROAD_CHECKS):
//   1. Bytes are written to TCP only while tx_ is kTcp (the program's), or by the exchange itself.
//   2. TCP is never read past boundary_: there a frame of the peer may stand.
//   3. The program reads the ring only after the peer's token was seen at exactly boundary_, and its
//      bytes enter the ring only after both tokens crossed.
//   4. A transition that next_state() does not know is a bug.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "rsocket-core/channel.h"
#include "rsocket-core/early_use.h"
#include "rsocket-core/endpoint.h"
#include "rsocket-core/fresh_use.h"
#include "rsocket-core/hints.h"
#include "rsocket-core/mutex.h"
#include "rsocket-core/proof.h"
#include "rsocket-core/reason.h"
#include "rsocket-core/spin.h"
#include "rsocket-core/standing.h"
#include "rsocket-core/state.h"
#include "rsocket-core/stats.h"
#include "rsocket-core/waiter.h"
#include "rsocket-core/wire.h"

struct pollfd;

namespace ringroad {

class Stream;
using StreamPtr = std::shared_ptr<Stream>;

enum class StreamRole : std::uint8_t { kConnect = 0, kAccept = 1 };

// What the policy rule says about one connection.
struct StreamConfig {
  char rule[64] = {};
  bool via_shm = false;
  bool via_rdma = false;
  char device[32] = {};
  SharedKey key;
  bool has_traffic_class = false;
  std::uint8_t traffic_class = 0;
  std::int64_t detect_ns = 500'000'000;  // RDMA: a peer that acknowledges nothing for so long is gone
  std::uint32_t ring_bytes = 256 * 1024;
  std::int64_t spin_ns = 50'000;  // longest polling before a sleep
  std::int64_t wait_ns = 0;       // how long connect and accept may wait for the promotion
  std::int64_t idle_ns = 0;       // not used for so long, it gives its channel back; 0: never
  // Promotion starts once either is reached; max() = not given.
  std::uint64_t promote_messages = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t promote_bytes = std::numeric_limits<std::uint64_t>::max();
};

// What a stream asks of the agent. Callable with the stream's locks held.
class StreamHost {
 public:
  // Somebody should call service() on the agent thread soon.
  virtual void attend(Stream& stream) noexcept = 0;
  // The threshold is passed: build a channel.
  virtual void start_promotion(Stream& stream) noexcept = 0;
  // The number of the TCP descriptor changes: stop watching the old one before it is closed.
  virtual void unwatch(Stream& stream, int old_fd) noexcept = 0;
  // No other process has the descriptor, as far as its family knows (family.h).
  virtual bool holds_alone(const Stream&) noexcept { return true; }
  // The stream is at its end, and so is this process' hold on what Stream::share() named.
  virtual void release_share(std::uint64_t) noexcept {}
  // Somebody has the descriptor who is not of the family.
  virtual void keep_share(std::uint64_t) noexcept {}
  // Whether the program's calls go through somebody who sees all that it makes by libc; if not, nobody can tell
  // of a wait that it was not seen.
  virtual bool sees_waits() noexcept { return false; }
  // Whether the program waits for the stream by means that were not seen, or nobody can tell. Of one that is
  // `awaited`, whether a thread surely waits so now.
  virtual bool waits_past(const Stream&, bool /*awaited*/) noexcept { return false; }

 protected:
  ~StreamHost() = default;
};

// What the agent has to watch for a stream, besides its deadline.
struct StreamInterest {
  bool tcp_in = false;
  bool tcp_out = false;
  bool channel = false;
  bool done = false;  // nothing is left to do: the agent may forget the stream
  std::int64_t deadline_ns = std::numeric_limits<std::int64_t>::max();  // CLOCK_MONOTONIC
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  static constexpr std::uint64_t kNoBoundary = std::numeric_limits<std::uint64_t>::max();
  // An answer to SWITCH waits until no more than this is unread in the kernel before the token,
  // because the token is found by peeking over it.
  static constexpr std::uint64_t kMaxPeekBytes = 256 * 1024;
  static constexpr std::int64_t kSwitchTimeoutNs = 1'000'000'000;
  static constexpr std::int64_t kAnswerTimeoutNs = 500'000'000;  // for a connector's SWITCH
  // Of a program that does not wait: until the switch is given up, twice as long each time,
  // kMostHurries times (threads may have to wait long for a processor); and if it cannot be given
  // up.
  static constexpr std::int64_t kSwitchPatienceNs = 10'000'000;
  static constexpr unsigned kMostHurries = 4;
  static constexpr std::int64_t kTokenPatienceNs = 100'000'000;
  static constexpr std::int64_t kReadTimeoutNs = 200'000'000;  // for what came before a SWITCH
  static constexpr std::int64_t kLingerTimeoutNs = 60'000'000'000;
  // For a program to take what has come, where no call is seen that waits for it.
  static constexpr std::int64_t kUnseenNs = 100'000'000;
  static constexpr std::int64_t kLongestUnseenNs = 3'200'000'000;  // twice as long each time
  // Where such a call was seen: between two looks whether the program still takes what comes.
  static constexpr std::int64_t kSeenPauseNs = 1'000'000'000;
  // For a peer that closed before us to end the kernel's connection before us, too.
  static constexpr std::int64_t kFollowTimeoutNs = 500'000'000;

  // `fd` is the connected socket, the program's number for it; not owned. `segment` may be null.
  Stream(StreamHost* host, stats::Segment* segment, std::uint64_t id, int fd, StreamRole role,
         const FourTuple& tuple, const StreamConfig& config, bool nonblocking,
         const EarlyUse& early = {}) noexcept;
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  std::uint64_t id() const noexcept { return id_; }
  StreamRole role() const noexcept { return role_; }
  const FourTuple& tuple() const noexcept { return tuple_; }
  const StreamConfig& config() const noexcept { return config_; }
  int fd() const noexcept { return fd_.load(std::memory_order_relaxed); }
  State state() const noexcept { return standing_.state(); }
  Reason reason() const noexcept { return reason_.load(std::memory_order_relaxed); }
  Reason peer_reason() const noexcept {
    return reason_from_wire(slot_->peer_reason.load(std::memory_order_relaxed));
  }

  // ---- The program's calls (stream_io.cc, stream_questions.cc). As recv(2), send(2): the result, or
  // -1 and errno. SIGPIPE is raised here unless MSG_NOSIGNAL is given.
  // Cancellation points, but for a send whose sleep is not to be one: -1 and ECANCELED when the thread is
  // ended, whatever has been transferred.
  enum class Sleep : std::uint8_t { kCancellable, kUncancellable };
  ssize_t send(const iovec* iov, int count, int flags, Sleep sleep = Sleep::kCancellable) noexcept;
  ssize_t recv(const iovec* iov, int count, int flags) noexcept;
  // The same of one piece, without flags, if that is possible in a few instructions (stream_short.h).
  // -1: it is not, and nothing has been done.
  ssize_t send_short(const void* from, std::size_t n) noexcept;
  ssize_t recv_short(void* to, std::size_t n) noexcept;
  struct ShortReceive {
    void* to;
    std::size_t n;
    std::size_t taken = 0;
  };
  int shutdown(int how) noexcept;
  int take_error() noexcept;         // SO_ERROR
  int unread_bytes() noexcept;       // FIONREAD
  int unsent_bytes() noexcept;       // SIOCOUTQ
  void set_nonblocking(bool on) noexcept { nonblocking_.store(on, std::memory_order_relaxed); }
  bool nonblocking() const noexcept;
  // For the program's calls about TCP_NODELAY, which has another value while a frame is written.
  template <typename Call>
  auto between_frames(Call call) noexcept {
    MutexLock lock(tx_mutex_);
    return call();
  }
  void set_options_changed() noexcept { known_options_.store(0, std::memory_order_release); }
  // What TCP_INQ tells after a receive: unread bytes, and one for the peer's end; -1 without it.
  int unread_to_tell() noexcept;

  // True while the kernel answers for the stream and always will: the caller may use the real
  // call. Costs two loads.
  bool on_kernel_for_good() const noexcept { return kernel_only_.load(std::memory_order_acquire); }
  // The calls of a stream on the kernel for good are counted here.
  void count_kernel_io(bool sent, ssize_t result) noexcept;

  // ---- Waiting (stream_poll.cc)
  // Where there is no Stream yet: sleeps as recv(2) does, without a time-out, until there is
  // something to be read from `fd`, or `use` is settled, and `waiters` were woken. False: errno.
  // REQUIRES: thread_wake_fd() >= 0.
  static bool sleep_early(int fd, WaitList& waiters, const FreshUse& use) noexcept;
  struct PollPlan {
    short ready = 0;          // poll(2) bits that hold now
    short kernel_events = 0;  // bits that the kernel answers for, on the TCP descriptor
    bool use_kernel = false;  // put {fd, kernel_events} into the set
    int channel_fd = -1;      // armed; put {channel_fd, POLLIN} into the set
    bool on_channel = false;  // a channel has something to do with it
    // For whoever reports changes only: a difference from the last time is one.
    std::uint64_t arrivals = 0;            // bytes that ever came over the channel
    std::uint64_t blocked = 0;             // sends that found no room
    std::uint64_t shutdowns = 0;           // of either end, and resets; of ours also in vain
    std::uint64_t frames =
        0;  // bytes of the peer's library that were read from the TCP socket so far
    std::uint64_t channel_generation = 0;  // channels so far: a number may name another one by now
    bool frozen = false;                   // no room only until a switch is through
    bool ended = false;                    // the peer's direction has ended, or will where it is known
  };
  enum class Arm : std::uint8_t { kNever, kIfIdle, kAlways };
  // What a poll for `events` has to look at. Registering a Waiter comes first, so that nothing
  // that happens after the plan was made goes unnoticed. The channel is armed, so that its wait_fd()
  // tells of the next arrival, never, if nothing is ready now, or in any case.
  PollPlan plan_poll(short events, Arm arm) noexcept;
  // The same where there is nothing to tell but bytes and room, and nothing to do. False: plan_poll() has to tell.
  bool plan_plainly(short events, Arm arm, PollPlan& plan) noexcept;
  // Before a plan and a receive that are made soon: what they touch, and a moment later what is named there.
  void prefetch() const noexcept {
    ringroad::prefetch(reinterpret_cast<std::uintptr_t>(&slot_));
    ringroad::prefetch(reinterpret_cast<std::uintptr_t>(&rx_mutex_));
  }
  void prefetch_more() const noexcept;
  // What poll(2) says of the TCP socket under that number, without waiting, as far as it is said of
  // the program's bytes: the carrier may have changed since a plan, and what is there be a frame.
  short ask_kernel(int number, short bits) noexcept;
  // Polls for `events` on the channel, as its rule's `spin` and the time until the deadline allow.
  // False: a plan, and signals::came_since_begin(), tell what came of it. `known_shutdowns`: a
  // plan's, or those that it finds. With `receive` what comes is taken at once, if it can be taken
  // by the short way; its caller need not have looked before. REQUIRES: may_spin().
  bool spin_until_ready(short events, std::int64_t deadline_ns,
                        std::optional<std::uint64_t> known_shutdowns = {},
                        ShortReceive* receive = nullptr) noexcept;
  // Whether it is to, which Spin::pays() wants to be asked once a wait.
  bool may_spin(short events) noexcept;
  // One look of somebody who polls and knows a plan's `arrivals` and `shutdowns`: whether there are
  // more, or something that is to be attended to first, or, where that is awaited, room.
  Spin::Look look_at_channel(std::uint64_t arrivals, bool room_awaited,
                             std::uint64_t known_shutdowns) noexcept;
  // The program's bytes that have ever come over TCP. `ends`: it is known where they end, and the
  // kernel may be readable because of what stands behind.
  std::uint64_t tcp_arrivals(bool& ends) noexcept;
  // Whether bytes have come, by either carrier, since the last time that this said so: to one
  // asker, of all threads. After a switch it may say so once more.
  bool claim_arrivals() noexcept;
  // After a sleep: takes the channel's wake-up in, and tells the other waiters.
  void after_sleep(const Waiter* taker = nullptr) noexcept;
  // PollPlan::blocked.
  std::uint64_t blocked() const noexcept { return blocked_.load(std::memory_order_relaxed); }
  // In how many EpollSets it is; with this bit it enters none any more, as its last number is being
  // closed.
  static constexpr unsigned kEntersNoMore = 1U << 31;
  std::atomic<unsigned>& in_epoll_sets() noexcept { return in_epoll_sets_; }
  // In how many of them the kernel answers for it, until no other process has it (EpollSet::lend_all()).
  std::atomic<unsigned>& lent() noexcept { return lent_; }
  WaitList& waiters() noexcept { return waiters_; }

  // ---- What reaches the kernel past the library (stream_past.cc)
  // A call of the program's waits for the stream, or will: poll, select, epoll, a receive that sleeps.
  void note_awaited() noexcept {
    if (!awaited_.load(std::memory_order_relaxed)) awaited_.store(true, std::memory_order_relaxed);
  }
  // This process was seen to go past the library: from now on a stream is promoted when such a call was seen.
  static void note_goes_past(bool it_does = true) noexcept {
    goes_past_.store(it_does, std::memory_order_relaxed);
  }

  // ---- Life of the descriptor
  // The program sees the connection established (0 bytes), or has sent or received a message of
  // `bytes`. Starts promotion when the rule's threshold is passed.
  void note_use(std::size_t messages, std::size_t bytes) noexcept;
  // One of EarlyUse::guests has returned, and has transferred so many bytes, or none.
  void guest_left(bool sent, std::size_t bytes) noexcept;
  // Whether nothing can be sent because the stream changes its carrier.
  bool tx_is_held() noexcept;
  // For calls that do not wait: while the stream changes its carrier there is no room, and that is
  // no business of the program's. Sleeps until the change is over. One that can be given up is,
  // when kSwitchPatienceNs or more have passed since `asked_ns`, when the call began that may ask
  // more than one stream; one that cannot is left alone kTokenPatienceNs after that time. False if
  // there was no change under way, or there is one still. A return to TCP gets that time once, not
  // once a call.
  bool outlast_switch(std::int64_t asked_ns) noexcept;
  // Whether a send that does not wait would outlast the change that is under way.
  bool room_is_near() const noexcept;
  // Whether any stream of the process may need that.
  static bool any_switches() noexcept { return switches_.load(std::memory_order_relaxed) > 0; }
  // Sleeps until the stream is on its channel, or will not be, or the time is over.
  void wait_promoted(std::int64_t timeout_ns) noexcept;
  // Keeps the stream on TCP for good, bringing it back if it is on a channel, and sleeps until it
  // is there or `timeout_ns` is over. True when it is. `can_be_woken`: false in a vfork child, whose
  // descriptors have other numbers than those of the threads that would wake it.
  bool pin(Reason reason, std::int64_t timeout_ns, bool can_be_woken = true) noexcept;
  // As pin(), without sleeping and for the time being.
  void leave_channel(Reason reason) noexcept;
  // The program has closed it, and the process ends: what the peer's program has not read shall not end with
  // it, and goes to the kernel. Does not wait.
  void leave_closed(Reason reason) noexcept;
  // The same of one that is not used. False: it keeps its channel; its peer has closed, say, and
  // there is nobody who would answer.
  bool leave_idle() noexcept;
  // ---- What an operator asks for (stream_again.cc)
  // Leaves the channel, and has none until let_off_tcp(). Does not wait.
  void keep_on_tcp(Reason reason) noexcept;
  // Why it is kept there; kNone: it is not.
  Reason kept() const noexcept { return kept_.load(std::memory_order_relaxed); }
  // As the rule says, with the next use; or `at_once`, whatever the rule's threshold. True: the
  // agent should start the promotion now.
  bool let_off_tcp(bool at_once) noexcept;
  // Whoever asks for a channel knows of none: if there is one, the peer has left it, and so will
  // this end.
  bool has_channel() const noexcept {
    const State now = state();
    return now == State::kSwitching || now == State::kOnChannel || now == State::kResuming;
  }
  // Messages that went over a channel, either way; ever more.
  std::uint64_t messages_on_channel() const noexcept {
    const stats::Counters& counters = slot_->counts.traffic;
    return counters.tx_messages[1].load(std::memory_order_relaxed) +
           counters.rx_messages[1].load(std::memory_order_relaxed);
  }
  std::uint64_t messages_received() const noexcept {  // over a channel
    return slot_->counts.traffic.rx_messages[1].load(std::memory_order_relaxed);
  }
  // True once after the peer has said that it is kept on TCP there: the agent finds out when that
  // ends.
  bool take_peer_keeps() noexcept {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    return std::exchange(peer_keeps_, false);
  }

  // ---- Somebody without the library may read on (stream_return.cc)
  // Whether the kernel has all that the program has not read, and nothing else.
  bool kernel_can_serve() noexcept;
  // Where it has not, and will not: whoever has the descriptor is told of a reset, never of an end.
  void cut_unless_served() noexcept;

  // The program closed its last descriptor `fd`; `busy` if another thread is inside a call. True:
  // close it now. False: the stream has taken a private duplicate, and finishes by itself.
  bool close_by_program(bool busy) noexcept;
  // The number names this socket no longer, nor does any other: close_by_program() will not touch it.
  void descriptor_is_gone() noexcept;
  // Another number for the same open file (the program closed the first of several).
  void renumber(int new_fd) noexcept;

  // ---- fork(2) (stream_fork.cc)
  // What the process' family calls the connection (Family::Share); 0: it is not entered there.
  std::uint64_t share() const noexcept { return share_.load(std::memory_order_relaxed); }
  void set_share(std::uint64_t share) noexcept { share_.store(share, std::memory_order_relaxed); }
  std::uint64_t take_share() noexcept { return share_.exchange(0, std::memory_order_relaxed); }
  // The program has made a call on it in this process. A server that accepts and forks never does.
  bool touched() const noexcept {
    return touched_rx_.load(std::memory_order_relaxed) ||
           touched_tx_.load(std::memory_order_relaxed);
  }
  // Another process may have the descriptor too: the stream stays on TCP while one does.
  bool shared() const noexcept { return shared_.load(std::memory_order_acquire); }
  // Whether a child can go on with it by itself: it is on TCP, and nothing of an exchange or of the
  // program's keeps it there. Cancels a channel that is being built.
  bool can_be_shared() noexcept;
  // From now on a child has it too. False: can_be_shared() no longer.
  bool become_shared() noexcept;
  // The program has done nothing with it yet in this process that shows who sends and receives there.
  bool awaits_use() noexcept;
  // In the child, before anybody uses it: as become_shared().
  void begin_shared(std::uint64_t share) noexcept;

  // ---- The agent's calls (stream_switch.cc, stream_agent.cc)
  Reason may_promote() noexcept;  // kNone, or why not now
  // Whether the program has read all that came over TCP. If not, attend() is called when it has read
  // next, and read_since_asked() says so, once.
  bool all_read() noexcept;
  bool read_since_asked() noexcept;
  // The listener was asked, or the connector asks: CONNECTING. False with a reason.
  Reason promotion_started(const Nonce& nonce) noexcept;
  void promotion_refused(Reason reason, Reason peer_reason) noexcept;
  void channel_up(std::unique_ptr<Channel> channel, const Nonce& peer_nonce) noexcept;
  // Does whatever can be done now, without sleeping.
  void service() noexcept;
  StreamInterest interest() noexcept;
  bool arm_channel() noexcept;
  void drain_channel() noexcept;
  int channel_fd() noexcept;
  void deadline_passed() noexcept;
  // No channel, and every frame is out of the kernel's hands on its way in and in them on its way out:
  // what the kernel has left is the program's. Or the connection is over.
  bool settled() noexcept;
  // A fork has waited in vain for it to come back, and the next one does not. Until it is back.
  std::atomic<bool> kept_a_fork_waiting{false};
  const Nonce& nonce() const noexcept { return nonce_; }
  bool closed_by_program() const noexcept { return app_closed_; }
  // Registers the TCP descriptor with the agent's epoll instance for `events`, or removes it (0).
  void watch_tcp(int epoll_fd, std::uint64_t cookie, std::uint32_t events) noexcept;
  // The agent sleeps on the channel too: whoever takes its wake-up must tell.
  void agent_sleeps_on_channel(bool yes) noexcept {
    agent_on_channel_.store(yes, std::memory_order_relaxed);
  }
  // True once: the caller is the one to queue this stream for the agent.
  bool claim_attention() noexcept {
    known_to_agent_.store(true, std::memory_order_relaxed);
    return !queued_.exchange(true, std::memory_order_acq_rel);
  }
  // An exchange, so that what was asked for before a claim_attention() that came too early is seen behind this.
  void attention_given() noexcept { queued_.exchange(false, std::memory_order_acq_rel); }
  // The next in the agent's queue, and whether it is there for start_promotion(); the agent's.
  StreamPtr next_queued;
  std::atomic<bool> wants_promotion{false};
  // The request that is under way for it; 0: none. The agent thread's.
  std::uint64_t request = 0;

 private:
  enum class Tx : std::uint8_t {
    kTcp,      // the program's bytes go to the kernel
    kFrozen,   // announced; nothing may be written before the peer's answer
    kToken,    // token written (or being written); waiting for the peer's
    kChannel,  // the program's bytes go to the ring
    kReplay,   // RESUME sent: nothing of the program's until the ring is replayed
    kDead,     // reset
  };

  enum class Step : std::uint8_t { kDone, kWouldBlock, kError, kService };
  struct IoResult {
    Step step = Step::kWouldBlock;
    std::size_t bytes = 0;
    int error = 0;
    bool more_elsewhere = false;  // the next bytes come from the channel
    bool between_carriers = false;  // nothing, until the next frame has been found
  };

  // stream_io.cc
  ssize_t send_long(const iovec* iov, int count, int flags, Sleep sleep) noexcept;
  ssize_t recv_long(const iovec* iov, int count, int flags) noexcept;
  IoResult try_send(const iovec* iov, int count, std::size_t skip, int flags) noexcept
      RR_REQUIRES(tx_mutex_);
  IoResult try_recv(const iovec* iov, int count, std::size_t skip, int flags) noexcept
      RR_REQUIRES(rx_mutex_);
  IoResult recv_tcp(const iovec* iov, int count, std::size_t skip, int flags) noexcept
      RR_REQUIRES(rx_mutex_);
  IoResult recv_ring(const iovec* iov, int count, std::size_t skip, int flags) noexcept
      RR_REQUIRES(rx_mutex_);
  ssize_t peek_over_frames(const iovec* iov, int count, std::size_t skip, std::size_t limit,
                           int flags) noexcept RR_REQUIRES(rx_mutex_);
  // The program's bytes among those that the kernel has.
  std::uint64_t unread_on_tcp() noexcept RR_REQUIRES(rx_mutex_);
  int tell_error(std::size_t done) noexcept;
  IoResult kernel_refused(std::size_t done) noexcept;
  // stream_peek.cc. As recv() with MSG_PEEK and MSG_WAITALL, of a call that may sleep.
  ssize_t peek_all(const iovec* iov, int count, int flags) noexcept;
  bool nothing_follows() noexcept;
  // A sleep of the program's in which the thread may be cancelled, and whether one that ended with EINTR
  // goes on.
  static int sleep_as_program(pollfd* fds, unsigned long count, std::int64_t deadline_ns) noexcept;
  static bool restarts() noexcept;
  // recv_short() by who holds the lock; 0: see there.
  std::size_t take_short(void* to, std::size_t n) noexcept RR_REQUIRES(rx_mutex_);
  // False: errno. `restart`: a signal whose handler asks for it does not end the sleep.
  // `polled`: there is no use in polling before.
  bool sleep_until_ready(short events, std::int64_t deadline_ns, bool restart, Sleep kind,
                         bool polled = false) noexcept;
  // What is known of the socket's options; each is asked for when it is first needed.
  enum class Option : std::uint8_t {
    kRecvTimeout = 1, kSendTimeout = 2, kTellsUnread = 4, kUserTimeout = 8
  };
  void learn(Option option) noexcept;
  std::int64_t io_deadline(bool sending) noexcept;
  short channel_ready(short events) noexcept RR_REQUIRES(rx_mutex_);
  bool plan_on_channel(short events, Arm arm, PollPlan& plan) noexcept RR_REQUIRES(rx_mutex_);
  void count(bool sent, bool channel, std::size_t bytes) noexcept;
  // A call of libc's has transferred so many bytes.
  void count_early(bool sent, std::size_t bytes) noexcept;
  // What a call of the program's has transferred in all.
  void count_size(bool sent, std::size_t bytes) noexcept {
    (sent ? slot_->counts.tx_sizes : slot_->counts.rx_sizes).add(bytes);
  }
  void stall_begins() noexcept RR_REQUIRES(tx_mutex_);
  std::int64_t patience_ns() noexcept RR_REQUIRES(tx_mutex_);
  void watch_for_stall() noexcept RR_REQUIRES(tx_mutex_);
  void look_for_stall() noexcept RR_REQUIRES(tx_mutex_) RR_REQUIRES(rx_mutex_);
  void stall_ends() noexcept RR_REQUIRES(tx_mutex_);

  bool peer_closed() const noexcept { return standing_.is(Standing::kPeerClosed); }
  bool shut_wr() const noexcept { return standing_.is(Standing::kShutWr); }

  enum class Source : std::uint8_t { kTcp, kTcpUpToBoundary, kRing, kAgain, kNothing };
  Source source() const noexcept RR_REQUIRES(rx_mutex_);
  // Whether the program may have what is in the ring, also after a reset: not from a peer that has not
  // proved itself, nor where bytes in front of it are lost, nor what it may have read over TCP.
  bool ring_is_next() const noexcept RR_REQUIRES(rx_mutex_) {
    return channel_ != nullptr && token_seen_ && !gave_back_ && (!resume_seen_ || !came_again_);
  }
  void skip_verified() noexcept RR_REQUIRES(rx_mutex_);
  // Whether the program's bytes may go to the kernel now: not in front of a frame's last bytes.
  bool kernel_takes_bytes() const noexcept RR_REQUIRES(tx_mutex_) {
    return tx_ == Tx::kTcp && !frames_wait();
  }

  // All that follow need both locks. stream_switch.cc:
  void step(StreamEvent event, Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void settle_kernel_only() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  // Nothing but this stream has used its TCP connection.
  bool kernel_counted_the_same() const noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void touch() noexcept {
    if (!touched()) touched_rx_.store(true, std::memory_order_relaxed);
  }
  bool shareable() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  Reason become_alone() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool count_from_here() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  // stream_again.cc:
  void plan_after_refusal(Reason reason, Reason peer_reason) noexcept
      RR_REQUIRES(tx_mutex_, rx_mutex_);
  void plan_after_give_up(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void plan_after_return() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void leave_to_agent() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void ask_after_uses(std::uint64_t uses) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool was_hurry(Reason reason) const noexcept;
  void plan_after_hurry() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool ask_later(std::uint64_t uses) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void ask_at(std::int64_t time_ns) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void ask_after_fork() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void ask_after_pause() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void ask_when_used() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void ask_for_room() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  // stream_switch.cc:
  void freeze() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void on_control(const ControlMessage& m) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void answer_switch() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void maybe_switched() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool tx_holds() const noexcept RR_REQUIRES(tx_mutex_) {
    return tx_ == Tx::kFrozen || tx_ == Tx::kToken || tx_ == Tx::kReplay;
  }
  void sleep_while_held(std::int64_t deadline_ns) noexcept;
  struct Refill {
    std::uint64_t unread = ~std::uint64_t{0};  // bytes, in the kernel
    std::int64_t since_ns = 0;                 // so many
  };
  bool has_come_again(Refill& refill) noexcept;
  // service() brings no channel of it back to life: a call inside must not ask for that.
  bool is_over() const noexcept { return state() == State::kReset || state() == State::kClosed; }
  void give_up(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void leave_or_give_up(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  // stream_frames.cc:
  void queue_frame(const std::uint8_t* bytes, std::size_t n) noexcept
      RR_REQUIRES(tx_mutex_, rx_mutex_);
  void push_frames() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void scan_frames() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void frame_token() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void frame_resume(const ResumeFrame& frame) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void answer_resume() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void frame_other() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void take_in_channel() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void tcp_ended(int error) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void break_connection(int error, Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void leave(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void push_replay() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void back_on_tcp() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void reset_if_killed(bool yes) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  // stream_return.cc:
  struct Passage {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;
    std::size_t filled = 0;
    std::size_t sent = 0;
    Passage() noexcept = default;
    Passage(std::uint8_t* all, std::size_t n) noexcept : bytes(all), size(n) {}
  };
  std::uint32_t take_back() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool expect_back(std::uint32_t n) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool take_come_back() noexcept RR_REQUIRES(rx_mutex_);
  bool push_passage(Passage& passage) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void keep_what_is_here() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void remember_unread() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void drop_what_came_again() noexcept RR_REQUIRES(rx_mutex_);
  void forget_again() noexcept RR_REQUIRES(rx_mutex_);
  bool remembers() const noexcept RR_REQUIRES(rx_mutex_) { return again_.filled > 0 || again_ends_; }
  bool again_unread() const noexcept RR_REQUIRES(rx_mutex_) { return again_.sent < again_.filled; }
  // What the kernel has, or gets, is what the program has not read: somebody else may read on.
  bool kernel_is_level() const noexcept RR_REQUIRES(rx_mutex_) {
    return again_.sent == again_dropped_;
  }
  IoResult recv_again(const iovec* iov, int count, std::size_t skip, int flags) noexcept
      RR_REQUIRES(rx_mutex_);
  // Something of the library's, or behind a frame of its, is not in the kernel's hands yet.
  bool frames_wait() const noexcept RR_REQUIRES(tx_mutex_) {
    return frames_sent_ < frames_size_ || given_back_.sent < given_back_.filled;
  }
  // stream_past.cc:
  bool is_awaited() const noexcept;
  Reason why_unseen() noexcept;
  bool leaves_at_once() const noexcept { return channel_->outlives_peer(); }
  bool knows_left() const noexcept {
    return channel_->agreement().has(leaves_at_once() ? Feature::kLeft : Feature::kLeftAnswered);
  }
  bool may_leave_by_message() const noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  // The other end has what said so, or has had it.
  bool is_told() noexcept RR_REQUIRES(tx_mutex_) { return leaves_at_once() || channel_->delivered(); }
  bool wrote_past() const noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool end_waits_for_past() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void say_left(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  // LEFT is on its way, or its answer.
  bool awaits_left() const noexcept {
    return said_left_ && state() == State::kResuming && !leaves_at_once();
  }
  void leave_by_message(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void on_left(const ControlMessage& m) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void begin_return(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void drop_twice(std::size_t n) noexcept RR_REQUIRES(rx_mutex_);
  bool frame_stands_behind() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool bytes_came_past() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool may_be_past() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void look_for_waits() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void ask_who_waits() noexcept RR_EXCLUDES(tx_mutex_, rx_mutex_);
  // stream_agent.cc:
  void send_fin() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool all_arrived() const noexcept;
  // PollPlan::shutdowns.
  std::uint64_t shutdowns() const noexcept {
    return shutdowns_.load(std::memory_order_relaxed) + (fin_at_ != kNoBoundary ? 1U : 0U);
  }
  void peer_left() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void discard_unread() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool waits_to_follow() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool waits_to_be_read() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void finish_linger() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void service_locked() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);

  void publish_identity() noexcept;
  void publish_state() noexcept;
  void check() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void wake_all() noexcept;

  // What a message touches lies together, as there may be more streams than a cache has room for
  // (docs/performance.md, "Many streams"). One line that is read by both directions and hardly ever
  // written: under both locks, but for atomics, and read under either.
  alignas(kLineBytes) stats::StreamSlot* slot_ = nullptr;  // own_slot_ when the segment is full or missing
  std::unique_ptr<Channel> channel_;
  Standing standing_;  // kStalled: under tx_mutex_
  std::atomic<bool> kernel_only_{false};  // stored seq_cst: see WaitList
  bool shut_rd_ = false;
  std::uint64_t fin_at_ = kNoBoundary;  // ring offset where the peer's direction ended
  std::uint64_t channel_generation_ = 0;
  std::atomic<std::uint64_t> shutdowns_{0};  // calls, and resets
  std::atomic<std::uint64_t> blocked_{0};    // sends that found no room, or not enough

  // One that senders write.
  alignas(kLineBytes) Mutex tx_mutex_;
  std::atomic<bool> touched_tx_{false};
  Tx tx_ RR_GUARDED_BY(tx_mutex_) = Tx::kTcp;
  bool fin_sent_ RR_GUARDED_BY(tx_mutex_) = false;
  bool sent_after_peer_closed_ RR_GUARDED_BY(tx_mutex_) = false;
  std::uint64_t tcp_tx_ RR_GUARDED_BY(tx_mutex_) = 0;  // bytes written to TCP, frames included
  std::size_t frames_size_ RR_GUARDED_BY(tx_mutex_) = 0;
  std::size_t frames_sent_ RR_GUARDED_BY(tx_mutex_) = 0;
  std::uint64_t frozen_at_ RR_GUARDED_BY(tx_mutex_) = 0;  // our S
  std::uint64_t replay_at_ RR_GUARDED_BY(tx_mutex_) = 0;  // ring offset

  // One that receivers write, and those who wait.
  alignas(kLineBytes) Mutex rx_mutex_;
  std::atomic<bool> touched_rx_{false};
  bool gave_back_ RR_GUARDED_BY(rx_mutex_) = false;   // bytes in front of the ring's: stream_return.cc
  bool came_again_ RR_GUARDED_BY(rx_mutex_) = false;  // the program has read some over TCP
  std::size_t verified_ RR_GUARDED_BY(rx_mutex_) = 0;  // frame bytes seen at boundary_, unread yet
  std::uint64_t frames_rx_ RR_GUARDED_BY(rx_mutex_) = 0;  // of tcp_rx_, the frames
  std::uint64_t tcp_rx_ RR_GUARDED_BY(rx_mutex_) = 0;  // bytes read from TCP, frames included
  std::uint64_t boundary_ RR_GUARDED_BY(rx_mutex_) = kNoBoundary;
  // Channel::near() of the last one over shared memory; as of that, at any time.
  std::array<std::atomic<std::uintptr_t>, std::tuple_size_v<Channel::Near>> near_{};

  // The rest of what the locks guard.
  std::uint8_t frames_[kTokenBytes + 2 * kResumeBytes] RR_GUARDED_BY(tx_mutex_) = {};
  Passage given_back_ RR_GUARDED_BY(tx_mutex_);  // behind our RESUME
  // Over TCP, and over one channel.
  struct Arrived {
    std::uint64_t tcp = 0;
    std::uint64_t ring = 0;
    std::uint64_t channel = 0;
    bool operator==(const Arrived&) const = default;
  };
  Arrived claimed_ RR_GUARDED_BY(rx_mutex_);     // see claim_arrivals()
  // A copy of what the program had not read when the stream left its channel, and how much of it has come
  // again over TCP and was dropped there: stream_return.cc. `sent`: how much the program has read of it.
  Passage again_ RR_GUARDED_BY(rx_mutex_);
  std::size_t again_dropped_ RR_GUARDED_BY(rx_mutex_) = 0;
  std::size_t again_of_ring_ RR_GUARDED_BY(rx_mutex_) = 0;  // its last bytes: how many are the ring's too
  bool again_ends_ RR_GUARDED_BY(rx_mutex_) = false;  // the peer's end is behind it, and was told
  std::uint64_t owed_ RR_GUARDED_BY(rx_mutex_) = 0;  // bytes of the ring that come again over TCP
  // The counts began with the kernel's, of which the library had not seen all, and have not grown since.
  bool unproven_ RR_GUARDED_BY(rx_mutex_) = false;
  std::uint64_t counted_from_ RR_GUARDED_BY(rx_mutex_) = 0;  // tcp_tx_ + tcp_rx_ then
  bool tell_when_read_ RR_GUARDED_BY(rx_mutex_) = false;  // see all_read()
  bool read_since_asked_ RR_GUARDED_BY(rx_mutex_) = false;
  Passage come_back_ RR_GUARDED_BY(rx_mutex_);  // behind the peer's RESUME: goes before our replay

  StreamHost* const host_;
  stats::Segment* const segment_;
  std::unique_ptr<stats::StreamSlot> own_slot_;
  std::uint8_t rule_index_ = 0;  // in segment_
  const std::uint64_t id_;
  const StreamRole role_;
  const FourTuple tuple_;
  const StreamConfig config_;

  std::atomic<int> fd_;
  std::atomic<bool> nonblocking_;
  std::atomic<bool> promotion_asked_{false};
  std::atomic<std::uint8_t> known_options_{0};    // Option: which of these three
  std::atomic<std::int64_t> send_timeout_ns_{0};  // 0: none
  std::atomic<std::int64_t> user_timeout_ns_{0};  // TCP_USER_TIMEOUT; 0: none
  std::atomic<std::int64_t> recv_timeout_ns_{0};
  std::atomic<bool> tells_unread_{false};
  std::atomic<std::uint64_t> uses_{0};  // messages either way, for the threshold
  std::atomic<std::uint64_t> used_bytes_{0};
  static inline std::atomic<int> switches_{0};  // streams in State::kSwitching and kResuming
  std::atomic<std::int64_t> left_at_ns_{0};     // the channel
  std::atomic<std::uint64_t> retry_at_uses_{0};  // after a promotion that failed for the moment
  std::atomic<std::int64_t> retry_at_ns_{0};  // and not before, where processes share it
  std::atomic<bool> promote_now_{false};      // whatever the rule's threshold
  std::atomic<Reason> kept_{Reason::kNone};
  unsigned retries_ = 0;
  unsigned fork_pauses_ = 0;
  unsigned pauses_ = 0;
  unsigned room_pauses_ = 0;
  std::atomic<unsigned> hurries_{0};  // switches given up for programs that do not wait, in a row
  std::atomic<bool> agent_on_channel_{false};
  std::atomic<bool> sent_last_{false};  // on TCP: nothing was received since
  std::atomic<unsigned> guests_{0};  // that guest_left() is to come of
  std::atomic<bool> shared_{false};
  std::atomic<std::uint64_t> share_{0};
  std::atomic<bool> queued_{false};
  std::atomic<bool> known_to_agent_{false};  // it may keep or watch it
  static inline std::atomic<bool> goes_past_{false};
  std::atomic<bool> awaited_{false};
  Spin spin_;

  WaitList waiters_;
  std::atomic<unsigned> in_epoll_sets_{0};
  std::atomic<unsigned> lent_{0};

  // Written under both locks, read under either.
  Nonce nonce_{};       // ours: what the peer's frames start with
  Nonce peer_nonce_{};  // what our frames start with
  std::uint64_t left_fin_at_ = kNoBoundary;  // as it was when we left the channel
  bool peer_announced_ = false;
  std::uint64_t peer_s_ = 0;
  bool answered_ = false;       // we promised not to read past peer_s_
  bool frozen_ = false;         // we have announced where our bytes on TCP end
  bool token_sent_ = false;     // our token is written or queued: no more giving up
  bool token_seen_ = false;     // the peer's
  bool resume_sent_ = false;
  bool resume_seen_ = false;
  bool said_left_ = false;    // LEFT in the place of RESUME
  std::uint64_t peer_consumed_ = 0;  // from the peer's RESUME
  bool resets_if_killed_ = false;    // the socket has our SO_LINGER, not the program's
  linger linger_of_program_{};
  bool gave_up_ = false;             // a frame may still come at boundary_
  bool wrote_since_freeze_ = false;
  bool follows_ = false;             // our FIN came after such a one
  std::int64_t follow_until_ns_ = 0;
  bool pinned_ = false;
  bool returned_ = false;    // was on a channel once
  bool peer_keeps_ = false;  // see take_peer_keeps()
  bool start_when_back_ = false;
  std::int64_t switched_ns_ = 0;     // when it last came to a channel
  bool pending_shut_wr_ = false;     // program wants it; not on the wire yet
  bool kernel_shut_rd_ = false;  // the kernel was told
  std::atomic<bool> app_closed_{false};
  bool closed_in_use_ = false;        // while a call was inside, for which the file stays open
  std::atomic<bool> owns_fd_{false};  // fd_ is a private duplicate
  std::atomic<Reason> reason_{Reason::kPending};
  Reason leave_reason_ = Reason::kNone;
  bool waits_for_reader_ = false;  // to answer SWITCH
  std::int64_t deadline_ns_ = std::numeric_limits<std::int64_t>::max();
  // When it is looked whether the peer's program has read nothing of a full ring for too long, and what it had
  // read when that began. Under tx_mutex_.
  std::int64_t late_at_ns_ = std::numeric_limits<std::int64_t>::max();
  std::uint64_t consumed_at_stall_ = 0;
  // See stream_past.cc. Written under both locks.
  bool watched_ = false;      // on a channel, and it is looked whether the program takes what comes there
  std::atomic<bool> suspected_{false};  // it has left one for that
  std::uint64_t looked_at_ = 0;       // what the program had consumed then
  std::int64_t unread_since_ns_ = 0;  // and that there was more; 0: there was not
  std::int64_t look_pause_ns_ = kUnseenNs;
  std::int64_t rests_until_ns_ = 0;   // not looked at before; 0: as soon as something has come
  std::int64_t past_since_ns_ = 0;    // bytes that are not the peer's library's stand on TCP
  std::int64_t past_at_ns_ = std::numeric_limits<std::int64_t>::max();  // to look again
};

}  // namespace ringroad
