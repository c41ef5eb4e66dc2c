// A stream whose descriptor more than one process has, or had.
//
// While it is shared, every process that has it uses the kernel's connection, each through a Stream of
// its own, and none can know what the others send and receive. Once one is left, that one's Stream takes
// the kernel's counts for its own, and is a stream like any other from when it has seen that what the
// process sends and receives comes through the library.
#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/tcp_counters.h"
#include "rsocket-core/stream/agent_stream.h"

namespace ringroad {

bool StreamOptions::nonblocking() const noexcept {
  if (!shared_.load(std::memory_order_acquire)) {
    return nonblocking_.load(std::memory_order_relaxed);
  }
  // The flag belongs to the open file, which others have too.
  const int saved = errno;
  const int flags = sys::fcntl(fd(), F_GETFL);
  errno = saved;
  return flags >= 0 ? (flags & O_NONBLOCK) != 0 : nonblocking_.load(std::memory_order_relaxed);
}

bool StreamTransitions::shareable() noexcept {
  return state() == State::kOnTcp && !retry_.stopped() && !protocol_.gave_up() && boundary_ == kNoBoundary &&
         kernel_takes_bytes() && !app_closed_ && !shut_rd_ && standing_.error() == 0 &&
         kernel_is_level();
}

bool Stream::can_be_shared() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (state() == State::kConnecting && !retry_.stopped()) leave_or_give_up(Reason::kFork);
  return shareable();
}

bool Stream::become_shared() noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (state() == State::kConnecting && !retry_.stopped()) leave_or_give_up(Reason::kFork);
    if (!shareable()) return false;
    if (remembers()) forget_again();
    shared_.store(true, std::memory_order_release);
    set_options_changed();
    reason_ = Reason::kFork;
  }
  publish_state();
  return true;
}

void AgentStream::begin_shared(std::uint64_t share) noexcept {
  set_share(share);
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    count_from_here();
  }
  shared_.store(true, std::memory_order_release);
  reason_ = Reason::kFork;
  publish_state();
}

bool StreamTransitions::count_from_here() noexcept {
  unproven_ = true;
  counted_from_ = 0;
  if (!tcp_counters(fd(), role_ == Role::kConnect, tcp_tx_, tcp_rx_)) return false;
  counted_from_ = tcp_tx_ + tcp_rx_;
  return true;
}

bool AgentStream::awaits_use() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  return (!touched() || (unproven_ && tcp_tx_ + tcp_rx_ == counted_from_)) &&
         kernel_counted_the_same();
}

// kNone once no other process has it. Nobody of this process is between the locks and the kernel. What
// others have sent and received is counted as ours then; but what differs from that later was done by
// this process without the library, and the kernel's counters tell.
Reason StreamTransitions::become_alone() noexcept {
  if (lent_.load(std::memory_order_acquire) != 0 || !holds_alone()) return Reason::kFork;
  const int flags = sys::fcntl(fd(), F_GETFL);
  if (flags < 0) return Reason::kBusy;
  if (!kernel_counted_the_same() && !count_from_here()) return Reason::kBusy;
  nonblocking_.store((flags & O_NONBLOCK) != 0, std::memory_order_relaxed);
  set_options_changed();
  shared_.store(false, std::memory_order_release);
  return Reason::kNone;
}

}  // namespace ringroad
