#include "rsocket-core/agent/request_turns.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace ringroad {

bool RequestTurns::waits(const AgentStreamPtr& stream) noexcept {
  const auto it = peers_.find(stream->tuple().remote);
  if (it == peers_.end() || it->second.asking < kMostAtOnce) return false;
  try {
    it->second.waiting.push_back(stream);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void RequestTurns::ends(const Endpoint& peer) noexcept {
  const auto it = peers_.find(peer);
  if (it != peers_.end() && --it->second.asking == 0 && it->second.waiting.empty()) peers_.erase(it);
}

bool RequestTurns::has_next() const noexcept {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer.second.has_next(); });
}

AgentStreamPtr RequestTurns::next() noexcept {
  const auto it =
      std::find_if(peers_.begin(), peers_.end(), [](const auto& peer) { return peer.second.has_next(); });
  if (it == peers_.end()) return nullptr;
  AgentStreamPtr stream = it->second.waiting.front().lock();
  it->second.waiting.pop_front();
  if (it->second.waiting.empty() && it->second.asking == 0) peers_.erase(it);
  return stream;
}

void RequestTurns::clear() noexcept {
  for (auto it = peers_.begin(); it != peers_.end();) {
    it->second.waiting.clear();
    it = it->second.asking == 0 ? peers_.erase(it) : std::next(it);
  }
}

}  // namespace ringroad
