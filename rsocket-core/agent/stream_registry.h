// The streams of this process that the program has open, or that are not at their end yet.
//
//   streams_    by id, in the order in which they were made
//   accepted_   by addresses: what a peer's request names
//
// Thread rule: any thread. Rank of mutex_: after ListenerRegistry's, before every lock of a stream.
//
// Invariant: a request that waits for a connection that accept(2) has not returned is never missed. The agent
// thread sets requests_wait_ with mutex_ held before it looks into accepted_. The thread that enters a stream
// reads requests_wait_ with mutex_ held after it. So one of the two sees the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "rsocket-core/base/mutex.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/stream/agent_stream.h"

namespace ringroad {

// Whether a connection with this local address may come from that listener.
inline bool may_accept_at(const Endpoint& listener, const Endpoint& local) noexcept {
  return listener.port == local.port && (listener.is_any() || listener == local);
}

class StreamRegistry {
 public:
  StreamRegistry() noexcept = default;
  StreamRegistry(const StreamRegistry&) = delete;
  StreamRegistry& operator=(const StreamRegistry&) = delete;

  // True: a request may wait for this stream, and the agent thread is to be told of it. May throw
  // std::bad_alloc.
  bool enter(const AgentStreamPtr& stream) RR_EXCLUDES(mutex_);
  // The program has closed it: no request finds it any more. `over`: nothing of it is left to do.
  void leave(Stream& stream, bool over) noexcept RR_EXCLUDES(mutex_);
  // The stream with this id is at its end.
  void forget(std::uint64_t id) noexcept RR_EXCLUDES(mutex_);

  bool empty() noexcept RR_EXCLUDES(mutex_);
  // Calls act(stream) with no lock held for each stream that there is now, oldest first, until it is false.
  template <typename Act>
  void each(Act act) noexcept RR_EXCLUDES(mutex_);
  // Null: there is none, or not yet. From then on enter() says that requests wait.
  AgentStreamPtr accepted(const FourTuple& tuple) noexcept RR_EXCLUDES(mutex_);
  // Whether a stream is open that may have been accepted by a listener at this address.
  bool has_accepted_at(const Endpoint& listener) noexcept RR_EXCLUDES(mutex_);

  // ---- Whether requests may wait for connections. Set by the agent thread, read by any.
  bool requests_wait() const noexcept { return requests_wait_.load(std::memory_order_relaxed); }
  void set_requests_wait(bool wait) noexcept {
    requests_wait_.store(wait, std::memory_order_relaxed);
  }

  // ---- fork(2). The lock is held over it. The child begins without streams.
  void before_fork() noexcept RR_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void after_fork_parent() noexcept RR_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }
  void after_fork_child() noexcept RR_NO_THREAD_SAFETY_ANALYSIS;

 private:
  Mutex mutex_ RR_RANK(streams);
  std::map<FourTuple, std::weak_ptr<AgentStream>> accepted_ RR_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::weak_ptr<AgentStream>> streams_ RR_GUARDED_BY(mutex_);
  std::atomic<bool> requests_wait_{false};
};

template <typename Act>
void StreamRegistry::each(Act act) noexcept {
  std::uint64_t done = 0;
  std::uint64_t last = 0;
  for (;;) {
    AgentStreamPtr stream;
    {
      MutexLock lock(mutex_);
      if (last == 0 && !streams_.empty()) last = streams_.rbegin()->first;
      auto next = streams_.upper_bound(done);
      while (next != streams_.end() && (stream = next->second.lock()) == nullptr) ++next;
      if (next == streams_.end() || next->first > last) return;
      done = next->first;
    }
    if (!act(stream)) return;
  }
}

}  // namespace ringroad
