// The listener's part of the broker: requests of peers, also those that wait for their connection.
#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "rsocket-core/agent/promotion_broker.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_transport.h"

namespace ringroad {

// A stranger would otherwise have a stream leave its channel, a listener end, or the places of others.
Reason PromotionBroker::why_unproven(const PromotionRequest& request) noexcept {
  if (!request.by_path) return Reason::kNone;
  const auto is_proven_by = [&](const SharedKey& key) noexcept {
    return key.present && same_proof(request.proof, make_proof(key, ProofOf::kRequest, request.connector, {},
                                                               request.tuple.reversed()));
  };
  const SharedKey key = host_.key_for(request.tuple);
  if (is_proven_by(key)) return Reason::kNone;
  // The policy may have been edited since the stream was made.
  const AgentStreamPtr stream = streams_.accepted(request.tuple);
  if (stream != nullptr && is_proven_by(stream->config().key)) return Reason::kNone;
  return key.present ? Reason::kWrongKey : Reason::kOtherNamespace;
}

void PromotionBroker::on_request(Transport& transport, PromotionId id,
                                 const PromotionRequest& request) noexcept {
  if (const Reason why = why_unproven(request); why != Reason::kNone) {
    transport.refuse(id, why);
    return;
  }
  const Look look = look_up(transport, id, request, false);
  if (look == Look::kAnswered) return;
  // accept() may not have returned yet, here or in another process of the group. Or a process that has
  // forked a child for the connection has not closed it yet.
  if (pending_requests_.size() >= kMaxPendingRequests) {
    transport.refuse(id, Reason::kBusy);
    return;
  }
  const std::int64_t now = sys::now_ns();
  const AgentStreamPtr stream = accepted(request.tuple);
  const bool kept = stream != nullptr && stream->operator_hold() != Reason::kNone;
  // The other side waits for kAnswerNs, less the time that the request takes.
  static_assert(KeptByPeer::kRequestNs + 1'000'000'000 <= ShmTransport::kAnswerNs);
  // look_at_once() comes when a kept stream is let off: an idle process stays idle.
  const std::int64_t look_ns =
      group_.exists() && !kept ? now + kFirstLookNs : std::numeric_limits<std::int64_t>::max();
  if (kept && pending_requests_.size() >= kMaxKeptRequests) {
    transport.refuse(id, Reason::kOperator);
    return;
  }
  const std::int64_t wait = kept ? KeptByPeer::kRequestNs : kPendingRequestNs;
  try {
    pending_requests_[id] = {&transport, request,      now + wait,
                             look_ns,    kFirstLookNs, look == Look::kWaitsForQuota};
  } catch (const std::bad_alloc&) {
    transport.refuse(id, Reason::kNoMemory);
  }
}

AgentStreamPtr PromotionBroker::accepted(const FourTuple& tuple) noexcept {
  streams_.set_requests_wait(true);
  // A thread that defers a connection enters it, and then reads requests_wait(): one of the two sees the
  // other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  host_.materialise(AgentHost::Deferred::kAccepted, tuple.remote);
  return streams_.accepted(tuple);
}

bool PromotionBroker::has_back(Stream& stream) noexcept {
  if (!group_.alone(stream.share())) return false;
  const bool lent = stream.lent().load(std::memory_order_acquire) != 0;
  return !lent || host_.take_back(stream);
}

PromotionBroker::Look PromotionBroker::look_up(Transport& transport, PromotionId id,
                                               const PromotionRequest& request,
                                               bool last) noexcept {
  const AgentStreamPtr stream = accepted(request.tuple);
  // A process that has forked before may be about to leave this connection to a child as well: one that
  // was promoted before would be brought back for good.
  const bool shared = stream != nullptr && stream->shared();
  const bool may_be_forked = stream != nullptr && group_.exists() && !shared &&
                             stream->config().wait_ns == 0 && stream->awaits_use();
  const bool is_here = stream != nullptr && !may_be_forked && (!shared || has_back(*stream));
  if (is_here && (!shared || last || !stream->awaits_use())) {
    if (stream->operator_hold() != Reason::kNone) {
      if (!last) return Look::kWaits;  // look_at_once()
      transport.refuse(id, Reason::kOperator);
    } else if (!last && stream->has_channel()) {
      return Look::kWaits;  // after_service()
    } else if (stream->all_read()) {
      switch (channel_quota()) {
        case ChannelBudget::Quota::kFree:
          decide(transport, id, request, stream);
          break;
        case ChannelBudget::Quota::kComing:
          if (!last) return Look::kWaitsForQuota;  // quota_is_freed()
          [[fallthrough]];
        case ChannelBudget::Quota::kNone:
          settle_refusal(stream, Reason::kMaxChannels, Reason::kNone);
          transport.refuse(id, Reason::kMaxChannels);
          break;
      }
    } else if (last) {
      // Its client's program could not write until this one's has read.
      transport.refuse(id, Reason::kBusy);
    } else {
      return Look::kWaits;  // Stream::read_since_asked()
    }
    return Look::kAnswered;
  }
  Rendezvous where;
  const ProcessGroup::Found found = group_.find(request.tuple, where);
  const bool can_ask =
      transport.carrier() == Carrier::kShm ? where.has_shm() : where.rdma_port != 0;
  if (found == ProcessGroup::Found::kOther && can_ask) {
    transport.redirect(id, where);
    return Look::kAnswered;
  }
  if (stream == nullptr && found != ProcessGroup::Found::kSeveral &&
      listeners_.leave_closed(request.tuple.local)) {
    transport.refuse(id, Reason::kBusy);  // so that it asks again
    return Look::kAnswered;
  }
  if (last) {
    transport.refuse(id, may_be_forked ? Reason::kBusy
                         : stream != nullptr || found == ProcessGroup::Found::kSeveral
                             ? Reason::kFork
                             : Reason::kUnknownConnection);
  }
  return last ? Look::kAnswered : Look::kWaits;
}

void PromotionBroker::look_up_again(PromotionId id, bool last) noexcept {
  PendingRequest& pending = pending_requests_.find(id)->second;
  pending.waits_for_quota = false;  // while it asks
  const PendingRequest asked = pending;
  const Look look = look_up(*asked.transport, id, asked.request, last);
  if (look == Look::kAnswered) {
    pending_requests_.erase(id);
  } else if (const auto it = pending_requests_.find(id); it != pending_requests_.end()) {
    it->second.waits_for_quota = look == Look::kWaitsForQuota;
  }
}

void PromotionBroker::look_again(std::int64_t now_ns) noexcept {
  for (auto it = pending_requests_.begin(); it != pending_requests_.end();) {
    PendingRequest& pending = it->second;
    const bool last = pending.deadline_ns <= now_ns;
    if (!last && pending.look_ns > now_ns) {
      ++it;
      continue;
    }
    pending.pause_ns = std::min(2 * pending.pause_ns, kLongestLookNs);
    pending.look_ns = now_ns + pending.pause_ns;
    const PromotionId id = it->first;
    look_up_again(id, last);
    it = pending_requests_.upper_bound(id);
  }
}

void PromotionBroker::look_at_once() noexcept {
  for (auto& [id, pending] : pending_requests_) pending.look_ns = 0;
}

void PromotionBroker::match_pending_requests(const AgentStreamPtr& stream) noexcept {
  listeners_.needs_to_be_found(*stream);  // as one does that was accepted before the first fork
  listeners_.be_found();
  for (auto it = pending_requests_.begin(); it != pending_requests_.end(); ++it) {
    if (it->second.request.tuple != stream->tuple()) continue;
    look_up_again(it->first, false);
    return;
  }
}

void PromotionBroker::decide(Transport& transport, PromotionId id, const PromotionRequest& request,
                             const AgentStreamPtr& stream) noexcept {
  drop_request(*stream);
  const StreamConfig& config = stream->config();
  Reason why_not = Reason::kNone;
  const bool allowed = transport.carrier() == Carrier::kShm ? config.via_shm : config.via_rdma;
  Nonce nonce{};
  if (!allowed || request.ring_bytes > config.ring_bytes) {
    why_not = Reason::kPolicy;
  } else if (!make_nonce(nonce)) {
    why_not = Reason::kNoMemory;
  } else {
    why_not = stream->promotion_started(nonce);
    if (why_not == Reason::kNone && held_.load() > 0) {  // as Agent::leave_all() may not know
      why_not = Reason::kBusy;
      stream->promotion_refused(why_not, Reason::kNone);
    }
  }
  if (why_not == Reason::kNone) {
    try {
      promote(id, stream, transport, {});
    } catch (const std::bad_alloc&) {
      why_not = Reason::kNoMemory;
      stream->promotion_refused(why_not, Reason::kNone);
    }
  } else if (why_not != Reason::kBusy) {
    settle_refusal(stream, why_not, Reason::kNone);
  }
  if (why_not != Reason::kNone) {
    transport.refuse(id, why_not);
    return;
  }
  AcceptParams params;
  params.nonce = nonce;
  std::memcpy(params.device, config.device, sizeof params.device);
  params.has_traffic_class = config.has_traffic_class;
  params.traffic_class = config.traffic_class;
  params.detect_ns = config.detect_ns;
  params.key = config.key;
  transport.accept(id, params);
}

}  // namespace ringroad
