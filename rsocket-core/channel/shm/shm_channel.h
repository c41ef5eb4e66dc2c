// A channel between two processes of one host: two rings and a header page that both map
// (shm_memory.h), and a way to wake each other (shm_wake.h). Copies in, copies out, no system call
// while both ends are awake.
//
// What is particular to it:
//   - tx_posted() is tx_head(), and delivered() is always true: what is committed outlives the
//     process that committed it.
//   - consume() reports at once, but only an end that could be waiting for the report is woken by it: an end
//     that had less than a quarter of its ring free when it armed, as soon as a quarter is free; one
//     that had sent kFin, when all is consumed. progress() looks at the report when more than a
//     quarter of the ring is in flight, after kFin, and now and then: a line of memory that nobody
//     polls is not fought over.
//   - The end of the peer (its destructor ran) is a failure with kPeerGone, but only once all its
//     data is consumed and all its control messages are taken; until then only tx suffers. The
//     death of the peer's process is not noticed here: its TCP connection ends then.
//
// Nothing that stands in shared memory is trusted: cursors are read once, must move forward and
// stay within their ring, and control messages must be well formed; else the channel fails with
// kBadRequest. Addresses are computed from this end's own copies alone.
//
// Thread rule: channel.h's. Invariants, checked after every change in builds with RINGROAD_CHECKS:
//   1. rx_consumed <= rx_head <= rx_consumed + ring
//   2. tx_consumed <= tx_head <= tx_consumed + ring
//   3. control_taken <= control_seen <= control_taken + kShmControlSlots
// In a forked child an end can only be destroyed; that leaves the parent's stream alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/mutex.h"
#include "rsocket-core/channel/channel.h"
#include "rsocket-core/channel/shm/shm_memory.h"
#include "rsocket-core/channel/shm/shm_wake.h"

namespace ringroad {

enum class ShmSideIndex : unsigned { kConnector = 0, kListener = 1 };

class ShmChannel final : public Channel {
 public:
  ShmChannel(std::shared_ptr<ShmMemory> memory, ShmSideIndex side, ShmWake wake) noexcept;
  ~ShmChannel() override;

  View tx_view() noexcept override;
  void commit(std::size_t n) noexcept override;
  bool send_control(const ControlMessage& message) noexcept override;
  void flush() noexcept override {}
  View tx_replay(std::uint64_t offset) noexcept override;

  View rx_view() noexcept override;
  void consume(std::size_t n) noexcept override;

  bool put(const void* from, std::size_t n) noexcept override;
  std::size_t take(void* to, std::size_t n) noexcept override;

  std::uint64_t tx_head() const noexcept override { return load(tx_head_); }
  std::uint64_t tx_posted() const noexcept override { return load(tx_head_); }
  std::uint64_t tx_consumed() const noexcept override { return load(tx_consumed_); }
  std::uint64_t rx_head() const noexcept override { return load(rx_head_); }
  std::uint64_t rx_consumed() const noexcept override { return load(rx_consumed_); }

  void progress() noexcept override;
  bool control_pending() const noexcept override {
    return control_seen_.load(std::memory_order_relaxed) !=
           control_taken_.load(std::memory_order_relaxed);
  }
  bool take_control(ControlMessage& out) noexcept override RR_EXCLUDES(control_mutex_);

  int wait_fd() const noexcept override { return wake_.fd(); }
  std::uint32_t wait_events() const noexcept override { return wake_.events(); }
  bool arm() noexcept override { return arm_for(kShmOnDescriptor); }
  void drain() noexcept override { wake_.drain(); }
  bool drains_by_edge() const noexcept override { return wake_.kind() == ShmWakeKind::kSocket; }
  WaitWord wait_word() noexcept override;
  bool arm_word() noexcept override { return arm_for(kShmOnWord); }

  bool outlives_peer() const noexcept override { return true; }
  bool all_consumed() noexcept override {
    take_credit();
    return tx_consumed() == tx_head();
  }
  [[gnu::always_inline]] bool control_may_wait() const noexcept override {
    return peer_.control_tail.load(std::memory_order_relaxed) !=
           control_taken_.load(std::memory_order_relaxed);
  }
  bool delivered() noexcept override { return true; }
  bool failed() const noexcept override { return failure() != Reason::kNone; }
  Reason failure() const noexcept override { return failure_.load(std::memory_order_acquire); }
  void fail(Reason reason) noexcept override;

  void info(ChannelInfo& out) const noexcept override;

  Near near() const noexcept override;
  static void prefetch(const Near& near) noexcept;

 private:
  using Cursor = std::atomic<std::uint64_t>;
  static std::uint64_t load(const Cursor& cursor) noexcept {
    return cursor.load(std::memory_order_acquire);
  }

  void report_consumed(std::uint64_t consumed) noexcept;
  void take_arrivals() noexcept;
  void take_credit() noexcept;
  [[gnu::cold]] void take_control_tail() noexcept;
  bool control_may_have_come() const noexcept {
    return hardly_ever(peer_.control_tail.load(std::memory_order_acquire) !=
                       control_seen_.load(std::memory_order_relaxed));
  }
  [[gnu::cold]] void take_end() noexcept;
  [[gnu::always_inline]] void wake_peer(std::uint32_t bits) noexcept {
    if (hardly_ever((peer_.waiting.load(std::memory_order_seq_cst) & bits) != 0)) {
      wake_who_waits();
    }
  }
  [[gnu::cold]] void wake_who_waits() noexcept;
  [[gnu::cold]] void wake_for_credit(std::uint64_t consumed) noexcept;
  bool arm_for(std::uint32_t where) noexcept;
  void ask_for(std::uint32_t bits) noexcept;
  bool control_room() noexcept;
  void set_failure(Reason reason) noexcept;
#ifdef RINGROAD_CHECKS
  void check() const noexcept;
#else
  void check() const noexcept {}
#endif

  std::byte* tx_at(std::uint64_t offset) const noexcept { return tx_base_ + (offset & mask()); }
  std::byte* rx_at(std::uint64_t offset) const noexcept { return rx_base_ + (offset & mask()); }
  std::uint64_t quarter() const noexcept { return ring_bytes() / 4; }

  // A message touches two lines: the first, which both directions read, begins with what the base class has.
  // Of that only these two ever change, the first once.
  std::atomic<Reason> failure_{Reason::kNone};
  std::atomic<std::uint32_t> control_taken_{0};
  ShmSide& mine_;
  ShmSide& peer_;
  std::byte* const tx_base_;
  std::byte* const rx_base_;

  // Written by TX, and tx_consumed_ by the thread that makes progress.
  alignas(kLineBytes) Cursor tx_head_{0};
  Cursor tx_consumed_{0};
  std::uint32_t control_sent_ = 0;   // TX
  std::uint32_t control_acked_ = 0;  // TX: the peer's control_head when last looked at
  std::atomic<bool> fin_sent_{false};  // somebody may wait until everything is consumed

  // Written by RX, and rx_head_ by the thread that makes progress.
  alignas(kLineBytes) Cursor rx_head_{0};
  Cursor rx_consumed_{0};
  std::atomic<bool> peer_closed_{false};  // rx_head_ and control_seen_ are final
  std::atomic<std::uint32_t> control_seen_{0};
  std::atomic<std::uint32_t> looks_{0};  // calls of progress(), roughly

  const std::shared_ptr<ShmMemory> memory_;
  const ShmWake wake_;
  Mutex control_mutex_ RR_RANK(channel_control);  // one taker at a time
};

// Where more than half of the ring would be in flight it is time to see what the peer has consumed.
[[gnu::always_inline]] inline bool ShmChannel::put(const void* from, std::size_t n) noexcept {
  const std::uint64_t head = tx_head_.load(std::memory_order_relaxed);
  // In order, stores would miss their lines one after the other.
  std::byte* const to = tx_at(head);
  prefetch_to_write(to);
  if (!mostly(2 * (head + n - load(tx_consumed_)) - 1 <= mask() && !failed() && !control_may_wait())) {
    return false;
  }
  if (hardly_ever(!faults::copy_short(to, from, n))) return false;
  tx_head_.store(head + n, std::memory_order_release);  // as in commit()
  mine_.tail.store(head + n, std::memory_order_seq_cst);
  wake_peer(kShmWantsArrivals);
  check();
  return true;
}

// What is taken in here is not believed more easily than by take_arrivals().
[[gnu::always_inline]] inline std::size_t ShmChannel::take(void* to, std::size_t n) noexcept {
  const std::uint64_t consumed = rx_consumed_.load(std::memory_order_relaxed);
  std::uint64_t head = load(rx_head_);
  if (head == consumed) {
    const std::uint64_t tail = peer_.tail.load(std::memory_order_acquire);
    if (!mostly(tail - head - 1 <= mask() && !failed())) return 0;
    if (rx_head_.compare_exchange_strong(head, tail, std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
      head = tail;
    }
  } else if (hardly_ever(head - consumed < n)) {
    // A poll, or the agent, may have looked when less had come.
    take_arrivals();
    head = load(rx_head_);
  }
  n = std::min<std::size_t>(n, head - consumed);
  if (n == 0) __builtin_unreachable();  // `head` is beyond `consumed` by now
  if (hardly_ever(!faults::copy_short(to, rx_at(consumed), n))) return 0;
  report_consumed(consumed + n);
  return n;
}

[[gnu::always_inline]] inline void ShmChannel::report_consumed(std::uint64_t consumed) noexcept {
  rx_consumed_.store(consumed, std::memory_order_release);
  mine_.consumed.store(consumed, std::memory_order_seq_cst);
  constexpr std::uint32_t kCredit = kShmWantsRoom | kShmWantsEmpty;
  if (hardly_ever((peer_.waiting.load(std::memory_order_seq_cst) & kCredit) != 0)) {
    wake_for_credit(consumed);
  }
  if (hardly_ever(peer_closed_.load(std::memory_order_seq_cst))) take_end();
  check();
}

[[gnu::always_inline]] inline void ShmChannel::prefetch(const Near& near) noexcept {
  const auto [channel, peers, mine] = near;
  for (const std::uintptr_t line : {channel, channel + kLineBytes, channel + 2 * kLineBytes}) {
    ringroad::prefetch(line);
  }
  ringroad::prefetch(peers + offsetof(ShmSide, tail));
  ringroad::prefetch(peers + offsetof(ShmSide, waiting));
  ringroad::prefetch(mine + offsetof(ShmSide, consumed));
}

// The two ends of a stream inside one process: connector and listener. Null, null when the system
// has no memory or descriptors left. REQUIRES: valid_ring_bytes(ring_bytes).
std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_shm_pair(
    std::uint32_t ring_bytes, ShmWakeKind kind = ShmWakeKind::kOneEvent) noexcept;

}  // namespace ringroad
