// Flow control between two queue pairs, as arithmetic: what an immediate says, how many messages
// may be on their way, and when what is owed to the peer deserves a message of its own. No verbs
// here, so all of it is tested without a device (tests/verbs/flow_test.cc).
//
// Each end keeps kPostedReceives receives posted. Every message of the peer, data or control, takes
// one, and it is posted again when its completion has been processed, kRepostBatch of them at once
// (or before the end sleeps): nothing waits for the application. Every message carries the sender's
// two cumulative counts:
//
//   reposted   receives of the sender that the peer has used and the sender has posted again
//   consumed   bytes that the sender's application has taken from its receive ring
//
//   immediate of a data message:   | reposted mod 2^16 | consumed >> shift, mod 2^16 |
//   control message:               the full counts (wire.h: credits, consumed)
//
// A sender's `outstanding` is what it has sent less what the peer has reposted:
//
//   0 .. data receives - 1          data may be sent
//   .. + kCreditReserve - 1         kCredit messages may be sent
//   .. + kStreamReserve - 1         the stream's control messages may be sent
//
// Why the reserve suffices, and why nothing waits for ever:
//  - The stream sends at most four control messages in a channel's life (wire.h has four types and none
//    is sent twice in one direction), and one kCredit says that all before the peer's kFin was consumed:
//    kStreamReserve has room for them.
//  - Ack-triggered kCredit: it is sent when half of the data receives are owed, so a message that
//    only acknowledges is itself acknowledged by a fraction of a message: no ping-pong.
//  - Let A reach `data receives` outstanding. B, by the time it has processed half of them
//    and what is less than a batch, owes half of them and tells A, if B may send. What A sends until
//    it hears that is triggered by messages that B sent before: these consume at most one ring, which
//    triggers at most 4 kCredit (one a quarter), and number at most kPostedReceives, which triggers
//    at most 3 (one each half of the data receives). 7 < kCreditReserve, so A does not come to the
//    end of its reserve before it hears from B. By symmetry neither does B; were one the first to
//    be stuck, the other would not have been stuck before it, so it would have told. Hence neither
//    ever is.
//  - Room: a sender that waits for room has at least a quarter of a ring under way or unread. When
//    the reader takes it, a quarter is owed at some point, and a message says so. What stays
//    unreported is always less than a quarter, so a peer that has read everything leaves the sender
//    more than three quarters of its ring.
//  - Messages: a sender that waits for receives has all data receives outstanding; processing half
//    of them, and what is less than a batch, makes the peer owe a kCredit. Processing needs no
//    application, only progress().
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "rsocket-core/base/histogram.h"

namespace ringroad {

inline constexpr std::uint32_t kDataReceives = 64;
inline constexpr std::uint32_t kCreditReserve = 8;
inline constexpr std::uint32_t kStreamReserve = 8;
inline constexpr std::uint32_t kPostedReceives = kDataReceives + kCreditReserve + kStreamReserve;
// Used receives are posted again by so many.
inline constexpr std::uint32_t kRepostBatch = 8;
static_assert(kDataReceives / 2 + kRepostBatch - 1 <= kDataReceives);
static_assert(4 + (kPostedReceives + kDataReceives / 2 - 1) / (kDataReceives / 2) < kCreditReserve,
              "the argument above");

// What a peer may claim to have posted for data: the bounds within which the argument holds.
inline constexpr std::uint32_t kMinPeerDataReceives = 16;
inline constexpr std::uint32_t kMaxPeerDataReceives = 4096;

// Bits by which consumed offsets are shifted in an immediate, so that a whole ring's worth of them
// is told apart by 16 bits. Both ends have the same ring size and so the same shift.
constexpr unsigned consumed_shift(std::size_t ring_bytes) noexcept {
  const unsigned bits = static_cast<unsigned>(std::bit_width(ring_bytes)) - 1;
  return bits > 15 ? bits - 15 : 0;
}

// The counts of one end, as its peer may learn them.
struct FlowCounts {
  std::uint32_t reposted = 0;  // modulo 2^32
  std::uint64_t consumed = 0;

  friend bool operator==(const FlowCounts&, const FlowCounts&) = default;
};

// `consumed` is rounded down to a whole unit of 1 << shift.
inline std::uint32_t encode_immediate(const FlowCounts& counts, unsigned shift) noexcept {
  return (counts.reposted & 0xffffU) << 16 |
         static_cast<std::uint32_t>((counts.consumed >> shift) & 0xffffU);
}
// What encode_immediate() of these counts tells.
inline FlowCounts told_by_immediate(const FlowCounts& counts, unsigned shift) noexcept {
  return {counts.reposted, counts.consumed >> shift << shift};
}

// The sending half: what is under way to the peer. sent() under the send-queue lock, acked() under
// the receive-queue lock, the rest anywhere: acks only widen the window for a sender, and sends only
// raise the number of messages that the peer can truthfully acknowledge.
class SendWindow {
 public:
  // Before the first message. `peer_data_receives` is what the peer's Hello told.
  void open(std::uint32_t peer_data_receives) noexcept { data_limit_ = peer_data_receives; }

  std::uint32_t acked_count() const noexcept { return acked_.load(std::memory_order_acquire); }
  std::uint32_t outstanding() const noexcept {
    const std::uint32_t acked = acked_count();
    return sent_.load(std::memory_order_acquire) - acked;
  }
  bool may_send_data() const noexcept { return outstanding() < data_limit_; }
  // How many messages of data may be sent.
  std::uint64_t room_for_data() const noexcept {
    const std::uint32_t now = outstanding();
    return now < data_limit_ ? data_limit_ - now : 0;
  }
  bool may_send_credit() const noexcept { return outstanding() < data_limit_ + kCreditReserve; }
  bool may_send_control() const noexcept {
    return outstanding() < data_limit_ + kCreditReserve + kStreamReserve;
  }
  // Before the message is posted: its acknowledgement can be quick.
  void sent() noexcept { stats::add_alone(sent_, 1); }
  // The peer has reposted `reposted` receives altogether. False when it cannot have.
  bool acked(std::uint32_t reposted) noexcept {
    if (reposted - acked_count() > outstanding()) return false;
    believe(reposted);
    return true;
  }
  // As acked(), of what decode_immediate() has found possible.
  void believe(std::uint32_t reposted) noexcept {
    acked_.store(reposted, std::memory_order_release);
  }

 private:
  std::uint32_t data_limit_ = 0;
  std::atomic<std::uint32_t> sent_{0};
  std::atomic<std::uint32_t> acked_{0};
};

// Takes a peer's immediate apart. `acked` and `tx_consumed` are what it told before, `outstanding`
// the messages it has not acknowledged, `tx_posted` the bytes sent to it. False when the immediate
// tells what cannot be: more receives reposted than were used, or bytes consumed that were not sent.
inline bool decode_immediate(std::uint32_t immediate, unsigned shift, std::uint32_t acked,
                             std::uint32_t outstanding, std::uint64_t tx_consumed,
                             std::uint64_t tx_posted, FlowCounts& out) noexcept {
  const std::uint32_t newly_reposted = ((immediate >> 16) - acked) & 0xffffU;
  if (newly_reposted > outstanding) return false;
  const std::uint64_t units = tx_consumed >> shift;
  const std::uint64_t newly_consumed = (immediate - units) & 0xffffU;
  // Rounding down can fall behind what a control message told exactly, but never into an earlier
  // unit: the counts only grow.
  const std::uint64_t consumed =
      newly_consumed == 0 ? tx_consumed : (units + newly_consumed) << shift;
  if (consumed > tx_posted) return false;
  out = {acked + newly_reposted, consumed};
  return true;
}

// True when `now` differs so much from what the peer was `told` that it deserves a message.
constexpr bool owes_credit(const FlowCounts& now, const FlowCounts& told,
                           std::size_t ring_bytes) noexcept {
  return now.reposted - told.reposted >= kDataReceives / 2 ||
         now.consumed - told.consumed >= ring_bytes / 4;
}

}  // namespace ringroad
