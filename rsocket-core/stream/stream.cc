// A stream's birth and end.
#include "rsocket-core/stream/stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {

Stream::Stream(StreamHost* host, stats::Segment* segment, std::uint64_t id, int fd, Role role,
               const FourTuple& tuple, const StreamConfig& config, bool nonblocking,
               const DeferredUse& early) noexcept
    : StreamReadiness(host, segment, id, fd, role, tuple, config, nonblocking) {
  for (unsigned i = 0; i < early.count; ++i) {
    count_early(early.calls[i].sent, early.calls[i].bytes);
  }
  retry_.count_before(early.count);
  if (early.count > 0) touch();
  guests_.store(early.in_flight_calls, std::memory_order_relaxed);
  publish_identity();
  publish_state();
}

Stream::~Stream() {
  // A peer that learns of the channel's end first would want to go on over TCP.
  if (cuts_ && owns_fd_.exchange(false)) sys::close_quietly(fd());
  channel_.reset();
  if (owns_fd_) sys::close_quietly(fd());
  if (const std::uint64_t share = take_share(); share != 0) host_->release_share(share);
}

// ---- What a part of a stream asks of the host

void StreamCore::attend() noexcept { host_->attend(static_cast<Stream&>(*this)); }

void StreamCore::start_promotion() noexcept { host_->start_promotion(static_cast<Stream&>(*this)); }

void StreamCore::unwatch(int old_fd) noexcept { host_->unwatch(static_cast<Stream&>(*this), old_fd); }

bool StreamCore::holds_alone() noexcept { return host_->holds_alone(static_cast<Stream&>(*this)); }

bool StreamCore::waits_past(bool awaited) noexcept {
  return host_->waits_past(static_cast<Stream&>(*this), awaited);
}

// ---- Life of the descriptor

void Stream::renumber(int new_fd) noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  unwatch(fd());
  fd_.store(new_fd, std::memory_order_relaxed);
  publish_identity();
  attend();
}

void Stream::descriptor_is_gone() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  fd_.store(-1, std::memory_order_relaxed);
}

bool Stream::close_by_program(bool busy) noexcept {
  const int saved = errno;
  bool close_now;
  bool known_to_agent;
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    app_closed_ = true;
    closed_in_use_ = busy;
    if (state() == State::kSwitching && !protocol_.token_sent()) abort_switch(Reason::kClosing);
    if (channel_ != nullptr) channel_->progress();
    if (remembers()) skip_verified();
    const bool on_kernel =
        channel_ == nullptr && !protocol_.gave_up() && kernel_takes_bytes() && !remembers();
    if (on_kernel) reset_if_killed(false);
    if (peer_closed() && state() == State::kOnChannel) follows_ = true;
    close_now = on_kernel || state() == State::kReset || (peer_closed() && !waits_to_follow());
    known_to_agent = known_to_agent_.load(std::memory_order_relaxed) || !close_now;
    if (known_to_agent) unwatch(fd());
    bool abort = false;
    if (!close_now && !peer_closed()) {
      linger option{};
      socklen_t length = sizeof option;
      if (resets_if_killed_) {
        option = linger_of_program_;
      } else {
        sys::getsockopt(fd(), SOL_SOCKET, SO_LINGER, &option, &length);
      }
      const bool reset_wanted = option.l_onoff != 0 && option.l_linger == 0;
      const bool in_kernel =
          (boundary_ == kNoBoundary || tcp_rx_ < boundary_) && unread_on_tcp() > 0;
      // Behind the peer's RESUME what was unread in the ring has come again over TCP.
      const bool in_ring = channel_ != nullptr && protocol_.token_seen() && !protocol_.resume_seen() &&
                           channel_->rx_head() != channel_->rx_consumed() + again_.of_ring;
      const bool unread = in_ring || in_kernel || again_unread();
      // Where both directions have ended the kernel has nobody to send a reset to.
      const bool both_ended = shut_wr() && fin_at_ != kNoBoundary;
      abort = !both_ended && (reset_wanted || unread);
      if (!abort) discard_unread();
    }
    int duplicate = -1;
    if (busy || !close_now) {
      duplicate = sys::open_high_or_low([&] { return sys::duplicate(fd()); });
      if (duplicate < 0) duplicate = copy_above_limit(fd());
      // Without a descriptor to linger on, the connection can only be cut, or closed at once where
      // the peer has left.
      if (duplicate < 0 && !close_now) (peer_closed() ? close_now : abort) = true;
    }
    if (abort) {
      // As the kernel does when a socket is closed with unread data or with SO_LINGER{1, 0}.
      const linger cut{1, 0};
      sys::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
      cuts_ = duplicate >= 0 && !busy && is_in_flight();
    }
    if (abort && !cuts_) {
      if (channel_ != nullptr) channel_->fail(Reason::kClosing);
      step(StreamEvent::kBroken, Reason::kClosing);
      protocol_.apply(SwitchEvent::kBroken);
      close_now = true;
    }
    if (duplicate >= 0 && (!close_now || busy)) {
      // The file stays open for as long as a call is inside or bytes are on their way; the
      // program's number is free at once.
      fd_.store(duplicate, std::memory_order_relaxed);
      owns_fd_ = true;
    } else {
      if (duplicate >= 0) sys::close_quietly(duplicate);
      fd_.store(-1, std::memory_order_relaxed);
    }
    if (!close_now) {
      // A switch under way has its own time-out, and comes first.
      if (state() != State::kSwitching) deadline_ns_ = linger_ends_ns();
      if (peer_closed()) deadline_ns_ = follow_until_ns_;
      if (!shut_wr() && !cuts_) {
        standing_.mark(StateWord::kShutWr);
        pending_shut_wr_ = !kernel_takes_bytes();
        if (!pending_shut_wr_) sys::shutdown(fd(), SHUT_WR);
      }
      if (pending_shut_wr_) send_fin();
    } else if (state() != State::kClosed) {
      step(StreamEvent::kFinished, Reason::kClosing);
    }
  }
  publish_state();
  if (known_to_agent) attend();
  if (busy) wake_all();
  errno = saved;
  return close_now;
}

bool Stream::demote_for_good(Reason reason, std::int64_t timeout_ns, bool can_be_woken) noexcept {
  const int saved = errno;
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    retry_.stop();
    if (reason == Reason::kFdPassed && share() != 0) host_->keep_share(share());
    leave_behind_token(reason);
    // It is for the kernel to give, unless nothing comes any more.
    if (remembers() && kernel_is_level() && !is_over()) forget_again();
    if (state() == State::kOnTcp) reason_ = reason;
    settle_kernel_only();
  }
  publish_state();
  attend();
  sleep_until_on_kernel(timeout_ns, can_be_woken);
  errno = saved;
  return kernel_only_.load();
}

}  // namespace ringroad
