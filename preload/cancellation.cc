#include "preload/cancellation.h"

#include <utility>

#include "rsocket-core/sys.h"

extern "C" {
[[noreturn]] void rr_unwind_next(__pthread_unwind_buf_t* buffer) asm("__pthread_unwind_next");
}

namespace ringroad::preload::cancellation {
namespace {

// What ends this thread, between keep() and go_on().
struct Ending {
  bool pending = false;
  __pthread_unwind_buf_t buffer{};
};
constinit thread_local Ending ending __attribute__((tls_model("initial-exec")));

}  // namespace

std::atomic<bool> in_use{false};

void keep(__pthread_unwind_buf_t& here) noexcept {
  rr_unregister_cancel(&here);
  ending.buffer = here;  // it names the one before it, which is where this goes on
  ending.pending = true;
}

void go_on() {
  if (std::exchange(ending.pending, false)) rr_unwind_next(&ending.buffer);
}

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  return caught(real().ppoll, fds, count, timeout, mask);
}

int epoll_pwait(int epfd, epoll_event* events, int max, int timeout_ms, const sigset_t* mask) {
  if (timeout_ms == 0) {  // no sleep, and events that have been taken must be told
    return static_cast<int>(sys::call(SYS_epoll_pwait, epfd, events, max, 0, mask, _NSIG / 8));
  }
  return caught(real().epoll_pwait, epfd, events, max, timeout_ms, mask);
}

int epoll_pwait2(int epfd, epoll_event* events, int max, const timespec* timeout,
                 const sigset_t* mask) {
  return caught(real().epoll_pwait2, epfd, events, max, timeout, mask);
}

}  // namespace ringroad::preload::cancellation

using namespace ringroad::preload;

int rr_pthread_cancel(pthread_t thread) {
  // First: the thread that has been cancelled must not miss it.
  cancellation::in_use.store(true, std::memory_order_seq_cst);
  return real().pthread_cancel(thread);
}

int rr_pthread_setcanceltype(int type, int* old) {
  if (type == PTHREAD_CANCEL_ASYNCHRONOUS) {
    cancellation::in_use.store(true, std::memory_order_relaxed);
  }
  return real().pthread_setcanceltype(type, old);
}
