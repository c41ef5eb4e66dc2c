#include "integration/systems/raft/store.h"

#include <algorithm>
#include <utility>

namespace raft {
namespace {

constexpr auto kHeartbeat = std::chrono::milliseconds(100);
constexpr uint64_t kMostInBatch = 128;

}  // namespace

Store::Store(uint64_t id, const std::vector<uint64_t>& others, const std::string& log_path)
    : id_(id), log_(log_path) {
  for (const uint64_t other : others) others_[other];
}

void Store::propose(std::vector<Proposal> proposals) {
  std::vector<std::string> entries;
  for (const Proposal& proposal : proposals) {
    entries.push_back(proposal.key + '\0' + proposal.value);
  }
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  uint64_t index = log_.last();
  for (Proposal& proposal : proposals) pending_[++index] = {now, std::move(proposal.committed)};
  log_.append(entries);
  changed_.notify_all();
}

void Store::receive(const Message& message) {
  std::vector<std::function<void()>> to_tell;
  {
    const std::lock_guard lock(mutex_);
    Other& other = others_.at(message.from());
    if (message.has_append()) {
      const Append& append = message.append();
      if (append.previous() > log_.last()) {
        other.missed = true;
      } else {
        const uint64_t known = log_.last() - append.previous();
        const std::vector<std::string> entries(append.entries().begin(), append.entries().end());
        if (known < entries.size()) log_.append(std::span(entries).subspan(known));
        advance(std::min(append.committed(), log_.last()), &to_tell);
      }
      other.answer |= other.missed || append.entries_size() != 0;
    } else {
      const Appended& appended = message.appended();
      other.match = std::max(other.match, appended.last());
      if (appended.missed()) other.next = appended.last() + 1;
      std::vector<uint64_t> have{log_.last()};
      for (const auto& [id, one] : others_) have.push_back(one.match);
      // What more than half of them have.
      std::ranges::sort(have, std::greater());
      advance(have[have.size() / 2], &to_tell);
    }
    changed_.notify_all();
  }
  for (const auto& tell : to_tell) tell();
}

void Store::advance(uint64_t committed, std::vector<std::function<void()>>* to_tell) {
  const auto now = std::chrono::steady_clock::now();
  for (; committed_ < committed; ++committed_) {
    const std::string& entry = log_.at(committed_ + 1);
    const size_t key = entry.find('\0');
    values_[entry.substr(0, key)] = entry.substr(key + 1);
    const auto found = pending_.find(committed_ + 1);
    if (found == pending_.end()) continue;
    to_tell->push_back(
        [tell = std::move(found->second.committed),
         took = static_cast<uint64_t>((now - found->second.appended).count())] { tell(took); });
    pending_.erase(found);
  }
}

bool Store::find(const std::string& key, std::string* value) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  *value = found->second;
  return true;
}

uint64_t Store::committed() {
  const std::lock_guard lock(mutex_);
  return committed_;
}

bool Store::outgoing(uint64_t to, Batch* batch) {
  std::unique_lock lock(mutex_);
  Other& other = others_.at(to);
  changed_.wait_for(lock, kHeartbeat, [&] {
    return stopping_ || other.answer ||
           (leads() && (other.next <= log_.last() || other.told < committed_));
  });
  if (stopping_) return false;
  Message& message = *batch->add_messages();
  message.set_from(id_);
  if (other.answer) {
    message.mutable_appended()->set_last(log_.last());
    message.mutable_appended()->set_missed(std::exchange(other.missed, false));
    other.answer = false;
    return true;
  }
  Append& append = *message.mutable_append();
  if (!leads()) return true;
  append.set_previous(other.next - 1);
  const uint64_t end = std::min(log_.last() + 1, other.next + kMostInBatch);
  for (; other.next < end; ++other.next) append.add_entries(log_.at(other.next));
  append.set_committed(other.told = committed_);
  return true;
}

void Store::stream_began(uint64_t to) {
  const std::lock_guard lock(mutex_);
  Other& other = others_.at(to);
  other.next = other.match + 1;
  other.answer = !leads();
}

void Store::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

}  // namespace raft
