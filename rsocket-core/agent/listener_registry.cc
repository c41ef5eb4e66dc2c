#include "rsocket-core/agent/listener_registry.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "rsocket-core/base/deferred_close.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {

// ---- Any thread

bool ListenerRegistry::add(const Endpoint& local, bool via_shm, bool via_rdma,
                           const ListenerFacts& facts) noexcept {
  try {
    MutexLock lock(mutex_);
    Listener& known = listeners_[local];
    if (known.count == 0) known.facts = facts;
    known.facts.v6_only &= facts.v6_only;  // two may share the port
    known.shm |= via_shm;
    known.rdma |= via_rdma;
    ++known.count;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool ListenerRegistry::remove(const Endpoint& local, bool has_thread, int& rendezvous) noexcept {
  MutexLock lock(mutex_);
  const auto it = listeners_.find(local);
  if (it == listeners_.end() || --it->second.count > 0) return false;
  // In a group, the members that have the listener open answer.
  if (has_thread && !group_.exists() && streams_.has_accepted_at(local)) return false;
  rendezvous = it->second.rendezvous;
  listeners_.erase(it);
  if (has_thread) return true;
  // A child that never had an agent: its copy goes here.
  if (rendezvous >= 0) sys::close_quietly(rendezvous);
  return false;
}

void ListenerRegistry::accepted_is_closed(const Endpoint& local) noexcept {
  MutexLock lock(mutex_);
  end_closed(local, false);
}

bool ListenerRegistry::end_closed(const Endpoint& local, bool in_any_case) noexcept {
  bool any = false;
  for (auto it = listeners_.begin(); it != listeners_.end();) {
    if (it->second.count == 0 && may_accept_at(it->first, local) &&
        (in_any_case || !streams_.has_accepted_at(it->first))) {
      loop_.stop_answering_soon(it->first, it->second.rendezvous);
      it = listeners_.erase(it);
      any = true;
    } else {
      ++it;
    }
  }
  return any;
}

bool ListenerRegistry::empty() noexcept {
  MutexLock lock(mutex_);
  return listeners_.empty();
}

bool ListenerRegistry::needs_to_be_found(const Stream& stream) noexcept {
  if (stream.share() == 0) return false;
  const auto first = [](bool wanted, std::atomic<bool>& known) noexcept {
    return wanted && !known.load(std::memory_order_relaxed) && !known.exchange(true);
  };
  const bool over_shm = first(stream.config().via_shm, found_over_shm_);
  return first(stream.config().via_rdma, found_over_rdma_) || over_shm;
}

// ---- Agent thread

void ListenerRegistry::begin() noexcept {
  again_ns_ = 0;
  expire(sys::now_ns());
}

void ListenerRegistry::answer(const Endpoint& local) noexcept {
  using At = Answering::At;
  Listener listener;
  {
    MutexLock lock(mutex_);
    const auto it = listeners_.find(local);
    if (it == listeners_.end()) return;
    listener = it->second;
  }
  try {
    Answering& answering = answering_[local];
    const auto open = [](At at) noexcept { return at != At::kHere && at != At::kFailed; };
    if (listener.shm && open(answering.shm)) {
      leader_is_watched_ = false;
      settle(local, "shm", answering.shm, listen_shm(local));
    }
    if (answering.shm == At::kHere && answering.facts != listener.facts) answering.path = At::kNowhere;
    if (answering.shm == At::kHere && open(answering.path)) {
      leader_is_watched_ = false;
      answering.facts = listener.facts;
      const Reason why = transports_.existing_shm()->listen_by_path(local, listener.facts);
      settle(local, "the rendezvous directory", answering.path, why);
      look_from_now_on();
    }
    if (listener.rdma && open(answering.rdma)) {
      leader_is_watched_ = false;
      settle(local, "rdma", answering.rdma, listen_rdma(local));
    }
  } catch (const std::bad_alloc&) {
  }
}

void ListenerRegistry::look_from_now_on() noexcept {
  if (look_ns_ == kForever && host_.rendezvous_directory() != nullptr) look_ns_ = sys::now_ns() + kLookNs;
}

void ListenerRegistry::settle(const Endpoint& local, const char* carrier, Answering::At& at,
                              Reason reason) noexcept {
  using At = Answering::At;
  const At before = at;
  // The process that has the name may end, and then one of those that share the listener has to answer.
  at = reason == Reason::kNone   ? At::kHere
       : reason == Reason::kBusy ? At::kElsewhere
       : may_pass(reason)        ? At::kNotYet
                                 : At::kFailed;
  if (at == At::kNotYet || (at == At::kElsewhere && !leader_is_watched_)) {
    again_ns_ = std::min(again_ns_, sys::now_ns() + pause_ns_);
  }
  if (at == before || at == At::kHere) return;
  if (at == At::kElsewhere && group_.exists()) return;  // as it should be
  try {
    char line[256];
    std::snprintf(line, sizeof line, "listener %s: no promotion over %s: %s",
                  local.to_string().c_str(), carrier,
                  at == At::kElsewhere                  ? "another process answers"
                  : reason == Reason::kOtherNamespace ? "no socket can be made there"
                                                      : reason_text(reason));
    host_.log(line);
  } catch (const std::bad_alloc&) {
  }
}

Reason ListenerRegistry::listen_rdma(const Endpoint& local) noexcept {
  Reason why = Reason::kNone;
  Transport* transport = transports_.verbs(why);
  if (transport == nullptr) return why;
  return try_become_responder(local, Carrier::kRdma) ? transport->listen(local) : Reason::kBusy;
}

bool ListenerRegistry::try_become_responder(const Endpoint& local, Carrier carrier) noexcept {
  pid_t holder;
  if (group_.try_become_responder(local, carrier, holder)) return true;
  leader_is_watched_ = watch_leader(holder);
  // It may have ended before it was watched, and its number be another process' by now.
  if (!group_.try_become_responder(local, carrier, holder)) return false;
  leader_is_watched_ = false;
  return true;
}

Reason ListenerRegistry::listen_shm(const Endpoint& local) noexcept {
  Reason why = Reason::kNone;
  Transport* transport = transports_.shm(why);
  if (transport == nullptr) return why;
  MutexLock lock(mutex_);
  const auto it = listeners_.find(local);
  if (it == listeners_.end()) return Reason::kClosing;
  if (!try_become_responder(local, Carrier::kShm)) return Reason::kBusy;
  if (it->second.rendezvous >= 0) return transport->adopt(local, it->second.rendezvous);
  why = transport->listen(local);
  if (why == Reason::kNone) {
    it->second.rendezvous = transport->rendezvous_of(local);
    reserved_fds::keep_in_children(it->second.rendezvous);
  }
  return why;
}

void ListenerRegistry::stop_answering(const Endpoint& local, int rendezvous) noexcept {
  answering_.erase(local);
  Transport* shm = transports_.existing_shm();
  const bool here = shm != nullptr && shm->rendezvous_of(local) >= 0;
  if (here && group_.exists()) {
    shm->leave_to_others(local);
  } else if (here) {
    shm->unlisten(local);
  } else if (rendezvous >= 0) {
    close_foreign(rendezvous);
  }
  if (here) group_.stop_leading(local, Carrier::kShm);
  if (Transport* verbs = transports_.existing_verbs(); verbs != nullptr) {
    verbs->unlisten(local);
    group_.stop_leading(local, Carrier::kRdma);
  }
}

bool ListenerRegistry::leave_closed(const Endpoint& local) noexcept {
  MutexLock lock(mutex_);
  return end_closed(local, true);
}

bool ListenerRegistry::watch_leader(pid_t process) noexcept {
  if (!group_watched_) {
    // Never read: each write is an edge in every process that waits here.
    group_watched_ = loop_.watch(group_.news_fd(), AgentLoop::kLeaderCookie, EPOLLIN | EPOLLET);
  }
  if (process == 0 || !group_watched_) return false;
  try {
    const auto [leader, is_new] = leaders_.try_emplace(process, -1);
    if (!is_new) return true;
    leader->second = sys::open_high([&] { return sys::call(SYS_pidfd_open, process, 0); });
    if (!loop_.watch(leader->second, AgentLoop::kLeaderCookie, EPOLLIN)) {
      if (leader->second >= 0) sys::close_quietly(leader->second);
      leaders_.erase(leader);
      return false;
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void ListenerRegistry::forget_leaders() noexcept {
  for (const auto& [process, fd] : leaders_) sys::close_quietly(fd);
  leaders_.clear();
}

void ListenerRegistry::leader_has_stopped() noexcept {
  forget_leaders();
  pause_ns_ = kFirstPauseNs;
  again_ns_ = 0;
}

void ListenerRegistry::be_found() noexcept {
  using At = Answering::At;
  bool changed = false;
  const auto settle_own = [&](Reason why, At& at, std::atomic<bool>& wanted) noexcept {
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
    if (Transport* transport = transports_.shm(why)) {
      MutexLock lock(mutex_);
      why = transport->listen_alone(found_at_, lone_rendezvous_);
    }
    settle_own(why, found_.shm, found_over_shm_);
    if (why == Reason::kNone) look_from_now_on();
  }
  if (found_over_rdma_.load() && found_.rdma == At::kNowhere) {
    Reason why = Reason::kNone;
    int none = -1;
    if (Transport* transport = transports_.verbs(why)) why = transport->listen_alone(found_at_, none);
    settle_own(why, found_.rdma, found_over_rdma_);
  }
  if (changed) group_.publish(found_at_);
}

void ListenerRegistry::expire(std::int64_t now_ns) noexcept {
  if (look_ns_ <= now_ns) {
    look_ns_ = kForever;
    Transport* const shm = transports_.existing_shm();
    if (shm != nullptr && (!answering_.empty() || found_.shm == Answering::At::kHere)) {
      shm->look_at_paths();
      look_from_now_on();
    }
  }
  if (again_ns_ > now_ns) return;
  again_ns_ = kForever;
  std::vector<Endpoint> all;
  try {
    MutexLock lock(mutex_);
    for (const auto& [endpoint, listener] : listeners_) all.push_back(endpoint);
  } catch (const std::bad_alloc&) {
    again_ns_ = now_ns + kFirstPauseNs;
  }
  for (const Endpoint& endpoint : all) answer(endpoint);
  pause_ns_ = std::min(2 * pause_ns_, kLongestPauseNs);
}

void ListenerRegistry::step_aside() noexcept {
  again_ns_ = look_ns_ = kForever;
  {
    Transport* shm = transports_.existing_shm();
    MutexLock lock(mutex_);
    for (auto& [local, listener] : listeners_) {
      const bool here = shm != nullptr && shm->rendezvous_of(local) >= 0;
      // Another process of the group may answer from now on.
      if (here && group_.exists()) shm->leave_to_others(local);
      if (here) group_.stop_leading(local, Carrier::kShm);
      if (!here && listener.rendezvous >= 0) close_foreign(listener.rendezvous);
      listener.rendezvous = -1;
    }
    lone_rendezvous_ = -1;  // the transport's
  }
  answering_.clear();
  forget_leaders();
}

// ---- fork

bool ListenerRegistry::create_group() noexcept {
  MutexLock lock(mutex_);
  if (!group_.create()) return false;
  // No other process could have answered for them before.
  for (const auto& [endpoint, listener] : listeners_) {
    pid_t nobody;
    if (listener.rendezvous >= 0) group_.try_become_responder(endpoint, Carrier::kShm, nobody);
    if (listener.rdma) group_.try_become_responder(endpoint, Carrier::kRdma, nobody);
  }
  return true;
}

void ListenerRegistry::after_fork_child() noexcept {
  mutex_.reset_after_fork();
  new (&answering_) std::map<Endpoint, Answering>;
  // What the parent has closed is the parent's alone.
  for (auto it = listeners_.begin(); it != listeners_.end();) {
    if (it->second.count == 0 && it->second.rendezvous >= 0) {
      sys::close_quietly(it->second.rendezvous);
    }
    it = it->second.count == 0 ? listeners_.erase(it) : std::next(it);
  }
  found_over_shm_.store(false);
  found_over_rdma_.store(false);
  again_ns_ = look_ns_ = kForever;
  pause_ns_ = kFirstPauseNs;
  new (&leaders_) std::map<pid_t, int>;
  group_watched_ = false;
  found_at_ = Rendezvous{};
  found_ = Answering{};
  if (lone_rendezvous_ >= 0) sys::close_quietly(std::exchange(lone_rendezvous_, -1));
}

}  // namespace ringroad
