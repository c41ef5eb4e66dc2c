// The agent's part where the program needs the last descriptors that its limit allows: what is left of the
// library holds none, as far as it can.
#include "rsocket-core/agent.h"
#include "rsocket-core/foreign_fd.h"
#include "rsocket-core/sys.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

}  // namespace

void Agent::step_aside(std::int64_t timeout_ns) noexcept {
  steps_aside_.store(true);
  post({Task::kStepAside, {}, {}, -1, {}});
  const timespec nap{0, kNapNs};
  const std::int64_t deadline = sys::now_ns() + timeout_ns;
  while (running_.load(std::memory_order_acquire) && !closed_what_it_can_.load() &&
         sys::now_ns() < deadline) {
    sys::call(SYS_nanosleep, &nap, nullptr);
  }
}

// Streams are on TCP, and none asks for a channel any more. A peer that asks for a channel finds nobody.
void Agent::close_what_it_can() noexcept {
  while (!promotions_.empty()) {
    const PromotionId id = promotions_.begin()->first;
    const Promotion promotion = *take_promotion(id);
    promotion.transport->cancel(id);
    settle_refusal(promotion.stream, Reason::kNoDescriptors, Reason::kNone);
  }
  unknown_.clear();
  waiting_.clear();
  listen_again_ns_ = kForever;
  reload_ns_ = kForever;
  {
    MutexLock lock(mutex_);
    for (auto& [local, listener] : listeners_) {
      const bool here = shm_ != nullptr && shm_->rendezvous_of(local) >= 0;
      // Another process of the family may answer from now on.
      if (here && family_.exists()) shm_->leave_to_others(local);
      if (here) family_.stop_leading(local, Carrier::kShm);
      if (!here && listener.rendezvous >= 0) close_foreign(listener.rendezvous);
      listener.rendezvous = -1;
    }
    lone_rendezvous_ = -1;  // shm_'s
  }
  answering_.clear();
  shm_.reset();
  for (const auto& [process, fd] : leaders_) sys::close_quietly(fd);
  leaders_.clear();
  if (const int fd = policy_fd_.exchange(-1); fd >= 0) sys::close_quietly(fd);
  if (control_ != nullptr) control_->close();
}

// Some streams may have an end to wait for, and a device of RDMA is not given back.
bool Agent::has_ended() noexcept {
  if (shm_ != nullptr) return false;  // the command is to come
  try {
    std::vector<StreamPtr> all;
    for (const auto& [id, watched] : watched_) all.push_back(watched.stream);
    for (const StreamPtr& stream : all) serve(stream);
  } catch (const std::bad_alloc&) {
  }
  const bool ends = watched_.empty() && verbs_ == nullptr;
  if (!ends) closed_what_it_can_.store(true);
  MutexLock lock(queue_mutex_);
  if (!ends || !queue_.empty() || attended_ != nullptr) return false;
  sys::close_quietly(epoll_fd_.exchange(-1));
  sys::close_quietly(wake_fd_.exchange(-1));
  running_.store(false, std::memory_order_release);
  return true;
}

}  // namespace ringroad
