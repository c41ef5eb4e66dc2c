#include "rsocket-core/agent/channel_budget.h"

#include <algorithm>
#include <functional>
#include <new>

namespace ringroad {

void ChannelBudget::set_limit(unsigned limit) noexcept {
  limit_ = limit;
  if (entries_.size() > limit_) deadline_ns_ = 0;
  publish();
}

void ChannelBudget::publish() noexcept {
  if (segment_ == nullptr) return;
  stats::SegmentHeader& header = segment_->header();
  header.max_channels.store(limit_, std::memory_order_relaxed);
  header.channels.store(static_cast<std::uint32_t>(entries_.size()), std::memory_order_relaxed);
}

void ChannelBudget::add(const AgentStreamPtr& stream, std::int64_t now_ns) {
  entries_[stream->id()] = {stream, stream->messages_on_channel(), now_ns, kNever};
  if (const std::int64_t idle = stream->config().idle_ns; idle > 0) {
    deadline_ns_ = std::min(deadline_ns_, now_ns + idle);
  }
  publish();
}

bool ChannelBudget::remove(std::uint64_t id) noexcept {
  if (entries_.erase(id) == 0) return false;
  publish();
  return true;
}

bool ChannelBudget::send_away(Entry& entry, std::int64_t now_ns) noexcept {
  if (entry.leaves_ns != kNever) return false;
  const AgentStreamPtr stream = entry.stream.lock();
  if (stream == nullptr || !stream->leave_idle()) return false;
  entry.leaves_ns = now_ns;
  if (segment_ != nullptr) {
    segment_->header().channels_given_back.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

void ChannelBudget::look(std::int64_t now_ns) noexcept {
  idle_.clear();
  for (auto known = entries_.begin(); known != entries_.end();) {
    auto& [id, entry] = *known;
    const AgentStreamPtr stream = entry.stream.lock();
    if (stream == nullptr) {
      known = entries_.erase(known);
      continue;
    }
    ++known;
    if (const std::uint64_t messages = stream->messages_on_channel(); messages != entry.messages) {
      entry.messages = messages;
      entry.used_ns = now_ns;
    } else if (entry.leaves_ns == kNever && now_ns - entry.used_ns >= kBusyNs) {
      try {
        idle_.emplace_back(entry.used_ns, id);
      } catch (const std::bad_alloc&) {
        break;
      }
    }
  }
  std::sort(idle_.begin(), idle_.end(), std::greater<>());
}

ChannelBudget::Quota ChannelBudget::channel_quota(std::size_t made, std::size_t waiting,
                                                  std::int64_t now_ns) noexcept {
  if (entries_.size() + made < limit_) return Quota::kFree;
  const auto coming = static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [&](const auto& known) noexcept {
        const std::int64_t leaves = known.second.leaves_ns;
        return leaves != kNever && now_ns - leaves < kLeavePatienceNs;
      }));
  bool comes = entries_.size() + made + waiting < limit_ + coming;
  if (!comes && idle_.empty() && now_ns >= next_look_ns_) {
    look(now_ns);
    next_look_ns_ = now_ns + kLookPauseNs;
    publish();
    if (entries_.size() + made < limit_) return Quota::kFree;
  }
  while (!comes && !idle_.empty()) {
    const auto [used_ns, id] = idle_.back();
    idle_.pop_back();
    const auto known = entries_.find(id);
    // It may have been used since, or be another channel's by now.
    if (known == entries_.end() || known->second.used_ns != used_ns) continue;
    const AgentStreamPtr stream = known->second.stream.lock();
    if (stream == nullptr || stream->messages_on_channel() != known->second.messages) continue;
    comes = send_away(known->second, now_ns);
  }
  return comes ? Quota::kComing : Quota::kNone;
}

void ChannelBudget::expire(std::int64_t now_ns) noexcept {
  if (deadline_ns_ > now_ns) return;
  deadline_ns_ = kNever;
  look(now_ns);
  for (auto& [id, entry] : entries_) {
    const AgentStreamPtr stream = entry.stream.lock();
    const std::int64_t idle = stream == nullptr ? 0 : stream->config().idle_ns;
    if (idle == 0 || entry.leaves_ns != kNever) continue;
    if (now_ns - entry.used_ns < idle) {
      deadline_ns_ = std::min(deadline_ns_, entry.used_ns + idle);
    } else if (!send_away(entry, now_ns)) {
      // It is being switched, or its peer does not answer any more.
      deadline_ns_ = std::min(deadline_ns_, now_ns + std::max(idle, kBusyNs));
    }
  }
  std::size_t too_many = entries_.size() > limit_ ? entries_.size() - limit_ : 0;
  if (too_many == 0) return;
  try {
    std::vector<std::pair<std::int64_t, std::uint64_t>> by_use;
    for (const auto& [id, entry] : entries_) by_use.emplace_back(entry.used_ns, id);
    std::sort(by_use.begin(), by_use.end());
    for (const auto& [used_ns, id] : by_use) {
      if (too_many == 0) break;
      Entry& entry = entries_[id];
      if (entry.leaves_ns != kNever || send_away(entry, now_ns)) --too_many;
    }
  } catch (const std::bad_alloc&) {
  }
  if (too_many > 0) deadline_ns_ = std::min(deadline_ns_, now_ns + kLeavePatienceNs);
}

}  // namespace ringroad
