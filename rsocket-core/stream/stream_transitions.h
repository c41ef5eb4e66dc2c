// What moves a stream between its carriers: promotion (stream_switch.cc), frames in the TCP stream and the
// return to TCP (stream_frames.cc, unread_return.cc), what reaches the kernel past the library
// (stream_past.cc), and its end (stream_end.cc). docs/protocol.md describes the exchange; state.h has the
// states.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>

#include "rsocket-core/stream/promotion_retry.h"
#include "rsocket-core/stream/stream_options.h"

namespace ringroad {

class StreamTransitions : public StreamOptions {
 public:
  // An answer to SWITCH waits until no more than this is unread in the kernel before the token,
  // because the token is found by peeking over it.
  static constexpr std::uint64_t kMaxPeekBytes = 256 * 1024;
  static constexpr std::int64_t kSwitchTimeoutNs = 1'000'000'000;
  static constexpr std::int64_t kAnswerTimeoutNs = 500'000'000;  // for a connector's SWITCH
  static constexpr std::int64_t kReadTimeoutNs = 200'000'000;  // for what came before a SWITCH
  static constexpr std::int64_t kLingerTimeoutNs = 60'000'000'000;
  static constexpr std::int64_t kCutTimeoutNs = 500'000'000;  // of a close that resets
  // For a program to take what has come, where no call is seen that waits for it.
  static constexpr std::int64_t kUnseenNs = 100'000'000;
  static constexpr std::int64_t kLongestUnseenNs = 3'200'000'000;  // twice as long each time
  // Where such a call was seen: between two looks whether the program still takes what comes.
  static constexpr std::int64_t kSeenPauseNs = 1'000'000'000;
  // For a peer that closed before us to end the kernel's connection before us, too.
  static constexpr std::int64_t kFollowTimeoutNs = 500'000'000;

  // Does whatever can be done now, without sleeping.
  void service() noexcept;
  // Whether any stream of the process changes its carrier.
  static bool any_switches() noexcept { return switches_.load(std::memory_order_relaxed) > 0; }
  // Why an operator keeps it on TCP; kNone: none does.
  Reason operator_hold() const noexcept { return retry_.hold(); }
  // In how many EpollSets the kernel answers for it, until no other process has it (EpollSet::lend_all()).
  std::atomic<unsigned>& lent() noexcept { return lent_; }
  // A call of the program's waits for the stream, or will: poll, select, epoll, a receive that sleeps.
  void note_awaited() noexcept {
    if (!awaited_.load(std::memory_order_relaxed)) awaited_.store(true, std::memory_order_relaxed);
  }
  // This process was seen to go past the library: from now on a stream is promoted when such a call was seen.
  static void note_goes_past(bool it_does = true) noexcept {
    goes_past_.store(it_does, std::memory_order_relaxed);
  }

 protected:
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

  StreamTransitions(StreamHost* host, stats::Segment* segment, std::uint64_t id, int fd, Role role,
                    const FourTuple& tuple, const StreamConfig& config, bool nonblocking) noexcept
      : StreamOptions(host, segment, id, fd, role, tuple, config, nonblocking),
        retry_(role == Role::kConnect, config.promote_messages, config.promote_bytes) {}
  ~StreamTransitions() = default;

  // Where the program's next bytes come from.
  enum class Source : std::uint8_t { kTcp, kTcpUpToBoundary, kRing, kAgain, kNothing };
  Source source() const noexcept RR_REQUIRES(rx_mutex_);
  // Whether the program may have what is in the ring, also after a reset: not from a peer that has not
  // proved itself, nor where bytes in front of it are lost, nor what it may have read over TCP.
  bool ring_is_next() const noexcept RR_REQUIRES(rx_mutex_) {
    return channel_ != nullptr && protocol_.token_seen() && !gave_back_ &&
           (!protocol_.resume_seen() || !came_again_);
  }
  // Takes frames that are known from the kernel, once everything before them is read.
  void skip_verified() noexcept RR_REQUIRES(rx_mutex_);
  // The program's bytes among those that the kernel has.
  std::uint64_t unread_on_tcp() noexcept RR_REQUIRES(rx_mutex_);
  // Whether the program's bytes may go to the kernel now: not in front of a frame's last bytes.
  bool kernel_takes_bytes() const noexcept RR_REQUIRES(tx_mutex_) {
    return protocol_.sends_to_kernel() && !frames_wait();
  }
  // Nothing but this stream has used its TCP connection.
  bool kernel_counted_the_same() const noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);

  // All that follow need both locks, but where they say so.
  // Moves the state by next_state(), and publishes it.
  void step(StreamEvent event, Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  // Gives the stream to the kernel for good, or takes it back, as it stands now.
  void settle_kernel_only() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void service_locked() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void check() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);

  // stream_switch.cc:
  void freeze() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void on_control(const ControlMessage& m) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void answer_switch() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void maybe_switched() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void abort_switch(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void leave_or_give_up(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void leave_behind_token(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool token_comes_behind_unread() const noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  // Takes in what the channel brings.
  void take_in_channel() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);

  // stream_frames.cc:
  void queue_frame(const std::uint8_t* bytes, std::size_t n) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void push_frames() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void scan_frames() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void frame_token(SwitchActions todo) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void frame_resume(const ResumeFrame& frame) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void answer_resume() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void frame_other() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void tcp_ended(int error) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void break_connection(int error, Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void demote(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void push_replay() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void back_on_tcp() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void reset_if_killed(bool yes) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);

  // unread_return.cc:
  struct ReturnBuffer {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;
    std::size_t filled = 0;
    std::size_t sent = 0;
    ReturnBuffer() noexcept = default;
    ReturnBuffer(std::uint8_t* all, std::size_t n) noexcept : bytes(all), size(n) {}
  };
  std::uint32_t take_back() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool expect_back(std::uint32_t n) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool take_come_back() noexcept RR_REQUIRES(rx_mutex_);
  bool push_return_buffer(ReturnBuffer& passage) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void keep_what_is_here() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void remember_unread() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void drop_what_came_again() noexcept RR_REQUIRES(rx_mutex_);
  void forget_again() noexcept RR_REQUIRES(rx_mutex_);
  bool remembers() const noexcept RR_REQUIRES(rx_mutex_) { return again_.copy.filled > 0 || again_.ends; }
  bool again_unread() const noexcept RR_REQUIRES(rx_mutex_) { return again_.copy.sent < again_.copy.filled; }
  // What the kernel has, or gets, is what the program has not read: another process may read on.
  bool kernel_is_level() const noexcept RR_REQUIRES(rx_mutex_) { return again_.copy.sent == again_.dropped; }
  // Something of the library's, or behind a frame of its, is not in the kernel's hands yet.
  bool frames_wait() const noexcept RR_REQUIRES(tx_mutex_) {
    return frames_sent_ < frames_size_ || given_back_.sent < given_back_.filled;
  }

  // stream_past.cc:
  bool is_awaited() const noexcept { return awaited_.load(std::memory_order_relaxed); }
  Reason why_unseen() noexcept RR_EXCLUDES(tx_mutex_, rx_mutex_);
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
  bool awaits_left() const noexcept { return protocol_.send() == SendState::kLeft && !leaves_at_once(); }
  void leave_by_message(Reason reason) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void on_left(const ControlMessage& m) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void begin_return(Reason reason, SwitchEvent event) noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void drop_twice(std::size_t n) noexcept RR_REQUIRES(rx_mutex_);
  bool frame_stands_behind() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool bytes_came_past() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool may_be_past() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void look_for_waits() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void ask_who_waits() noexcept RR_EXCLUDES(tx_mutex_, rx_mutex_);

  // stream_end.cc:
  void send_fin() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void peer_left() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void discard_unread() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool waits_to_follow() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool waits_to_be_read() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool is_in_flight() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  std::int64_t linger_ends_ns() const noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void finish_linger() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  void stall_begins() noexcept RR_REQUIRES(tx_mutex_);
  std::int64_t patience_ns() noexcept RR_REQUIRES(tx_mutex_);
  void watch_for_stall() noexcept RR_REQUIRES(tx_mutex_);
  void look_for_stall() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);

  // stream_fork.cc:
  bool shareable() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  Reason become_alone() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);
  bool count_from_here() noexcept RR_REQUIRES(tx_mutex_, rx_mutex_);

  std::uint8_t frames_[kTokenBytes + 2 * kResumeBytes] RR_GUARDED_BY(tx_mutex_) = {};
  ReturnBuffer given_back_ RR_GUARDED_BY(tx_mutex_);  // behind our RESUME
  ReturnBuffer come_back_ RR_GUARDED_BY(rx_mutex_);   // behind the peer's RESUME: goes before our replay
  // A copy of what the program had not read when the stream left its channel: unread_return.cc.
  struct Again {
    ReturnBuffer copy;        // `sent`: how much the program has read of it
    std::size_t dropped = 0;  // how much has come again over TCP and was dropped there
    std::size_t of_ring = 0;  // its last bytes: how many are the ring's too
    bool ends = false;        // the peer's end is behind it, and was told
  };
  Again again_ RR_GUARDED_BY(rx_mutex_);
  std::uint64_t owed_ RR_GUARDED_BY(rx_mutex_) = 0;  // bytes of the ring that come again over TCP
  // The counts began with the kernel's, of which the library had not seen all, and have not grown since.
  bool unproven_ RR_GUARDED_BY(rx_mutex_) = false;
  bool tell_when_read_ RR_GUARDED_BY(rx_mutex_) = false;  // see AgentStream::all_read()
  bool read_since_asked_ RR_GUARDED_BY(rx_mutex_) = false;
  std::uint64_t counted_from_ RR_GUARDED_BY(rx_mutex_) = 0;  // tcp_tx_ + tcp_rx_ then

  static inline std::atomic<int> switches_{0};  // streams in State::kSwitching and kResuming
  static inline std::atomic<bool> goes_past_{false};
  PromotionRetry retry_;
  std::atomic<std::int64_t> left_at_ns_{0};  // the channel
  std::atomic<unsigned> guests_{0};          // that on_deferred_call_returned() is to come of
  std::atomic<unsigned> lent_{0};
  std::atomic<bool> known_to_agent_{false};  // it may keep or watch it
  std::atomic<bool> awaited_{false}, app_closed_{false};
  // A fork has waited in vain for it to come back, and the next one does not. Until it is back.
  std::atomic<bool> kept_a_fork_waiting{false};

  // Written under both locks, read under either.
  Nonce nonce_{}, peer_nonce_{};  // ours: what the peer's frames start with; what our frames start with
  std::uint64_t left_fin_at_ = kNoBoundary;  // as it was when we left the channel
  bool wrote_since_freeze_ = false;  // to TCP; under tx_mutex_
  bool waits_for_reader_ = false;  // to answer SWITCH
  bool pending_shut_wr_ = false;   // the program wants it; not on the wire yet
  bool kernel_shut_rd_ = false;    // the kernel was told
  bool closed_in_use_ = false;     // while a call was inside, for which the file stays open
  bool cuts_ = false;              // the close resets the connection, once what was sent has arrived
  bool resets_if_killed_ = false;  // the socket has our SO_LINGER, not the program's
  bool follows_ = false;           // our FIN came after such a one
  Reason leave_reason_ = Reason::kNone, leaves_behind_token_ = Reason::kNone;
  linger linger_of_program_{};
  std::uint64_t peer_s_ = 0, peer_consumed_ = 0;  // the latter is from the peer's RESUME
  std::int64_t follow_until_ns_ = 0, deadline_ns_ = kForever;
  // When it is looked whether the peer's program has read nothing of a full ring for too long, and what it
  // had read when that began. Under tx_mutex_.
  std::int64_t late_at_ns_ = kForever;
  std::uint64_t consumed_at_stall_ = 0;
  // See stream_past.cc.
  struct Past {
    bool watched = false;  // on a channel, and it is looked whether the program takes what comes there
    std::atomic<bool> suspected{false};  // it has left one for that
    std::uint64_t looked_at = 0;         // what the program had consumed then
    std::int64_t unread_since_ns = 0;    // and that there was more; 0: there was not
    std::int64_t look_pause_ns = kUnseenNs;
    std::int64_t rests_until_ns = 0;  // not looked at before; 0: as soon as something has come
    std::int64_t since_ns = 0;        // bytes that are not the peer's library's stand on TCP
    std::int64_t at_ns = kForever;    // to look again
  };
  Past past_;
};

}  // namespace ringroad
