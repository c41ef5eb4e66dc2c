// The sending half of a VerbsChannel.
#include <endian.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <utility>

#include "rsocket-core/base/faults.h"
#include "rsocket-core/channel/verbs/verbs_channel.h"

namespace ringroad {
namespace {

// Larger ones would keep the peer from reading while they are on the wire.
constexpr std::uint64_t kMaxMessageBytes = Channel::kMaxPutBytes;
// Data leaves these entries of the send queue to control messages.
constexpr std::uint32_t kControlSlots = kCreditReserve + kStreamReserve;

}  // namespace

inline void VerbsChannel::set_told(const FlowCounts& told_now) noexcept {
  told_reposted_.store(told_now.reposted, std::memory_order_relaxed);
  tell_at_.store(told_now.consumed + quarter_, std::memory_order_relaxed);
}

inline bool VerbsChannel::send_slot_free(std::uint32_t reserve) noexcept {
  if (posted_sends_ - completed_sends_ >= kSendSlots / 2) collect_sends();
  const bool free = posted_sends_ - completed_sends_ < kSendSlots - reserve;
  if (!free) awaits_send_.store(true, kRelease);
  return free;
}

bool VerbsChannel::post(ibv_send_wr& request, bool signalled) noexcept {
  const std::uint64_t number = ++posted_sends_;
  if (signalled || number % kSignalEvery == 0) {
    request.wr_id = number;
    request.send_flags |= IBV_SEND_SIGNALED;
    last_signalled_ = number;
  }
  if (queues_.post_send(request)) return true;
  request_failure(Reason::kQpError);
  return false;
}

// REQUIRES: credit, a free entry of the send queue, and that it does not cross the ring's end.
inline void VerbsChannel::fill_in_message(const std::byte* at, std::uint64_t from,
                                          std::uint64_t n) noexcept {
  const FlowCounts now = counts();
  data_bytes_.addr = reinterpret_cast<std::uintptr_t>(at);
  data_bytes_.length = static_cast<std::uint32_t>(n);
  data_request_.imm_data = htobe32(encode_immediate(now, shift_));
  data_request_.wr.rdma.remote_addr = data_bytes_.addr + to_peer_;

  // Before it is posted, for its acknowledgement is checked against these; and what was told, for a
  // queue pair that refuses it tells nothing any more.
  set_told(told_by_immediate(now, shift_));
  window_.sent();
  tx_posted_.store(from + n, kRelease);
}

bool VerbsChannel::post_message(std::uint64_t from, std::uint64_t n) noexcept {
  fill_in_message(queues_.transmit_ring().at(from), from, n);
  last_stream_send_ = posted_sends_ + 1;
  const unsigned usual = data_request_.send_flags;
  if (n > queues_.max_inline()) data_request_.send_flags = 0;
  const bool posted = post(data_request_, false);
  data_request_.send_flags = usual;
  return posted;
}

bool VerbsChannel::post_by_reference() noexcept {
  const unsigned usual = std::exchange(data_request_.send_flags, 0U);
  const bool posted = queues_.post_send(data_request_);
  data_request_.send_flags = usual;
  return posted;
}

Channel::View VerbsChannel::tx_view() noexcept {
  const std::uint64_t head = tx_head_.load(std::memory_order_relaxed);
  return {queues_.transmit_ring().at(head), ring_bytes() - (head - tx_consumed())};
}

Channel::View VerbsChannel::tx_replay(std::uint64_t offset) noexcept {
  return {queues_.transmit_ring().at(offset), tx_head() - offset};
}

void VerbsChannel::commit(std::size_t n) noexcept {
  tx_head_.store(tx_head_.load(std::memory_order_relaxed) + n, kRelease);
  MutexLock lock(send_mutex_);
  post_data();
}

void VerbsChannel::flush() noexcept {
  if (tx_posted() == tx_head()) return;
  MutexLock lock(send_mutex_);
  post_data();
}

bool VerbsChannel::send_control(const ControlMessage& message) noexcept {
  MutexLock lock(send_mutex_);
  // Signalled: they are few, and after the last of them the peer may close before it could
  // acknowledge what delivered() would send to learn of it.
  if (failed() || !window_.may_send_control() || !post_control(message, true)) return false;
  last_stream_send_ = posted_sends_;
  return true;
}

void VerbsChannel::collect_sends() noexcept {
  std::array<ibv_wc, 16> done;
  int n;
  while ((n = ibv_poll_cq(queues_.send_cq(), static_cast<int>(done.size()), done.data())) > 0) {
    for (int i = 0; i < n; ++i) {
      const ibv_wc& completion = done[static_cast<std::size_t>(i)];
      if (completion.status == IBV_WC_SUCCESS) {
        completed_sends_ = completion.wr_id;
      } else {
        request_failure(Reason::kQpError);
      }
    }
    awaits_send_.store(false, kRelease);
  }
  if (n < 0) request_failure(Reason::kQpError);
}

void VerbsChannel::post_data() noexcept {
  const std::uint64_t mask = ring_bytes() - 1;
  while (!failed()) {
    const std::uint64_t from = tx_posted_.load(std::memory_order_relaxed);
    const std::uint64_t left = tx_head() - from;
    if (left == 0) return;
    if (!window_.may_send_data() || !send_slot_free(kControlSlots)) break;
    const std::uint64_t to_ring_end = ring_bytes() - (from & mask);
    if (!post_message(from, std::min({left, to_ring_end, kMaxMessageBytes}))) break;
  }
  plain_until_ = 0;  // nothing may overtake what is left
}

// Whether there is credit now, and nothing that the stream should know first: a program that only
// sends looks for credit when it has none.
bool VerbsChannel::hear_of_credit() noexcept {
  const int saved = errno;
  progress();
  errno = saved;
  return window_.may_send_data() && !control_pending();
}

// Where the message would have to wait, or be two, commit() knows better. What is copied behind the head is
// nobody's until it moves.
bool VerbsChannel::put(const void* from, std::size_t n) noexcept {
  const int saved = errno;  // here already: what is known behind a call takes a register
  const std::uint64_t head = tx_head_.load(std::memory_order_relaxed);
  if (hardly_ever(head + n > room_until_) && !find_room(head, n)) return false;
  std::byte* const at = queues_.transmit_ring().at(head);
  if (hardly_ever(!faults::copy_short(at, from, n))) return false;
  if (!send_mutex_.try_lock_within()) return false;
  // A failure is seen by a thread that looks closely, after kSignalEvery messages: till then they are kept
  // for replay.
  const std::uint64_t posted = posted_sends_;
  const bool plain = posted < plain_until_;
  if (plain) {
    assert(tx_posted_.load(std::memory_order_relaxed) == head);
    tx_head_.store(head + n, kRelease);
    fill_in_message(at, head, n);
    last_stream_send_ = posted_sends_ = posted + 1;
    const bool sent =
        hardly_ever(n > queues_.max_inline()) ? post_by_reference() : queues_.post_send(data_request_);
    if (hardly_ever(!sent)) {
      request_failure(Reason::kQpError);
      plain_until_ = 0;
    }
    errno = saved;
  }
  send_mutex_.unlock_within();
  return plain || put_closely(head, n);
}

// Of one piece.
bool VerbsChannel::find_room(std::uint64_t head, std::size_t n) noexcept {
  const std::uint64_t ring_ends = (head | (ring_bytes() - 1)) + 1;
  room_until_ = std::min(tx_consumed() + ring_bytes(), ring_ends);
  return head + n <= room_until_;
}

bool VerbsChannel::put_closely(std::uint64_t head, std::size_t n) noexcept {
  if (!window_.may_send_data() && !hear_of_credit()) return false;
  if (!send_mutex_.try_lock_within()) return false;
  const int saved = errno;
  const bool may_send = tx_posted_.load(std::memory_order_relaxed) == head && !failed() &&
                        window_.may_send_data() && send_slot_free(kControlSlots);
  if (may_send) {
    tx_head_.store(head + n, kRelease);
    const bool posted = post_message(head, n);
    const std::uint64_t free_slots =
        kSendSlots - kControlSlots - (posted_sends_ - completed_sends_);
    const std::uint64_t before_signalled = (posted_sends_ | (kSignalEvery - 1)) - posted_sends_;
    plain_until_ =
        posted ? posted_sends_ + std::min({free_slots, before_signalled, window_.room_for_data()})
               : 0;
  }
  errno = saved;
  send_mutex_.unlock_within();
  return may_send;
}

void VerbsChannel::post_owed_credit() noexcept {
  if (failed() || !owes()) return;
  if (!window_.may_send_credit() && !(owes_end() && window_.may_send_control())) return;
  ControlMessage message;
  message.type = static_cast<std::uint8_t>(ControlType::kCredit);
  post_control(message, false);
}

bool VerbsChannel::post_control(ControlMessage message, bool signalled) noexcept {
  if (!send_slot_free(0)) return false;
  const FlowCounts now = counts();
  message.credits = now.reposted;
  message.consumed = now.consumed;
  ControlMessage* slot = queues_.send_slot(posted_sends_);
  *slot = message;
  ibv_sge bytes{};
  bytes.addr = reinterpret_cast<std::uintptr_t>(slot);
  bytes.length = sizeof *slot;
  bytes.lkey = queues_.control_lkey();
  ibv_send_wr request{};
  request.sg_list = &bytes;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags =
      sizeof *slot <= queues_.max_inline() ? static_cast<unsigned>(IBV_SEND_INLINE) : 0U;
  window_.sent();
  if (!post(request, signalled)) return false;
  set_told(now);
  return true;
}

bool VerbsChannel::delivered() noexcept {
  MutexLock lock(send_mutex_);
  post_data();
  collect_sends();
  if (tx_posted() != tx_head()) return false;
  if (completed_sends_ >= last_stream_send_) return true;
  if (failed()) return false;
  if (last_signalled_ < last_stream_send_ && send_slot_free(0)) {
    // A write of nothing: takes no receive, and completes after all before it.
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_WRITE;
    request.wr.rdma.remote_addr = peer_ring_;
    request.wr.rdma.rkey = peer_rkey_;
    post(request, true);
  }
  awaits_send_.store(true, kRelease);
  return false;
}

}  // namespace ringroad
