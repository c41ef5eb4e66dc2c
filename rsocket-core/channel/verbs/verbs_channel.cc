#include "rsocket-core/channel/verbs/verbs_channel.h"

#include <arpa/inet.h>

#include <cstdio>
#include <limits>
#include <new>
#include <utility>

#include "rsocket-core/channel/verbs/uncancellable.h"

namespace ringroad {

VerbsChannel::VerbsChannel(const VerbsHost& host, std::shared_ptr<EventChannel> events,
                           std::shared_ptr<ChannelRegistry> registry, PromotionId promotion,
                           std::size_t ring_bytes) noexcept
    : Channel(ring_bytes),
      registry_(std::move(registry)),
      promotion_(promotion),
      shift_(consumed_shift(ring_bytes)),
      queues_(host, std::move(events)) {}

std::unique_ptr<VerbsChannel> VerbsChannel::create(const VerbsHost& host,
                                                   std::shared_ptr<EventChannel> events,
                                                   std::shared_ptr<ChannelRegistry> registry,
                                                   PromotionId promotion, rdma_cm_id* id,
                                                   std::shared_ptr<ProtectionDomain> domain,
                                                   std::size_t ring_bytes, Reason& why) noexcept {
  std::unique_ptr<VerbsChannel> channel(new (std::nothrow) VerbsChannel(
      host, std::move(events), std::move(registry), promotion, ring_bytes));
  if (channel == nullptr) {
    why = Reason::kNoMemory;
    return nullptr;
  }
  why = channel->queues_.create(id, std::move(domain), ring_bytes, promotion);
  if (why != Reason::kNone) channel.reset();
  return channel;
}

VerbsChannel::~VerbsChannel() {
  if (registered_) registry_->remove(promotion_);
}

void VerbsChannel::describe(Hello& hello) const noexcept {
  hello.ring_addr = reinterpret_cast<std::uintptr_t>(queues_.receive_ring().base());
  hello.rkey = queues_.receive_rkey();
  hello.ring_bytes = static_cast<std::uint32_t>(ring_bytes());
  hello.credits = static_cast<std::uint16_t>(kDataReceives);
}

Reason VerbsChannel::check_peer(const Hello& hello) const noexcept {
  const bool fits = hello.ring_addr <= std::numeric_limits<std::uint64_t>::max() - ring_bytes();
  return hello.ring_bytes == ring_bytes() && fits && hello.credits >= kMinPeerDataReceives &&
                 hello.credits <= kMaxPeerDataReceives
             ? Reason::kNone
             : Reason::kBadRequest;
}

bool VerbsChannel::established(CmId id, const Hello& peer) noexcept {
  peer_ring_ = peer.ring_addr;
  to_peer_ = peer.ring_addr - reinterpret_cast<std::uintptr_t>(queues_.transmit_ring().base());
  peer_rkey_ = peer.rkey;
  window_.open(peer.credits);
  {
    MutexLock lock(send_mutex_);
    data_bytes_.lkey = queues_.transmit_lkey();
    data_request_.sg_list = &data_bytes_;
    data_request_.num_sge = 1;
    data_request_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    data_request_.send_flags = IBV_SEND_INLINE;
    data_request_.wr.rdma.rkey = peer_rkey_;
  }

  info_.carrier = Carrier::kRdma;
  std::snprintf(info_.device, sizeof info_.device, "%s", ibv_get_device_name(id->verbs->device));
  info_.qpn = queues_.qp()->qp_num;
  info_.pinned_bytes = queues_.pinned_bytes();
  info_.descriptors = 1;
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  if (ibv_query_qp(queues_.qp(), &attr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN, &init) == 0) {
    info_.peer_qpn = attr.dest_qp_num;
    info_.traffic_class = attr.ah_attr.grh.traffic_class;
    info_.path_mtu = 128U << attr.path_mtu;  // enum ibv_mtu: 1 is 256
    ibv_gid gid{};
    if (ibv_query_gid(id->verbs, id->port_num, attr.ah_attr.grh.sgid_index, &gid) == 0) {
      inet_ntop(AF_INET6, gid.raw, info_.gid, sizeof info_.gid);
    }
  }
  queues_.own_id(std::move(id));
  registered_ = registry_->add(promotion_, *this);
  return registered_;
}

void VerbsChannel::info(ChannelInfo& out) const noexcept { out = info_; }

void VerbsChannel::request_failure(Reason reason) noexcept {
  Reason none = Reason::kNone;
  if (requested_failure_.compare_exchange_strong(none, reason, std::memory_order_acq_rel)) {
    queues_.stop();
  }
}

void VerbsChannel::end(Reason reason) noexcept {
  request_failure(reason);
  receive_mutex_.lock();
  poll_receives();
  look_again(receive_mutex_.unlock_and_tell());
}

bool VerbsChannel::take_control(ControlMessage& out) noexcept {
  if (!control_pending()) return false;
  MutexLock lock(control_mutex_);
  if (controls_waiting_.load(std::memory_order_relaxed) == 0) return false;
  out = controls_[controls_taken_++ % controls_.size()];
  controls_waiting_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

bool VerbsChannel::arm() noexcept {
  const Uncancellable as_a_whole;
  bool arrived = false;
  receive_mutex_.lock();
  repost();
  // A request stands until its event has been drained, so one is enough for all sleepers.
  if (!armed_ && !failed()) {
    if (ibv_req_notify_cq(queues_.receive_cq(), 0) != 0) request_failure(Reason::kQpError);
    armed_ = true;
  }
  if (awaits_send_.load(kAcquire)) {
    MutexLock send(send_mutex_);
    const std::uint64_t before = completed_sends_;
    if (!send_armed_) {
      if (ibv_req_notify_cq(queues_.send_cq(), 0) != 0) request_failure(Reason::kQpError);
      send_armed_ = true;
    }
    collect_sends();
    if (completed_sends_ != before) {
      arrived = true;
      post_data();
    }
  }
  arrived |= poll_receives();
  arrived |= look_again(receive_mutex_.unlock_and_tell());
  return !arrived && !failed();
}

void VerbsChannel::drain() noexcept {
  const Uncancellable as_a_whole;
  receive_mutex_.lock();
  // A request brings one event, so behind the last that is due there is nothing to be read; a thread
  // that is here has been told of one, due or not.
  do {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(queues_.completions(), &cq, &context) != 0) break;
    ibv_ack_cq_events(cq, 1);
    (cq == queues_.receive_cq() ? armed_ : send_armed_) = false;
  } while (armed_ || send_armed_);
  look_again(receive_mutex_.unlock_and_tell());
}

}  // namespace ringroad
