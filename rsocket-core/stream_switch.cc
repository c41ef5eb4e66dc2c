// Promotion: the announcements, answers and tokens that move a stream to its channel.
#include <linux/sockios.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "rsocket-core/stream.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/tcp_counters.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
}  // namespace

void Stream::step(StreamEvent event, Reason reason) noexcept {
  const State from = state();
  State to = next_state(from, event);
  if (to == State::kCount) {
#ifdef RINGROAD_CHECKS
    assert(false && "a transition that the table does not know");
#endif
    to = State::kReset;
    tx_ = Tx::kDead;
    standing_.set_error(ECONNRESET);
  }
  const auto moves = [](State s) { return s == State::kSwitching || s == State::kResuming; };
  if (moves(from) != moves(to)) switches_.fetch_add(moves(to) ? 1 : -1, std::memory_order_relaxed);
  standing_.move(from, to);
  // A send that is still inside must not wait for the carrier to change: it will not.
  if (to == State::kClosed && tx_ != Tx::kChannel && !kernel_takes_bytes()) tx_ = Tx::kDead;
  if (reason != Reason::kNone || to == State::kOnChannel) reason_ = reason;
  publish_state();
  // A program's call may have come before the agent, which then has nothing more to wake it.
  if (moves(from) || from == State::kOnChannel) host_->attend(*this);
}

void Stream::settle_kernel_only() noexcept {
  const bool kernel = state() == State::kOnTcp && pinned_ && channel_ == nullptr &&
                      boundary_ == kNoBoundary && !remembers() && kernel_takes_bytes() &&
                      standing_.error() == 0;  // the kernel has forgotten it
  if (kernel && shut_rd_ && !kernel_shut_rd_) {
    sys::shutdown(fd(), SHUT_RD);
    kernel_shut_rd_ = true;
  }
  if (kernel != kernel_only_.load(std::memory_order_relaxed)) kernel_only_.store(kernel);
}

// ---- Promotion

bool Stream::kernel_counted_the_same() const noexcept {
  return tcp_counters_are(fd(), role_ == StreamRole::kConnect, tcp_tx_, tcp_rx_);
}

Reason Stream::may_promote() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (app_closed_ || shut_wr() || shut_rd_) return Reason::kClosing;
  if (guests_.load(std::memory_order_acquire) != 0) return Reason::kBusy;
  if (pinned_) return reason() == Reason::kPending ? Reason::kPolicy : reason();
  if (kept() != Reason::kNone) return kept();
  if (state() != State::kOnTcp || gave_up_ || boundary_ != kNoBoundary || remembers() ||
      !kernel_takes_bytes()) {
    return Reason::kBusy;
  }
  if (!tcp_established(fd())) return Reason::kClosing;
  if (shared()) {
    if (const Reason why_not = become_alone(); why_not != Reason::kNone) return why_not;
  }
  if (!kernel_counted_the_same()) return Reason::kUntrackedIo;
  if (unproven_ && tcp_tx_ + tcp_rx_ == counted_from_) return Reason::kBusy;
  unproven_ = false;
  return Reason::kNone;
}

bool Stream::all_read() noexcept {
  MutexLock rx(rx_mutex_);
  int unread = 0;
  tell_when_read_ = guests_.load(std::memory_order_acquire) != 0 || remembers() ||
                    (sys::ioctl(fd(), SIOCINQ, &unread) == 0 && unread > 0);
  return !tell_when_read_;
}

bool Stream::read_since_asked() noexcept {
  MutexLock rx(rx_mutex_);
  return std::exchange(read_since_asked_, false);
}

Reason Stream::promotion_started(const Nonce& nonce) noexcept {
  Reason why_not = may_promote();
  if (why_not == Reason::kNone) why_not = why_unseen();
  if (why_not != Reason::kNone) return why_not;
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (state() != State::kOnTcp || pinned_ || app_closed_ || shared()) return Reason::kBusy;
  step(StreamEvent::kStart, Reason::kPending);
  known_to_agent_.store(true, std::memory_order_relaxed);
  nonce_ = nonce;
  peer_announced_ = answered_ = frozen_ = token_sent_ = token_seen_ = false;
  resume_sent_ = resume_seen_ = said_left_ = wrote_since_freeze_ = false;
  waits_for_reader_ = false;
  pending_shut_wr_ = false;
  peer_s_ = peer_consumed_ = 0;
  verified_ = 0;
  fin_sent_ = false;
  fin_at_ = left_fin_at_ = kNoBoundary;
  frames_size_ = frames_sent_ = 0;
  given_back_ = Passage();
  come_back_ = Passage();
  leave_reason_ = Reason::kNone;
  return Reason::kNone;
}

void Stream::promotion_refused(Reason reason, Reason peer_reason) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    slot_->peer_reason.store(static_cast<std::uint8_t>(peer_reason), std::memory_order_relaxed);
    if (segment_ != nullptr) {
      const auto why = static_cast<unsigned>(reason);
      stats::SegmentHeader& header = segment_->header();
      stats::refusals(header, why).fetch_add(1, std::memory_order_relaxed);
      stats::refusals(header, segment_->rule(rule_index_), rule_index_, why)
          .fetch_add(1, std::memory_order_relaxed);
    }
    if (state() == State::kConnecting) {
      step(StreamEvent::kRefused, reason);
    } else if (state() == State::kOnTcp && !pinned_) {
      reason_ = reason;
    }
    if (state() == State::kOnTcp) plan_after_refusal(reason, peer_reason);
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
    if (app_closed_ || shut_wr() || shut_rd_) why_not = Reason::kClosing;
    if (pinned_) why_not = reason();
    if (kept() != Reason::kNone) why_not = kept();
    // Nothing is between the locks and the kernel now, so this count holds until the switch.
    if (why_not == Reason::kNone && !kernel_counted_the_same()) {
      why_not = Reason::kUntrackedIo;
    }
    if (why_not != Reason::kNone) {
      step(StreamEvent::kRefused, why_not);
      if (why_not == Reason::kUntrackedIo) pinned_ = true;
      settle_kernel_only();
    } else {
      channel_ = std::move(channel);
      ++channel_generation_;
      const Channel::Near near = channel_->near();
      for (std::size_t i = 0; i < near.size(); ++i) near_[i].store(near[i], std::memory_order_relaxed);
      step(StreamEvent::kChannelUp, Reason::kPending);
      slot_->peer_reason.store(0, std::memory_order_relaxed);  // of an earlier request
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
  // The program cannot write until the other end's has read.
  if (role_ == StreamRole::kConnect) deadline_ns_ = sys::now_ns() + kAnswerTimeoutNs;
  ControlMessage announce;
  announce.type = static_cast<std::uint8_t>(ControlType::kSwitch);
  announce.value = frozen_at_;
  if (role_ == StreamRole::kConnect) announce.proof = channel_->switch_proof();
  if (!channel_->send_control(announce)) give_up(Reason::kQpError);
}

void Stream::on_control(const ControlMessage& m) noexcept {
  switch (static_cast<ControlType>(m.type)) {
    case ControlType::kSwitch:
      if (state() == State::kSwitching && !peer_announced_ &&
          (role_ == StreamRole::kAccept || token_sent_)) {
        // The listener has proved itself in its answer.
        const Proof wanted = role_ == StreamRole::kAccept ? channel_->switch_proof() : 0;
        if (!same_proof(m.proof, wanted)) {
          leave_or_give_up(Reason::kWrongKey);
          return;
        }
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
        deadline_ns_ = sys::now_ns() + kSwitchTimeoutNs;
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
      // Only one that has seen our token has sent anything that it could end.
      if (!token_sent_ || fin_at_ != kNoBoundary || m.value < channel_->rx_head() ||
          m.value - channel_->rx_consumed() > channel_->ring_bytes()) {
        channel_->fail(Reason::kBadRequest);
      } else {
        fin_at_ = m.value;
        if (m.reason == static_cast<std::uint8_t>(Reason::kClosing)) {
          standing_.mark(Standing::kPeerClosing);
        } else {
          standing_.unmark(Standing::kPeerClosing);
        }
        // Who read the last bytes before knowing that has told the peer of it when it must; now the
        // rest is told. Both hold this lock, so that one of them knows of the other.
        channel_->progress();
      }
      return;
    case ControlType::kLeft:
      return on_left(m);
    case ControlType::kCredit:
      break;
  }
  channel_->fail(Reason::kBadRequest);
}

// The peer froze at peer_s_. Promise not to read past it, once little enough is unread before it.
// From then on its frames must come through, even if the program writes and does not read.
void Stream::answer_switch() noexcept {
  if (answered_ || !peer_announced_ || state() != State::kSwitching) return;
  if (tcp_rx_ > peer_s_) {
    // We have read bytes that it wrote after it froze: it gave up, and the message that says so,
    // and why, is on its way or here.
    take_in_channel();
    if (state() == State::kSwitching) leave_or_give_up(Reason::kPeerGaveUp);
    return;
  }
  boundary_ = peer_s_;
  const std::uint64_t unread = peer_s_ - tcp_rx_;
  // service() tries again as bytes arrive and as the program reads. A server's sockets are what is left
  // to children and other programs: no frame must ever stand behind bytes that only those will read. The
  // other end does not leave one to them where it can give back what is unread.
  const bool must_be_read =
      role_ == StreamRole::kAccept || !channel_->agreement().has(Feature::kGivenBack);
  if (must_be_read && unread > 0) {
    if (!waits_for_reader_) deadline_ns_ = sys::now_ns() + kReadTimeoutNs;
    waits_for_reader_ = true;
    return;
  }
  if (waits_for_reader_) deadline_ns_ = sys::now_ns() + kSwitchTimeoutNs;
  waits_for_reader_ = false;
  if (unread > kMaxPeekBytes) return;
  if (!tcp_has_room_behind(fd(), unread)) return;
  answered_ = true;
  ControlMessage ack;
  ack.type = static_cast<std::uint8_t>(ControlType::kSwitchAck);
  ack.value = peer_s_;
  if (!channel_->send_control(ack)) leave_or_give_up(Reason::kQpError);
}

void Stream::maybe_switched() noexcept {
  if (state() != State::kSwitching || !token_sent_ || !token_seen_) return;
  if (frames_wait()) return;  // our token is not all in the kernel yet
  tx_ = Tx::kChannel;
  deadline_ns_ = kForever;
  step(StreamEvent::kSwitched, Reason::kNone);
  slot_->counts.promotions.fetch_add(1, std::memory_order_relaxed);
  if (segment_ != nullptr) {
    segment_->header().streams_promoted.fetch_add(1, std::memory_order_relaxed);
    segment_->rule(rule_index_).promoted.fetch_add(1, std::memory_order_relaxed);
  }
  retries_ = room_pauses_ = 0;
  hurries_.store(0, std::memory_order_relaxed);
  switched_ns_ = sys::now_ns();
  watched_ = host_->sees_waits();
  unread_since_ns_ = past_since_ns_ = rests_until_ns_ = 0;
  looked_at_ = 0;
  look_pause_ns_ = kUnseenNs;
  past_at_ns_ = kForever;
  slot_->peer_reason.store(0, std::memory_order_relaxed);
  if (pending_shut_wr_) send_fin();
  if (app_closed_) deadline_ns_ = sys::now_ns() + kLingerTimeoutNs;
  wake_all();
}

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
  plan_after_give_up(reason);
  if (pending_shut_wr_) {
    pending_shut_wr_ = false;
    sys::shutdown(fd(), SHUT_WR);
  }
  settle_kernel_only();
  wake_all();
}

void Stream::leave_or_give_up(Reason reason) noexcept {
  switch (state()) {
    case State::kConnecting:
      step(StreamEvent::kRefused, reason);
      plan_after_refusal(reason, Reason::kNone);
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

}  // namespace ringroad
