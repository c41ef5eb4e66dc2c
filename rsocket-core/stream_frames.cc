// Tokens and RESUMEs in the TCP stream, and the way back to TCP that they lead to.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "rsocket-core/stream.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/tcp_counters.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

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

// ---- Frames in the TCP stream

void Stream::queue_frame(const std::uint8_t* bytes, std::size_t n) noexcept {
  if (frames_sent_ == frames_size_) frames_sent_ = frames_size_ = 0;
  if (frames_size_ + n > sizeof frames_) return;  // one token and two RESUMEs fit; more cannot be
  std::memcpy(frames_ + frames_size_, bytes, n);
  frames_size_ += n;
  push_frames();
}

void Stream::push_frames() noexcept {
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
  push_passage(given_back_);
}

// Looks at the place where the peer's frames may stand, over the application's bytes before it.
void Stream::scan_frames() noexcept {
  for (int round = 0; round < 4; ++round) {
    skip_verified();
    if (awaits_left() && !resume_seen_) {
      // What stands here is not looked at before the peer has said from where on it writes.
      if (!tcp_peer_ended(fd())) return;
      take_in_channel();
      if (awaits_left() && !resume_seen_) tcp_ended(0);
      return;
    }
    if (boundary_ != kNoBoundary && resume_seen_ && verified_ == 0 && tcp_rx_ == boundary_ &&
        state() != State::kReset) {
      // More of what it gives back is to come, or the end.
      std::uint8_t next;
      const ssize_t n = sys::recv(fd(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) tcp_ended(n == 0 ? 0 : errno);
      if (n <= 0) return;
      continue;
    }
    // Behind its RESUME the peer's bytes are the program's again.
    if (boundary_ == kNoBoundary || resume_seen_ || state() == State::kReset) return;
    const std::uint64_t unread = boundary_ - tcp_rx_;
    if (unread > kMaxPeekBytes) {
      // Announced, by whoever it was, and never to come?
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
        if (!token_seen_ && tcp_peer_ended(fd()) && unread_in_kernel(fd()) == seen) frame_other();
        if (state() == State::kOnChannel && may_be_past()) frame_other();
        return;
      case FrameMatch::kToken:
        if (token_seen_ || resume_seen_ || !answered_) {
          return break_connection(ECONNRESET, Reason::kBadRequest);
        }
        verified_ += kTokenBytes;
        frame_token();
        break;
      case FrameMatch::kResume:
        if (resume_seen_ || !answered_) {
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

void Stream::frame_token() noexcept {
  token_seen_ = true;
  skip_verified();
  // After a promotion that we gave up, the peer's RESUME comes next.
  if (state() != State::kSwitching) return;
  if (!frozen_) {
    // Our count must hold from here until our own token.
    if (kernel_counted_the_same()) {
      freeze();
    } else {
      give_up(Reason::kUntrackedIo);
      pinned_ = true;
    }
  }
  maybe_switched();
}

void Stream::frame_resume(const ResumeFrame& frame) noexcept {
  if (!expect_back(frame.given_back)) return break_connection(ECONNRESET, Reason::kBadRequest);
  resume_seen_ = true;
  peer_consumed_ = frame.consumed;
  if (frame.reason != Reason::kNone) {
    slot_->peer_reason.store(static_cast<std::uint8_t>(frame.reason), std::memory_order_relaxed);
  }
  skip_verified();
  switch (state()) {
    case State::kOnTcp:
      // We gave the promotion up before our token.
      if (frame.answer) answer_resume();
      gave_up_ = false;
      settle_kernel_only();
      wake_all();
      return;
    case State::kSwitching:
    case State::kOnChannel:
      if (!token_sent_) {
        // The peer committed and then left, before we did. As above.
        give_up(Reason::kPeerGaveUp);
        if (frame.answer) answer_resume();
        gave_up_ = false;
        settle_kernel_only();
        return;
      }
      leave(Reason::kPeerLeft);
      return;
    default:
      push_replay();
  }
}

// To a peer that waits at the place where we froze and cannot know that we gave up, because nothing
// of the program's has been written there since.
void Stream::answer_resume() noexcept {
  // The end of our output, where we froze, says it too.
  if (!frozen_ || wrote_since_freeze_ || resume_sent_ || (shut_wr() && !pending_shut_wr_)) return;
  std::uint8_t frame[kResumeBytes];
  encode_resume(peer_nonce_, ResumeFrame{0, reason(), false, 0}, frame);
  resume_sent_ = true;
  queue_frame(frame, sizeof frame);
}

// Application bytes at the boundary.
void Stream::frame_other() noexcept {
  if (token_seen_ && !resume_seen_) {
    if (bytes_came_past()) return;
    // Behind its token a peer may write nothing but RESUME: bytes are never guessed.
    break_connection(ECONNRESET, Reason::kForged);
    return;
  }
  // The peer gave up before its token and simply went on. Why, it may have said.
  take_in_channel();
  boundary_ = kNoBoundary;
  switch (state()) {
    case State::kOnTcp:
      gave_up_ = false;
      settle_kernel_only();
      break;
    case State::kSwitching:
      leave_or_give_up(Reason::kPeerGaveUp);
      boundary_ = kNoBoundary;
      gave_up_ = false;
      if (state() == State::kResuming) {
        resume_seen_ = true;  // none will come
        peer_consumed_ = 0;
        push_replay();
      }
      settle_kernel_only();
      break;
    case State::kResuming:
      resume_seen_ = true;
      peer_consumed_ = 0;
      push_replay();
      break;
    default:
      break;
  }
  wake_all();
}

void Stream::take_in_channel() noexcept {
  if (channel_ != nullptr) channel_->progress();
  ControlMessage m;
  while (channel_ != nullptr && channel_->take_control(m)) on_control(m);
}

void Stream::tcp_ended(int error) noexcept {
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
    boundary_ = kNoBoundary;
    verified_ = 0;
    gave_up_ = false;
    if (error != 0) {
      standing_.set_error(error);
      shutdowns_.fetch_add(1, std::memory_order_relaxed);
    }
    settle_kernel_only();
    wake_all();
    return;
  }
  if (state() == State::kSwitching && !token_sent_ && error == 0) {
    // It closed instead of switching; every byte before that is in the kernel.
    boundary_ = kNoBoundary;
    give_up(Reason::kPeerGone);
    boundary_ = kNoBoundary;
    gave_up_ = false;
    settle_kernel_only();
    wake_all();
    return;
  }
  if ((state() == State::kSwitching || state() == State::kResuming) && !token_seen_ &&
      !resume_seen_ && error == 0) {
    // It gave up and ended its output where a frame might have stood. That says what other bytes
    // there would say.
    frame_other();
    return;
  }
  break_connection(error != 0 ? error : ECONNRESET, Reason::kPeerGone);
}

void Stream::break_connection(int error, Reason reason) noexcept {
  if (state() == State::kReset || state() == State::kClosed) return;
  if (state() == State::kResuming && reason == Reason::kPeerGone) {
    keep_what_is_here();
    // What the channel still had to say may have ended it.
    if (state() == State::kReset || state() == State::kClosed) return;
  }
  const bool returning = state() == State::kResuming;
  if (channel_ != nullptr) channel_->fail(reason);
  // What is in the copy is not read from the ring as well.
  if (returning && again_of_ring_ > 0) channel_->consume(std::exchange(again_of_ring_, 0));
  step(StreamEvent::kBroken, reason);
  tx_ = Tx::kDead;
  // The kernel's word for a reset where the peer's end of file had come already.
  const bool ended = all_arrived() && !shut_wr();
  standing_.set_error(ended && error == ECONNRESET ? EPIPE : error);
  kernel_only_.store(false);
  shutdowns_.fetch_add(1, std::memory_order_relaxed);  // an edge, also for who is late to see the error
  deadline_ns_ = kForever;
  // Let the peer know at once, and the kernel's socket agree with what we report.
  sys::shutdown(fd(), SHUT_RDWR);
  wake_all();
}

// ---- Back to TCP

// The peer cannot know how much is to come behind our RESUME. If this process is killed before all
// of it is in the kernel, the kernel must answer for it with a reset: an end of file would cut the
// stream short.
void Stream::reset_if_killed(bool yes) noexcept {
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
void Stream::leave(Reason reason) noexcept {
  if (resume_sent_ || !token_sent_) return;
  leave_reason_ = reason;
  const State from = state();
  if (from != State::kSwitching && from != State::kOnChannel) return;
  step(resume_seen_ ? StreamEvent::kPeerResume : StreamEvent::kLeave, reason);
  tx_ = Tx::kReplay;
  resume_sent_ = true;
  // Bytes in the ring that the program has not read come again over TCP, and so does the end.
  channel_->progress();
  const std::uint64_t consumed = token_seen_ ? channel_->rx_consumed() : 0;
  owed_ = token_seen_ ? channel_->rx_head() - consumed : 0;
  gave_back_ = came_again_ = false;
  left_at_ns_.store(sys::now_ns(), std::memory_order_relaxed);
  left_fin_at_ = std::exchange(fin_at_, kNoBoundary);
  deadline_ns_ = app_closed_ ? sys::now_ns() + kLingerTimeoutNs : kForever;
  // Without our promise the peer has written no frame, and writes none: it gives up when it reads
  // this. To wait for one behind more than can be peeked over would be to wait for the program.
  const bool answer = answered_;
  if (!answer && !resume_seen_) {
    boundary_ = kNoBoundary;
    resume_seen_ = true;
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

void Stream::push_replay() noexcept {
  if (state() != State::kResuming || !resume_sent_ || !resume_seen_) return;
  push_frames();
  if (frames_wait() || state() != State::kResuming) return;
  if (come_back_.filled < come_back_.size) return;  // it is still to come
  if (awaits_left() && !is_told()) return;
  if (replay_at_ == 0 || replay_at_ < peer_consumed_) {
    // What we have said ourselves may be out of date: said_left_.
    if (peer_consumed_ > channel_->tx_posted() ||
        (peer_consumed_ < channel_->tx_consumed() && !said_left_)) {
      break_connection(ECONNRESET, Reason::kBadRequest);
      return;
    }
    replay_at_ = peer_consumed_;
  }
  const WithoutNagle now(fd());
  if (!push_passage(come_back_)) return;
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

void Stream::back_on_tcp() noexcept {
  step(StreamEvent::kResumed, leave_reason_);
  kept_a_fork_waiting.store(false, std::memory_order_relaxed);
  tx_ = Tx::kTcp;
  replay_at_ = 0;
  gave_back_ = false;
  again_of_ring_ = 0;
  fin_at_ = kNoBoundary;  // what came while we were leaving
  given_back_ = Passage();
  come_back_ = Passage();
  channel_.reset();
  slot_->counts.resumptions.fetch_add(1, std::memory_order_relaxed);
  deadline_ns_ = app_closed_ ? sys::now_ns() + kLingerTimeoutNs : kForever;
  publish_identity();
  // The kernel answers an exit with unread bytes by a reset: also where those are on their way here.
  if (leave_reason_ != Reason::kExit || unread_on_tcp() >= owed_) reset_if_killed(false);
  if (fin_sent_ || pending_shut_wr_) {
    pending_shut_wr_ = fin_sent_ = false;
    sys::shutdown(fd(), SHUT_WR);
  }
  plan_after_return();
  settle_kernel_only();
  wake_all();
}

}  // namespace ringroad
