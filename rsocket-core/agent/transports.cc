#include "rsocket-core/agent/transports.h"

#include <sys/epoll.h>

#include <atomic>
#include <limits>
#include <new>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_transport.h"

namespace ringroad {

PromotionId Transports::next_promotion_id() noexcept {
  static std::atomic<PromotionId> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

Transport* Transports::shm(Reason& why) noexcept {
  if (loop_.steps_aside()) {
    why = Reason::kNoDescriptors;
    return nullptr;
  }
  if (shm_ == nullptr) {
    shm_.reset(make_shm_transport(events_, next_promotion_id, why, tcp_socket_owner,
                                  host_.rendezvous_directory()));
    if (shm_ != nullptr && !loop_.watch(shm_->event_fd(), AgentLoop::kShmCookie, EPOLLIN)) {
      shm_.reset();
      why = Reason::kNoMemory;
    }
  }
  return shm_.get();
}

Transport* Transports::verbs(Reason& why) noexcept {
  if (verbs_ == nullptr && sys::now_ns() >= verbs_again_ns_) {
    verbs_why_ = Reason::kNoVerbsLibrary;
    verbs_.reset(host_.load_verbs(events_, verbs_why_));
    if (verbs_ != nullptr && !loop_.watch(verbs_->event_fd(), AgentLoop::kVerbsCookie, EPOLLIN)) {
      verbs_.reset();
      verbs_why_ = Reason::kNoMemory;
    }
    verbs_again_ns_ = may_pass(verbs_why_) ? sys::now_ns() + kVerbsAgainNs
                                           : std::numeric_limits<std::int64_t>::max();
  }
  why = verbs_why_;
  return verbs_.get();
}

void Transports::after_fork_child() noexcept {
  new (&shm_) std::unique_ptr<Transport>;
  new (&verbs_) std::unique_ptr<Transport>;
  verbs_again_ns_ = 0;
}

}  // namespace ringroad
