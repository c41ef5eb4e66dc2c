// The steps of a promotion (verbs_transport.h draws them).
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/verbs/verbs_transport.h"

namespace ringroad {
namespace {

// Local questions: the neighbour table and, on RoCE, nothing else.
constexpr int kResolveMs = 500;
// A send to a dead peer fails after one local ACK timeout, and one for each retry; devices may take up
// to four times as long. Not 7 retries, which Soft-RoCE takes for infinity (rxe_comp.c).
constexpr std::uint8_t kRetries = 6;
// Receivers post ahead of their credits, so RNR does not happen; 7 means for ever, lest a device
// that is slow to see a posted receive ends the connection.
constexpr std::uint8_t kRnrRetries = 7;
// Reject reasons of the CM (IBTA 1.4, table 111).
constexpr int kRejectInvalidServiceId = 8;
constexpr int kRejectByConsumer = 28;

// The local ACK timeout is 4.096 us * 2^n (IBTA 1.4, 9.7.6.1.3): the greatest that lets a queue pair
// fail within `detect_ns`.
std::uint8_t ack_timeout(std::int64_t detect_ns) noexcept {
  std::uint8_t n = 1;  // 0 means for ever
  while (n < 31 && (kRetries + 1) * (std::int64_t{4096} << (n + 1)) <= detect_ns) ++n;
  return n;
}

bool set_options(rdma_cm_id* id, bool has_traffic_class, std::uint8_t traffic_class,
                 std::int64_t detect_ns) noexcept {
  std::uint8_t timeout = ack_timeout(detect_ns);
  // Kernels before 5.3 do not know it; theirs is longer.
  rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
  return !has_traffic_class || rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS,
                                               &traffic_class, sizeof traffic_class) == 0;
}

rdma_conn_param connection_parameters(const ProvenHello& message) noexcept {
  rdma_conn_param param{};
  param.private_data = &message;
  param.private_data_len = message.proof != 0 ? sizeof message : sizeof message.hello;
  param.flow_control = 1;
  param.retry_count = kRetries;
  param.rnr_retry_count = kRnrRetries;
  return param;
}

bool is_device(const rdma_cm_id* id, const char* wanted) noexcept {
  return wanted[0] == '\0' || std::strcmp(wanted, ibv_get_device_name(id->verbs->device)) == 0;
}

}  // namespace

void VerbsTransport::connect(PromotionId id, const ConnectParams& params) noexcept {
  bool at_once = true;
  try {
    Peer& peer = peers_[params.tuple.remote];
    at_once = peer.under_way < peer.at_once && peer.waiting.empty();
    if (!at_once) peer.waiting.emplace(id, params);
  } catch (const std::bad_alloc&) {
    host_.events->on_refused(*this, id, Reason::kNoMemory, Reason::kNone);
    return;
  }
  if (at_once) begin(id, params);
  set_timer();
}

// Its listener is in the table.
void VerbsTransport::begin(PromotionId id, const ConnectParams& params) noexcept {
  Attempts::iterator attempt;
  try {
    attempt = attempts_.emplace(id, Attempt{}).first;
  } catch (const std::bad_alloc&) {
    host_.events->on_refused(*this, id, Reason::kNoMemory, Reason::kNone);
    return;
  }
  attempt->second.params = params;
  ++peer_of(attempt->second).under_way;
  const Reason why = start(id, params, attempt->second);
  if (why != Reason::kNone) give_up(attempt, why, Reason::kNone);
}

// Those whose turn it is. What is reported meanwhile may add others, and listeners.
void VerbsTransport::begin_waiting() noexcept {
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = it->second;
    while (!peer.waiting.empty() && peer.under_way < peer.at_once) {
      const auto next = peer.waiting.extract(peer.waiting.begin());
      begin(next.key(), next.mapped());
    }
    it = peer.under_way == 0 ? peers_.erase(it) : std::next(it);
  }
}

void VerbsTransport::refuse_waiting(Peer& peer, Reason reason) noexcept {
  // Not those that are added meanwhile.
  const PromotionId last = peer.waiting.empty() ? 0 : peer.waiting.rbegin()->first;
  while (!peer.waiting.empty() && peer.waiting.begin()->first <= last) {
    const auto next = peer.waiting.extract(peer.waiting.begin());
    host_.events->on_refused(*this, next.key(), reason, Reason::kNone);
  }
}

VerbsTransport::Attempt VerbsTransport::end(Attempts::iterator attempt) noexcept {
  Attempt ended = std::move(attempt->second);
  attempts_.erase(attempt);
  if (ended.is_connector()) --peer_of(ended).under_way;
  return ended;
}

VerbsTransport::Peer& VerbsTransport::peer_of(const Attempt& connector) noexcept {
  return peers_.find(connector.params.tuple.remote)->second;
}

void VerbsTransport::is_answered(const Attempt& connector) noexcept {
  Peer& peer = peer_of(connector);
  peer.unanswered = 0;
  if (connector.deadline_ns - sys::now_ns() >= kPromotionNs - kSoonNs) ++peer.at_once;
}

Reason VerbsTransport::start(PromotionId id, const ConnectParams& params,
                             Attempt& attempt) noexcept {
  attempt.deadline_ns = sys::now_ns() + kPromotionNs;
  rdma_cm_id* raw = nullptr;
  if (rdma_create_id(events_->get(), &raw, reinterpret_cast<void*>(id), RDMA_PS_TCP) != 0) {
    return reason_of_errno(errno, false);
  }
  attempt.cm_id.reset(raw);
  if (!set_options(raw, params.has_traffic_class, params.traffic_class, params.detect_ns)) {
    return reason_of_errno(errno, false);
  }
  Endpoint from = params.tuple.local;
  from.port = 0;
  sockaddr_storage source{};
  sockaddr_storage destination{};
  from.to_sockaddr(source);
  Endpoint to = params.tuple.remote;
  if (params.redirected) to.port = params.rendezvous.rdma_port;
  to.to_sockaddr(destination);
  return rdma_resolve_addr(raw, reinterpret_cast<sockaddr*>(&source),
                           reinterpret_cast<sockaddr*>(&destination), kResolveMs) == 0
             ? Reason::kNone
             : reason_of_errno(errno, false);
}

void VerbsTransport::advance(Attempts::iterator attempt, const CmEvent& event) noexcept {
  Attempt& state = attempt->second;
  Reason why = Reason::kQpError;
  Reason peer_reason = Reason::kNone;
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      why = state.step == Step::kResolvingAddress ? on_address(state) : Reason::kQpError;
      break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      why = state.step == Step::kResolvingRoute ? on_route(attempt->first, state)
                                                : Reason::kQpError;
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      on_established(attempt, event);
      return;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
      why = reason_of_errno(event.status < 0 ? -event.status : event.status, false);
      if (why == Reason::kQpError) why = Reason::kNoRdmaDevice;
      break;
    case RDMA_CM_EVENT_UNREACHABLE:
      why = Reason::kTimeout;
      break;
    case RDMA_CM_EVENT_REJECTED:
      if (state.step == Step::kConnecting) is_answered(state);
      if (state.step != Step::kConnecting) {
        why = Reason::kPeerGone;  // the connector went away
      } else if (event.status == kRejectInvalidServiceId) {
        why = Reason::kPeerHasNoRingroad;
      } else {
        why = Reason::kPeerRefused;
        if (event.status == kRejectByConsumer) {
          peer_reason = parse_refusal(event.private_data, event.private_bytes);
          if (peer_reason == Reason::kPeerRefused) peer_reason = Reason::kNone;
          Rendezvous where;
          if (parse_redirect(event.private_data, event.private_bytes, where) &&
              where.rdma_port != 0) {
            const PromotionId id = attempt->first;
            end(attempt);
            host_.events->on_redirect(*this, id, where);
            return;
          }
        }
      }
      break;
    case RDMA_CM_EVENT_DISCONNECTED:
      why = Reason::kPeerGone;
      break;
    default:
      break;
  }
  if (why != Reason::kNone) give_up(attempt, why, peer_reason);
}

Reason VerbsTransport::on_address(Attempt& attempt) noexcept {
  if (const Reason why = devices_->know(attempt.cm_id->verbs); why != Reason::kNone) return why;
  if (!is_device(attempt.cm_id.get(), attempt.params.device)) return Reason::kNoRdmaDevice;
  attempt.step = Step::kResolvingRoute;
  return rdma_resolve_route(attempt.cm_id.get(), kResolveMs) == 0 ? Reason::kNone
                                                                  : reason_of_errno(errno, false);
}

Reason VerbsTransport::on_route(PromotionId id, Attempt& attempt) noexcept {
  if (const Reason why = make_channel(id, attempt, attempt.params.ring_bytes);
      why != Reason::kNone) {
    return why;
  }
  Hello hello;
  hello.tcp_port = attempt.params.tuple.local.port;
  hello.nonce = attempt.params.nonce;
  if (attempt.params.redirected) hello.listener_port = attempt.params.tuple.remote.port;
  attempt.channel->describe(hello);
  attempt.own = hello;
  attempt.step = Step::kConnecting;
  attempt.deadline_ns = sys::now_ns() + kPromotionNs;
  const ProvenHello message{hello, make_proof(attempt.params.key, ProofOf::kRequest, hello, {},
                                              attempt.params.tuple)};
  rdma_conn_param param = connection_parameters(message);
  return rdma_connect(attempt.cm_id.get(), &param) == 0 ? Reason::kNone
                                                        : reason_of_errno(errno, false);
}

void VerbsTransport::accept(PromotionId id, const AcceptParams& params) noexcept {
  const auto attempt = attempts_.find(id);
  if (attempt == attempts_.end()) {
    host_.events->on_refused(*this, id, Reason::kPeerGone, Reason::kNone);
    return;
  }
  if (attempt->second.step != Step::kRequested) return;
  Reason why = answer(id, attempt->second, params);
  if (why == Reason::kNone) {
    set_timer();
    return;
  }
  Refusal refusal;
  refusal.reason = static_cast<std::uint8_t>(why);
  // A request that cannot be rejected either was taken back by the connector.
  if (rdma_reject(attempt->second.cm_id.get(), &refusal, sizeof refusal) != 0) {
    why = Reason::kPeerGone;
  }
  give_up(attempt, why, Reason::kNone);
}

Reason VerbsTransport::answer(PromotionId id, Attempt& attempt,
                              const AcceptParams& params) noexcept {
  rdma_cm_id* cm_id = attempt.cm_id.get();
  if (!same_proof(attempt.request, make_proof(params.key, ProofOf::kRequest, attempt.peer, {},
                                              attempt.tuple))) {
    return Reason::kWrongKey;
  }
  if (!is_device(cm_id, params.device)) return Reason::kNoRdmaDevice;
  if (!set_options(cm_id, params.has_traffic_class, params.traffic_class, params.detect_ns)) {
    return reason_of_errno(errno, false);
  }
  if (const Reason why = make_channel(id, attempt, attempt.peer.ring_bytes);
      why != Reason::kNone) {
    return why;
  }
  if (const Reason why = attempt.channel->check_peer(attempt.peer); why != Reason::kNone) {
    return why;
  }
  Hello hello;
  hello.tcp_port = attempt.tcp_port;
  hello.nonce = params.nonce;
  attempt.channel->describe(hello);
  attempt.step = Step::kAccepting;
  attempt.deadline_ns = sys::now_ns() + kPromotionNs;
  attempt.channel->set_agreement(agreement_with(attempt.peer));
  attempt.channel->set_switch_proof(
      make_proof(params.key, ProofOf::kSwitch, attempt.peer, hello, attempt.tuple));
  const ProvenHello message{
      hello, make_proof(params.key, ProofOf::kAnswer, attempt.peer, hello, attempt.tuple)};
  rdma_conn_param param = connection_parameters(message);
  return rdma_accept(cm_id, &param) == 0 ? Reason::kNone : reason_of_errno(errno, false);
}

void VerbsTransport::on_established(Attempts::iterator attempt, const CmEvent& event) noexcept {
  const PromotionId id = attempt->first;
  Attempt& state = attempt->second;
  Reason why = state.channel == nullptr ? Reason::kQpError : Reason::kNone;
  if (state.step == Step::kConnecting) is_answered(state);
  if (why == Reason::kNone && state.step == Step::kConnecting) {
    why = parse_hello(event.private_data, event.private_bytes, state.peer);
    if (why == Reason::kNone) why = state.channel->check_peer(state.peer);
    if (why == Reason::kNone && state.peer.tcp_port != state.params.tuple.remote.port) {
      why = Reason::kBadRequest;
    }
    const auto prove = [&](ProofOf what) noexcept {
      return make_proof(state.params.key, what, state.own, state.peer, state.params.tuple);
    };
    if (why == Reason::kNone &&
        !same_proof(proof_behind(event.private_data, event.private_bytes, sizeof(Hello)),
                    prove(ProofOf::kAnswer))) {
      why = Reason::kWrongKey;
    }
    state.channel->set_agreement(agreement_with(state.peer));
    state.channel->set_switch_proof(prove(ProofOf::kSwitch));
  }
  if (why == Reason::kNone && !state.channel->established(std::move(state.cm_id), state.peer)) {
    why = Reason::kNoMemory;
  }
  if (why != Reason::kNone) {
    give_up(attempt, why, Reason::kNone);
    return;
  }
  Attempt ended = end(attempt);
  host_.events->on_channel(*this, id, ended.peer.nonce, std::move(ended.channel));
}

void VerbsTransport::refuse(PromotionId id, Reason reason) noexcept {
  const auto attempt = attempts_.find(id);
  if (attempt == attempts_.end() || attempt->second.step != Step::kRequested) return;
  Refusal refusal;
  refusal.reason = static_cast<std::uint8_t>(reason);
  rdma_reject(attempt->second.cm_id.get(), &refusal, sizeof refusal);
  end(attempt);
}

void VerbsTransport::redirect(PromotionId id, const Rendezvous& where) noexcept {
  const auto attempt = attempts_.find(id);
  if (attempt == attempts_.end() || attempt->second.step != Step::kRequested) return;
  const Redirect redirect = make_redirect(where);
  rdma_reject(attempt->second.cm_id.get(), &redirect, sizeof redirect);
  end(attempt);
}

void VerbsTransport::cancel(PromotionId id) noexcept {
  if (const auto attempt = attempts_.find(id); attempt != attempts_.end()) {
    end(attempt);
    set_timer();
  }
  for (auto& [listener, peer] : peers_) peer.waiting.erase(id);
}

void VerbsTransport::give_up(Attempts::iterator attempt, Reason reason,
                             Reason peer_reason) noexcept {
  const PromotionId id = attempt->first;
  // Of one that was not asked yet it says nothing.
  const bool is_late = reason == Reason::kTimeout && attempt->second.step == Step::kConnecting;
  Peer* const late = is_late ? &peer_of(attempt->second) : nullptr;
  end(attempt);
  bool is_silent = false;
  if (late != nullptr) {
    late->at_once = std::max(kAtOnce, late->at_once / 2);
    is_silent = ++late->unanswered >= kAtOnce;
  }
  host_.events->on_refused(*this, id, reason, peer_reason);
  if (is_silent) refuse_waiting(*late, reason);
}

Reason VerbsTransport::make_channel(PromotionId id, Attempt& attempt,
                                    std::uint32_t ring_bytes) noexcept {
  rdma_cm_id* cm_id = attempt.cm_id.get();
  if (!valid_ring_bytes(ring_bytes)) return Reason::kBadRequest;
  std::shared_ptr<ibv_context> device;
  if (const Reason why = devices_->own(cm_id->verbs, device); why != Reason::kNone) return why;
  cm_id->verbs = device.get();
  Endpoint peer;
  if (!Endpoint::from_sockaddr(rdma_get_peer_addr(cm_id), sizeof(sockaddr_storage), peer)) {
    return Reason::kBadRequest;
  }
  std::shared_ptr<ProtectionDomain> domain = domains_.get(device, peer.addr);
  if (domain == nullptr) return reason_of_errno(errno, false);
  Reason why = Reason::kNone;
  ++made_;
  attempt.channel = VerbsChannel::create(host_, events_, registry_, id, cm_id, std::move(domain),
                                         ring_bytes, why);
  return why;
}

}  // namespace ringroad
