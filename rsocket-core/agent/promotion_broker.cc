// The connector's part, the outcomes of both roles, and the channel quota.
#include "rsocket-core/agent/promotion_broker.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "rsocket-core/agent/decision_log.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/own_addresses.h"

namespace ringroad {

// ---- The channel quota

ChannelBudget::Quota PromotionBroker::channel_quota() noexcept {
  const std::int64_t now = sys::now_ns();
  const auto requests = std::count_if(pending_requests_.begin(), pending_requests_.end(),
                                      [](const auto& known) { return known.second.waits_for_quota; });
  const ChannelBudget::Quota quota = budget_.channel_quota(
      promotions_.size(), waiting_.size() + static_cast<std::size_t>(requests), now);
  if (quota == ChannelBudget::Quota::kNone && now - full_noted_ns_ >= kFullNoticeNs) {
    full_noted_ns_ = now;
    host_.log("as many streams have channels as the policy's max_channels allows, and all are busy");
  }
  return quota;
}

bool PromotionBroker::wait_for_quota(const AgentStreamPtr& stream) noexcept {
  try {
    waiting_.push_back({stream, sys::now_ns() + ChannelBudget::kLeavePatienceNs});
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool PromotionBroker::still_waits(const AgentStream& stream) noexcept {
  return stream.state() == State::kOnTcp && stream.request == 0 &&
         stream.operator_hold() == Reason::kNone && !stream.closed_by_program();
}

void PromotionBroker::quota_is_freed() noexcept {
  for (auto& [id, pending] : pending_requests_) {
    if (!pending.waits_for_quota) continue;
    pending.waits_for_quota = false;
    pending.look_ns = 0;
    return;
  }
  while (!waiting_.empty()) {
    const AgentStreamPtr stream = waiting_.front().stream.lock();
    waiting_.pop_front();
    if (stream == nullptr || !still_waits(*stream)) continue;
    start(stream);
    return;
  }
}

void PromotionBroker::stop_waiting_for_quota(std::int64_t now_ns) noexcept {
  while (!waiting_.empty() && waiting_.front().deadline_ns <= now_ns) {
    const AgentStreamPtr stream = waiting_.front().stream.lock();
    waiting_.pop_front();
    if (stream == nullptr || !still_waits(*stream)) continue;
    settle_refusal(stream, Reason::kMaxChannels, Reason::kNone);
  }
}

// ---- The connector

Reason PromotionBroker::remembered_without(const Endpoint& peer) noexcept {
  const auto it = peers_without_.find(peer);
  const bool known = it != peers_without_.end() && it->second.until_ns > sys::now_ns();
  return known ? it->second.reason : Reason::kNone;
}

void PromotionBroker::remember_without(const Endpoint& peer, Reason reason) noexcept {
  try {
    if (peers_without_.size() >= kPeerMemoryEntries) peers_without_.clear();
    Absent& absent = peers_without_[peer];
    absent.reason = reason;
    absent.pause_ns = std::clamp(2 * absent.pause_ns, kFirstPeerMemoryNs, kLongestPeerMemoryNs);
    absent.until_ns = sys::now_ns() + absent.pause_ns;
  } catch (const std::bad_alloc&) {
  }
}

void PromotionBroker::start(const AgentStreamPtr& stream) noexcept {
  drop_request(*stream);
  // Its program and the operator may ask for it at the same time.
  if (stream->request != 0) return;
  if (const Reason known = remembered_without(stream->tuple().remote); known != Reason::kNone) {
    stream->promotion_refused(known, Reason::kNone);
    return;
  }
  const StreamConfig& config = stream->config();
  const bool here = config.via_shm && is_own_address(stream->tuple().remote);
  const bool by_path =
      config.via_shm && !here && config.key.present && host_.rendezvous_directory() != nullptr;
  // VerbsTransport has turns of its own.
  if ((here || by_path) && turns_.waits(stream)) return;
  const ChannelBudget::Quota quota = channel_quota();
  if (quota != ChannelBudget::Quota::kFree) {
    if (quota == ChannelBudget::Quota::kComing && wait_for_quota(stream)) return;
    settle_refusal(stream, Reason::kMaxChannels, Reason::kNone);
    return;
  }
  Nonce nonce;
  if (!make_nonce(nonce)) {
    settle_refusal(stream, Reason::kNoMemory, Reason::kNone);
    return;
  }
  if (stream->shared()) has_back(*stream);  // if not, the next says so
  Reason why_not = stream->promotion_started(nonce);
  // Agent::leave_all() may not know of it.
  if (why_not == Reason::kNone && held_.load() > 0) why_not = Reason::kBusy;
  if (why_not != Reason::kNone) {
    settle_refusal(stream, why_not, Reason::kNone);
    return;
  }
  if (!here && !by_path && !config.via_rdma) {
    const Reason why = config.via_shm ? Reason::kOtherNamespace : Reason::kPeerHasNoRingroad;
    settle_refusal(stream, why, Reason::kNone);
    return;
  }
  if (by_path) return connect_by_path(stream);
  connect(stream, here, here && config.via_rdma);
}

void PromotionBroker::start_those_in_turn() noexcept {
  while (turns_.has_next()) {
    const AgentStreamPtr stream = turns_.next();
    if (stream != nullptr && still_waits(*stream)) start(stream);
  }
}

void PromotionBroker::connect_by_path(const AgentStreamPtr& stream) noexcept {
  Reason why = Reason::kNone;
  Transport* const transport = transports_.shm(why);
  if (transport != nullptr) {
    connect(stream, *transport, {.rdma_next = stream->config().via_rdma, .by_path = true}, nullptr);
  } else if (stream->config().via_rdma) {
    connect(stream, false, false);
  } else {
    settle_refusal(stream, why, Reason::kNone);
  }
}

void PromotionBroker::connect(const AgentStreamPtr& stream, bool shm, bool rdma_next) noexcept {
  Reason why = Reason::kNone;
  Transport* transport = shm ? transports_.shm(why) : transports_.verbs(why);
  if (transport == nullptr) {
    if (rdma_next) {
      connect(stream, false, false);
    } else {
      settle_refusal(stream, why, Reason::kNone);
    }
    return;
  }
  connect(stream, *transport, {.rdma_next = rdma_next}, nullptr);
}

void PromotionBroker::connect(const AgentStreamPtr& stream, Transport& transport, Way way,
                              const Rendezvous* where) noexcept {
  const StreamConfig& config = stream->config();
  ConnectParams params;
  params.tuple = stream->tuple();
  params.nonce = stream->nonce();
  params.ring_bytes = config.ring_bytes;
  std::memcpy(params.device, config.device, sizeof params.device);
  params.has_traffic_class = config.has_traffic_class;
  params.traffic_class = config.traffic_class;
  params.detect_ns = config.detect_ns;
  params.key = config.key;
  params.by_path = way.by_path;
  if (where != nullptr) {
    params.redirected = true;
    params.rendezvous = *where;
  }
  const PromotionId id = Transports::next_promotion_id();
  try {
    promote(id, stream, transport, way);
  } catch (const std::bad_alloc&) {
    settle_refusal(stream, Reason::kNoMemory, Reason::kNone);
    return;
  }
  transport.connect(id, params);
}

void PromotionBroker::promote(PromotionId id, const AgentStreamPtr& stream, Transport& transport, Way way) {
  const auto entry = promotions_.emplace(id, Promotion{stream, &transport, way}).first;
  try {
    if (entry->second.takes_turn()) turns_.begins(stream->tuple().remote);
  } catch (const std::bad_alloc&) {
    promotions_.erase(entry);
    throw;
  }
  stream->request = id;
}

std::optional<PromotionBroker::Promotion> PromotionBroker::take_promotion(PromotionId id) noexcept {
  const auto it = promotions_.find(id);
  if (it == promotions_.end()) return std::nullopt;
  std::optional<Promotion> taken(std::move(it->second));
  promotions_.erase(it);
  taken->stream->request = 0;
  if (taken->takes_turn()) turns_.ends(taken->stream->tuple().remote);
  return taken;
}

void PromotionBroker::drop_request(AgentStream& stream) noexcept {
  if (stream.request == 0 || stream.state() == State::kConnecting) return;
  const PromotionId id = stream.request;
  const std::optional<Promotion> promotion = take_promotion(id);
  if (promotion) promotion->transport->cancel(id);
  kept_by_peer_.request_is_dropped(stream);
}

void PromotionBroker::settle_refusal(const AgentStreamPtr& stream, Reason reason,
                                     Reason peer_reason) noexcept {
  stream->promotion_refused(reason, peer_reason);
  // With thousands of streams that is said all the time; see channel_quota().
  const bool full = reason == Reason::kMaxChannels || peer_reason == Reason::kMaxChannels;
  if (!full) log_decision(host_, *stream, "stays on TCP", reason, peer_reason);
  kept_by_peer_.note(stream);
  if (kept_by_peer_.request_is_refused(stream, reason)) let_off_by_peer(stream->tuple().remote);
}

void PromotionBroker::let_off_by_peer(const Endpoint& peer) noexcept {
  kept_by_peer_.let_off(peer, [this](const AgentStreamPtr& stream) noexcept { start(stream); });
}

// ---- Outcomes

void PromotionBroker::on_channel(PromotionId id, const Nonce& peer_nonce,
                                 std::unique_ptr<Channel> channel) noexcept {
  const std::optional<Promotion> promotion = take_promotion(id);
  if (!promotion) return;  // given up meanwhile; the peer sees the channel close
  const AgentStreamPtr& stream = promotion->stream;
  peers_without_.erase(stream->tuple().remote);
  stream->channel_up(std::move(channel), peer_nonce);
  try {
    if (stream->has_channel()) budget_.add(stream, sys::now_ns());
  } catch (const std::bad_alloc&) {
  }
  let_off_by_peer(stream->tuple().remote);
  loop_.channel_is_up(stream, id);
}

void PromotionBroker::on_refused(PromotionId id, Reason reason, Reason peer_reason) noexcept {
  pending_requests_.erase(id);
  const std::optional<Promotion> taken = take_promotion(id);
  if (!taken) return;
  const Promotion& promotion = *taken;
  const Way& way = promotion.way;
  const bool nobody = reason == Reason::kPeerHasNoRingroad || reason == Reason::kOtherNamespace;
  if (nobody && way.hops > 0) {
    // The process that had the connection has ended since. The listener is still there.
    reason = Reason::kPeerGone;
  } else if (reason == Reason::kOtherNamespace && !way.by_path && !promotion.stream->is_connected()) {
    // The other end of a connection that has ended is nowhere. That says nothing about the peer.
    reason = Reason::kClosing;
  }
  if (way.rdma_next && promotion.stream->state() == State::kConnecting) {
    connect(promotion.stream, false, false);
    return;
  }
  if (reason == Reason::kPeerHasNoRingroad || reason == Reason::kOtherNamespace) {
    remember_without(promotion.stream->tuple().remote, reason);
  }
  settle_refusal(promotion.stream, reason, peer_reason);
}

void PromotionBroker::on_redirect(Transport& transport, PromotionId id,
                                  const Rendezvous& where) noexcept {
  const std::optional<Promotion> taken = take_promotion(id);
  if (!taken) return;
  const Promotion& promotion = *taken;
  if (promotion.way.hops >= kMaxHops) {
    settle_refusal(promotion.stream, Reason::kPeerRefused, Reason::kRedirect);
  } else if (promotion.stream->state() == State::kConnecting) {
    Way way = promotion.way;
    ++way.hops;
    connect(promotion.stream, transport, way, &where);
  } else {
    settle_refusal(promotion.stream, Reason::kBusy, Reason::kRedirect);  // cancelled by a fork
  }
}

void PromotionBroker::after_service(const AgentStreamPtr& stream) noexcept {
  drop_request(*stream);
  kept_by_peer_.note(stream);
  if (!pending_requests_.empty() && stream->role() == Role::kAccept &&
      stream->state() == State::kOnTcp) {
    match_pending_requests(stream);  // it was on its way back when it was asked for
  }
  const State state = stream->state();
  if (!stream->has_channel() && state != State::kReset && budget_.remove(stream->id())) {
    quota_is_freed();
  }
}

// ---- The loop

std::int64_t PromotionBroker::next_deadline() const noexcept {
  if (turns_.has_next()) return 0;
  std::int64_t next = std::min(budget_.deadline_ns(), kept_by_peer_.next_deadline());
  for (const auto& [id, pending] : pending_requests_) {
    next = std::min({next, pending.deadline_ns, pending.look_ns});
  }
  return waiting_.empty() ? next : std::min(next, waiting_.front().deadline_ns);
}

void PromotionBroker::expire(std::int64_t now_ns) noexcept {
  budget_.expire(now_ns);
  stop_waiting_for_quota(now_ns);
  for (const AgentStreamPtr& envoy : kept_by_peer_.due(now_ns)) start(envoy);
  look_again(now_ns);
  start_those_in_turn();
}

void PromotionBroker::step_aside() noexcept {
  while (!promotions_.empty()) {
    const PromotionId id = promotions_.begin()->first;
    const Promotion promotion = *take_promotion(id);
    promotion.transport->cancel(id);
    settle_refusal(promotion.stream, Reason::kNoDescriptors, Reason::kNone);
  }
  pending_requests_.clear();
  waiting_.clear();
  turns_.clear();
}

void PromotionBroker::after_fork_child() noexcept {
  held_.store(0);
  new (&promotions_) std::map<PromotionId, Promotion>;
  new (&pending_requests_) std::map<PromotionId, PendingRequest>;
  new (&budget_) ChannelBudget;
  new (&waiting_) std::deque<Waiting>;
  turns_.after_fork_child();
  new (&peers_without_) std::map<Endpoint, Absent>;
  kept_by_peer_.after_fork_child();
}

}  // namespace ringroad
