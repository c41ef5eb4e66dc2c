// The agent's part where the program needs the last descriptors that its limit allows: what is left of the
// library holds none, as far as it can.
#include "rsocket-core/agent/agent.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {

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
  broker_.step_aside();
  listeners_.step_aside();
  transports_.close_shm();
  operator_.step_aside();
}

// Some streams may have an end to wait for, and a device of RDMA is not given back.
bool Agent::has_ended() noexcept {
  if (transports_.existing_shm() != nullptr) return false;  // the command is to come
  try {
    std::vector<AgentStreamPtr> all;
    for (const auto& [id, watched] : watched_) all.push_back(watched.stream);
    for (const AgentStreamPtr& stream : all) serve(stream);
  } catch (const std::bad_alloc&) {
  }
  const bool ends = watched_.empty() && transports_.existing_verbs() == nullptr;
  if (!ends) closed_what_it_can_.store(true);
  MutexLock lock(queue_mutex_);
  if (!ends || !queue_.empty() || attended_ != nullptr) return false;
  sys::close_quietly(epoll_fd_.exchange(-1));
  sys::close_quietly(wake_fd_.exchange(-1));
  running_.store(false, std::memory_order_release);
  return true;
}

}  // namespace ringroad
