// What all parts of a stream share: its identity, its locks, and what a message touches.
//
// A Stream is a chain of classes, each of which knows only those before it:
//
//   StreamCore         identity, locks, the counts of both carriers
//   StreamStats        its slot in the statistics
//   StreamOptions      options of the socket that the library has to know
//   StreamTransitions  what moves it between its carriers: promotion, return, end
//   StreamReadiness    what poll(2) would say; polling and sleeping
//   Stream             the program's calls
//
// Thread rule. Any thread may call anything. A send takes tx_mutex_, a receive rx_mutex_; whatever
// changes the carrier of the bytes takes both, in that order. Neither is held while sleeping.
//
// Invariants (check() verifies them in builds with RINGROAD_CHECKS):
//   1. Bytes are written to TCP only while protocol_ says so (the program's), or by the exchange itself.
//   2. TCP is never read past boundary_: there a frame of the peer may stand.
//   3. The program reads the ring only after the peer's token was seen at exactly boundary_, and its
//      bytes enter the ring only after both tokens crossed.
//   4. A transition that next_state() does not know is a bug.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>

#include "rsocket-core/base/hints.h"
#include "rsocket-core/base/mutex.h"
#include "rsocket-core/channel/channel.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/protocol/state.h"
#include "rsocket-core/protocol/state_word.h"
#include "rsocket-core/protocol/wire.h"
#include "rsocket-core/stats/stats.h"
#include "rsocket-core/stream/answer_timer.h"
#include "rsocket-core/stream/stream_host.h"
#include "rsocket-core/stream/switch_protocol.h"
#include "rsocket-core/stream/waiter.h"

namespace ringroad {

class StreamCore {
 public:
  static constexpr std::uint64_t kNoBoundary = std::numeric_limits<std::uint64_t>::max();

  StreamCore(const StreamCore&) = delete;
  StreamCore& operator=(const StreamCore&) = delete;

  std::uint64_t id() const noexcept { return id_; }
  Role role() const noexcept { return role_; }
  const FourTuple& tuple() const noexcept { return tuple_; }
  const StreamConfig& config() const noexcept { return config_; }
  int fd() const noexcept { return fd_.load(std::memory_order_relaxed); }
  State state() const noexcept { return standing_.state(); }
  Reason reason() const noexcept { return reason_.load(std::memory_order_relaxed); }
  // Another asks for a channel and knows of none: if there is one, the peer has left it, and so will this
  // end.
  bool has_channel() const noexcept {
    const State now = state();
    return now == State::kSwitching || now == State::kOnChannel || now == State::kResuming;
  }
  // True while the kernel answers for the stream and always will: the caller may use the real
  // call. Costs two loads.
  bool on_kernel_for_good() const noexcept { return kernel_only_.load(std::memory_order_acquire); }
  // The program has made a call on it in this process. A server that accepts and forks never does.
  bool touched() const noexcept {
    return touched_rx_.load(std::memory_order_relaxed) || touched_tx_.load(std::memory_order_relaxed);
  }
  WaitList& waiters() noexcept { return waiters_; }
  // PollPlan::blocked.
  std::uint64_t blocked() const noexcept { return blocked_.load(std::memory_order_relaxed); }
  // Before a plan and a receive that are made soon: what they touch, and a moment later what is named there.
  void prefetch() const noexcept {
    ringroad::prefetch(reinterpret_cast<std::uintptr_t>(&slot_));
    ringroad::prefetch(reinterpret_cast<std::uintptr_t>(&rx_mutex_));
  }

 protected:
  StreamCore(StreamHost* host, std::uint64_t id, int fd, Role role, const FourTuple& tuple,
             const StreamConfig& config) noexcept
      : host_(host), id_(id), role_(role), tuple_(tuple), config_(config), fd_(fd) {}
  ~StreamCore() = default;

  bool peer_closed() const noexcept { return standing_.is(StateWord::kPeerClosed); }
  bool shut_wr() const noexcept { return standing_.is(StateWord::kShutWr); }
  // service() brings no channel of it back to life: a call inside must not ask for that.
  bool is_over() const noexcept { return state() == State::kReset || state() == State::kClosed; }
  // A FIN may come before bytes that wait for credits: without them it is no end.
  bool all_arrived() const noexcept {
    return channel_ != nullptr && fin_at_ != kNoBoundary && channel_->rx_head() == fin_at_;
  }
  // PollPlan::shutdowns.
  std::uint64_t shutdowns() const noexcept {
    return shutdowns_.load(std::memory_order_relaxed) + (fin_at_ != kNoBoundary ? 1U : 0U);
  }
  void touch() noexcept {
    if (!touched()) touched_rx_.store(true, std::memory_order_relaxed);
  }
  void wake_all() noexcept { waiters_.wake(POLLIN | POLLOUT); }

  // The host's functions of the same names.
  void attend() noexcept;
  void start_promotion() noexcept;
  void unwatch(int old_fd) noexcept;
  bool holds_alone() noexcept;
  bool waits_past(bool awaited) noexcept;

  // What a message touches lies together, as there may be more streams than a cache has room for
  // (docs/performance.md, "Many streams"). One line that is read by both directions and hardly ever
  // written: under both locks, but for atomics, and read under either.
  alignas(kLineBytes) stats::StreamSlot* slot_ = nullptr;  // see StreamStats
  std::unique_ptr<Channel> channel_;
  StateWord standing_;  // kStalled: under tx_mutex_
  std::atomic<bool> kernel_only_{false};  // stored seq_cst: see WaitList
  bool shut_rd_ = false;
  SwitchProtocol protocol_;
  std::uint64_t fin_at_ = kNoBoundary;  // ring offset where the peer's direction ended
  std::uint64_t channel_generation_ = 0;
  std::atomic<std::uint64_t> shutdowns_{0};  // calls, and resets
  std::atomic<std::uint64_t> blocked_{0};    // sends that found no room, or not enough

  // One that senders write.
  alignas(kLineBytes) Mutex tx_mutex_ RR_RANK(stream_tx) RR_ACQUIRED_BEFORE(rx_mutex_);
  std::atomic<bool> touched_tx_{false};
  SampleCountdown tx_sample_;
  bool fin_sent_ RR_GUARDED_BY(tx_mutex_) = false;
  bool sent_after_peer_closed_ RR_GUARDED_BY(tx_mutex_) = false;
  std::uint64_t tcp_tx_ RR_GUARDED_BY(tx_mutex_) = 0;  // bytes written to TCP, frames included
  std::size_t frames_size_ RR_GUARDED_BY(tx_mutex_) = 0;
  std::size_t frames_sent_ RR_GUARDED_BY(tx_mutex_) = 0;
  std::uint64_t frozen_at_ RR_GUARDED_BY(tx_mutex_) = 0;  // our S
  std::uint64_t replay_at_ RR_GUARDED_BY(tx_mutex_) = 0;  // ring offset

  // One that receivers and waiting threads write.
  alignas(kLineBytes) Mutex rx_mutex_ RR_RANK(stream_rx);
  std::atomic<bool> touched_rx_{false};
  SampleCountdown rx_sample_;
  bool gave_back_ RR_GUARDED_BY(rx_mutex_) = false;   // bytes in front of the ring's: unread_return.cc
  bool came_again_ RR_GUARDED_BY(rx_mutex_) = false;  // the program has read some over TCP
  std::size_t verified_ RR_GUARDED_BY(rx_mutex_) = 0;  // frame bytes seen at boundary_, unread yet
  std::uint64_t frames_rx_ RR_GUARDED_BY(rx_mutex_) = 0;  // of tcp_rx_, the frames
  std::uint64_t tcp_rx_ RR_GUARDED_BY(rx_mutex_) = 0;  // bytes read from TCP, frames included
  std::uint64_t boundary_ RR_GUARDED_BY(rx_mutex_) = kNoBoundary;
  // Channel::near() of the last one over shared memory; as of that, at any time.
  std::array<std::atomic<std::uintptr_t>, std::tuple_size_v<Channel::Near>> near_{};

  StreamHost* const host_;
  const std::uint64_t id_;
  const Role role_;
  const FourTuple tuple_;
  const StreamConfig config_;
  std::atomic<int> fd_;
  std::atomic<Reason> reason_{Reason::kPending};
  WaitList waiters_;
};

}  // namespace ringroad
