#include "rsocket-core/agent/kept_by_peer.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "rsocket-core/base/sys.h"

namespace ringroad {

void KeptByPeer::note(const AgentStreamPtr& stream) noexcept {
  if (!stream->take_peer_keeps()) return;
  const std::int64_t now = sys::now_ns();
  try {
    Peer& peer = peers_[stream->tuple().remote];
    if (peer.streams.size() >= peer.tidy_at) {
      std::erase_if(peer.streams, [](const std::weak_ptr<AgentStream>& known) { return known.expired(); });
      peer.tidy_at = std::max(2 * peer.streams.size(), kTidyKept);
    }
    peer.streams.push_back(stream);
    if (peer.envoy == stream->id()) {
      peer.envoy = 0;
      peer.next_ns = now - peer.asked_ns < kRequestNs / 2 ? now + kPauseNs : now;
    } else if (peer.streams.size() == 1 && peer.envoy == 0) {
      peer.next_ns = now + kReturnPauseNs;
    }
  } catch (const std::bad_alloc&) {
  }
}

void KeptByPeer::request_is_dropped(const AgentStream& stream) noexcept {
  const auto it = peers_.find(stream.tuple().remote);
  if (it == peers_.end() || it->second.envoy != stream.id()) return;
  it->second.envoy = 0;
  it->second.next_ns = sys::now_ns();
}

bool KeptByPeer::request_is_refused(const AgentStreamPtr& stream, Reason reason) noexcept {
  const auto it = peers_.find(stream->tuple().remote);
  if (it == peers_.end() || it->second.envoy != stream->id()) return false;
  if (reason != Reason::kMaxChannels) return true;
  // The peer has not been asked. Another one does that when there is a channel.
  it->second.envoy = 0;
  it->second.next_ns = sys::now_ns() + kPauseNs;
  try {
    it->second.streams.push_back(stream);
  } catch (const std::bad_alloc&) {
  }
  return false;
}

std::vector<AgentStreamPtr> KeptByPeer::due(std::int64_t now_ns) noexcept {
  std::vector<AgentStreamPtr> envoys;
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = it->second;
    if (peer.due_ns() > now_ns) {
      ++it;
      continue;
    }
    peer.envoy = 0;
    AgentStreamPtr envoy;
    while (envoy == nullptr && !peer.streams.empty()) {
      envoy = peer.streams.front().lock();
      peer.streams.pop_front();
      if (envoy != nullptr && !may_ask(*envoy)) envoy.reset();
    }
    if (envoy == nullptr) {
      it = peers_.erase(it);
      continue;
    }
    peer.envoy = envoy->id();
    peer.asked_ns = now_ns;
    try {
      envoys.push_back(std::move(envoy));
    } catch (const std::bad_alloc&) {
    }
    ++it;
  }
  return envoys;
}

std::int64_t KeptByPeer::next_deadline() const noexcept {
  std::int64_t next = std::numeric_limits<std::int64_t>::max();
  for (const auto& [endpoint, peer] : peers_) next = std::min(next, peer.due_ns());
  return next;
}

void KeptByPeer::after_fork_child() noexcept { new (&peers_) std::map<Endpoint, Peer>; }

}  // namespace ringroad
