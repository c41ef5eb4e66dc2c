#include "rsocket-core/stream/agent_stream.h"

#include <linux/sockios.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/tcp_counters.h"

namespace ringroad {

Reason AgentStream::may_promote() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (app_closed_ || shut_wr() || shut_rd_) return Reason::kClosing;
  if (guests_.load(std::memory_order_acquire) != 0) return Reason::kBusy;
  if (retry_.stopped()) return reason() == Reason::kPending ? Reason::kPolicy : reason();
  if (operator_hold() != Reason::kNone) return operator_hold();
  if (state() != State::kOnTcp || protocol_.gave_up() || boundary_ != kNoBoundary || remembers() ||
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

bool AgentStream::is_connected() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  return !app_closed_ && !shut_wr() && !shut_rd_ && tcp_established(fd());
}

bool AgentStream::all_read() noexcept {
  MutexLock rx(rx_mutex_);
  int unread = 0;
  tell_when_read_ = guests_.load(std::memory_order_acquire) != 0 || remembers() ||
                    (sys::ioctl(fd(), SIOCINQ, &unread) == 0 && unread > 0);
  return !tell_when_read_;
}

bool AgentStream::read_since_asked() noexcept {
  MutexLock rx(rx_mutex_);
  return std::exchange(read_since_asked_, false);
}

Reason AgentStream::promotion_started(const Nonce& nonce) noexcept {
  Reason why_not = may_promote();
  if (why_not == Reason::kNone) why_not = why_unseen();
  if (why_not != Reason::kNone) return why_not;
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (state() != State::kOnTcp || retry_.stopped() || app_closed_ || shared()) return Reason::kBusy;
  step(StreamEvent::kStart, Reason::kPending);
  known_to_agent_.store(true, std::memory_order_relaxed);
  nonce_ = nonce;
  protocol_.apply(SwitchEvent::kStart);
  wrote_since_freeze_ = false;
  waits_for_reader_ = false;
  pending_shut_wr_ = false;
  peer_s_ = peer_consumed_ = 0;
  verified_ = 0;
  fin_sent_ = false;
  fin_at_ = left_fin_at_ = kNoBoundary;
  frames_size_ = frames_sent_ = 0;
  given_back_ = ReturnBuffer();
  come_back_ = ReturnBuffer();
  leave_reason_ = Reason::kNone;
  return Reason::kNone;
}

void AgentStream::promotion_refused(Reason reason, Reason peer_reason) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    set_peer_reason(peer_reason);
    count_refusal(reason);
    if (state() == State::kConnecting) {
      step(StreamEvent::kRefused, reason);
    } else if (state() == State::kOnTcp && !retry_.stopped()) {
      reason_ = reason;
    }
    if (state() == State::kOnTcp) retry_.after_refusal(reason, peer_reason, sys::now_ns());
    settle_kernel_only();
    publish_state();
  }
  wake_all();
}

void AgentStream::channel_up(std::unique_ptr<Channel> channel, const Nonce& peer_nonce) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (state() != State::kConnecting) return;  // cancelled meanwhile; the peer sees it go
    peer_nonce_ = peer_nonce;
    Reason why_not = Reason::kNone;
    if (app_closed_ || shut_wr() || shut_rd_) why_not = Reason::kClosing;
    if (retry_.stopped()) why_not = reason();
    if (operator_hold() != Reason::kNone) why_not = operator_hold();
    // Nothing is between the locks and the kernel now, so this count holds until the switch.
    if (why_not == Reason::kNone && !kernel_counted_the_same()) {
      why_not = Reason::kUntrackedIo;
    }
    if (why_not != Reason::kNone) {
      step(StreamEvent::kRefused, why_not);
      if (why_not == Reason::kUntrackedIo) retry_.stop();
      settle_kernel_only();
    } else {
      channel_ = std::move(channel);
      ++channel_generation_;
      const Channel::Near near = channel_->near();
      for (std::size_t i = 0; i < near.size(); ++i) near_[i].store(near[i], std::memory_order_relaxed);
      step(StreamEvent::kChannelUp, Reason::kPending);
      set_peer_reason(Reason::kNone);  // of an earlier request
      deadline_ns_ = sys::now_ns() + kSwitchTimeoutNs;
      // The end that was asked goes second: it freezes and writes only for one that has proved, by
      // its token, that it holds the connection.
      if (role_ == Role::kConnect) {
        freeze();
      } else {
        protocol_.apply(SwitchEvent::kWaitForToken);
      }
      publish_identity();
      service_locked();
    }
  }
  wake_all();
}

// ---- The agent's loop

StreamInterest AgentStream::interest() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  StreamInterest want;
  want.deadline_ns = std::min({deadline_ns_, late_at_ns_, past_.at_ns});
  switch (state()) {
    case State::kOnTcp:
      want.tcp_in = protocol_.gave_up() || boundary_ != kNoBoundary || remembers();
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
                                       (past_.watched && past_.unread_since_ns == 0 &&
                                        past_.rests_until_ns == 0) ||
                                       channel_->tx_posted() != channel_->tx_head());
      break;
    case State::kResuming:
      want.tcp_in = true;
      want.tcp_out = frames_wait() || protocol_.resume_seen();
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

void AgentStream::deadline_passed() noexcept {
  ask_who_waits();
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    look_for_stall();
    const std::int64_t now = sys::now_ns();
    if (now >= past_.at_ns) {
      past_.at_ns = kForever;
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

bool AgentStream::arm_channel() noexcept {
  MutexLock rx(rx_mutex_);
  return channel_ == nullptr || channel_->arm();
}

// An epoll instance tells of each wake-up once, where that came. The agent may come to it long after the
// program has read the bytes: so it does not tell of it again, nor take it away.
void AgentStream::take_wake_up() noexcept {
  MutexLock rx(rx_mutex_);
  if (channel_ == nullptr) return;
  if (!channel_->drains_by_edge()) {
    // Each waiter is told of it. One that comes to the list from here on looks behind this.
    if (waiters_.empty()) channel_->drain();
  } else if (channel_->failed() || wake_up_stands()) {
    // In the order of after_sleep().
    waiters_.wake_in_place(POLLIN | POLLOUT);
    channel_->drain();
  }
  channel_->progress();
}

// Whether no thread has taken it. A thread that does so tells all others.
bool AgentStream::wake_up_stands() noexcept {
  timespec at_once{};
  pollfd now{channel_->wait_fd(), POLLIN, 0};
  return sys::ppoll(&now, 1, &at_once, nullptr) != 0;
}

void AgentStream::watch_tcp(int epoll_fd, std::uint64_t cookie, std::uint32_t events) noexcept {
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

// ---- Back to TCP

void AgentStream::leave_channel(Reason reason) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    leave_behind_token(reason);
  }
  attend();
}

void AgentStream::leave_closed(Reason reason) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (state() != State::kOnChannel || !app_closed_ || cuts_ || peer_closed()) return;
    channel_->progress();
    if (!channel_->all_consumed()) demote(reason);
  }
  attend();
}

bool AgentStream::leave_idle() noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (state() != State::kOnChannel || peer_closed()) return false;
    demote(Reason::kIdle);
  }
  attend();
  return true;
}

bool AgentStream::settled() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (state() == State::kReset || state() == State::kClosed) return true;
  return channel_ == nullptr && boundary_ == kNoBoundary && !protocol_.gave_up() &&
         !frames_wait() && kernel_is_level();
}

// ---- What an operator asks for

void AgentStream::keep_on_tcp(Reason reason) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (operator_hold() == reason) return;
    retry_.set_hold(reason);
    // A stream whose peer has closed stays where it is: nobody would answer, and what it sent is here.
    if (!peer_closed()) leave_behind_token(reason);
    if (state() == State::kOnTcp && !retry_.stopped()) reason_ = reason;
  }
  publish_state();
  attend();
}

bool AgentStream::let_off_tcp(bool at_once) noexcept {
  bool start = false;
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    retry_.end_hold(at_once);
    if (retry_.stopped() || app_closed_) return false;
    if (state() == State::kOnTcp) reason_ = Reason::kPending;
    start = retry_.begin_anew(state(), at_once);
  }
  publish_state();
  return start;
}

bool AgentStream::take_peer_keeps() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  return retry_.take_peer_keeps();
}

}  // namespace ringroad
