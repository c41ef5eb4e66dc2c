// Who carries the bytes: promotion, the exchange of tokens, and the way back to TCP.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>

#include "rsocket-core/stream.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/tcp_counters.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
constexpr unsigned kMaxRetries = 6;

bool tcp_established(int fd) noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  return sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         info.tcpi_state == TCP_ESTABLISHED;
}

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

// Whether another attempt, later, may fare better.
bool passing(Reason reason) noexcept {
  switch (reason) {
    case Reason::kBusy:
    case Reason::kTimeout:
    case Reason::kNoMemory:
    case Reason::kNoDescriptors:
    case Reason::kPeerGaveUp:
    case Reason::kQpError:
    case Reason::kPeerGone:
      return true;
    default:
      return false;
  }
}

}  // namespace

void Stream::step(StreamEvent event, Reason reason) noexcept {
  const State from = state();
  State to = next_state(from, event);
  if (to == State::kCount) {
#ifdef RINGROAD_CHECKS
    assert(!"a transition that the table does not know");
#endif
    to = State::kReset;
    tx_ = Tx::kDead;
    error_.store(ECONNRESET, std::memory_order_relaxed);
  }
  state_.store(to, std::memory_order_release);
  if (reason != Reason::kNone || to == State::kOnChannel) reason_ = reason;
  publish_state();
}

void Stream::settle_kernel_only() noexcept {
  const bool kernel = state() == State::kOnTcp && pinned_ && channel_ == nullptr &&
                      boundary_ == kNoBoundary && tx_ == Tx::kTcp;
  if (kernel && shut_rd_) sys::shutdown(fd(), SHUT_RD);  // the kernel need not know it yet
  kernel_only_.store(kernel, std::memory_order_release);
}

// ---- Promotion

Reason Stream::may_promote() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (app_closed_ || shut_wr_ || shut_rd_) return Reason::kClosing;
  if (pinned_) return reason() == Reason::kPending ? Reason::kPolicy : reason();
  if (state() != State::kOnTcp || gave_up_ || boundary_ != kNoBoundary) return Reason::kBusy;
  if (!tcp_established(fd())) return Reason::kClosing;
  if (!tcp_counters_are(fd(), tcp_tx_, tcp_rx_)) return Reason::kUntrackedIo;
  return Reason::kNone;
}

Reason Stream::promotion_started(const Nonce& nonce) noexcept {
  const Reason why_not = may_promote();
  if (why_not != Reason::kNone) return why_not;
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (state() != State::kOnTcp || pinned_ || app_closed_) return Reason::kBusy;
  step(StreamEvent::kStart, Reason::kPending);
  nonce_ = nonce;
  peer_announced_ = answered_ = frozen_ = token_sent_ = token_seen_ = false;
  resume_sent_ = resume_seen_ = wrote_since_freeze_ = false;
  pending_shut_wr_ = false;
  peer_s_ = peer_consumed_ = 0;
  verified_ = 0;
  fin_sent_ = false;
  fin_at_ = kNoBoundary;
  frames_size_ = frames_sent_ = 0;
  leave_reason_ = Reason::kNone;
  return Reason::kNone;
}

void Stream::promotion_refused(Reason reason, Reason peer_reason) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    slot_->peer_reason.store(static_cast<std::uint8_t>(peer_reason), std::memory_order_relaxed);
    if (segment_ != nullptr) {
      segment_->header().promotions_refused[static_cast<unsigned>(reason)].fetch_add(
          1, std::memory_order_relaxed);
    }
    if (state() == State::kConnecting) {
      step(StreamEvent::kRefused, reason);
    } else if (state() == State::kOnTcp && !pinned_) {
      reason_ = reason;
    }
    const bool again = passing(reason) || passing(peer_reason);
    if (role_ == StreamRole::kConnect && state() == State::kOnTcp) {
      if (again && retries_ < kMaxRetries) {
        retry_at_uses_.store(uses_.load(std::memory_order_relaxed) + (64U << retries_++),
                             std::memory_order_relaxed);
        promotion_asked_.store(false, std::memory_order_relaxed);
      } else {
        pinned_ = true;
      }
    }
    settle_kernel_only();
    publish_state();
  }
  wake_all();
}

void Stream::channel_up(std::unique_ptr<Channel> channel, const Nonce& peer_nonce) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (state() != State::kConnecting) return;  // cancelled meanwhile; the peer sees it go
    peer_nonce_ = peer_nonce;
    Reason why_not = Reason::kNone;
    if (app_closed_ || shut_wr_ || shut_rd_) why_not = Reason::kClosing;
    if (pinned_) why_not = reason();
    // Nothing is between the locks and the kernel now, so this count holds until the switch.
    if (why_not == Reason::kNone && !tcp_counters_are(fd(), tcp_tx_, tcp_rx_)) {
      why_not = Reason::kUntrackedIo;
    }
    if (why_not != Reason::kNone) {
      step(StreamEvent::kRefused, why_not);
      if (why_not == Reason::kUntrackedIo) pinned_ = true;
      settle_kernel_only();
    } else {
      channel_ = std::move(channel);
      step(StreamEvent::kChannelUp, Reason::kPending);
      deadline_ns_ = sys::now_ns() + kSwitchTimeoutNs;
      // The end that was asked goes second: it freezes and writes only for one that has proved, by
      // its token, that it holds the connection.
      if (role_ == StreamRole::kConnect) freeze();
      publish_identity();
      service_locked();
    }
  }
  wake_all();
}

// Nothing more of the program's goes to TCP from here on. Say where that is.
void Stream::freeze() noexcept {
  frozen_ = true;
  tx_ = Tx::kFrozen;
  frozen_at_ = tcp_tx_;
  wrote_since_freeze_ = false;
  ControlMessage announce;
  announce.type = static_cast<std::uint8_t>(ControlType::kSwitch);
  announce.value = frozen_at_;
  if (!channel_->send_control(announce)) give_up(Reason::kQpError);
}

void Stream::on_control(const ControlMessage& m) noexcept {
  switch (static_cast<ControlType>(m.type)) {
    case ControlType::kSwitch:
      if (state() == State::kSwitching && !peer_announced_ &&
          (role_ == StreamRole::kAccept || token_sent_)) {
        peer_announced_ = true;
        peer_s_ = m.value;
        answer_switch();
      } else if (state() != State::kResuming) {
        channel_->fail(Reason::kBadRequest);
      }
      return;
    case ControlType::kSwitchAck:
      if (state() == State::kSwitching && tx_ == Tx::kFrozen && m.value == frozen_at_) {
        std::uint8_t token[kTokenBytes];
        encode_token(peer_nonce_, token);
        tx_ = Tx::kToken;
        token_sent_ = true;
        queue_frame(token, sizeof token);
        maybe_switched();
      } else if (state() != State::kResuming) {
        channel_->fail(Reason::kBadRequest);
      }
      return;
    case ControlType::kGiveUp:
      slot_->peer_reason.store(static_cast<std::uint8_t>(reason_from_wire(m.reason)),
                               std::memory_order_relaxed);
      if (state() != State::kSwitching) return;
      leave_or_give_up(Reason::kPeerGaveUp);
      if (gave_up_ && !token_seen_) {
        // Whoever says this has not written its token and never will: nothing is left to look for.
        boundary_ = kNoBoundary;
        verified_ = 0;
        gave_up_ = false;
        settle_kernel_only();
      }
      return;
    case ControlType::kFin:
      if (fin_at_ != kNoBoundary || m.value < channel_->rx_head() ||
          m.value - channel_->rx_consumed() > channel_->ring_bytes()) {
        channel_->fail(Reason::kBadRequest);
      } else {
        fin_at_ = m.value;
      }
      return;
    case ControlType::kCredit:
      break;
  }
  channel_->fail(Reason::kBadRequest);
}

// The peer froze at peer_s_. Promise not to read past it, once little enough is unread before it.
void Stream::answer_switch() noexcept {
  if (answered_ || !peer_announced_ || state() != State::kSwitching) return;
  if (tcp_rx_ > peer_s_) {
    // We have read bytes that it wrote after it froze: it gave up, and the message that says so is
    // on its way.
    leave_or_give_up(Reason::kPeerGaveUp);
    return;
  }
  boundary_ = peer_s_;
  if (peer_s_ - tcp_rx_ > kMaxPeekBytes) return;  // service() tries again as the program reads
  answered_ = true;
  ControlMessage ack;
  ack.type = static_cast<std::uint8_t>(ControlType::kSwitchAck);
  ack.value = peer_s_;
  if (!channel_->send_control(ack)) leave_or_give_up(Reason::kQpError);
}

void Stream::maybe_switched() noexcept {
  if (state() != State::kSwitching || !token_sent_ || !token_seen_) return;
  if (frames_sent_ < frames_size_) return;  // our token is not all in the kernel yet
  tx_ = Tx::kChannel;
  deadline_ns_ = kForever;
  step(StreamEvent::kSwitched, Reason::kNone);
  slot_->promotions.fetch_add(1, std::memory_order_relaxed);
  if (segment_ != nullptr) {
    segment_->header().streams_promoted.fetch_add(1, std::memory_order_relaxed);
  }
  retries_ = 0;
  if (pending_shut_wr_) send_fin();
  if (app_closed_) deadline_ns_ = sys::now_ns() + kLingerTimeoutNs;
  wake_all();
}

// ---- Frames in the TCP stream

void Stream::queue_frame(const std::uint8_t* bytes, std::size_t n) noexcept {
  if (frames_sent_ == frames_size_) frames_sent_ = frames_size_ = 0;
  if (frames_size_ + n > sizeof frames_) return;  // one token and two RESUMEs fit; more cannot be
  std::memcpy(frames_ + frames_size_, bytes, n);
  frames_size_ += n;
  push_frames();
}

void Stream::push_frames() noexcept {
  if (frames_sent_ == frames_size_) return;
  const WithoutNagle now(fd());
  while (frames_sent_ < frames_size_) {
    const ssize_t n = sys::send(fd(), frames_ + frames_sent_, frames_size_ - frames_sent_,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno != EAGAIN && errno != EINTR) break_connection(errno, Reason::kPeerGone);
      break;
    }
    frames_sent_ += static_cast<std::size_t>(n);
    tcp_tx_ += static_cast<std::uint64_t>(n);
  }
}

// Looks at the place where the peer's frames may stand, over the application's bytes before it.
void Stream::scan_frames() noexcept {
  for (int round = 0; round < 4; ++round) {
    skip_verified();
    // Behind its RESUME the peer's bytes are the program's again.
    if (boundary_ == kNoBoundary || resume_seen_ || state() == State::kReset) return;
    const std::uint64_t unread = boundary_ - tcp_rx_;
    if (unread > kMaxPeekBytes) return;
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
      if (!tcp_established(fd())) {
        pollfd state_of{fd(), POLLRDHUP, 0};
        timespec now{0, 0};
        if (sys::ppoll(&state_of, 1, &now, nullptr) > 0 &&
            (state_of.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 && seen == before) {
          tcp_ended(0);
        }
      }
      return;
    }
    ResumeFrame resume;
    switch (match_frame(nonce_, bytes + before, seen - before, resume)) {
      case FrameMatch::kPartial:
        return;
      case FrameMatch::kToken:
        if (token_seen_ || resume_seen_) return break_connection(ECONNRESET, Reason::kBadRequest);
        verified_ += kTokenBytes;
        frame_token();
        break;
      case FrameMatch::kResume:
        if (resume_seen_) return break_connection(ECONNRESET, Reason::kBadRequest);
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
    if (tcp_counters_are(fd(), tcp_tx_, tcp_rx_)) {
      freeze();
    } else {
      give_up(Reason::kUntrackedIo);
      pinned_ = true;
    }
  }
  maybe_switched();
}

void Stream::frame_resume(const ResumeFrame& frame) noexcept {
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
  if (!frozen_ || wrote_since_freeze_ || resume_sent_) return;
  std::uint8_t frame[kResumeBytes];
  encode_resume(peer_nonce_, ResumeFrame{0, reason(), false}, frame);
  resume_sent_ = true;
  queue_frame(frame, sizeof frame);
}

// Application bytes at the boundary.
void Stream::frame_other() noexcept {
  if (token_seen_ && !resume_seen_) {
    // Behind its token a peer may write nothing but RESUME: bytes are never guessed.
    break_connection(ECONNRESET, Reason::kForged);
    return;
  }
  // The peer gave up before its token and simply went on.
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

void Stream::tcp_ended(int error) noexcept {
  if (channel_ != nullptr) {
    channel_->progress();
    ControlMessage m;
    while (channel_->take_control(m)) on_control(m);
  }
  if (error == 0) {
    socklen_t length = sizeof error;
    sys::getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (state() == State::kOnChannel && fin_at_ == kNoBoundary && error == 0 &&
      channel_->outlives_peer() && channel_->tx_consumed() == channel_->tx_head()) {
    // Killed. All that it sent is in the ring, and it had read all that we sent: the kernel would
    // say end of file (with bytes unread it would say reset).
    fin_at_ = channel_->rx_head();
  }
  if (state() == State::kOnChannel && fin_at_ != kNoBoundary && error == 0) {
    peer_closed_ = true;  // orderly: what is in the ring is still the program's
    wake_all();
    return;
  }
  if (state() == State::kOnTcp) {
    // A given-up promotion whose peer closed: an ordinary end of file.
    boundary_ = kNoBoundary;
    verified_ = 0;
    gave_up_ = false;
    if (error != 0) error_.store(error, std::memory_order_relaxed);
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
  break_connection(error != 0 ? error : ECONNRESET, Reason::kPeerGone);
}

void Stream::break_connection(int error, Reason reason) noexcept {
  if (state() == State::kReset || state() == State::kClosed) return;
  if (channel_ != nullptr) channel_->fail(reason);
  step(StreamEvent::kBroken, reason);
  tx_ = Tx::kDead;
  error_.store(error, std::memory_order_relaxed);
  kernel_only_.store(false, std::memory_order_release);
  deadline_ns_ = kForever;
  // Let the peer know at once, and the kernel's socket agree with what we report.
  sys::shutdown(fd(), SHUT_RDWR);
  wake_all();
}

// ---- Back to TCP

// The promotion ends before our token is written: simply go on at S.
void Stream::give_up(Reason reason) noexcept {
  if (state() != State::kSwitching || token_sent_) return;
  if (channel_ != nullptr && !channel_->failed()) {
    ControlMessage m;
    m.type = static_cast<std::uint8_t>(ControlType::kGiveUp);
    m.reason = static_cast<std::uint8_t>(reason);
    channel_->send_control(m);
  }
  step(StreamEvent::kGiveUp, reason);
  tx_ = Tx::kTcp;
  wrote_since_freeze_ = false;
  // The peer may have written its token already, if we promised not to read past it.
  gave_up_ = answered_ && !resume_seen_;
  if (!answered_) boundary_ = kNoBoundary;
  deadline_ns_ = app_closed_ ? sys::now_ns() + kLingerTimeoutNs : kForever;
  channel_.reset();
  publish_identity();
  if (role_ == StreamRole::kConnect && retries_ < kMaxRetries) {
    retry_at_uses_.store(uses_.load(std::memory_order_relaxed) + (64U << retries_++),
                         std::memory_order_relaxed);
    promotion_asked_.store(false, std::memory_order_relaxed);
  }
  if (pending_shut_wr_) {
    pending_shut_wr_ = false;
    sys::shutdown(fd(), SHUT_WR);
  }
  settle_kernel_only();
  wake_all();
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
  const std::uint64_t consumed = token_seen_ ? channel_->rx_consumed() : 0;
  fin_at_ = kNoBoundary;
  deadline_ns_ = app_closed_ ? sys::now_ns() + kLingerTimeoutNs : kForever;
  // The place of the peer's frames is known as soon as it has announced it, promise or not. Before
  // that it has written none, and writes none: it gives up when it reads this.
  const bool answer = boundary_ != kNoBoundary;
  if (!answer && !resume_seen_) {
    resume_seen_ = true;
    peer_consumed_ = 0;
  }
  std::uint8_t frame[kResumeBytes];
  encode_resume(peer_nonce_, ResumeFrame{consumed, reason, answer}, frame);
  queue_frame(frame, sizeof frame);
  wake_all();
  push_replay();
}

void Stream::leave_or_give_up(Reason reason) noexcept {
  switch (state()) {
    case State::kConnecting:
      step(StreamEvent::kRefused, reason);
      settle_kernel_only();
      break;
    case State::kSwitching:
      if (token_sent_) {
        leave(reason);
      } else {
        give_up(reason);
      }
      break;
    case State::kOnChannel:
      leave(reason);
      break;
    default:
      break;
  }
}

void Stream::push_replay() noexcept {
  if (state() != State::kResuming || !resume_sent_ || !resume_seen_) return;
  push_frames();
  if (frames_sent_ < frames_size_ || state() != State::kResuming) return;
  if (replay_at_ == 0 || replay_at_ < peer_consumed_) {
    if (peer_consumed_ > channel_->tx_posted() || peer_consumed_ < channel_->tx_consumed()) {
      break_connection(ECONNRESET, Reason::kBadRequest);
      return;
    }
    replay_at_ = peer_consumed_;
  }
  const WithoutNagle now(fd());
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
  tx_ = Tx::kTcp;
  replay_at_ = 0;
  channel_.reset();
  slot_->resumptions.fetch_add(1, std::memory_order_relaxed);
  deadline_ns_ = app_closed_ ? sys::now_ns() + kLingerTimeoutNs : kForever;
  publish_identity();
  if (fin_sent_ || pending_shut_wr_) {
    pending_shut_wr_ = fin_sent_ = false;
    sys::shutdown(fd(), SHUT_WR);
  }
  // The stream was on its channel once and left it; until promotion again is part of the
  // protocol's proof it stays.
  pinned_ = true;
  settle_kernel_only();
  wake_all();
}

// ---- The end

void Stream::send_fin() noexcept {
  if (fin_sent_ || tx_ != Tx::kChannel || channel_ == nullptr) return;
  ControlMessage m;
  m.type = static_cast<std::uint8_t>(ControlType::kFin);
  m.value = channel_->tx_head();
  channel_->flush();
  if (channel_->send_control(m)) {
    fin_sent_ = true;
    pending_shut_wr_ = false;
  }
}

bool Stream::settled() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  return channel_ == nullptr || state() == State::kReset || state() == State::kClosed;
}

// The program has closed; are all its bytes where they can do without this process?
void Stream::finish_linger() noexcept {
  if (!app_closed_ || state() == State::kClosed) return;
  bool done = false;
  switch (state()) {
    case State::kOnTcp:
      // A peer that has yet to hear that we gave up may have its token on the way, and would get a
      // reset for it.
      done = frames_sent_ == frames_size_ && !gave_up_;
      break;
    case State::kOnChannel:
      if (pending_shut_wr_) send_fin();
      channel_->flush();
      done = peer_closed_ || (fin_sent_ && channel_->tx_posted() == channel_->tx_head() &&
                              channel_->delivered());
      break;
    case State::kReset:
      done = true;
      break;
    default:
      break;
  }
  if (!done && sys::now_ns() >= deadline_ns_) {
    if (state() != State::kOnTcp || frames_sent_ < frames_size_) {
      const linger cut{1, 0};
      sys::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
    }
    done = true;
  }
  if (done) {
    step(StreamEvent::kFinished, Reason::kClosing);
    deadline_ns_ = kForever;
  }
}

// ---- The agent's view

void Stream::service() noexcept {
  const int saved = errno;
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    service_locked();
  }
  errno = saved;
}

void Stream::service_locked() noexcept {
  if (state() == State::kClosed) return;
  push_frames();
  maybe_switched();
  if (channel_ != nullptr && state() != State::kReset) {
    channel_->progress();
    ControlMessage m;
    while (channel_ != nullptr && channel_->take_control(m)) on_control(m);
    if (channel_ != nullptr && tx_ == Tx::kChannel) channel_->flush();
  }
  answer_switch();
  if (boundary_ != kNoBoundary) scan_frames();
  if (channel_ != nullptr && channel_->failed() &&
      (state() == State::kSwitching || state() == State::kOnChannel) && !peer_closed_) {
    // An orderly end closes the channel too: then the end of the TCP connection follows.
    if (fin_at_ != kNoBoundary && channel_->failure() == Reason::kPeerGone) {
      peer_closed_ = true;
      wake_all();
    } else {
      leave_or_give_up(channel_->failure());
    }
  }
  push_replay();
  finish_linger();
  if (state() == State::kOnTcp) settle_kernel_only();
  check();
}

StreamInterest Stream::interest() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  StreamInterest want;
  want.deadline_ns = deadline_ns_;
  switch (state()) {
    case State::kOnTcp:
      want.tcp_in = gave_up_ || boundary_ != kNoBoundary;
      want.tcp_out = frames_sent_ < frames_size_;
      want.done = !want.tcp_in && !want.tcp_out;
      break;
    case State::kConnecting:
      break;
    case State::kSwitching:
      want.tcp_in = true;
      want.tcp_out = frames_sent_ < frames_size_;
      want.channel = true;
      break;
    case State::kOnChannel:
      want.tcp_in = !peer_closed_;
      want.channel = app_closed_ || pending_shut_wr_ ||
                     channel_->tx_posted() != channel_->tx_head();
      break;
    case State::kResuming:
      want.tcp_in = true;
      want.tcp_out = frames_sent_ < frames_size_ || resume_seen_;
      break;
    case State::kReset:
    case State::kClosed:
    case State::kCount:
      want.done = true;
      break;
  }
  return want;
}

bool Stream::arm_channel() noexcept {
  MutexLock rx(rx_mutex_);
  return channel_ == nullptr || channel_->arm();
}

void Stream::drain_channel() noexcept {
  {
    MutexLock rx(rx_mutex_);
    if (channel_ == nullptr) return;
    channel_->drain();
    channel_->progress();
  }
  waiters_.wake(POLLIN | POLLOUT);
}

void Stream::watch_tcp(int epoll_fd, std::uint64_t cookie, std::uint32_t events) noexcept {
  // Under the locks, so that the number cannot be closed and reused meanwhile.
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (fd() < 0) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = cookie;
  if (events == 0) {
    sys::epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd(), &event);
  } else if (sys::epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd(), &event) != 0 && errno == ENOENT) {
    sys::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd(), &event);
  }
}

int Stream::channel_fd() noexcept {
  MutexLock rx(rx_mutex_);
  return channel_ == nullptr ? -1 : channel_->wait_fd();
}

void Stream::leave_channel(Reason reason) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    leave_or_give_up(reason);
  }
  host_->attend(*this);
}

void Stream::deadline_passed() noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (sys::now_ns() < deadline_ns_) return;
    deadline_ns_ = kForever;
    if (state() == State::kSwitching) {
      leave_or_give_up(Reason::kTimeout);
    } else if (app_closed_) {
      deadline_ns_ = 0;
      finish_linger();
    }
  }
  service();
}

}  // namespace ringroad
