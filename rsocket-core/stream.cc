// A stream's birth and end, and what it publishes.
#include "rsocket-core/stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cassert>
#include <cstring>
#include <new>

#include "rsocket-core/above_limit.h"
#include "rsocket-core/sys.h"

namespace ringroad {

Stream::Stream(StreamHost* host, stats::Segment* segment, std::uint64_t id, int fd,
               StreamRole role, const FourTuple& tuple, const StreamConfig& config,
               bool nonblocking, const EarlyUse& early) noexcept
    : host_(host),
      segment_(segment),
      id_(id),
      role_(role),
      tuple_(tuple),
      config_(config),
      fd_(fd),
      nonblocking_(nonblocking) {
  if (segment_ != nullptr) {
    slot_ = segment_->acquire();
    if (slot_ == nullptr) segment_->header().unlisted.fetch_add(1, std::memory_order_relaxed);
  }
  if (slot_ == nullptr) {
    own_slot_.reset(new (std::nothrow) stats::StreamSlot);
    // Not even that much memory: count into a slot that everybody shares and nobody reads.
    static stats::StreamSlot nobody_reads;
    slot_ = own_slot_ != nullptr ? own_slot_.get() : &nobody_reads;
  }
  if (segment_ != nullptr) {
    rule_index_ = segment_->rule_index(config_.rule);
    segment_->note_opened(rule_index_);
  }
  for (unsigned i = 0; i < early.count; ++i) {
    count_early(early.calls[i].sent, early.calls[i].bytes);
  }
  uses_.store(early.count, std::memory_order_relaxed);
  if (early.count > 0) touch();
  guests_.store(early.guests, std::memory_order_relaxed);
  publish_identity();
  publish_state();
}

Stream::~Stream() {
  channel_.reset();
  if (owns_fd_) sys::close_quietly(fd());
  if (const std::uint64_t share = take_share(); share != 0) host_->release_share(share);
  if (segment_ == nullptr) return;
  if (segment_->owns(slot_)) {
    segment_->release(slot_);
    return;
  }
  if (own_slot_ != nullptr) segment_->count_closed(*own_slot_);
  segment_->header().unlisted.fetch_sub(1, std::memory_order_relaxed);
}

void Stream::publish_identity() noexcept {
  stats::Segment::begin(*slot_);
  slot_->id = id_;
  slot_->role = static_cast<std::uint8_t>(role_);
  slot_->fd = fd();
  slot_->local = tuple_.local;
  slot_->remote = tuple_.remote;
  std::memcpy(slot_->rule, config_.rule, sizeof slot_->rule);
  slot_->rule_index = rule_index_;
  if (channel_ != nullptr) {
    channel_->info(slot_->channel);
    slot_->protocol = channel_->agreement().version;
    slot_->features = channel_->agreement().features;
  } else {
    slot_->channel = ChannelInfo{};
    slot_->protocol = slot_->features = 0;
  }
  stats::Segment::end(*slot_);
}

void Stream::publish_state() noexcept {
  slot_->state.store(static_cast<std::uint8_t>(state()), std::memory_order_relaxed);
  slot_->reason.store(static_cast<std::uint8_t>(reason()), std::memory_order_relaxed);
  slot_->descriptors_extra.store(owns_fd_ ? 1 : 0, std::memory_order_relaxed);
}

void Stream::wake_all() noexcept { waiters_.wake(POLLIN | POLLOUT); }

void Stream::check() noexcept {
#ifdef RINGROAD_CHECKS
  const State now = state();
  assert(boundary_ == kNoBoundary || tcp_rx_ <= boundary_);
  assert(now != State::kOnChannel || (channel_ != nullptr && token_sent_ && token_seen_));
  assert(now != State::kOnChannel || tx_ == Tx::kChannel);
  assert(now != State::kOnChannel || verified_ > 0 || tcp_rx_ == boundary_);
  assert(now != State::kOnTcp || tx_ == Tx::kTcp);
  assert(now != State::kOnTcp || channel_ == nullptr);
  assert(tx_ != Tx::kFrozen || (frozen_ && !token_sent_));
  assert(!token_sent_ || frozen_);
  assert(role_ == StreamRole::kConnect || !token_sent_ || token_seen_);
  assert(tx_ != Tx::kReplay || resume_sent_);
  if (channel_ != nullptr) {
    assert(channel_->tx_head() - channel_->tx_consumed() <= channel_->ring_bytes());
    assert(channel_->rx_head() - channel_->rx_consumed() <= channel_->ring_bytes());
  }
#endif
}

void Stream::renumber(int new_fd) noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  host_->unwatch(*this, fd());
  fd_.store(new_fd, std::memory_order_relaxed);
  publish_identity();
  host_->attend(*this);
}

void Stream::descriptor_is_gone() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  fd_.store(-1, std::memory_order_relaxed);
}

// The kernel would reset a connection that is closed with unread bytes, where both directions of the stream
// have ended on the channel, and the peer's program would be told of it.
void Stream::discard_unread() noexcept {
  while (boundary_ != kNoBoundary && tcp_rx_ < boundary_) {
    const ssize_t n = sys::recv(fd(), nullptr, boundary_ - tcp_rx_, MSG_TRUNC | MSG_DONTWAIT);
    if (n <= 0) return;
    tcp_rx_ += static_cast<std::uint64_t>(n);
  }
  skip_verified();
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
    if (state() == State::kSwitching && !token_sent_) give_up(Reason::kClosing);
    if (channel_ != nullptr) channel_->progress();
    if (remembers()) skip_verified();
    const bool on_kernel =
        channel_ == nullptr && !gave_up_ && kernel_takes_bytes() && !remembers();
    if (on_kernel) reset_if_killed(false);
    if (peer_closed() && state() == State::kOnChannel) follows_ = true;
    close_now = on_kernel || state() == State::kReset || (peer_closed() && !waits_to_follow());
    known_to_agent = known_to_agent_.load(std::memory_order_relaxed) || !close_now;
    if (known_to_agent) host_->unwatch(*this, fd());
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
      const bool in_ring = channel_ != nullptr && token_seen_ && !resume_seen_ &&
                           channel_->rx_head() != channel_->rx_consumed() + again_of_ring_;
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
      if (channel_ != nullptr) channel_->fail(Reason::kClosing);
      step(StreamEvent::kBroken, Reason::kClosing);
      tx_ = Tx::kDead;
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
      if (state() != State::kSwitching) deadline_ns_ = sys::now_ns() + kLingerTimeoutNs;
      if (peer_closed()) deadline_ns_ = follow_until_ns_;
      if (!shut_wr()) {
        standing_.mark(Standing::kShutWr);
        pending_shut_wr_ = !kernel_takes_bytes();
        if (!pending_shut_wr_) sys::shutdown(fd(), SHUT_WR);
      }
      if (pending_shut_wr_) send_fin();
    } else if (state() != State::kClosed) {
      step(StreamEvent::kFinished, Reason::kClosing);
    }
  }
  publish_state();
  if (known_to_agent) host_->attend(*this);
  if (busy) wake_all();
  errno = saved;
  return close_now;
}

}  // namespace ringroad
