// What a stream publishes: its slot in the process' statistics, and the counts there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "rsocket-core/stream/stream_core.h"

namespace ringroad {

class StreamStats : public StreamCore {
 public:
  Reason peer_reason() const noexcept {
    return reason_from_wire(slot_->peer_reason.load(std::memory_order_relaxed));
  }
  // Messages that went over a channel, either way; ever more.
  std::uint64_t messages_on_channel() const noexcept {
    const stats::Counters& counters = slot_->counts.traffic;
    return counters.tx_messages[1].load(std::memory_order_relaxed) +
           counters.rx_messages[1].load(std::memory_order_relaxed);
  }
  std::uint64_t messages_received() const noexcept {  // over a channel
    return slot_->counts.traffic.rx_messages[1].load(std::memory_order_relaxed);
  }
  // The calls of a stream on the kernel for good are counted here.
  void count_kernel_io(bool sent, ssize_t result) noexcept;

 protected:
  StreamStats(StreamHost* host, stats::Segment* segment, std::uint64_t id, int fd, Role role,
              const FourTuple& tuple, const StreamConfig& config) noexcept;
  ~StreamStats();

  void set_peer_reason(Reason reason) noexcept {
    slot_->peer_reason.store(static_cast<std::uint8_t>(reason), std::memory_order_relaxed);
  }
  void publish_identity() noexcept;
  void publish_state() noexcept;
  // A call of the program's has begun to move bytes. Under the direction's lock, but for a stream on the
  // kernel for good.
  void count_message(bool sent, bool channel) noexcept;
  // The same, where it is counted already and due to be timed.
  [[gnu::cold]] void sample(bool sent, bool channel) noexcept;
  // A sleep of the program's has ended, as there is something to read.
  void note_wake_up() noexcept;
  // A piece of a message.
  void count(bool sent, bool channel, std::size_t bytes) noexcept;
  // What a call of the program's has transferred in all.
  void count_size(bool sent, std::size_t bytes) noexcept {
    (sent ? slot_->counts.tx_sizes : slot_->counts.rx_sizes).add(bytes);
  }
  void count_promotion() noexcept;
  void count_refusal(Reason reason) noexcept;
  // A send has found no room. False: a stall has begun before, and has not ended.
  bool count_stall() noexcept RR_REQUIRES(tx_mutex_);
  void stall_ends() noexcept RR_REQUIRES(tx_mutex_);

  std::atomic<bool> owns_fd_{false};  // fd_ is a private duplicate

 private:
  stats::Segment* const segment_;
  // What slot_ and latencies_ are when the segment is full or missing.
  struct Unlisted {
    stats::StreamSlot slot;
    stats::Latencies latencies{};
  };
  std::unique_ptr<Unlisted> unlisted_;
  stats::Latencies* latencies_ = nullptr;
  std::uint8_t rule_index_ = 0;  // in segment_
  AnswerTimer answers_;
};

}  // namespace ringroad
