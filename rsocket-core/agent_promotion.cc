// The agent's part in promotion: which transport, which stream, and every reason to say no.
#include <cstdio>
#include <cstring>
#include <new>

#include "rsocket-core/agent.h"
#include "rsocket-core/shm_transport.h"
#include "rsocket-core/sys.h"

namespace ringroad {
namespace {

constexpr std::uint64_t kShmCookie = (std::uint64_t{2} << 2) | 2;
constexpr std::uint64_t kVerbsCookie = (std::uint64_t{3} << 2) | 2;

bool watch(int epoll_fd, Transport& transport, std::uint64_t cookie) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = cookie;
  return sys::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, transport.event_fd(), &event) == 0;
}

// An address of this host: nothing else can be bound to.
bool is_on_this_host(const Endpoint& endpoint) noexcept {
  if (endpoint.is_loopback()) return true;
  Endpoint any_port = endpoint;
  any_port.port = 0;
  sockaddr_storage address;
  const socklen_t length = any_port.to_sockaddr(address);
  const int fd =
      sys::open_high([&] { return sys::socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
  if (fd < 0) return false;
  const bool local = sys::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0;
  sys::close(fd);
  return local;
}

}  // namespace

Transport* Agent::shm_transport(Reason& why) noexcept {
  if (shm_ == nullptr) {
    shm_.reset(make_shm_transport(*this, next_promotion_id, why));
    if (shm_ != nullptr &&
        !watch(epoll_fd_.load(std::memory_order_relaxed), *shm_, kShmCookie)) {
      shm_.reset();
      why = Reason::kNoMemory;
    }
  }
  return shm_.get();
}

Transport* Agent::verbs_transport(Reason& why) noexcept {
  if (!verbs_tried_) {
    verbs_tried_ = true;
    verbs_why_ = Reason::kNoVerbsLibrary;
    if (options_.load_verbs != nullptr) verbs_.reset(options_.load_verbs(*this, verbs_why_));
    if (verbs_ != nullptr &&
        !watch(epoll_fd_.load(std::memory_order_relaxed), *verbs_, kVerbsCookie)) {
      verbs_.reset();
      verbs_why_ = Reason::kNoMemory;
    }
  }
  why = verbs_why_;
  return verbs_.get();
}

void Agent::log_decision(const Stream& stream, const char* what, Reason reason,
                         Reason peer_reason) noexcept {
  if (options_.log == nullptr) return;
  try {
    char line[512];
    const std::string local = stream.tuple().local.to_string();
    const std::string remote = stream.tuple().remote.to_string();
    std::snprintf(line, sizeof line, "stream %s -> %s (rule %s): %s%s%s%s%s", local.c_str(),
                  remote.c_str(), stream.config().rule, what,
                  reason != Reason::kNone ? ": " : "",
                  reason != Reason::kNone ? reason_text(reason) : "",
                  peer_reason != Reason::kNone ? "; the peer says: " : "",
                  peer_reason != Reason::kNone ? reason_text(peer_reason) : "");
    options_.log(line);
  } catch (const std::bad_alloc&) {
  }
}

// ---- The connector

bool Agent::remembered_without(const Endpoint& peer) noexcept {
  const auto it = peers_without_.find(peer);
  if (it == peers_without_.end()) return false;
  if (it->second > sys::now_ns()) return true;
  peers_without_.erase(it);
  return false;
}

void Agent::start(const StreamPtr& stream) noexcept {
  if (remembered_without(stream->tuple().remote)) {
    stream->promotion_refused(Reason::kPeerHasNoRingroad, Reason::kNone);
    return;
  }
  Nonce nonce;
  if (!make_nonce(nonce)) {
    settle_refusal(stream, Reason::kNoMemory, Reason::kNone);
    return;
  }
  const Reason why_not = stream->promotion_started(nonce);
  if (why_not != Reason::kNone) {
    settle_refusal(stream, why_not, Reason::kNone);
    return;
  }
  const StreamConfig& config = stream->config();
  const bool shm = config.via_shm && is_on_this_host(stream->tuple().remote);
  if (!shm && !config.via_rdma) {
    settle_refusal(stream, Reason::kPeerHasNoRingroad, Reason::kNone);
    return;
  }
  connect(stream, shm, shm && config.via_rdma);
}

void Agent::connect(const StreamPtr& stream, bool shm, bool rdma_next) noexcept {
  Reason why = Reason::kNone;
  Transport* transport = shm ? shm_transport(why) : verbs_transport(why);
  if (transport == nullptr) {
    if (rdma_next) {
      connect(stream, false, false);
    } else {
      settle_refusal(stream, why, Reason::kNone);
    }
    return;
  }
  const StreamConfig& config = stream->config();
  ConnectParams params;
  params.tuple = stream->tuple();
  params.nonce = stream->nonce();
  params.ring_bytes = config.ring_bytes;
  std::memcpy(params.device, config.device, sizeof params.device);
  params.has_traffic_class = config.has_traffic_class;
  params.traffic_class = config.traffic_class;
  const PromotionId id = next_promotion_id();
  try {
    promotions_[id] = {stream, transport, rdma_next, sys::now_ns() + kPromotionTimeoutNs};
  } catch (const std::bad_alloc&) {
    settle_refusal(stream, Reason::kNoMemory, Reason::kNone);
    return;
  }
  transport->connect(id, params);
}

void Agent::settle_refusal(const StreamPtr& stream, Reason reason, Reason peer_reason) noexcept {
  stream->promotion_refused(reason, peer_reason);
  log_decision(*stream, "stays on TCP", reason, peer_reason);
}

// ---- The listener

void Agent::do_listen(const Endpoint& local, const Listener& listener) noexcept {
  const auto report = [&](const char* carrier, Reason reason) noexcept {
    if (reason == Reason::kNone || options_.log == nullptr) return;
    try {
      char line[256];
      std::snprintf(line, sizeof line, "listener %s: no promotion over %s: %s",
                    local.to_string().c_str(), carrier, reason_text(reason));
      options_.log(line);
    } catch (const std::bad_alloc&) {
    }
  };
  Reason why = Reason::kNone;
  if (listener.shm) {
    Transport* transport = shm_transport(why);
    report("shm", transport == nullptr ? why : transport->listen(local));
  }
  if (listener.rdma) {
    Transport* transport = verbs_transport(why);
    report("rdma", transport == nullptr ? why : transport->listen(local));
  }
}

void Agent::do_unlisten(const Endpoint& local) noexcept {
  if (shm_ != nullptr) shm_->unlisten(local);
  if (verbs_ != nullptr) verbs_->unlisten(local);
}

void Agent::on_request(Transport& transport, PromotionId id,
                       const PromotionRequest& request) noexcept {
  StreamPtr stream;
  {
    MutexLock lock(mutex_);
    const auto it = accepted_.find(request.tuple);
    if (it != accepted_.end()) stream = it->second.lock();
  }
  if (stream != nullptr) {
    decide(transport, id, request, stream);
    return;
  }
  // accept() may not have returned yet.
  keep_request(transport, id, request, Reason::kUnknownConnection);
}

void Agent::keep_request(Transport& transport, PromotionId id, const PromotionRequest& request,
                         Reason late) noexcept {
  if (unknown_.size() >= kMaxUnknownRequests) {
    transport.refuse(id, Reason::kBusy);
    return;
  }
  try {
    unknown_[id] = {&transport, request, sys::now_ns() + kUnknownRequestNs, late};
  } catch (const std::bad_alloc&) {
    transport.refuse(id, Reason::kNoMemory);
  }
}

// A connection was accepted, or its program has read: was it asked for?
void Agent::offer(const StreamPtr& stream) noexcept {
  for (auto it = unknown_.begin(); it != unknown_.end(); ++it) {
    if (it->second.request.tuple != stream->tuple()) continue;
    const PromotionId id = it->first;
    const Unknown found = it->second;
    unknown_.erase(it);
    decide(*found.transport, id, found.request, stream);
    return;
  }
}

void Agent::decide(Transport& transport, PromotionId id, const PromotionRequest& request,
                   const StreamPtr& stream) noexcept {
  const StreamConfig& config = stream->config();
  Reason why_not = Reason::kNone;
  const bool allowed = transport.carrier() == Carrier::kShm ? config.via_shm : config.via_rdma;
  Nonce nonce{};
  if (!allowed || request.ring_bytes > config.ring_bytes) {
    why_not = Reason::kPolicy;
  } else if (!stream->all_read()) {
    // Its client's program could not write until this one's has read.
    keep_request(transport, id, request, Reason::kBusy);
    return;
  } else if (!make_nonce(nonce)) {
    why_not = Reason::kNoMemory;
  } else {
    why_not = stream->promotion_started(nonce);
  }
  if (why_not == Reason::kNone) {
    try {
      promotions_[id] = {stream, &transport, false, sys::now_ns() + kPromotionTimeoutNs};
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
  transport.accept(id, params);
}

// ---- Outcomes

void Agent::on_channel(Transport&, PromotionId id, const Nonce& peer_nonce,
                       std::unique_ptr<Channel> channel) noexcept {
  const auto it = promotions_.find(id);
  if (it == promotions_.end()) return;  // given up meanwhile; the peer sees the channel close
  const StreamPtr stream = it->second.stream;
  promotions_.erase(it);
  stream->channel_up(std::move(channel), peer_nonce);
  serve(stream);
  try {
    const auto watched = watched_.find(stream->id());
    if (watched != watched_.end()) {
      watched->second.promotion = id;
      channels_[id] = stream->id();
    }
  } catch (const std::bad_alloc&) {
  }
}

void Agent::on_refused(Transport&, PromotionId id, Reason reason, Reason peer_reason) noexcept {
  unknown_.erase(id);
  const auto it = promotions_.find(id);
  if (it == promotions_.end()) return;
  const Promotion promotion = std::move(it->second);
  promotions_.erase(it);
  if (promotion.try_rdma_next && promotion.stream->state() == State::kConnecting) {
    connect(promotion.stream, false, false);
    return;
  }
  if (reason == Reason::kPeerHasNoRingroad) {
    try {
      if (peers_without_.size() >= kPeerMemoryEntries) peers_without_.clear();
      peers_without_[promotion.stream->tuple().remote] = sys::now_ns() + kPeerMemoryNs;
    } catch (const std::bad_alloc&) {
    }
  }
  settle_refusal(promotion.stream, reason, peer_reason);
}

void Agent::on_channel_event(Transport&, PromotionId id) noexcept {
  const auto channel = channels_.find(id);
  if (channel == channels_.end()) return;
  const auto it = watched_.find(channel->second);
  if (it == watched_.end()) return;
  const StreamPtr stream = it->second.stream;
  stream->drain_channel();
  serve(stream);
}

}  // namespace ringroad
