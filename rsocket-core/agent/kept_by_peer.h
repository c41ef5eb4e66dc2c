// Streams that the other end's operator keeps on TCP. For each peer one of them, its envoy, asks for all,
// so that a peer with thousands of connections is asked once at a time. When the peer gives the envoy
// another answer than that it keeps it, all others may ask.
//
// A plain table without locks, sockets or requests: the broker starts what it gives out.
// Thread rule: the agent thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/stream/agent_stream.h"

namespace ringroad {

class KeptByPeer {
 public:
  // A request for a stream that an operator keeps waits at the peer for so long, so that this end need
  // not ask all the time.
  static constexpr std::int64_t kRequestNs = 2'000'000'000;

  // Takes the stream in if its peer has said that it keeps it.
  void note(const AgentStreamPtr& stream) noexcept;
  // The stream's request was cancelled. If it was the envoy, another one asks at once.
  void request_is_dropped(const AgentStream& stream) noexcept;
  // The stream's request was refused, and note() was called for it. True: the stream was the envoy, and
  // the peer lets its streams off (let_off()).
  bool request_is_refused(const AgentStreamPtr& stream, Reason reason) noexcept;
  // Forgets the peer, and calls start(stream) for each of its streams that may ask.
  template <typename Start>
  void let_off(const Endpoint& peer, Start start) noexcept;
  // The streams that are to ask now, one for each peer whose time has come.
  std::vector<AgentStreamPtr> due(std::int64_t now_ns) noexcept;
  // When due() is to be called next; CLOCK_MONOTONIC.
  std::int64_t next_deadline() const noexcept;
  // The parent's streams are left alone.
  void after_fork_child() noexcept;

 private:
  static constexpr std::size_t kTidyKept = 256;
  // Until a request follows another that was not left to wait.
  static constexpr std::int64_t kPauseNs = 200'000'000;
  // After which another stream asks, whatever became of the envoy.
  static constexpr std::int64_t kEnvoyNs = 8'000'000'000;
  static constexpr std::int64_t kReturnPauseNs = 5'000'000;

  struct Peer {
    std::deque<std::weak_ptr<AgentStream>> streams;
    // Those that have ended are let go when there are so many: each holds a stream's memory.
    std::size_t tidy_at = kTidyKept;
    std::uint64_t envoy = 0;  // the id of the stream that asks; 0: none does
    std::int64_t asked_ns = 0;
    std::int64_t next_ns = 0;  // when the next one asks

    std::int64_t due_ns() const noexcept { return envoy == 0 ? next_ns : asked_ns + kEnvoyNs; }
  };

  // Whether the stream asks now. What this process' operator keeps does not, whatever the peer's operator
  // does.
  static bool may_ask(AgentStream& stream) noexcept {
    return stream.operator_hold() == Reason::kNone && stream.let_off_tcp(true);
  }

  std::map<Endpoint, Peer> peers_;
};

template <typename Start>
void KeptByPeer::let_off(const Endpoint& peer, Start start) noexcept {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  const std::deque<std::weak_ptr<AgentStream>> streams = std::move(it->second.streams);
  peers_.erase(it);  // start() may change the table
  for (const std::weak_ptr<AgentStream>& weak : streams) {
    const AgentStreamPtr stream = weak.lock();
    if (stream != nullptr && may_ask(*stream)) start(stream);
  }
}

}  // namespace ringroad
