// Promotion: the announcements, answers and tokens that move a stream to its channel.
#include <algorithm>
#include <cassert>
#include <cerrno>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/tcp_counters.h"
#include "rsocket-core/stream/stream_transitions.h"

namespace ringroad {

void StreamTransitions::step(StreamEvent event, Reason reason) noexcept {
  const State from = state();
  State to = next_state(from, event);
  if (to == State::kCount) {
#ifdef RINGROAD_CHECKS
    assert(false && "a transition that the table does not know");
#endif
    to = State::kReset;
    protocol_.apply(SwitchEvent::kBroken);
    standing_.set_error(ECONNRESET);
  }
  const auto moves = [](State s) { return s == State::kSwitching || s == State::kResuming; };
  if (moves(from) != moves(to)) switches_.fetch_add(moves(to) ? 1 : -1, std::memory_order_relaxed);
  standing_.move(from, to);
  // A send that is still inside must not wait for the carrier to change: it will not.
  if (to == State::kClosed && !protocol_.sends_to_ring() && !kernel_takes_bytes()) {
    protocol_.apply(SwitchEvent::kBroken);
  }
  if (reason != Reason::kNone || to == State::kOnChannel) reason_ = reason;
  publish_state();
  // A program's call may have come before the agent, which then has nothing more to wake it.
  if (moves(from) || from == State::kOnChannel) attend();
}

void StreamTransitions::settle_kernel_only() noexcept {
  const bool kernel = state() == State::kOnTcp && retry_.stopped() && channel_ == nullptr &&
                      boundary_ == kNoBoundary && !remembers() && kernel_takes_bytes() &&
                      standing_.error() == 0;  // the kernel has forgotten it
  if (kernel && shut_rd_ && !kernel_shut_rd_) {
    sys::shutdown(fd(), SHUT_RD);
    kernel_shut_rd_ = true;
  }
  if (kernel != kernel_only_.load(std::memory_order_relaxed)) kernel_only_.store(kernel);
}

void StreamTransitions::check() noexcept {
#ifdef RINGROAD_CHECKS
  const State now = state();
  assert(boundary_ == kNoBoundary || tcp_rx_ <= boundary_);
  const SendState send = protocol_.send();
  assert(now != State::kOnChannel || (channel_ != nullptr && protocol_.token_seen()));
  assert((now == State::kOnChannel) == (send == SendState::kChannel) || now == State::kClosed);
  assert(now != State::kOnChannel || verified_ > 0 || tcp_rx_ == boundary_);
  assert(now != State::kOnTcp || send == SendState::kTcp || send == SendState::kGaveUp);
  assert(now != State::kOnTcp || channel_ == nullptr);
  assert(send != SendState::kSecond || now == State::kClosed ||
         (now == State::kSwitching && role_ == Role::kAccept));
  assert((now == State::kResuming) == protocol_.returns());
  assert(role_ == Role::kConnect || !protocol_.token_sent() || protocol_.token_seen());
  if (channel_ != nullptr) {
    assert(channel_->tx_head() - channel_->tx_consumed() <= channel_->ring_bytes());
    assert(channel_->rx_head() - channel_->rx_consumed() <= channel_->ring_bytes());
  }
#endif
}

// ---- Promotion

bool StreamTransitions::kernel_counted_the_same() const noexcept {
  return tcp_counters_are(fd(), role_ == Role::kConnect, tcp_tx_, tcp_rx_);
}

// Nothing more of the program's goes to TCP from here on. Say where that is.
void StreamTransitions::freeze() noexcept {
  protocol_.apply(SwitchEvent::kAnnounce);
  frozen_at_ = tcp_tx_;
  wrote_since_freeze_ = false;
  // The program cannot write until the other end's has read.
  if (role_ == Role::kConnect) deadline_ns_ = sys::now_ns() + kAnswerTimeoutNs;
  ControlMessage announce;
  announce.type = static_cast<std::uint8_t>(ControlType::kSwitch);
  announce.value = frozen_at_;
  if (role_ == Role::kConnect) announce.proof = channel_->switch_proof();
  if (!channel_->send_control(announce)) abort_switch(Reason::kQpError);
}

void StreamTransitions::take_in_channel() noexcept {
  if (channel_ != nullptr) channel_->progress();
  ControlMessage m;
  while (channel_ != nullptr && channel_->take_control(m)) on_control(m);
}

void StreamTransitions::on_control(const ControlMessage& m) noexcept {
  switch (static_cast<ControlType>(m.type)) {
    case ControlType::kSwitch:
      if (state() == State::kSwitching && protocol_.may(SwitchEvent::kSwitchHeard)) {
        // The listener has proved itself in its answer.
        const Proof wanted = role_ == Role::kAccept ? channel_->switch_proof() : 0;
        if (!same_proof(m.proof, wanted)) {
          leave_or_give_up(Reason::kWrongKey);
          return;
        }
        protocol_.apply(SwitchEvent::kSwitchHeard);
        peer_s_ = m.value;
        answer_switch();
      } else if (state() != State::kResuming) {
        channel_->fail(Reason::kBadRequest);
      }
      return;
    case ControlType::kSwitchAck:
      if (m.value == frozen_at_ && protocol_.apply(SwitchEvent::kAckHeard)) {
        std::uint8_t token[kTokenBytes];
        encode_token(peer_nonce_, token);
        deadline_ns_ = sys::now_ns() + kSwitchTimeoutNs;
        queue_frame(token, sizeof token);
        maybe_switched();
      } else if (state() != State::kResuming) {
        channel_->fail(Reason::kBadRequest);
      }
      return;
    case ControlType::kGiveUp:
      set_peer_reason(reason_from_wire(m.reason));
      if (state() != State::kSwitching) return;
      leave_or_give_up(Reason::kPeerGaveUp);
      if (protocol_.gave_up() && !protocol_.token_seen()) {
        // A peer that says this has not written its token and never will: nothing is left to look for.
        protocol_.apply(SwitchEvent::kNoFrame);
        boundary_ = kNoBoundary;
        verified_ = 0;
        settle_kernel_only();
      }
      return;
    case ControlType::kFin:
      // Only one that has seen our token has sent anything that it could end.
      if (!protocol_.token_sent() || fin_at_ != kNoBoundary || m.value < channel_->rx_head() ||
          m.value - channel_->rx_consumed() > channel_->ring_bytes()) {
        channel_->fail(Reason::kBadRequest);
      } else {
        fin_at_ = m.value;
        if (m.reason == static_cast<std::uint8_t>(Reason::kClosing)) {
          standing_.mark(StateWord::kPeerClosing);
        } else {
          standing_.unmark(StateWord::kPeerClosing);
        }
        // A thread that read the last bytes before knowing that has told the peer of it when it must; now the
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
void StreamTransitions::answer_switch() noexcept {
  if (state() != State::kSwitching || !protocol_.may(SwitchEvent::kPromise)) return;
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
      role_ == Role::kAccept || !channel_->agreement().has(Feature::kGivenBack);
  if (must_be_read && unread > 0) {
    if (!waits_for_reader_) deadline_ns_ = sys::now_ns() + kReadTimeoutNs;
    waits_for_reader_ = true;
    return;
  }
  if (waits_for_reader_) deadline_ns_ = sys::now_ns() + kSwitchTimeoutNs;
  waits_for_reader_ = false;
  if (unread > kMaxPeekBytes) return;
  if (!tcp_has_room_behind(fd(), unread)) return;
  protocol_.apply(SwitchEvent::kPromise);
  ControlMessage ack;
  ack.type = static_cast<std::uint8_t>(ControlType::kSwitchAck);
  ack.value = peer_s_;
  if (!channel_->send_control(ack)) leave_or_give_up(Reason::kQpError);
}

void StreamTransitions::maybe_switched() noexcept {
  if (protocol_.send() != SendState::kToken || !protocol_.token_seen()) return;
  if (frames_wait()) return;  // our token is not all in the kernel yet
  if (!protocol_.apply(SwitchEvent::kEnter)) return;
  deadline_ns_ = kForever;
  step(StreamEvent::kSwitched, Reason::kNone);
  count_promotion();
  retry_.on_channel(sys::now_ns());
  past_.watched = host_->sees_waits();
  past_.unread_since_ns = past_.since_ns = past_.rests_until_ns = 0;
  past_.looked_at = 0;
  past_.look_pause_ns = kUnseenNs;
  past_.at_ns = kForever;
  set_peer_reason(Reason::kNone);
  if (pending_shut_wr_) send_fin();
  if (app_closed_) deadline_ns_ = linger_ends_ns();
  if (leaves_behind_token_ != Reason::kNone) leave_or_give_up(leaves_behind_token_);
  wake_all();
}

// The promotion ends before our token is written: simply go on at S.
void StreamTransitions::abort_switch(Reason reason) noexcept {
  if (state() != State::kSwitching || !protocol_.may(SwitchEvent::kGiveUp)) return;
  if (channel_ != nullptr && !channel_->failed()) {
    ControlMessage m;
    m.type = static_cast<std::uint8_t>(ControlType::kGiveUp);
    m.reason = static_cast<std::uint8_t>(reason);
    channel_->send_control(m);
  }
  step(StreamEvent::kGiveUp, reason);
  const auto todo = protocol_.apply(SwitchEvent::kGiveUp);
  wrote_since_freeze_ = false;
  if (todo && todo->has(SwitchAction::kForgetBoundary)) boundary_ = kNoBoundary;
  deadline_ns_ = linger_ends_ns();
  channel_.reset();
  publish_identity();
  retry_.after_give_up(reason, peer_reason(), sys::now_ns());
  if (pending_shut_wr_) {
    pending_shut_wr_ = false;
    sys::shutdown(fd(), SHUT_WR);
  }
  settle_kernel_only();
  wake_all();
}

// The peer's token, and its RESUME behind it, will stand in the kernel behind bytes that the program has not
// read, and perhaps a child or another program will. Once the token is here those bytes can be given back.
bool StreamTransitions::token_comes_behind_unread() const noexcept {
  return state() == State::kSwitching && protocol_.send() == SendState::kToken &&
         protocol_.receive() == ReceiveState::kPromised && tcp_rx_ < boundary_ && !channel_->failed() &&
         channel_->agreement().has(Feature::kGivenBack);
}

// leave_or_give_up() for this process's own reasons, which have the time that a switch takes.
void StreamTransitions::leave_behind_token(Reason reason) noexcept {
  if (token_comes_behind_unread()) {
    leaves_behind_token_ = reason;
  } else {
    leave_or_give_up(reason);
  }
}

void StreamTransitions::leave_or_give_up(Reason reason) noexcept {
  switch (state()) {
    case State::kConnecting:
      step(StreamEvent::kRefused, reason);
      retry_.after_refusal(reason, Reason::kNone, sys::now_ns());
      settle_kernel_only();
      break;
    case State::kSwitching:
    case State::kOnChannel: {
      const SwitchActions todo = protocol_.apply(SwitchEvent::kLeave).value_or(SwitchActions());
      if (todo.has(SwitchAction::kDoReturn)) demote(reason);
      if (todo.has(SwitchAction::kDoGiveUp)) abort_switch(reason);
      break;
    }
    default:
      break;
  }
}

}  // namespace ringroad
