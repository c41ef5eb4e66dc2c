// What else a program does with a stream: it shuts a direction down, asks what is unread or unsent, and sets
// options that a sleep has to know.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/stream.h"

namespace ringroad {
namespace {

constexpr std::int64_t kMostSeconds = 4'000'000'000;  // of a time-out: nobody sees the end of that
constexpr std::int64_t kLongAgoNs = 1;

}  // namespace

int Stream::shutdown(int how) noexcept {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) {
    errno = EINVAL;
    return -1;
  }
  int result = 0;
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    // The peer may be on TCP by now, and look for our end there.
    if (state() == State::kOnChannel && channel_->control_may_wait()) take_in_channel();
    const bool write = how != SHUT_RD;
    const bool read = how != SHUT_WR;
    const bool both_ended = shut_wr() && (fin_at_ != kNoBoundary || peer_closed());
    if (state() == State::kReset || both_ended || sent_after_peer_closed_) {
      shutdowns_.fetch_add(1, std::memory_order_relaxed);  // the kernel wakes all the same
      waiters_.wake(POLLIN | POLLOUT);
      errno = ENOTCONN;
      return -1;
    }
    // Nothing that we have promised binds our own side yet.
    if (state() == State::kSwitching && protocol_.send() == SendState::kSecond) {
      abort_switch(Reason::kClosing);
    }
    if (kernel_takes_bytes() && source() == Source::kTcp) {
      result = sys::shutdown(fd(), how);
      if (result != 0) return result;
      if (write) standing_.mark(StateWord::kShutWr);
      if (read) shut_rd_ = kernel_shut_rd_ = true;
    } else {
      // On TCP the kernel tells all that wait; also of a shutdown that changes nothing.
      shutdowns_.fetch_add(1, std::memory_order_relaxed);
      if (read) shut_rd_ = true;
      if (write && !shut_wr()) {
        standing_.mark(StateWord::kShutWr);
        if (kernel_takes_bytes()) {
          result = sys::shutdown(fd(), SHUT_WR);
        } else {
          pending_shut_wr_ = true;
          send_fin();
        }
      }
    }
  }
  attend();
  wake_all();
  return result;
}

int Stream::take_error() noexcept {
  const int own = standing_.take_error();
  if (own != 0) return own;
  int value = 0;
  socklen_t length = sizeof value;
  sys::getsockopt(fd(), SOL_SOCKET, SO_ERROR, &value, &length);
  return value;
}

std::uint64_t StreamTransitions::unread_on_tcp() noexcept {
  int in_kernel = 0;
  sys::ioctl(fd(), SIOCINQ, &in_kernel);
  const auto all = static_cast<std::uint64_t>(in_kernel);
  const std::uint64_t known = again_.copy.filled - again_.dropped;  // comes again
  if (boundary_ == kNoBoundary) return all - std::min(all, known);
  const std::uint64_t before = std::min(all, boundary_ - tcp_rx_);
  if (!protocol_.resume_seen()) return before;
  // What stands behind the frames is the program's again.
  const std::uint64_t frames = verified_ + come_back_.size - come_back_.filled;
  return all - std::min(all - before, frames + known);
}

int Stream::unread_bytes() noexcept {
  MutexLock rx(rx_mutex_);
  std::uint64_t bytes = 0;
  // What would have come again is here: see keep_what_is_here().
  const bool stays = state() == State::kReset && ring_is_next();
  const bool in_kernel = boundary_ == kNoBoundary || protocol_.resume_seen() ? !stays : tcp_rx_ < boundary_;
  if (in_kernel) bytes = unread_on_tcp();
  if (channel_ != nullptr && protocol_.token_seen() && (!protocol_.resume_sent() || stays)) {
    channel_->progress();
    bytes += channel_->rx_head() - channel_->rx_consumed();
  }
  bytes += again_.copy.filled - again_.copy.sent;
  return static_cast<int>(std::min<std::uint64_t>(bytes, std::numeric_limits<int>::max()));
}

int Stream::unsent_bytes() noexcept {
  MutexLock tx(tx_mutex_);
  int in_kernel = 0;
  sys::ioctl(fd(), SIOCOUTQ, &in_kernel);
  if (channel_ == nullptr) return in_kernel;
  // As the kernel counts what the peer's has not acknowledged, whether its program has read it or
  // not.
  if (channel_->delivered()) return 0;
  channel_->progress();
  return static_cast<int>(channel_->tx_head() - channel_->tx_consumed());
}

std::uint8_t Stream::tcp_state(std::uint8_t of_kernel) noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (state() == State::kOnChannel && channel_->control_may_wait()) take_in_channel();
  if (state() != State::kOnChannel || of_kernel == TCP_CLOSE) return of_kernel;
  const bool ended = fin_at_ != kNoBoundary || peer_closed();
  if (sent_after_peer_closed_ || (ended && shut_wr())) return TCP_CLOSE;
  if (ended) return TCP_CLOSE_WAIT;
  if (shut_wr()) return TCP_FIN_WAIT2;
  return of_kernel;
}

int Stream::unread_to_tell() noexcept {
  learn(Option::kTellsUnread);
  if (!tells_unread_.load(std::memory_order_relaxed)) return -1;
  const int saved = errno;
  const PollPlan plan = plan_poll(POLLRDHUP, Arm::kNever);
  const short told = plan.use_kernel ? ask_kernel(fd(), plan.kernel_events) : 0;
  const bool ended = ((plan.ready | told) & POLLRDHUP) != 0;
  const int unread = unread_bytes();
  errno = saved;
  return unread + (ended ? 1 : 0);
}

void StreamOptions::learn(Option option) noexcept {
  const auto bit = static_cast<std::uint8_t>(option);
  if ((known_options_.load(std::memory_order_acquire) & bit) != 0) return;
  const int saved = errno;
  const auto fetch = [&](int level, int name, auto value) noexcept {
    socklen_t length = sizeof value;
    const bool told = sys::getsockopt(fd(), level, name, &value, &length) == 0;
    return told ? value : decltype(value){};
  };
  const auto nanoseconds = [](const timeval& tv) noexcept {
    return std::min<std::int64_t>(tv.tv_sec, kMostSeconds) * 1'000'000'000 + std::int64_t{tv.tv_usec} * 1000;
  };
  switch (option) {
    case Option::kRecvTimeout:
      recv_timeout_ns_.store(nanoseconds(fetch(SOL_SOCKET, SO_RCVTIMEO, timeval{})),
                             std::memory_order_relaxed);
      break;
    case Option::kSendTimeout:
      send_timeout_ns_.store(nanoseconds(fetch(SOL_SOCKET, SO_SNDTIMEO, timeval{})),
                             std::memory_order_relaxed);
      break;
    case Option::kTellsUnread:
      tells_unread_.store(fetch(IPPROTO_TCP, TCP_INQ, 0) != 0, std::memory_order_relaxed);
      break;
    case Option::kUserTimeout:
      user_timeout_ns_.store(std::int64_t{fetch(IPPROTO_TCP, TCP_USER_TIMEOUT, 0U)} * 1'000'000,
                             std::memory_order_relaxed);
      break;
  }
  // While others have the socket too they may change them.
  if (!shared()) known_options_.fetch_or(bit, std::memory_order_release);
  errno = saved;
}

std::int64_t StreamOptions::io_deadline(bool sending) noexcept {
  if ((sending ? never_waits_to_send_ : never_waits_to_receive_).load(std::memory_order_relaxed)) {
    return kLongAgoNs;
  }
  learn(sending ? Option::kSendTimeout : Option::kRecvTimeout);
  const std::int64_t timeout =
      (sending ? send_timeout_ns_ : recv_timeout_ns_).load(std::memory_order_relaxed);
  return timeout == 0 ? std::numeric_limits<std::int64_t>::max() : sys::now_ns() + timeout;
}

}  // namespace ringroad
