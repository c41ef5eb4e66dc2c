// Which established channels there are, for the agent thread, which learns of their end from the
// connection manager while other threads destroy them.
#pragma once

#include <new>
#include <unordered_map>
#include <vector>

#include "rsocket-core/base/mutex.h"
#include "rsocket-core/channel/transport.h"

namespace ringroad {

class VerbsChannel;

// Thread rule: any thread. The lock stands outside those of a channel.
class ChannelRegistry {
 public:
  // False when out of memory.
  bool add(PromotionId id, VerbsChannel& channel) noexcept RR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    try {
      return channels_.emplace(id, &channel).second;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  // Afterwards no with() is inside the channel.
  void remove(PromotionId id) noexcept RR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    channels_.erase(id);
  }
  // All of them; some are missing when out of memory.
  std::vector<PromotionId> ids() noexcept RR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::vector<PromotionId> all;
    try {
      for (const auto& [id, channel] : channels_) all.push_back(id);
    } catch (const std::bad_alloc&) {
    }
    return all;
  }
  // Calls `visit` with the channel, which is not destroyed meanwhile. False when there is none.
  template <typename Visit>
  bool with(PromotionId id, Visit visit) noexcept RR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto found = channels_.find(id);
    if (found == channels_.end()) return false;
    visit(*found->second);
    return true;
  }

 private:
  Mutex mutex_ RR_RANK(channel_registry);
  std::unordered_map<PromotionId, VerbsChannel*> channels_ RR_GUARDED_BY(mutex_);
};

}  // namespace ringroad
