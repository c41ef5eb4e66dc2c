// What the agent thread does for a stream, and a stream's end in the background.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rsocket-core/stream.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/tcp_counters.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kStallNs = 500'000'000;
constexpr std::uint64_t kMostMoved = 1 << 20;  // about what a socket holds

}  // namespace

// ---- The end

void Stream::send_fin() noexcept {
  if (fin_sent_ || tx_ != Tx::kChannel || channel_ == nullptr) return;
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
    follows_ = fin_at_ != kNoBoundary && standing_.is(Standing::kPeerClosing);
    pending_shut_wr_ = false;
  }
}

// A FIN may come before bytes that wait for credits: without them it is no end.
bool Stream::all_arrived() const noexcept {
  return channel_ != nullptr && fin_at_ != kNoBoundary && channel_->rx_head() == fin_at_;
}

// The peer has closed; everything that it sent is here.
void Stream::peer_left() noexcept {
  if (peer_closed()) return;
  standing_.mark(Standing::kPeerClosed);
  if (!shut_wr() && channel_->outlives_peer() && !channel_->all_consumed()) {
    // What we sent came after its close. The kernel would have had a reset for it.
    sent_after_peer_closed_ = true;
    shutdowns_.fetch_add(1, std::memory_order_relaxed);
    standing_.set_error(EPIPE);
  }
  wake_all();
}

bool Stream::settled() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (state() == State::kReset || state() == State::kClosed) return true;
  return channel_ == nullptr && boundary_ == kNoBoundary && !gave_up_ &&
         !frames_wait() && kernel_is_level();
}

// Whose program closed first keeps the kernel's connection in TIME_WAIT, as without us: a server
// that only answers its clients' ends could not be started again otherwise. The end of its channel
// can be seen before the end of its connection, which the kernel brings when it finds the time.
bool Stream::waits_to_follow() noexcept {
  if (!follows_ || tcp_peer_ended(fd())) return false;
  if (follow_until_ns_ == 0) follow_until_ns_ = sys::now_ns() + kFollowTimeoutNs;
  deadline_ns_ = std::min(deadline_ns_, follow_until_ns_);
  return sys::now_ns() < follow_until_ns_;
}

// What the peer's program has not read is in the rings alone. While the connection is there the peer can
// still return to TCP, for a child or another program that reads on, and have it all again. Whoever sends
// to a program that has closed is told so by the end of the connection.
bool Stream::waits_to_be_read() noexcept {
  return !channel_->failed() && !channel_->all_consumed() &&
         channel_->rx_head() == channel_->rx_consumed() &&
         !(fin_at_ != kNoBoundary && standing_.is(Standing::kPeerClosing)) &&
         sys::now_ns() < deadline_ns_;
}

// The program has closed; are all its bytes where they can do without this process?
void Stream::finish_linger() noexcept {
  if (!app_closed_ || state() == State::kClosed) return;
  bool done = false;
  switch (state()) {
    case State::kOnTcp:
      // A peer that has yet to hear that we gave up may have its token on the way, and would get a
      // reset for it.
      done = !frames_wait() && !gave_up_ && !remembers();
      break;
    case State::kOnChannel:
      if (pending_shut_wr_) send_fin();
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
    if (channel_ != nullptr && tx_ == Tx::kChannel) channel_->flush();
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
  if (awaits_left() && channel_->failed() && !(resume_seen_ && is_told())) {
    break_connection(ECONNRESET, channel_->failure());
  }
  if (watched_) look_for_waits();
  push_replay();
  finish_linger();
  if (state() == State::kOnTcp) settle_kernel_only();
  check();
}

void Stream::leave_closed(Reason reason) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (state() != State::kOnChannel || !app_closed_ || peer_closed()) return;
    channel_->progress();
    if (!channel_->all_consumed()) leave(reason);
  }
  host_->attend(*this);
}

StreamInterest Stream::interest() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  StreamInterest want;
  want.deadline_ns = std::min({deadline_ns_, late_at_ns_, past_at_ns_});
  switch (state()) {
    case State::kOnTcp:
      want.tcp_in = gave_up_ || boundary_ != kNoBoundary || remembers();
      want.tcp_out = frames_wait();
      want.done = !want.tcp_in && !want.tcp_out;
      break;
    case State::kConnecting:
      break;
    case State::kSwitching:
      want.tcp_in = true;
      want.tcp_out = frames_wait();
      want.channel = true;
      break;
    case State::kOnChannel:
      want.tcp_in = !peer_closed() || follow_until_ns_ != 0;
      want.channel = !peer_closed() && (app_closed_ || pending_shut_wr_ ||
                                       (watched_ && unread_since_ns_ == 0 && rests_until_ns_ == 0) ||
                                       channel_->tx_posted() != channel_->tx_head());
      break;
    case State::kResuming:
      want.tcp_in = true;
      want.tcp_out = frames_wait() || resume_seen_;
      want.channel = awaits_left();
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

bool Stream::leave_idle() noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (state() != State::kOnChannel || peer_closed()) return false;
    leave(Reason::kIdle);
  }
  host_->attend(*this);
  return true;
}

// How long the peer's program may leave a full ring alone. TCP_USER_TIMEOUT is what the program bears.
std::int64_t Stream::patience_ns() noexcept {
  learn(Option::kUserTimeout);
  const std::int64_t timeout = user_timeout_ns_.load(std::memory_order_relaxed);
  return timeout != 0 ? timeout : kStallNs;
}

// A send has found no room, or a poll not enough of it. What is watched already is looked at before, and again.
void Stream::watch_for_stall() noexcept {
  if (late_at_ns_ != kForever) return;
  consumed_at_stall_ = channel_->tx_consumed();
  late_at_ns_ = sys::now_ns() + patience_ns();
  host_->attend(*this);  // for its interest
}

// The kernel's buffers grow for a program that reads nothing, and a ring does not: a server that limits how long
// it writes would cut its client. So such a stream goes to TCP, unless the ring holds as much already. Where the
// program has said how long a window may stay closed, the connection ends then, as the kernel ends it.
void Stream::look_for_stall() noexcept {
  const std::int64_t now = sys::now_ns();
  if (now < late_at_ns_) return;
  late_at_ns_ = kForever;
  if (state() != State::kOnChannel || tx_ != Tx::kChannel) return;
  channel_->progress();
  const std::uint64_t consumed = channel_->tx_consumed();
  if (has_room(*channel_)) return;  // the program has not come back for it
  const std::int64_t patience = patience_ns();
  if (consumed != std::exchange(consumed_at_stall_, consumed)) {
    late_at_ns_ = now + patience;
  } else if (user_timeout_ns_.load(std::memory_order_relaxed) != 0) {
    if (standing_.is(Standing::kStalled)) break_connection(ETIMEDOUT, Reason::kTimeout);
  } else if (!peer_closed() && channel_->tx_head() - consumed <= kMostMoved) {
    leave(Reason::kStalled);
  }
}

void Stream::deadline_passed() noexcept {
  ask_who_waits();
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    look_for_stall();
    const std::int64_t now = sys::now_ns();
    if (now >= past_at_ns_) {
      past_at_ns_ = kForever;
      if (pending_shut_wr_ && state() == State::kOnChannel) send_fin();
    } else if (now < deadline_ns_) {
      return;
    }
    if (now >= deadline_ns_) {
      deadline_ns_ = kForever;
      if (state() == State::kSwitching) {
        leave_or_give_up(Reason::kTimeout);
      } else if (app_closed_) {
        deadline_ns_ = 0;
        finish_linger();
      }
    }
  }
  service();
}

}  // namespace ringroad
