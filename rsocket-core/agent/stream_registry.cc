#include "rsocket-core/agent/stream_registry.h"

#include <algorithm>
#include <new>

#include "rsocket-core/net/tcp_counters.h"

namespace ringroad {

bool StreamRegistry::enter(const AgentStreamPtr& stream) {
  MutexLock lock(mutex_);
  streams_[stream->id()] = stream;
  if (stream->role() != Role::kAccept) return false;
  // accept(2) gives out connections that are over, whose addresses may be another's by now.
  std::weak_ptr<AgentStream>& known = accepted_[stream->tuple()];
  if (known.expired() || tcp_established(stream->fd())) known = stream;
  return requests_wait();
}

void StreamRegistry::leave(Stream& stream, bool over) noexcept {
  MutexLock lock(mutex_);
  if (stream.role() == Role::kAccept) {
    const auto it = accepted_.find(stream.tuple());
    // The same addresses may have been reused by a newer connection already.
    if (it != accepted_.end()) {
      const AgentStreamPtr known = it->second.lock();
      if (known == nullptr || known->id() == stream.id()) accepted_.erase(it);
    }
  }
  if (over || stream.state() == State::kClosed) streams_.erase(stream.id());
}

void StreamRegistry::forget(std::uint64_t id) noexcept {
  MutexLock lock(mutex_);
  streams_.erase(id);
}

bool StreamRegistry::empty() noexcept {
  MutexLock lock(mutex_);
  return streams_.empty();
}

AgentStreamPtr StreamRegistry::accepted(const FourTuple& tuple) noexcept {
  MutexLock lock(mutex_);
  set_requests_wait(true);
  const auto it = accepted_.find(tuple);
  return it != accepted_.end() ? it->second.lock() : nullptr;
}

bool StreamRegistry::has_accepted_at(const Endpoint& listener) noexcept {
  MutexLock lock(mutex_);
  return std::any_of(accepted_.begin(), accepted_.end(), [&](const auto& entry) {
    return may_accept_at(listener, entry.first.local) && !entry.second.expired();
  });
}

void StreamRegistry::after_fork_child() noexcept {
  mutex_.reset_after_fork();
  new (&accepted_) std::map<FourTuple, std::weak_ptr<AgentStream>>;
  new (&streams_) std::map<std::uint64_t, std::weak_ptr<AgentStream>>;
  set_requests_wait(false);
}

}  // namespace ringroad
