// What is done for a stream whenever something may have changed, its end in the background, and stalls.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/tcp_counters.h"
#include "rsocket-core/stream/stream_transitions.h"

namespace ringroad {
namespace {

constexpr std::int64_t kStallNs = 500'000'000;
constexpr std::uint64_t kMostMoved = 1 << 20;  // about what a socket holds

}  // namespace

// ---- The agent's view

void StreamTransitions::service() noexcept {
  const int saved = errno;
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    service_locked();
  }
  errno = saved;
}

void StreamTransitions::service_locked() noexcept {
  if (state() == State::kClosed) {
    // A call of another thread's may be inside still, and the peer's end is for it.
    ControlMessage m;
    while (channel_ != nullptr && channel_->take_control(m)) on_control(m);
    return;
  }
  const bool frames_waited = frames_wait();
  push_frames();
  if (frames_waited && state() == State::kOnTcp && kernel_takes_bytes()) {
    if (std::exchange(pending_shut_wr_, false)) sys::shutdown(fd(), SHUT_WR);
    wake_all();
  }
  maybe_switched();
  if (channel_ != nullptr && state() != State::kReset) {
    channel_->progress();
    ControlMessage m;
    while (channel_ != nullptr && channel_->take_control(m)) on_control(m);
    if (channel_ != nullptr && protocol_.sends_to_ring()) channel_->flush();
  }
  answer_switch();
  if (boundary_ != kNoBoundary) scan_frames();
  if (remembers()) skip_verified();
  if (channel_ != nullptr && channel_->failed() &&
      (state() == State::kSwitching || state() == State::kOnChannel) && !peer_closed()) {
    // An orderly end closes the channel too: then the end of the TCP connection follows.
    if (all_arrived() && channel_->failure() == Reason::kPeerGone) {
      peer_left();
    } else {
      leave_or_give_up(channel_->failure());
    }
  }
  // Whether the other end knows is not known any more.
  if (awaits_left() && channel_->failed() && !(protocol_.resume_seen() && is_told())) {
    break_connection(ECONNRESET, channel_->failure());
  }
  if (past_.watched) look_for_waits();
  push_replay();
  finish_linger();
  if (state() == State::kOnTcp) settle_kernel_only();
  check();
}

// ---- The end

void StreamTransitions::send_fin() noexcept {
  if (fin_sent_ || !protocol_.sends_to_ring() || channel_ == nullptr) return;
  if (end_waits_for_past()) return;
  ControlMessage m;
  m.type = static_cast<std::uint8_t>(ControlType::kFin);
  m.value = channel_->tx_head();
  if ((app_closed_ && !closed_in_use_) || shut_rd_) {
    m.reason = static_cast<std::uint8_t>(Reason::kClosing);
  }
  channel_->flush();
  if (channel_->send_control(m)) {
    fin_sent_ = true;
    follows_ = fin_at_ != kNoBoundary && standing_.is(StateWord::kPeerClosing);
    pending_shut_wr_ = false;
  }
}

// The peer has closed; everything that it sent is here.
void StreamTransitions::peer_left() noexcept {
  if (peer_closed()) return;
  standing_.mark(StateWord::kPeerClosed);
  if (!shut_wr() && channel_->outlives_peer() && !channel_->all_consumed()) {
    // What we sent came after its close. The kernel would have had a reset for it.
    sent_after_peer_closed_ = true;
    shutdowns_.fetch_add(1, std::memory_order_relaxed);
    standing_.set_error(EPIPE);
  }
  wake_all();
}

// The kernel would reset a connection that is closed with unread bytes, where both directions of the stream
// have ended on the channel, and the peer's program would be told of it.
void StreamTransitions::discard_unread() noexcept {
  while (boundary_ != kNoBoundary && tcp_rx_ < boundary_) {
    const ssize_t n = sys::recv(fd(), nullptr, boundary_ - tcp_rx_, MSG_TRUNC | MSG_DONTWAIT);
    if (n <= 0) return;
    tcp_rx_ += static_cast<std::uint64_t>(n);
  }
  skip_verified();
}

// Whose program closed first keeps the kernel's connection in TIME_WAIT, as without us: a server
// that only answers its clients' ends could not be started again otherwise. The end of its channel
// can be seen before the end of its connection, which the kernel brings when it finds the time.
bool StreamTransitions::waits_to_follow() noexcept {
  if (!follows_ || tcp_peer_ended(fd())) return false;
  if (follow_until_ns_ == 0) follow_until_ns_ = sys::now_ns() + kFollowTimeoutNs;
  deadline_ns_ = std::min(deadline_ns_, follow_until_ns_);
  return sys::now_ns() < follow_until_ns_;
}

// What the peer's program has not read is in the rings alone. While the connection is there the peer can
// still return to TCP, for a child or another program that reads on, and have it all again. A program that
// sends to one that has closed is told so by the end of the connection.
bool StreamTransitions::waits_to_be_read() noexcept {
  return !channel_->failed() && !channel_->all_consumed() &&
         channel_->rx_head() == channel_->rx_consumed() &&
         !(fin_at_ != kNoBoundary && standing_.is(StateWord::kPeerClosing)) &&
         sys::now_ns() < deadline_ns_;
}

// The kernel's reset goes its own way to the peer, and would overtake what the channel still carries there:
// the peer's program would lose what was sent before. Over TCP it reads that first.
bool StreamTransitions::is_in_flight() noexcept {
  return state() == State::kOnChannel && !channel_->failed() && !channel_->delivered();
}

std::int64_t StreamTransitions::linger_ends_ns() const noexcept {
  if (!app_closed_) return kForever;
  return sys::now_ns() + (cuts_ ? kCutTimeoutNs : kLingerTimeoutNs);
}

// The program has closed; are all its bytes where they can do without this process?
void StreamTransitions::finish_linger() noexcept {
  if (!app_closed_ || state() == State::kClosed) return;
  bool done = false;
  switch (state()) {
    case State::kOnTcp:
      // A peer that has yet to hear that we gave up may have its token on the way, and would get a
      // reset for it.
      done = !frames_wait() && !protocol_.gave_up() && !remembers();
      break;
    case State::kOnChannel:
      if (pending_shut_wr_) send_fin();
      if (cuts_) {
        done = peer_closed() || !is_in_flight();
        break;
      }
      channel_->flush();
      done = (peer_closed() || (fin_sent_ && channel_->tx_posted() == channel_->tx_head() &&
                               channel_->delivered() && !waits_to_be_read())) &&
             !waits_to_follow();
      // Before the channel is closed: by that the peer would know, too.
      if (done && !peer_closed() && !closed_in_use_) sys::shutdown(fd(), SHUT_WR);
      break;
    case State::kReset:
      done = true;
      break;
    default:
      break;
  }
  if (!done && sys::now_ns() >= deadline_ns_) {
    if (state() != State::kOnTcp || frames_wait()) {
      const linger cut{1, 0};
      sys::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
    }
    done = true;
  }
  if (done) {
    step(StreamEvent::kFinished, Reason::kClosing);
    deadline_ns_ = kForever;
    wake_all();  // see Agent::leave_all()
  }
}

// ---- Stalls

// How long the peer's program may leave a full ring alone. TCP_USER_TIMEOUT is what the program bears.
std::int64_t StreamTransitions::patience_ns() noexcept {
  learn(Option::kUserTimeout);
  const std::int64_t timeout = user_timeout_ns_.load(std::memory_order_relaxed);
  return timeout != 0 ? timeout : kStallNs;
}

void StreamTransitions::stall_begins() noexcept {
  if (count_stall()) watch_for_stall();
}

// A send has found no room, or a poll not enough of it. What is watched already is looked at before, and
// again.
void StreamTransitions::watch_for_stall() noexcept {
  if (late_at_ns_ != kForever) return;
  consumed_at_stall_ = channel_->tx_consumed();
  late_at_ns_ = sys::now_ns() + patience_ns();
  attend();  // for its interest
}

// The kernel's buffers grow for a program that reads nothing, and a ring does not: a server that limits how
// long it writes would cut its client. So such a stream goes to TCP, unless the ring holds as much already.
// Where the program has said how long a window may stay closed, the connection ends then, as the kernel ends
// it.
void StreamTransitions::look_for_stall() noexcept {
  const std::int64_t now = sys::now_ns();
  if (now < late_at_ns_) return;
  late_at_ns_ = kForever;
  if (state() != State::kOnChannel || !protocol_.sends_to_ring()) return;
  channel_->progress();
  const std::uint64_t consumed = channel_->tx_consumed();
  if (has_room(*channel_)) return;  // the program has not come back for it
  const std::int64_t patience = patience_ns();
  if (consumed != std::exchange(consumed_at_stall_, consumed)) {
    late_at_ns_ = now + patience;
  } else if (user_timeout_ns_.load(std::memory_order_relaxed) != 0) {
    if (standing_.is(StateWord::kStalled)) break_connection(ETIMEDOUT, Reason::kTimeout);
  } else if (!peer_closed() && channel_->tx_head() - consumed <= kMostMoved) {
    demote(Reason::kStalled);
  }
}

}  // namespace ringroad
