// The agent over fork(2). What hangs on the agent's tables belongs to the parent's thread and may be half
// changed: the child leaves it alone, and begins with empty tables. The memory is the price of touching
// nothing.
#include <new>

#include "rsocket-core/agent/agent.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {

ProcessGroup::Member Agent::expect_child() noexcept {
  if (!process_group_.exists()) {
    if (listeners_.empty() && streams_.empty()) return 0;
    if (!listeners_.create_group()) return 0;
    pid_t nobody;
    if (operator_.watches_policy()) process_group_.lead_watching(nobody);
  }
  return process_group_.reserve();
}

// In the order of their ranks.
void Agent::before_fork() noexcept {
  mutex_.lock();
  listeners_.before_fork();
  streams_.before_fork();
  queue_mutex_.lock();
}

void Agent::after_fork_parent() noexcept {
  queue_mutex_.unlock();
  streams_.after_fork_parent();
  listeners_.after_fork_parent();
  mutex_.unlock();
}

void Agent::after_fork_child() noexcept {
  mutex_.reset_after_fork();
  queue_mutex_.reset_after_fork();
  segment_ = nullptr;  // the parent's
  started_ = false;
  running_.store(false);
  thread_id_.store(0);
  // The parent's epoll instance and eventfd are shared with it: let go of our copies.
  sys::close_quietly(epoll_fd_.exchange(-1));
  sys::close_quietly(wake_fd_.exchange(-1));
  new (&queue_) std::vector<Command>;
  new (&attended_) AgentStreamPtr;
  new (&watched_) std::map<std::uint64_t, Watched>;
  new (&deadlines_) std::set<std::pair<std::int64_t, std::uint64_t>>;
  new (&channels_) std::map<PromotionId, std::uint64_t>;
  some_deferred_.store(false);
  materialise_old_at_ns_ = kForever;
  streams_.after_fork_child();
  broker_.after_fork_child();
  operator_.after_fork_child();
  listeners_.after_fork_child();
  transports_.after_fork_child();
}

}  // namespace ringroad
