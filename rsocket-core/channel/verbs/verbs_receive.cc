// The receiving half of a VerbsChannel.
#include <endian.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "rsocket-core/base/faults.h"
#include "rsocket-core/channel/verbs/verbs_channel.h"

namespace ringroad {
namespace {

// Whether the fields that depend on nothing are as wire.h draws them.
bool well_formed(const ControlMessage& message) noexcept {
  const bool known = message.type >= static_cast<std::uint8_t>(ControlType::kCredit) &&
                     message.type <= static_cast<std::uint8_t>(ControlType::kLeft);
  const bool credit = message.type == static_cast<std::uint8_t>(ControlType::kCredit);
  const bool announces = message.type == static_cast<std::uint8_t>(ControlType::kSwitch);
  return known && message.zero16 == 0 && (message.proof == 0 || announces) &&
         message.reason < static_cast<std::uint8_t>(Reason::kCount) &&
         (!credit || (message.value == 0 && message.reason == 0));
}

// Of data that has come well: both fields in one comparison.
inline bool is_message(const ibv_wc& completion) noexcept {
  struct Kind {
    ibv_wc_status status;
    ibv_wc_opcode opcode;
  };
  static_assert(offsetof(ibv_wc, opcode) == offsetof(ibv_wc, status) + offsetof(Kind, opcode));
  constexpr auto kMessage =
      std::bit_cast<std::uint64_t>(Kind{IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM});
  std::uint64_t kind;
  std::memcpy(&kind, &completion.status, sizeof kind);
  return kind == kMessage;
}

}  // namespace

// What the peer tells of its end, where it is not what it told with the message before.
bool VerbsChannel::take_counts(__be32 immediate) noexcept {
  FlowCounts counts;
  if (!decode_immediate(be32toh(immediate), shift_, window_.acked_count(), window_.outstanding(),
                        tx_consumed(), tx_posted(), counts)) {
    return false;
  }
  window_.believe(counts.reposted);
  tx_consumed_.store(counts.consumed, kRelease);
  last_immediate_ = immediate;
  if (tx_posted() != tx_head()) {
    MutexLock lock(send_mutex_);
    post_data();
  }
  return true;
}

// `consumed` is rx_consumed(), or what it was lately.
inline bool VerbsChannel::take_data(std::uint32_t bytes, __be32 immediate,
                                    std::uint64_t consumed) noexcept {
  const std::uint64_t head = rx_head_.load(std::memory_order_relaxed);
  if (std::uint64_t{bytes} - 1 >= ring_bytes() - (head - consumed)) return false;
  // Of a peer that only sends each says what is known.
  if (immediate != last_immediate_ && !take_counts(immediate)) return false;
  rx_head_.store(head + bytes, kRelease);
  return true;
}

inline bool VerbsChannel::take_in(const ibv_wc& completion) noexcept {
  switch (completion.opcode) {
    case IBV_WC_RECV_RDMA_WITH_IMM:
      return take_data(completion.byte_len, completion.imm_data, rx_consumed());
    case IBV_WC_RECV:
      return completion.byte_len == sizeof(ControlMessage) &&
             (completion.wc_flags & IBV_WC_WITH_IMM) == 0 &&
             take_message(*queues_.receive_slot(completion.wr_id));
    default:
      return false;
  }
}

inline void VerbsChannel::slot_used(std::uint32_t used) noexcept {
  const std::uint32_t next = used + 1;
  next_slot_ = next;
  if (hardly_ever(next % kRepostBatch == 0)) repost();
}

// A channel that has failed, too, has a requested failure.
inline bool VerbsChannel::take_one(const ibv_wc& first, int n, std::uint64_t consumed) noexcept {
  const std::uint32_t slot = next_slot_;
  if (!mostly(n == 1 && requested_failure_.load(kAcquire) == Reason::kNone && is_message(first) &&
              first.wr_id == slot && take_data(first.byte_len, first.imm_data, consumed))) {
    return false;
  }
  slot_used(slot);
  return true;
}

bool VerbsChannel::take_arrivals() noexcept {
  if (failed()) return false;
  std::array<ibv_wc, kPollBatch> done;
  const int n = ibv_poll_cq(queues_.receive_cq(), kPollBatch, done.data());
  return take_one(done[0], n, rx_consumed()) || take_more(done.data(), n);
}

Channel::View VerbsChannel::rx_view() noexcept {
  const std::uint64_t from = rx_consumed_.load(std::memory_order_relaxed);
  return {queues_.receive_ring().at(from), rx_head() - from};
}

void VerbsChannel::settle_owed() noexcept {
  const int saved = errno;
  {
    MutexLock lock(send_mutex_);
    post_owed_credit();
  }
  errno = saved;
}

void VerbsChannel::consume(std::size_t n) noexcept {
  rx_consumed_.store(rx_consumed_.load(std::memory_order_relaxed) + n, kRelease);
  if (owes()) settle_owed();
}

std::size_t VerbsChannel::take(void* to, std::size_t n) noexcept {
  const std::uint64_t from = rx_consumed_.load(std::memory_order_relaxed);
  if (rx_head() == from) {
    // As progress(), by a thread that holds the lock anyway.
    if (!__builtin_expect(receive_mutex_.try_lock_within(), true)) return 0;
    const int saved = errno;
    std::array<ibv_wc, kPollBatch> done;
    const int polled = ibv_poll_cq(queues_.receive_cq(), kPollBatch, done.data());
    const bool one = take_one(done[0], polled, from);
    // What is owed for data is looked at when it is consumed. A poll finds nothing again and again.
    if (hardly_ever(!one && (polled != 0 || look_closer_.load(std::memory_order_relaxed)))) {
      if (!failed()) take_more(done.data(), polled);
      answer();
    }
    const std::uint32_t left = receive_mutex_.unlock_within_and_tell();
    if (hardly_ever(left != 0)) look_again(left);
    errno = saved;
    if (!one && rx_head() == from) return 0;
  }
  n = std::min<std::size_t>(n, rx_head() - from);
  if (hardly_ever(!faults::copy_short(to, queues_.receive_ring().at(from), n))) return 0;
  rx_consumed_.store(from + n, kRelease);
  // As owes(), but for what only changes where look_closer_ does.
  if (hardly_ever(from + n >= tell_at_.load(std::memory_order_relaxed)) ||
      hardly_ever(look_closer_.load(std::memory_order_relaxed))) {
    if (owes()) settle_owed();
  }
  return n;
}

void VerbsChannel::progress() noexcept { look(); }

bool VerbsChannel::look() noexcept {
  bool arrived = false;
  std::uint32_t left = Mutex::kMarked;
  while ((left & Mutex::kMarked) != 0 && receive_mutex_.try_lock_or_mark()) {
    arrived |= poll_receives();
    left = receive_mutex_.unlock_and_tell();
  }
  return arrived;
}

bool VerbsChannel::poll_receives() noexcept {
  if (failed()) return false;
  const bool arrived = take_arrivals();
  answer();
  return arrived;
}

void VerbsChannel::answer() noexcept {
  if (failed() || (tx_posted() == tx_head() && !owes())) return;
  MutexLock lock(send_mutex_);
  post_data();
  post_owed_credit();
}

bool VerbsChannel::take_batch(const ibv_wc* done, int n) noexcept {
  for (int i = 0; i < n; ++i) {
    const ibv_wc& completion = done[i];
    if (completion.status != IBV_WC_SUCCESS || completion.wr_id != next_slot_) {
      request_failure(Reason::kQpError);
      continue;
    }
    if (!take_in(completion)) {
      request_failure(Reason::kBadRequest);
      failure_.store(requested_failure_.load(kAcquire), kRelease);
      return false;
    }
    slot_used(next_slot_);
  }
  if (n < 0) request_failure(Reason::kQpError);
  return true;
}

bool VerbsChannel::take_more(const ibv_wc* first, int n) noexcept {
  bool arrived = n > 0;
  if (!take_batch(first, n)) return true;
  Reason requested = requested_failure_.load(kAcquire);
  if (n < kPollBatch && requested == Reason::kNone) return arrived;  // the queue is empty
  do {
    requested = requested_failure_.load(kAcquire);
    std::array<ibv_wc, kPollBatch> done;
    do {
      n = ibv_poll_cq(queues_.receive_cq(), kPollBatch, done.data());
      arrived |= n > 0;
      if (!take_batch(done.data(), n)) return true;
    } while (n == kPollBatch);
  } while (requested_failure_.load(kAcquire) != requested);
  if (requested == Reason::kNone) return arrived;
  failure_.store(requested, kRelease);
  return true;
}

void VerbsChannel::repost() noexcept {
  static_assert(kPostedReceives % kRepostBatch == 0);
  const std::uint32_t used = next_slot_ - unposted_slot_;
  const std::uint32_t first = unposted_slot_;
  if (next_slot_ == kPostedReceives) next_slot_ = 0;
  unposted_slot_ = next_slot_;
  if (requested_failure_.load(kAcquire) != Reason::kNone) return;
  if (!queues_.post_receives(first, used)) {
    request_failure(Reason::kQpError);
    return;
  }
  const std::uint32_t reposted = reposted_.load(std::memory_order_relaxed) + used;
  reposted_.store(reposted, kRelease);
  look_closer_.store(peer_end_.load(std::memory_order_relaxed) != kNoEnd ||
                         reposted - told().reposted >= kDataReceives / 2,
                     std::memory_order_relaxed);
}

bool VerbsChannel::take_message(const ControlMessage& message) noexcept {
  const std::uint64_t newly_consumed = message.consumed - tx_consumed();
  if (!well_formed(message) || newly_consumed > tx_posted() - tx_consumed() ||
      !window_.acked(message.credits)) {
    return false;
  }
  tx_consumed_.store(message.consumed, kRelease);
  last_immediate_ = kNoImmediate;
  if (message.type == static_cast<std::uint8_t>(ControlType::kCredit)) return true;
  if (message.type == static_cast<std::uint8_t>(ControlType::kFin) &&
      peer_end_.load(std::memory_order_relaxed) == kNoEnd) {
    peer_end_.store(message.value, kRelease);
    look_closer_.store(true, std::memory_order_relaxed);
  }
  MutexLock lock(control_mutex_);
  const std::uint32_t waiting = controls_waiting_.load(std::memory_order_relaxed);
  if (waiting == controls_.size()) return false;
  controls_[(controls_taken_ + waiting) % controls_.size()] = message;
  controls_waiting_.fetch_add(1, std::memory_order_release);
  return true;
}

}  // namespace ringroad
