// The agent's part in promotion: which transport, which stream, and every reason to say no.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>

#include "rsocket-core/agent.h"
#include "rsocket-core/foreign_fd.h"
#include "rsocket-core/private_descriptors.h"
#include "rsocket-core/shm_transport.h"
#include "rsocket-core/sys.h"

namespace ringroad {
namespace {

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

bool is_short(Reason why) noexcept {
  return why == Reason::kNoDescriptors || why == Reason::kNoMemory;
}

// Whether what keeps a transport from its work may be over soon: a device may come up after the program, and a
// library cannot be loaded where descriptors are short.
bool passes(Reason why) noexcept {
  return is_short(why) || why == Reason::kNoRdmaDevice || why == Reason::kNoVerbsLibrary;
}

}  // namespace

Transport* Agent::shm_transport(Reason& why) noexcept {
  if (steps_aside_.load(std::memory_order_relaxed)) {
    why = Reason::kNoDescriptors;
    return nullptr;
  }
  if (shm_ == nullptr) {
    shm_.reset(make_shm_transport(*this, next_promotion_id, why));
    if (shm_ != nullptr && !watch(shm_->event_fd(), kShmCookie)) {
      shm_.reset();
      why = Reason::kNoMemory;
    }
  }
  return shm_.get();
}

Transport* Agent::verbs_transport(Reason& why) noexcept {
  if (verbs_ == nullptr && sys::now_ns() >= verbs_again_ns_) {
    verbs_why_ = Reason::kNoVerbsLibrary;
    if (options_.load_verbs != nullptr) verbs_.reset(options_.load_verbs(*this, verbs_why_));
    if (verbs_ != nullptr && !watch(verbs_->event_fd(), kVerbsCookie)) {
      verbs_.reset();
      verbs_why_ = Reason::kNoMemory;
    }
    verbs_again_ns_ = passes(verbs_why_) ? sys::now_ns() + kListenAgainNs
                                         : std::numeric_limits<std::int64_t>::max();
  }
  why = verbs_why_;
  return verbs_.get();
}

void Agent::log_decision(const Stream& stream, const char* what, Reason reason,
                         Reason peer_reason) noexcept {
  if (options_.log == nullptr || (options_.wants_log != nullptr && !options_.wants_log())) return;
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

void Agent::log_move(Watched& watched) noexcept {
  const Stream& stream = *watched.stream;
  const State state = stream.state();
  if (state == State::kOnChannel && !watched.told_of_channel) {
    watched.told_of_channel = true;
    log_decision(stream, "goes over its channel", Reason::kNone, Reason::kNone);
  } else if (state == State::kOnTcp && watched.told_of_channel) {
    watched.told_of_channel = false;
    log_decision(stream, "is back on TCP", stream.reason(), stream.peer_reason());
  } else if (state == State::kReset && !watched.told_of_reset) {
    watched.told_of_reset = true;
    log_decision(stream, "is reset", stream.reason(), stream.peer_reason());
  }
}

ChannelBudget::Room Agent::room_for_one_more() noexcept {
  const std::int64_t now = sys::now_ns();
  const auto requests = std::count_if(unknown_.begin(), unknown_.end(), [](const auto& known) {
    return known.second.waits_for_room;
  });
  const ChannelBudget::Room room =
      budget_.room(promotions_.size(), waiting_.size() + static_cast<std::size_t>(requests), now);
  if (room == ChannelBudget::Room::kNone && now - full_noted_ns_ >= kFullNoticeNs) {
    full_noted_ns_ = now;
    note("as many streams have channels as the policy's max_channels allows, and all are busy");
  }
  return room;
}

bool Agent::wait_for_room(const StreamPtr& stream) noexcept {
  try {
    waiting_.push_back({stream, sys::now_ns() + ChannelBudget::kLeavePatienceNs});
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Else somebody has asked for it meanwhile, or keeps it.
bool Agent::still_waits(const Stream& stream) noexcept {
  return stream.state() == State::kOnTcp && stream.request == 0 &&
         stream.kept() == Reason::kNone && !stream.closed_by_program();
}

// For one of those who wait, those first whose other end does.
void Agent::room_is_made() noexcept {
  for (auto& [id, unknown] : unknown_) {
    if (!unknown.waits_for_room) continue;
    unknown.waits_for_room = false;
    unknown.look_ns = 0;
    return;
  }
  while (!waiting_.empty()) {
    const StreamPtr stream = waiting_.front().stream.lock();
    waiting_.pop_front();
    if (stream == nullptr || !still_waits(*stream)) continue;
    start(stream);
    return;
  }
}

// Those for whom no channel became free in time; they ask again.
void Agent::stop_waiting_for_room(std::int64_t now_ns) noexcept {
  while (!waiting_.empty() && waiting_.front().deadline_ns <= now_ns) {
    const StreamPtr stream = waiting_.front().stream.lock();
    waiting_.pop_front();
    if (stream == nullptr || !still_waits(*stream)) continue;
    settle_refusal(stream, Reason::kMaxChannels, Reason::kNone);
  }
}

// ---- The connector

bool Agent::remembered_without(const Endpoint& peer) noexcept {
  const auto it = peers_without_.find(peer);
  return it != peers_without_.end() && it->second.until_ns > sys::now_ns();
}

void Agent::remember_without(const Endpoint& peer) noexcept {
  try {
    if (peers_without_.size() >= kPeerMemoryEntries) peers_without_.clear();
    Absent& absent = peers_without_[peer];
    absent.pause_ns = std::clamp(2 * absent.pause_ns, kFirstPeerMemoryNs, kLongestPeerMemoryNs);
    absent.until_ns = sys::now_ns() + absent.pause_ns;
  } catch (const std::bad_alloc&) {
  }
}

void Agent::start(const StreamPtr& stream) noexcept {
  drop_request(*stream);
  // Its program and the operator may ask for it at the same time.
  if (stream->request != 0) return;
  if (remembered_without(stream->tuple().remote)) {
    stream->promotion_refused(Reason::kPeerHasNoRingroad, Reason::kNone);
    return;
  }
  const ChannelBudget::Room room = room_for_one_more();
  if (room != ChannelBudget::Room::kFree) {
    if (room == ChannelBudget::Room::kComing && wait_for_room(stream)) return;
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
  if (why_not == Reason::kNone && held_.load() > 0) why_not = Reason::kBusy;  // as leave_all() may not know
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
  connect(stream, *transport, rdma_next, nullptr, 0);
}

// `where`: the one to ask instead of the listener, after so many redirects.
void Agent::connect(const StreamPtr& stream, Transport& transport, bool rdma_next,
                    const Rendezvous* where, unsigned hops) noexcept {
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
  if (where != nullptr) {
    params.redirected = true;
    params.rendezvous = *where;
  }
  const PromotionId id = next_promotion_id();
  try {
    promotions_[id] = {stream, &transport, rdma_next, hops};
    stream->request = id;
  } catch (const std::bad_alloc&) {
    settle_refusal(stream, Reason::kNoMemory, Reason::kNone);
    return;
  }
  transport.connect(id, params);
}

void Agent::settle_refusal(const StreamPtr& stream, Reason reason, Reason peer_reason) noexcept {
  stream->promotion_refused(reason, peer_reason);
  // With thousands of streams that is said all the time; see room_for_one_more().
  const bool full = reason == Reason::kMaxChannels || peer_reason == Reason::kMaxChannels;
  if (!full) log_decision(*stream, "stays on TCP", reason, peer_reason);
  note_kept_by_peer(stream);
  const auto kept = kept_by_peer_.find(stream->tuple().remote);
  if (kept == kept_by_peer_.end() || kept->second.envoy != stream->id()) return;
  if (reason != Reason::kMaxChannels) {
    peer_lets_off(stream->tuple().remote);
    return;
  }
  // The peer has not been asked. Another one does that when there is room.
  kept->second.envoy = 0;
  kept->second.next_ns = sys::now_ns() + kKeptPauseNs;
  try {
    kept->second.streams.push_back(stream);
  } catch (const std::bad_alloc&) {
  }
}

// ---- The listener

void Agent::do_listen(const Endpoint& local) noexcept {
  using At = Answering::At;
  Listener listener;
  {
    MutexLock lock(mutex_);
    const auto it = listeners_.find(local);
    if (it == listeners_.end()) return;
    listener = it->second;
  }
  const auto settle = [&](const char* carrier, At& at, Reason reason) noexcept {
    const At before = at;
    // Whoever has the name may end, and then somebody of those who share the listener has to answer.
    at = reason == Reason::kNone ? At::kHere
         : reason == Reason::kBusy ? At::kElsewhere
         : passes(reason)            ? At::kNotYet
                                     : At::kFailed;
    if (at == At::kNotYet || (at == At::kElsewhere && !told_of_leader_)) {
      listen_again_ns_ = std::min(listen_again_ns_, sys::now_ns() + listen_pause_ns_);
    }
    if (at == before || at == At::kHere || options_.log == nullptr) return;
    if (at == At::kElsewhere && family_.exists()) return;  // as it should be
    try {
      char line[256];
      std::snprintf(line, sizeof line, "listener %s: no promotion over %s: %s",
                    local.to_string().c_str(), carrier,
                    at == At::kElsewhere ? "another process answers" : reason_text(reason));
      options_.log(line);
    } catch (const std::bad_alloc&) {
    }
  };
  try {
    Answering& answering = answering_[local];
    const auto open = [](At at) noexcept { return at != At::kHere && at != At::kFailed; };
    if (listener.shm && open(answering.shm)) {
      told_of_leader_ = false;
      settle("shm", answering.shm, listen_shm(local));
    }
    if (listener.rdma && open(answering.rdma)) {
      told_of_leader_ = false;
      settle("rdma", answering.rdma, listen_rdma(local));
    }
  } catch (const std::bad_alloc&) {
  }
}

Reason Agent::listen_rdma(const Endpoint& local) noexcept {
  Reason why = Reason::kNone;
  Transport* transport = verbs_transport(why);
  if (transport == nullptr) return why;
  return lead(local, Carrier::kRdma) ? transport->listen(local) : Reason::kBusy;
}

bool Agent::lead(const Endpoint& local, Carrier carrier) noexcept {
  pid_t holder;
  if (family_.lead(local, carrier, holder)) return true;
  told_of_leader_ = watch_leader(holder);
  // It may have ended before it was watched, and its number be somebody else's.
  if (!family_.lead(local, carrier, holder)) return false;
  told_of_leader_ = false;
  return true;
}

// Processes that share a listener share the socket that answers for it, and one of them listens there:
// what is asked while that one is about to be succeeded waits in the socket's queue.
Reason Agent::listen_shm(const Endpoint& local) noexcept {
  Reason why = Reason::kNone;
  Transport* transport = shm_transport(why);
  if (transport == nullptr) return why;
  // A child that is forked meanwhile has the socket and knows it, or has neither.
  MutexLock lock(mutex_);
  const auto it = listeners_.find(local);
  if (it == listeners_.end()) return Reason::kClosing;
  if (!lead(local, Carrier::kShm)) return Reason::kBusy;
  if (it->second.rendezvous >= 0) return transport->adopt(local, it->second.rendezvous);
  why = transport->listen(local);
  if (why == Reason::kNone) {
    it->second.rendezvous = transport->rendezvous_of(local);
    private_descriptors::keep_in_children(it->second.rendezvous);
  }
  return why;
}

void Agent::do_unlisten(const Endpoint& local, int rendezvous) noexcept {
  answering_.erase(local);
  const bool here = shm_ != nullptr && shm_->rendezvous_of(local) >= 0;
  if (here && family_.exists()) {
    shm_->leave_to_others(local);
  } else if (here) {
    shm_->unlisten(local);
  } else if (rendezvous >= 0) {
    close_foreign(rendezvous);
  }
  if (here) family_.stop_leading(local, Carrier::kShm);
  if (verbs_ != nullptr) {
    verbs_->unlisten(local);
    family_.stop_leading(local, Carrier::kRdma);
  }
}

// False: nobody will tell, and somebody has to look again.
bool Agent::watch_leader(pid_t process) noexcept {
  const int epoll_fd = epoll_fd_.load(std::memory_order_relaxed);
  epoll_event event{};
  event.data.u64 = kLeaderCookie;
  if (!family_watched_) {
    // Never read: each write is an edge in every process that waits here.
    event.events = EPOLLIN | EPOLLET;
    family_watched_ = sys::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, family_.news_fd(), &event) == 0;
  }
  if (process == 0 || !family_watched_) return false;
  event.events = EPOLLIN;
  try {
    const auto [leader, is_new] = leaders_.try_emplace(process, -1);
    if (!is_new) return true;
    leader->second = sys::open_high([&] { return sys::call(SYS_pidfd_open, process, 0); });
    if (leader->second < 0 ||
        sys::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, leader->second, &event) != 0) {
      if (leader->second >= 0) sys::close_quietly(leader->second);
      leaders_.erase(leader);
      return false;
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Agent::forget_leaders() noexcept {
  for (const auto& [process, fd] : leaders_) sys::close_quietly(fd);
  leaders_.clear();
}

void Agent::listen_again(std::int64_t now_ns) noexcept {
  if (listen_again_ns_ > now_ns) return;
  listen_again_ns_ = std::numeric_limits<std::int64_t>::max();
  std::vector<Endpoint> all;
  try {
    MutexLock lock(mutex_);
    for (const auto& [endpoint, listener] : listeners_) all.push_back(endpoint);
  } catch (const std::bad_alloc&) {
    listen_again_ns_ = now_ns + kListenAgainNs;
  }
  for (const Endpoint& endpoint : all) do_listen(endpoint);
  listen_pause_ns_ = std::min(2 * listen_pause_ns_, kLongestListenPauseNs);
}

void Agent::on_request(Transport& transport, PromotionId id,
                       const PromotionRequest& request) noexcept {
  const Look look = look_up(transport, id, request, false);
  if (look == Look::kAnswered) return;
  // accept() may not have returned yet, here or in another process of the family; or a process that
  // has forked a child for the connection has not closed it yet.
  if (unknown_.size() >= kMaxUnknownRequests) {
    transport.refuse(id, Reason::kBusy);
    return;
  }
  const std::int64_t now = sys::now_ns();
  const StreamPtr stream = accepted(request.tuple);
  const bool kept = stream != nullptr && stream->kept() != Reason::kNone;
  static_assert(kKeptRequestNs + 1'000'000'000 <= ShmTransport::kAnswerNs);
  // Who lets it off says so (apply_to_all()): an idle process shall stay idle.
  const std::int64_t look_ns =
      family_.exists() && !kept ? now + kFirstLookNs : std::numeric_limits<std::int64_t>::max();
  if (kept && unknown_.size() >= kMaxKeptRequests) {
    transport.refuse(id, Reason::kOperator);
    return;
  }
  const std::int64_t wait = kept ? kKeptRequestNs : kUnknownRequestNs;
  try {
    unknown_[id] = {&transport, request,      now + wait,
                    look_ns,    kFirstLookNs, look == Look::kWaitsForRoom};
  } catch (const std::bad_alloc&) {
    transport.refuse(id, Reason::kNoMemory);
  }
}

StreamPtr Agent::accepted(const FourTuple& tuple) noexcept {
  requests_wait_.store(true, std::memory_order_relaxed);
  tell(AgentOptions::Untold::kAccepted, tuple.remote);
  MutexLock lock(mutex_);
  requests_wait_.store(true, std::memory_order_relaxed);
  const auto it = accepted_.find(tuple);
  return it != accepted_.end() ? it->second.lock() : nullptr;
}

// Answers if it can be answered now; at the `last` look in any case.
Agent::Look Agent::look_up(Transport& transport, PromotionId id, const PromotionRequest& request,
                           bool last) noexcept {
  const StreamPtr stream = accepted(request.tuple);
  // A process that has forked before may be about to leave this connection to a child as well: one that
  // was promoted before would be brought back for good.
  const bool shared = stream != nullptr && stream->shared();
  const bool may_be_forked = stream != nullptr && family_.exists() && !shared &&
                             stream->config().wait_ns == 0 && stream->awaits_use();
  const bool is_here = stream != nullptr && !may_be_forked && (!shared || has_back(*stream));
  if (is_here && (!shared || last || !stream->awaits_use())) {
    if (stream->kept() != Reason::kNone) {
      if (!last) return Look::kWaits;  // apply_to_all()
      transport.refuse(id, Reason::kOperator);
    } else if (!last && stream->has_channel()) {
      return Look::kWaits;  // serve()
    } else if (stream->all_read()) {
      switch (room_for_one_more()) {
        case ChannelBudget::Room::kFree:
          decide(transport, id, request, stream);
          break;
        case ChannelBudget::Room::kComing:
          if (!last) return Look::kWaitsForRoom;  // room_is_made()
          [[fallthrough]];
        case ChannelBudget::Room::kNone:
          settle_refusal(stream, Reason::kMaxChannels, Reason::kNone);
          transport.refuse(id, Reason::kMaxChannels);
          break;
      }
    } else if (last) {
      // Its client's program could not write until this one's has read.
      transport.refuse(id, Reason::kBusy);
    } else {
      return Look::kWaits;  // read_since_asked()
    }
    return Look::kAnswered;
  }
  Rendezvous where;
  const Family::Found found = family_.find(request.tuple, where);
  const bool can_ask =
      transport.carrier() == Carrier::kShm ? where.has_shm() : where.rdma_port != 0;
  if (found == Family::Found::kOther && can_ask) {
    transport.redirect(id, where);
    return Look::kAnswered;
  }
  if (stream == nullptr && found != Family::Found::kSeveral && leave_closed(request.tuple.local)) {
    transport.refuse(id, Reason::kBusy);  // so that it asks again
    return Look::kAnswered;
  }
  if (last) {
    transport.refuse(id, may_be_forked ? Reason::kBusy
                         : stream != nullptr || found == Family::Found::kSeveral
                             ? Reason::kFork
                             : Reason::kUnknownConnection);
  }
  return last ? Look::kAnswered : Look::kWaits;
}

// What this leads to may change the table.
void Agent::look_up_again(PromotionId id, bool last) noexcept {
  Unknown& unknown = unknown_.find(id)->second;
  unknown.waits_for_room = false;  // while it asks
  const Unknown asked = unknown;
  const Look look = look_up(*asked.transport, id, asked.request, last);
  if (look == Look::kAnswered) {
    unknown_.erase(id);
  } else if (const auto it = unknown_.find(id); it != unknown_.end()) {
    it->second.waits_for_room = look == Look::kWaitsForRoom;
  }
}

void Agent::look_again(std::int64_t now_ns) noexcept {
  for (auto it = unknown_.begin(); it != unknown_.end();) {
    Unknown& unknown = it->second;
    const bool last = unknown.deadline_ns <= now_ns;
    if (!last && unknown.look_ns > now_ns) {
      ++it;
      continue;
    }
    unknown.pause_ns = std::min(2 * unknown.pause_ns, kLongestLookNs);
    unknown.look_ns = now_ns + unknown.pause_ns;
    const PromotionId id = it->first;
    look_up_again(id, last);
    it = unknown_.upper_bound(id);
  }
}

// True for the first that is, of each carrier.
bool Agent::needs_to_be_found(const Stream& stream) noexcept {
  if (stream.share() == 0) return false;
  const auto first = [](bool wanted, std::atomic<bool>& known) noexcept {
    return wanted && !known.load(std::memory_order_relaxed) && !known.exchange(true);
  };
  const bool over_shm = first(stream.config().via_shm, found_over_shm_);
  return first(stream.config().via_rdma, found_over_rdma_) || over_shm;
}

// Where this process can be asked for what it holds, for those whom the family sends here. By what
// was needed once: the stream that needed it may be closed by now, and the next one says nothing.
void Agent::be_found() noexcept {
  using At = Answering::At;
  bool changed = false;
  const auto settle = [&](Reason why, At& at, std::atomic<bool>& wanted) noexcept {
    if (why == Reason::kNone) {
      at = At::kHere;
      changed = true;
    } else if (is_short(why)) {
      wanted.store(false);  // the next one that is accepted says it again
    } else {
      at = At::kFailed;
    }
  };
  if (found_over_shm_.load() && found_.shm == At::kNowhere) {
    Reason why = Reason::kNone;
    if (Transport* transport = shm_transport(why)) {
      MutexLock lock(mutex_);  // as in listen_shm()
      why = transport->listen_alone(found_at_, lone_rendezvous_);
    }
    settle(why, found_.shm, found_over_shm_);
  }
  if (found_over_rdma_.load() && found_.rdma == At::kNowhere) {
    Reason why = Reason::kNone;
    int none = -1;
    if (Transport* transport = verbs_transport(why)) why = transport->listen_alone(found_at_, none);
    settle(why, found_.rdma, found_over_rdma_);
  }
  if (changed) family_.publish(found_at_);
}

// A connection was accepted, or its program has read: was it asked for?
void Agent::offer(const StreamPtr& stream) noexcept {
  needs_to_be_found(*stream);  // as one does that was accepted before the first fork
  be_found();
  for (auto it = unknown_.begin(); it != unknown_.end(); ++it) {
    if (it->second.request.tuple != stream->tuple()) continue;
    look_up_again(it->first, false);
    return;
  }
}

void Agent::decide(Transport& transport, PromotionId id, const PromotionRequest& request,
                   const StreamPtr& stream) noexcept {
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
    if (why_not == Reason::kNone && held_.load() > 0) {  // as leave_all() may not know
      why_not = Reason::kBusy;
      stream->promotion_refused(why_not, Reason::kNone);
    }
  }
  if (why_not == Reason::kNone) {
    try {
      promotions_[id] = {stream, &transport, false, 0};
      stream->request = id;
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

// ---- Outcomes

void Agent::on_channel(Transport&, PromotionId id, const Nonce& peer_nonce,
                       std::unique_ptr<Channel> channel) noexcept {
  const std::optional<Promotion> promotion = take_promotion(id);
  if (!promotion) return;  // given up meanwhile; the peer sees the channel close
  const StreamPtr& stream = promotion->stream;
  peers_without_.erase(stream->tuple().remote);
  stream->channel_up(std::move(channel), peer_nonce);
  try {
    if (stream->has_channel()) budget_.add(stream, sys::now_ns());
  } catch (const std::bad_alloc&) {
  }
  peer_lets_off(stream->tuple().remote);
  serve(stream);
  try {
    const auto watched = watched_.find(stream->id());
    if (watched != watched_.end()) {
      if (watched->second.promotion != 0) channels_.erase(watched->second.promotion);
      watched->second.promotion = id;
      channels_[id] = stream->id();
    }
  } catch (const std::bad_alloc&) {
  }
}

void Agent::on_refused(Transport&, PromotionId id, Reason reason, Reason peer_reason) noexcept {
  unknown_.erase(id);
  const std::optional<Promotion> taken = take_promotion(id);
  if (!taken) return;
  const Promotion& promotion = *taken;
  if (promotion.hops > 0 && reason == Reason::kPeerHasNoRingroad) {
    // Whoever had the connection has ended since. The listener is still there.
    reason = Reason::kPeerGone;
  }
  if (promotion.try_rdma_next && promotion.stream->state() == State::kConnecting) {
    connect(promotion.stream, false, false);
    return;
  }
  if (reason == Reason::kPeerHasNoRingroad) remember_without(promotion.stream->tuple().remote);
  settle_refusal(promotion.stream, reason, peer_reason);
}

void Agent::on_redirect(Transport& transport, PromotionId id, const Rendezvous& where) noexcept {
  const std::optional<Promotion> taken = take_promotion(id);
  if (!taken) return;
  const Promotion& promotion = *taken;
  if (promotion.hops >= kMaxHops) {
    settle_refusal(promotion.stream, Reason::kPeerRefused, Reason::kRedirect);
  } else if (promotion.stream->state() == State::kConnecting) {
    connect(promotion.stream, transport, promotion.try_rdma_next, &where, promotion.hops + 1);
  } else {
    settle_refusal(promotion.stream, Reason::kBusy, Reason::kRedirect);  // cancelled by a fork
  }
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
