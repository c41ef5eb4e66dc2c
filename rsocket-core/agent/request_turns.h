// Whose turn it is to ask a peer for shared memory: at most kMostAtOnce streams ask one peer at a time, the
// others as these have their answers. On a busy host the peer would else answer each of them too late.
//
// A plain table without locks, sockets or requests: the broker starts what it gives out.
// Thread rule: the agent thread's.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <new>

#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/stream/agent_stream.h"

namespace ringroad {

class RequestTurns {
 public:
  static constexpr std::size_t kMostAtOnce = 16;

  // True: the stream has to wait, and comes with next() once. False: it may ask, or there is no memory.
  bool waits(const AgentStreamPtr& stream) noexcept;
  // A request to the peer begins, and ends. May throw std::bad_alloc.
  void begins(const Endpoint& peer) { ++peers_[peer].asking; }
  void ends(const Endpoint& peer) noexcept;
  // Whether next() has a stream, which may have ended.
  bool has_next() const noexcept;
  // Takes out the first stream of a peer that has a turn left. Null: it has ended, or there is none.
  AgentStreamPtr next() noexcept;
  void clear() noexcept;
  // The parent's streams are left alone.
  void after_fork_child() noexcept { new (&peers_) Peers; }

 private:
  struct Peer {
    std::size_t asking = 0;
    std::deque<std::weak_ptr<AgentStream>> waiting;

    bool has_next() const noexcept { return asking < kMostAtOnce && !waiting.empty(); }
  };
  using Peers = std::map<Endpoint, Peer>;  // each asks, or is waited for

  Peers peers_;
};

}  // namespace ringroad
