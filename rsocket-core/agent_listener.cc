// What the program does with its listeners, and until when requests for what they accepted are
// answered.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "rsocket-core/agent.h"
#include "rsocket-core/sys.h"

namespace ringroad {
namespace {

bool may_accept_at(const Endpoint& listener, const Endpoint& local) noexcept {
  return listener.port == local.port && (listener.is_any() || listener == local);
}

}  // namespace

void Agent::listen(const Endpoint& local, bool via_shm, bool via_rdma, bool waits) noexcept {
  const int saved = errno;
  try {
    MutexLock lock(mutex_);
    Listener& known = listeners_[local];
    known.shm |= via_shm;
    known.rdma |= via_rdma;
    ++known.count;
  } catch (const std::bad_alloc&) {
    return;
  }
  if (ensure_thread()) {
    std::shared_ptr<Done> done;
    try {
      if (waits) {
        done = std::make_shared<Done>();
        done->fd = sys::open_high([&] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
      }
    } catch (const std::bad_alloc&) {
    }
    post({Task::kListen, nullptr, local, -1, done});
    const std::int64_t deadline = sys::now_ns() + kListenWaitNs;
    for (std::int64_t left = kListenWaitNs; done != nullptr && done->fd >= 0 && left > 0;
         left = deadline - sys::now_ns()) {
      pollfd fds{done->fd, POLLIN, 0};
      timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
      if (sys::ppoll(&fds, 1, &timeout, nullptr) > 0) break;
    }
  }
  errno = saved;
}

Agent::Done::~Done() {
  if (fd >= 0) sys::close_quietly(fd);
}

void Agent::unlisten(const Endpoint& local) noexcept {
  const int saved = errno;
  int rendezvous = -1;
  {
    MutexLock lock(mutex_);
    const auto it = listeners_.find(local);
    if (it == listeners_.end() || --it->second.count > 0) return;
    // Of a family, whoever has the listener open answers.
    if (started_ && !family_.exists() && has_accepted_at(local)) {
      errno = saved;
      return;
    }
    rendezvous = it->second.rendezvous;
    listeners_.erase(it);
    if (!started_) {
      // A child that never had an agent: its copy goes here.
      if (rendezvous >= 0) sys::close_quietly(rendezvous);
      return;
    }
  }
  post({Task::kUnlisten, nullptr, local, rendezvous, {}});
  errno = saved;
}

bool Agent::has_accepted_at(const Endpoint& listener) noexcept {
  return std::any_of(accepted_.begin(), accepted_.end(), [&](const auto& entry) {
    return may_accept_at(listener, entry.first.local) && !entry.second.expired();
  });
}

bool Agent::end_closed_listeners(const Endpoint& local, bool in_any_case) noexcept {
  bool any = false;
  for (auto it = listeners_.begin(); it != listeners_.end();) {
    if (it->second.count == 0 && may_accept_at(it->first, local) &&
        (in_any_case || !has_accepted_at(it->first))) {
      post({Task::kUnlisten, nullptr, it->first, it->second.rendezvous, {}});
      it = listeners_.erase(it);
      any = true;
    } else {
      ++it;
    }
  }
  return any;
}

bool Agent::leave_closed(const Endpoint& local) noexcept {
  MutexLock lock(mutex_);
  return end_closed_listeners(local, true);
}

}  // namespace ringroad
