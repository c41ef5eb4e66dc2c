// The verbs objects of one channel and the memory they may touch, made and freed together.
//
//   transmit ring   registered without remote access: the device only reads it
//   receive ring    registered for the peer's RDMA writes, and for nothing else of the peer's
//   control block   | receive slots, 32 bytes each | send slots, 32 bytes each |
//
// Only the first half of each mirrored ring is registered: RLIMIT_MEMLOCK would count the second
// half again. So a write that meets the ring's end is split there; CPU copies are not.
//
// Pinned: 2 rings and the control block, and what the device's driver pins for its queues, which
// the depths below keep under 48 KiB for 128-byte send entries and 64-byte completions (mlx5). All
// together at most 2 rings and 64 KiB.
//
// Thread rule: create() and the destructor exclude all else; the members are what the channel's
// locks make of them.
#pragma once

#include <rdma/rdma_cma.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "rsocket-core/channel/transport.h"
#include "rsocket-core/channel/verbs/device.h"
#include "rsocket-core/channel/verbs/flow.h"
#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/protocol/ring.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad {

// Send queue entries: all messages that flow control lets out, and as many that are acknowledged by
// the peer's program but not by its device yet.
inline constexpr std::uint32_t kSendSlots = 128;
static_assert(kSendSlots >= kPostedReceives + kPostedReceives / 2);
// Every so many sends one asks for a completion; of fewer behind it nobody knows whether they are complete.
inline constexpr std::uint32_t kSignalEvery = 32;
static_assert(kSendSlots >= kPostedReceives + kSignalEvery);
// Asked for; what the device grants is read back. Holds a 64-byte message and any control message.
inline constexpr std::uint32_t kWantedInline = 64;

// The rdma_cm event channel, shared by the transport and every identifier made on it, since
// destroying an identifier needs it. Null if there is none.
class EventChannel {
 public:
  explicit EventChannel(const VerbsHost& host) noexcept;
  ~EventChannel();
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;
  rdma_event_channel* get() const noexcept { return channel_; }
  int fd() const noexcept { return channel_->fd; }

 private:
  const VerbsHost host_;
  rdma_event_channel* channel_;
};

struct CmIdDeleter {
  void operator()(rdma_cm_id* id) const noexcept { rdma_destroy_id(id); }
};
using CmId = std::unique_ptr<rdma_cm_id, CmIdDeleter>;

class QueuePair {
 public:
  explicit QueuePair(const VerbsHost& host, std::shared_ptr<EventChannel> events) noexcept
      : host_(host), cm_events_(std::move(events)) {}
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // Makes everything on `id`, which has a device; the receives are posted. `token` comes back as
  // the queue pair's context in asynchronous events. kNone or why not; the destructor tidies up.
  Reason create(rdma_cm_id* id, std::shared_ptr<ProtectionDomain> domain, std::size_t ring_bytes,
                std::uint64_t token) noexcept;
  // `id` outlives this, until own_id(). From then on the destructor ends the connection and destroys `id`.
  void own_id(CmId id) noexcept { id_ = std::move(id); }

  ibv_qp* qp() const noexcept { return qp_; }
  // False when the device refuses. As ibv_post_send(), but that the thread is not cancelled in it.
  bool post_send(ibv_send_wr& request) const noexcept {
    ibv_send_wr* bad;
    return post_send_(qp_, &request, &bad) == 0;
  }
  ibv_cq* receive_cq() const noexcept { return receive_cq_; }
  ibv_cq* send_cq() const noexcept { return send_cq_; }
  ibv_comp_channel* completions() const noexcept { return completions_; }
  const MirroredRing& transmit_ring() const noexcept { return transmit_; }
  const MirroredRing& receive_ring() const noexcept { return receive_; }
  std::uint32_t transmit_lkey() const noexcept { return transmit_mr_->lkey; }
  std::uint32_t receive_rkey() const noexcept { return receive_mr_->rkey; }
  std::uint32_t control_lkey() const noexcept { return control_mr_->lkey; }
  ControlMessage* receive_slot(std::uint64_t i) const noexcept { return control_ + i; }
  ControlMessage* send_slot(std::uint64_t sequence) const noexcept {
    return control_ + kPostedReceives + sequence % kSendSlots;
  }
  std::size_t max_inline() const noexcept { return max_inline_; }
  std::uint64_t pinned_bytes() const noexcept;

  // Posts the receives of `n` slots from `first` on in one call. False when the device refuses.
  // REQUIRES: first + n <= kPostedReceives.
  bool post_receives(std::uint32_t first, std::uint32_t n) noexcept;
  // Moves the queue pair to its error state: what is posted completes in error, which wakes
  // the thread that waits for a completion. Any thread.
  void stop() noexcept;

 private:
  Reason create_queues(rdma_cm_id* id) noexcept;
  void prepare_receives() noexcept;

  const VerbsHost host_;
  std::shared_ptr<EventChannel> cm_events_;
  rdma_cm_id* used_id_ = nullptr;
  CmId id_;
  std::shared_ptr<ProtectionDomain> domain_;
  MirroredRing transmit_;
  MirroredRing receive_;
  ControlMessage* control_ = nullptr;
  // A receive's request never changes, and a ring of all of them is ready: a chain of some is cut
  // out of it by its last pointer.
  std::array<ibv_recv_wr, kPostedReceives> receives_;
  std::array<ibv_sge, kPostedReceives> receive_buffers_;
  ibv_mr* transmit_mr_ = nullptr;
  ibv_mr* receive_mr_ = nullptr;
  ibv_mr* control_mr_ = nullptr;
  ibv_comp_channel* completions_ = nullptr;
  ibv_cq* receive_cq_ = nullptr;
  ibv_cq* send_cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  decltype(ibv_context_ops::post_send) post_send_ = nullptr;
  std::uint64_t token_ = 0;
  std::size_t max_inline_ = 0;
};

}  // namespace ringroad
