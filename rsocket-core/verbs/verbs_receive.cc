// The receiving half of a VerbsChannel.
#include <endian.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "rsocket-core/verbs/verbs_channel.h"

namespace ringroad {
namespace {

// Whether the fields that depend on nothing are as wire.h draws them.
bool well_formed(const ControlMessage& message) noexcept {
  const bool known = message.type >= static_cast<std::uint8_t>(ControlType::kCredit) &&
                     message.type <= static_cast<std::uint8_t>(ControlType::kFin);
  const bool credit = message.type == static_cast<std::uint8_t>(ControlType::kCredit);
  const bool announces = message.type == static_cast<std::uint8_t>(ControlType::kSwitch);
  return known && message.zero16 == 0 && (message.proof == 0 || announces) &&
         message.reason < static_cast<std::uint8_t>(Reason::kCount) &&
         (!credit || (message.value == 0 && message.reason == 0));
}

}  // namespace

inline bool VerbsChannel::take_data(std::uint32_t bytes, std::uint32_t immediate) noexcept {
  const std::uint64_t head = rx_head_.load(std::memory_order_relaxed);
  if (bytes == 0 || bytes > ring_bytes() - (head - rx_consumed())) return false;
  FlowCounts counts;
  if (!decode_immediate(immediate, shift_, window_.acked_count(), window_.outstanding(),
                        tx_consumed(), tx_posted(), counts)) {
    return false;
  }
  window_.believe(counts.reposted);
  tx_consumed_.store(counts.consumed, kRelease);
  rx_head_.store(head + bytes, kRelease);
  return true;
}

inline bool VerbsChannel::take_in(const ibv_wc& completion) noexcept {
  switch (completion.opcode) {
    case IBV_WC_RECV_RDMA_WITH_IMM:
      return take_data(completion.byte_len, be32toh(completion.imm_data));
    case IBV_WC_RECV:
      return completion.byte_len == sizeof(ControlMessage) &&
             (completion.wc_flags & IBV_WC_WITH_IMM) == 0 &&
             take_message(*queues_.receive_slot(completion.wr_id));
    default:
      return false;
  }
}

Channel::View VerbsChannel::rx_view() noexcept {
  const std::uint64_t from = rx_consumed_.load(std::memory_order_relaxed);
  return {queues_.receive_ring().at(from), rx_head() - from};
}

void VerbsChannel::consume(std::size_t n) noexcept {
  rx_consumed_.store(rx_consumed_.load(std::memory_order_relaxed) + n, kRelease);
  if (!owes()) return;
  MutexLock lock(send_mutex_);
  post_owed_credit();
}

std::size_t VerbsChannel::take(void* to, std::size_t n) noexcept {
  const std::uint64_t from = rx_consumed_.load(std::memory_order_relaxed);
  const int saved = errno;
  if (rx_head() == from) {
    // As progress(), by who holds the lock anyway.
    if (!receive_mutex_.try_lock_within()) return 0;
    poll_receives();
    receive_mutex_.unlock_within();
    if (look_again_.fetch_add(0, std::memory_order_seq_cst) != 0) serve_marks();
  }
  n = std::min<std::size_t>(n, rx_head() - from);
  if (n > 0) {
    copy_short(to, queues_.receive_ring().at(from), n);
    consume(n);
  }
  errno = saved;
  return n;
}

void VerbsChannel::progress() noexcept {
  look_again_.exchange(1, std::memory_order_seq_cst);
  serve_marks();
}

// The mark is set before the lock is tried, and read (by a read-modify-write, which is ordered
// against the exchange above) after the lock was let go: of two threads that meet, one sees the
// other.
bool VerbsChannel::serve_marks() noexcept {
  bool arrived = false;
  while (look_again_.fetch_add(0, std::memory_order_seq_cst) != 0) {
    if (!receive_mutex_.try_lock()) break;
    look_again_.exchange(0, std::memory_order_seq_cst);
    arrived |= poll_receives();
    receive_mutex_.unlock();
  }
  return arrived;
}

bool VerbsChannel::poll_receives() noexcept {
  if (failed()) return false;
  bool arrived = false;
  Reason requested;
  do {
    requested = requested_failure_.load(kAcquire);
    std::array<ibv_wc, kPollBatch> done;
    int n;
    do {
      n = ibv_poll_cq(queues_.receive_cq(), kPollBatch, done.data());
      for (int i = 0; i < n; ++i) {
        arrived = true;
        const ibv_wc& completion = done[static_cast<std::size_t>(i)];
        if (completion.status != IBV_WC_SUCCESS) {
          request_failure(Reason::kQpError);
          continue;
        }
        if (!take_in(completion)) {
          request_failure(Reason::kBadRequest);
          failure_.store(requested_failure_.load(kAcquire), kRelease);
          return true;
        }
        used_[used_count_++] = static_cast<std::uint32_t>(completion.wr_id);
      }
      if (used_count_ >= kRepostBatch) repost();
    } while (n == kPollBatch);  // fewer: the queue is empty
    if (n < 0) request_failure(Reason::kQpError);
  } while (requested_failure_.load(kAcquire) != requested);

  if (requested != Reason::kNone) {
    failure_.store(requested, kRelease);
    return true;
  }
  if (tx_posted() != tx_head() || owes()) {
    MutexLock lock(send_mutex_);
    post_data();
    post_owed_credit();
  }
  return arrived;
}

void VerbsChannel::repost() noexcept {
  const std::uint32_t used = std::exchange(used_count_, 0);
  if (requested_failure_.load(kAcquire) != Reason::kNone) return;
  if (!queues_.post_receives(used_.data(), used)) {
    request_failure(Reason::kQpError);
  } else {
    reposted_.fetch_add(used, kRelease);
  }
}

bool VerbsChannel::take_message(const ControlMessage& message) noexcept {
  const std::uint64_t newly_consumed = message.consumed - tx_consumed();
  if (!well_formed(message) || newly_consumed > tx_posted() - tx_consumed() ||
      !window_.acked(message.credits)) {
    return false;
  }
  tx_consumed_.store(message.consumed, kRelease);
  if (message.type == static_cast<std::uint8_t>(ControlType::kCredit)) return true;
  if (message.type == static_cast<std::uint8_t>(ControlType::kFin) &&
      peer_end_.load(std::memory_order_relaxed) == kNoEnd) {
    peer_end_.store(message.value, kRelease);
  }
  MutexLock lock(control_mutex_);
  const std::uint32_t waiting = controls_waiting_.load(std::memory_order_relaxed);
  if (waiting == controls_.size()) return false;
  controls_[(controls_taken_ + waiting) % controls_.size()] = message;
  controls_waiting_.fetch_add(1, std::memory_order_release);
  return true;
}

}  // namespace ringroad
