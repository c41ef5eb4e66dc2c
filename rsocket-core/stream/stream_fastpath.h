// The short way of the program's sends and receives: one piece, in one go, on a stream that is on its
// channel and of which nothing else is to be told. Everything else goes the long way (stream_io.cc), which
// gives the same answers and more.
//
// That the state is ON_CHANNEL says most of it, as it only changes with both locks: bytes are sent to the
// channel, the peer's token was seen, and no RESUME was.
//
// No handler of a signal may run meanwhile: the caller is inside a stretch of signals.h.
#pragma once

#include "rsocket-core/channel/shm/shm_channel.h"
#include "rsocket-core/stream/stream.h"

namespace ringroad {

// A large send enters the ring in pieces, so that the receiver can start on the first.
inline constexpr std::size_t kCommitBytes = Channel::kMaxPutBytes;

// Of a receive; more bytes may be taken than its histogram has room for.
inline bool short_enough(std::size_t n) noexcept { return n - 1 < stats::Log2Histogram::kLargest; }

[[gnu::always_inline]] inline ssize_t Stream::send_short(const void* from, std::size_t n) noexcept {
  if (n - 1 >= kCommitBytes || !__builtin_expect(tx_mutex_.try_lock_within(), true)) return -1;
  bool sent = false;
  if (mostly(standing_.is_only(State::kOnChannel))) {
    sent = hardly_ever(!channel_->is_shm()) ? channel_->put(from, n)
                                            : static_cast<ShmChannel&>(*channel_).put(from, n);
  }
  if (mostly(sent)) {
    stats::StreamCounts& counts = slot_->counts;
    touched_tx_.store(true, std::memory_order_relaxed);
    stats::Counters::add(counts.traffic.tx_bytes[1], n);
    stats::Counters::add(counts.traffic.tx_messages[1], 1);
    counts.tx_sizes.add_within(n);
    if (hardly_ever(tx_sample_.due())) sample(true, true);
  }
  tx_mutex_.unlock_within();
  return sent ? static_cast<ssize_t>(n) : -1;
}

[[gnu::always_inline]] inline std::size_t StreamReadiness::take_short(void* to, std::size_t n) noexcept {
  // The token that was seen is read when everything before it was: what comes next is in the ring.
  if (!mostly(standing_.is(State::kOnChannel)) || verified_ != 0) return 0;
  const std::size_t taken = hardly_ever(!channel_->is_shm())
                                ? channel_->take(to, n)
                                : static_cast<ShmChannel&>(*channel_).take(to, n);
  if (mostly(taken > 0)) {
    stats::StreamCounts& counts = slot_->counts;
    touched_rx_.store(true, std::memory_order_relaxed);
    stats::Counters::add(counts.traffic.rx_bytes[1], taken);
    stats::Counters::add(counts.traffic.rx_messages[1], 1);
    counts.rx_sizes.add_within(taken);
    if (hardly_ever(rx_sample_.due())) sample(false, true);
  }
  return taken;
}

[[gnu::always_inline]] inline ssize_t Stream::recv_short(void* to, std::size_t n) noexcept {
  if (!short_enough(n) || !__builtin_expect(rx_mutex_.try_lock_within(), true)) return -1;
  const std::size_t taken = take_short(to, n);
  rx_mutex_.unlock_within();
  if (taken == 0) return -1;
  if (taken > n) __builtin_unreachable();  // so that no caller asks whether it is negative
  return static_cast<ssize_t>(taken);
}

}  // namespace ringroad
