// Tokens and RESUMEs in the TCP stream, and the way back to TCP that they lead to.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/tcp_counters.h"
#include "rsocket-core/stream/stream_transitions.h"

namespace ringroad {
namespace {

// Nagle's algorithm would hold a small frame, or the tail of a replay, back behind unacknowledged
// bytes for as long as the peer delays its acknowledgement (40 ms).
class WithoutNagle {
 public:
  explicit WithoutNagle(int fd) noexcept : fd_(fd) {
    int nodelay = 1;
    socklen_t length = sizeof nodelay;
    sys::getsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &nodelay, &length);
    was_off_ = nodelay == 0;
    if (was_off_) set(1);
  }
  ~WithoutNagle() {
    if (was_off_) set(0);
  }
  WithoutNagle(const WithoutNagle&) = delete;
  WithoutNagle& operator=(const WithoutNagle&) = delete;

 private:
  void set(int value) noexcept {
    sys::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value);
  }
  int fd_;
  bool was_off_;
};

std::size_t unread_in_kernel(int fd) noexcept {
  int bytes = 0;
  return sys::ioctl(fd, SIOCINQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

}  // namespace

// ---- Receiving

StreamTransitions::Source StreamTransitions::source() const noexcept {
  if (gave_back_ && state() == State::kReset) return Source::kRing;
  if (boundary_ == kNoBoundary) {
    if (state() == State::kReset) return Source::kRing;
    if (remembers()) return again_unread() ? Source::kAgain : Source::kNothing;
    return Source::kTcp;
  }
  if (tcp_rx_ < boundary_) return Source::kTcpUpToBoundary;
  if (remembers() && state() != State::kReset) {
    return again_unread() ? Source::kAgain : Source::kNothing;
  }
  if (channel_ != nullptr && protocol_.token_seen() && !protocol_.resume_sent()) return Source::kRing;
  return state() == State::kReset ? Source::kRing : Source::kNothing;
}

void StreamTransitions::skip_verified() noexcept {
  while (verified_ > 0 && tcp_rx_ == boundary_) {
    std::uint8_t scratch[kTokenBytes + kResumeBytes];
    const ssize_t n = sys::recv(fd(), scratch, std::min(verified_, sizeof scratch), MSG_DONTWAIT);
    if (n <= 0) return;  // it was peeked at, so it is there; an error shows up elsewhere
    tcp_rx_ += static_cast<std::uint64_t>(n);
    boundary_ += static_cast<std::uint64_t>(n);
    frames_rx_ += static_cast<std::uint64_t>(n);
    verified_ -= static_cast<std::size_t>(n);
    // What comes next comes from elsewhere: a thread that waits for a change must look.
    if (verified_ == 0) waiters_.wake(POLLIN);
  }
  if (verified_ == 0 && tcp_rx_ == boundary_ && protocol_.resume_seen() && take_come_back()) {
    boundary_ = kNoBoundary;
    waiters_.wake(POLLIN | POLLOUT);  // see settled()
    attend();             // perhaps the kernel has the stream for good now
  }
  if (boundary_ == kNoBoundary && remembers() && !is_over()) drop_what_came_again();
}

// ---- Frames in the TCP stream

void StreamTransitions::queue_frame(const std::uint8_t* bytes, std::size_t n) noexcept {
  if (frames_sent_ == frames_size_) frames_sent_ = frames_size_ = 0;
  if (frames_size_ + n > sizeof frames_) return;  // one token and two RESUMEs fit; more cannot be
  std::memcpy(frames_ + frames_size_, bytes, n);
  frames_size_ += n;
  push_frames();
}

void StreamTransitions::push_frames() noexcept {
  if (!frames_wait()) return;
  const WithoutNagle now(fd());
  while (frames_sent_ < frames_size_) {
    const ssize_t n = sys::send(fd(), frames_ + frames_sent_, frames_size_ - frames_sent_,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno != EAGAIN && errno != EINTR) break_connection(errno, Reason::kPeerGone);
      return;
    }
    frames_sent_ += static_cast<std::size_t>(n);
    tcp_tx_ += static_cast<std::uint64_t>(n);
  }
  push_return_buffer(given_back_);
}

// Looks at the place where the peer's frames may stand, over the application's bytes before it.
void StreamTransitions::scan_frames() noexcept {
  for (int round = 0; round < 4; ++round) {
    skip_verified();
    if (awaits_left() && !protocol_.resume_seen()) {
      // What stands here is not looked at before the peer has said from where on it writes.
      if (!tcp_peer_ended(fd())) return;
      take_in_channel();
      if (awaits_left() && !protocol_.resume_seen()) tcp_ended(0);
      return;
    }
    if (boundary_ != kNoBoundary && protocol_.resume_seen() && verified_ == 0 && tcp_rx_ == boundary_ &&
        state() != State::kReset) {
      // More of what it gives back is to come, or the end.
      std::uint8_t next;
      const ssize_t n = sys::recv(fd(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) tcp_ended(n == 0 ? 0 : errno);
      if (n <= 0) return;
      continue;
    }
    // Behind its RESUME the peer's bytes are the program's again.
    if (boundary_ == kNoBoundary || protocol_.resume_seen() || state() == State::kReset) return;
    const std::uint64_t unread = boundary_ - tcp_rx_;
    if (unread > kMaxPeekBytes) {
      // Announced, by the peer or a forger, and never to come?
      if (tcp_peer_ended(fd()) && unread_in_kernel(fd()) == 0) tcp_ended(0);
      return;
    }
    const std::size_t before = static_cast<std::size_t>(unread) + verified_;
    const std::size_t wanted = before + kResumeBytes;
    std::uint8_t small[512];
    std::unique_ptr<std::uint8_t[]> large;
    std::uint8_t* bytes = small;
    if (wanted > sizeof small) {
      large.reset(new (std::nothrow) std::uint8_t[wanted]);
      if (large == nullptr) return;  // tried again at the next event
      bytes = large.get();
    }
    const ssize_t n = sys::recv(fd(), bytes, wanted, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0) {
      if (errno != EAGAIN && errno != EINTR) tcp_ended(errno);
      return;
    }
    if (n == 0) {
      tcp_ended(0);
      return;
    }
    const auto seen = static_cast<std::size_t>(n);
    if (seen <= before) {
      // Nothing at the boundary yet. Did the connection end behind what is unread?
      if (seen == before && tcp_peer_ended(fd())) tcp_ended(0);
      return;
    }
    ResumeFrame resume;
    // One of each may come, and none before we have promised not to read past it.
    switch (match_frame(nonce_, bytes + before, seen - before, resume)) {
      case FrameMatch::kPartial:
        // Bytes of the program's may begin as a frame does, and be the last.
        if (!protocol_.token_seen() && tcp_peer_ended(fd()) && unread_in_kernel(fd()) == seen) frame_other();
        if (state() == State::kOnChannel && may_be_past()) frame_other();
        return;
      case FrameMatch::kToken:
        if (const auto todo = protocol_.apply(SwitchEvent::kTokenRead); todo) {
          verified_ += kTokenBytes;
          frame_token(*todo);
          break;
        }
        return break_connection(ECONNRESET, Reason::kBadRequest);
      case FrameMatch::kResume:
        if (!protocol_.may(SwitchEvent::kResumeRead)) {
          return break_connection(ECONNRESET, Reason::kBadRequest);
        }
        verified_ += kResumeBytes;
        frame_resume(resume);
        break;
      case FrameMatch::kOther:
        frame_other();
        return;
    }
  }
}

void StreamTransitions::frame_token(SwitchActions todo) noexcept {
  skip_verified();
  // After a promotion that we gave up, the peer's RESUME comes next.
  if (todo.has(SwitchAction::kDoAnnounce)) {
    // Our count must hold from here until our own token.
    if (kernel_counted_the_same()) {
      freeze();
    } else {
      abort_switch(Reason::kUntrackedIo);
      retry_.stop();
    }
  }
  if (todo.has(SwitchAction::kDoEnter)) maybe_switched();
}

void StreamTransitions::frame_resume(const ResumeFrame& frame) noexcept {
  if (!expect_back(frame.given_back)) return break_connection(ECONNRESET, Reason::kBadRequest);
  const SwitchActions todo = protocol_.apply(SwitchEvent::kResumeRead).value_or(SwitchActions());
  peer_consumed_ = frame.consumed;
  if (frame.reason != Reason::kNone) set_peer_reason(frame.reason);
  skip_verified();
  // The peer committed and then left, before we did.
  if (todo.has(SwitchAction::kDoGiveUp)) abort_switch(Reason::kPeerGaveUp);
  if (todo.has(SwitchAction::kAnswerResume)) {
    if (frame.answer) answer_resume();
    settle_kernel_only();
    if (!todo.has(SwitchAction::kDoGiveUp)) wake_all();
  }
  if (todo.has(SwitchAction::kDoReturn)) demote(Reason::kPeerLeft);
  if (todo.has(SwitchAction::kDoReplay)) push_replay();
}

// To a peer that waits at the place where we froze and cannot know that we gave up, because nothing
// of the program's has been written there since.
void StreamTransitions::answer_resume() noexcept {
  // The end of our output, where we froze, says it too.
  if (!protocol_.may(SwitchEvent::kAnswered) || wrote_since_freeze_) return;
  if (shut_wr() && !pending_shut_wr_) return;
  std::uint8_t frame[kResumeBytes];
  encode_resume(peer_nonce_, ResumeFrame{0, reason(), false, 0}, frame);
  protocol_.apply(SwitchEvent::kAnswered);
  queue_frame(frame, sizeof frame);
}

// Application bytes at the boundary.
void StreamTransitions::frame_other() noexcept {
  if (protocol_.receive() == ReceiveState::kToken) {
    if (bytes_came_past()) return;
    // Behind its token a peer may write nothing but RESUME: bytes are never guessed.
    break_connection(ECONNRESET, Reason::kForged);
    return;
  }
  // The peer gave up before its token and simply went on. Why, it may have said.
  take_in_channel();
  boundary_ = kNoBoundary;
  if (state() == State::kSwitching) {
    leave_or_give_up(Reason::kPeerGaveUp);
    boundary_ = kNoBoundary;
  }
  const SwitchActions todo = protocol_.apply(SwitchEvent::kNoFrame).value_or(SwitchActions());
  if (todo.has(SwitchAction::kDoReplay)) {
    peer_consumed_ = 0;
    push_replay();
  }
  if (state() == State::kOnTcp) settle_kernel_only();
  wake_all();
}

void StreamTransitions::tcp_ended(int error) noexcept {
  take_in_channel();
  if (error == 0) {
    socklen_t length = sizeof error;
    sys::getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (state() == State::kOnChannel && fin_at_ == kNoBoundary && error == 0 &&
      channel_->outlives_peer() && channel_->all_consumed()) {
    // Killed. All that it sent is in the ring, and it had read all that we sent: the kernel would
    // say end of file (with bytes unread it would say reset).
    fin_at_ = channel_->rx_head();
  }
  if (state() == State::kOnChannel && fin_at_ != kNoBoundary && !all_arrived()) {
    channel_->fail(Reason::kPeerGone);  // takes in whatever there is
  }
  if (state() == State::kOnChannel && all_arrived() && (error == 0 || shut_wr())) {
    peer_left();  // orderly: what is in the ring is still the program's
    return;
  }
  if (state() == State::kOnTcp) {
    // A given-up promotion whose peer closed: an ordinary end of file.
    protocol_.apply(SwitchEvent::kNoFrame);
    boundary_ = kNoBoundary;
    verified_ = 0;
    if (error != 0) {
      standing_.set_error(error);
      shutdowns_.fetch_add(1, std::memory_order_relaxed);
    }
    settle_kernel_only();
    wake_all();
    return;
  }
  if (state() == State::kSwitching && !protocol_.token_sent() && error == 0) {
    // It closed instead of switching; every byte before that is in the kernel.
    boundary_ = kNoBoundary;
    abort_switch(Reason::kPeerGone);
    protocol_.apply(SwitchEvent::kNoFrame);
    boundary_ = kNoBoundary;
    settle_kernel_only();
    wake_all();
    return;
  }
  if ((state() == State::kSwitching || state() == State::kResuming) && !protocol_.token_seen() &&
      !protocol_.resume_seen() && error == 0) {
    // It gave up and ended its output where a frame might have stood. That says what other bytes
    // there would say.
    frame_other();
    return;
  }
  break_connection(error != 0 ? error : ECONNRESET, Reason::kPeerGone);
}

void StreamTransitions::break_connection(int error, Reason reason) noexcept {
  if (state() == State::kReset || state() == State::kClosed) return;
  if (state() == State::kResuming && reason == Reason::kPeerGone) {
    keep_what_is_here();
    // What the channel still had to say may have ended it.
    if (state() == State::kReset || state() == State::kClosed) return;
  }
  const bool returning = state() == State::kResuming;
  if (channel_ != nullptr) channel_->fail(reason);
  // What is in the copy is not read from the ring as well.
  if (returning && again_.of_ring > 0) channel_->consume(std::exchange(again_.of_ring, 0));
  step(StreamEvent::kBroken, reason);
  protocol_.apply(SwitchEvent::kBroken);
  // The kernel's word for a reset where the peer's end of file had come already.
  const bool ended = all_arrived() && !shut_wr();
  standing_.set_error(ended && error == ECONNRESET ? EPIPE : error);
  kernel_only_.store(false);
  shutdowns_.fetch_add(1, std::memory_order_relaxed);  // an edge, also for a waiter that comes late
  deadline_ns_ = kForever;
  // Let the peer know at once, and the kernel's socket agree with what we report.
  sys::shutdown(fd(), SHUT_RDWR);
  wake_all();
}

// ---- Back to TCP

// The peer cannot know how much is to come behind our RESUME. If this process is killed before all
// of it is in the kernel, the kernel must answer for it with a reset: an end of file would cut the
// stream short.
void StreamTransitions::reset_if_killed(bool yes) noexcept {
  const linger cut{1, 0};
  linger now{};
  socklen_t length = sizeof now;
  if (yes == resets_if_killed_ ||
      sys::getsockopt(fd(), SOL_SOCKET, SO_LINGER, &now, &length) != 0) {
    return;
  }
  resets_if_killed_ = yes;
  if (yes) {
    linger_of_program_ = now;
    sys::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
  } else if (now.l_onoff != 0 && now.l_linger == 0) {  // else the program has changed it
    sys::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &linger_of_program_, sizeof linger_of_program_);
  }
}

// Our token is written: say what was consumed, and read only TCP from here on.
void StreamTransitions::demote(Reason reason) noexcept {
  const State from = state();
  if (from != State::kSwitching && from != State::kOnChannel) return;
  if (!protocol_.may(SwitchEvent::kReturn)) return;
  leave_reason_ = reason;
  leaves_behind_token_ = Reason::kNone;
  const bool answer = protocol_.promised();
  step(protocol_.resume_seen() ? StreamEvent::kPeerResume : StreamEvent::kLeave, reason);
  const SwitchActions todo = protocol_.apply(SwitchEvent::kReturn).value_or(SwitchActions());
  // Bytes in the ring that the program has not read come again over TCP, and so does the end.
  channel_->progress();
  const std::uint64_t consumed = protocol_.token_seen() ? channel_->rx_consumed() : 0;
  owed_ = protocol_.token_seen() ? channel_->rx_head() - consumed : 0;
  gave_back_ = came_again_ = false;
  left_at_ns_.store(sys::now_ns(), std::memory_order_relaxed);
  left_fin_at_ = std::exchange(fin_at_, kNoBoundary);
  deadline_ns_ = linger_ends_ns();
  // Without our promise the peer has written no frame, and writes none: it gives up when it reads
  // this. To wait for one behind more than can be peeked over would be to wait for the program.
  if (todo.has(SwitchAction::kForgetBoundary)) {
    boundary_ = kNoBoundary;
    peer_consumed_ = 0;
  }
  reset_if_killed(true);
  // No frame shall stand behind bytes that somebody else may read.
  const std::uint32_t given_back = peer_closed() ? 0 : take_back();
  if (state() == State::kReset) return;
  owed_ += given_back;
  remember_unread();
  if (given_back > 0) skip_verified();
  if (owed_ > 0) tcp_make_room(fd(), owed_);
  std::uint8_t frame[kResumeBytes];
  // An older peer knows no such reason, and this one, which has it ask again.
  const bool known = reason != Reason::kStalled || channel_->agreement().has(Feature::kLeft);
  encode_resume(peer_nonce_, ResumeFrame{consumed, known ? reason : Reason::kIdle, answer, given_back},
                frame);
  queue_frame(frame, sizeof frame);
  wake_all();
  push_replay();
}

void StreamTransitions::push_replay() noexcept {
  if (!protocol_.returns() || !protocol_.resume_seen()) return;
  push_frames();
  if (frames_wait() || state() != State::kResuming) return;
  if (come_back_.filled < come_back_.size) return;  // it is still to come
  if (awaits_left() && !is_told()) return;
  if (replay_at_ == 0 || replay_at_ < peer_consumed_) {
    // What we have said ourselves by LEFT may be out of date.
    if (peer_consumed_ > channel_->tx_posted() ||
        (peer_consumed_ < channel_->tx_consumed() && protocol_.send() != SendState::kLeft)) {
      break_connection(ECONNRESET, Reason::kBadRequest);
      return;
    }
    replay_at_ = peer_consumed_;
  }
  const WithoutNagle now(fd());
  if (!push_return_buffer(come_back_)) return;
  while (replay_at_ < channel_->tx_head()) {
    const Channel::View view = channel_->tx_replay(replay_at_);
    const ssize_t n = sys::send(fd(), view.data, view.size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno != EAGAIN && errno != EINTR) break_connection(errno, Reason::kPeerGone);
      return;  // the agent watches for room
    }
    replay_at_ += static_cast<std::uint64_t>(n);
    tcp_tx_ += static_cast<std::uint64_t>(n);
  }
  back_on_tcp();
}

void StreamTransitions::back_on_tcp() noexcept {
  step(StreamEvent::kResumed, leave_reason_);
  kept_a_fork_waiting.store(false, std::memory_order_relaxed);
  protocol_.apply(SwitchEvent::kReplayed);
  replay_at_ = 0;
  gave_back_ = false;
  again_.of_ring = 0;
  fin_at_ = kNoBoundary;  // what came while we were leaving
  given_back_ = ReturnBuffer();
  come_back_ = ReturnBuffer();
  channel_.reset();
  slot_->counts.resumptions.fetch_add(1, std::memory_order_relaxed);
  deadline_ns_ = linger_ends_ns();
  publish_identity();
  // The kernel answers an exit with unread bytes by a reset: also where those are on their way here.
  if (leave_reason_ != Reason::kExit || unread_on_tcp() >= owed_) reset_if_killed(false);
  if (fin_sent_ || pending_shut_wr_) {
    pending_shut_wr_ = fin_sent_ = false;
    sys::shutdown(fd(), SHUT_WR);
  }
  if (retry_.after_return(leave_reason_, peer_reason(), sys::now_ns())) start_promotion();
  settle_kernel_only();
  wake_all();
}

}  // namespace ringroad
