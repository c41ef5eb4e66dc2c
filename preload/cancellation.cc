#include "preload/cancellation.h"

#include <utility>

#include "preload/jumps.h"
#include "rsocket-core/base/futex.h"
#include "rsocket-core/base/sys.h"

extern "C" {
[[noreturn]] void rr_unwind_next(__pthread_unwind_buf_t* buffer) asm("__pthread_unwind_next");
}

namespace ringroad::preload::cancellation {
namespace {

// What ends this thread, between keep() and go_on().
constinit thread_local __pthread_unwind_buf_t ending __attribute__((tls_model("initial-exec"))){};

// No thread sleeps any more once it ends or jumps.
bool over() noexcept {
  if (ends) errno = ECANCELED;
  return ends;
}

int held_in_kernel(pollfd* fds, nfds_t count, timespec* timeout, const sigset_t* mask) {
  return sys::ppoll(fds, count, timeout, mask);
}

int held_on_word(const std::atomic<std::uint32_t>* word, std::uint32_t value, const timespec* timeout) {
  return sys::futex_wait(word, value, timeout);
}

// libc's own calls that are cancellation points sleep like this, too: a request ends the sleep, or is found
// before it. What the sleep has done by then is nothing.
int on_word(const std::atomic<std::uint32_t>* word, std::uint32_t value, const timespec* timeout) {
  int type = PTHREAD_CANCEL_DEFERRED;
  real().pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  const int result = sys::futex_wait(word, value, timeout);
  real().pthread_setcanceltype(type, nullptr);
  return result;
}

int caught_pselect(int end, fd_set* in, fd_set* out, fd_set* except, const timespec* timeout,
                   const sigset_t* mask) {
  return caught(real().pselect, end, in, out, except, timeout, mask);
}

}  // namespace

std::atomic<bool> in_use{false};
constinit thread_local bool ends __attribute__((tls_model("initial-exec"))) = false;
constinit thread_local bool inside __attribute__((tls_model("initial-exec"))) = false;

constinit thread_local Pad* pads __attribute__((tls_model("initial-exec"))) = nullptr;

void land(Pad& pad, int how) noexcept {
  // A jump has passed by what would have made it so (on_word(), and what libc sleeps in).
  real().pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
  rr_unregister_cancel(&pad.here);
  enter_library(pad);
  if (how != kJumped) {
    jumps::forget();
    ending = pad.here;  // it names the one before it, which is where this goes on
  }
  ends = true;
}

void deliver_signals() {
  inside = true;
  signals::deliver();
  inside = false;
  if (ends) go_on();
}

void go_on(int type) {
  if (!std::exchange(ends, false)) return;
  if (!jumps::is_pending()) rr_unwind_next(&ending);
  if (type != PTHREAD_CANCEL_DEFERRED) real().pthread_setcanceltype(type, nullptr);
  jumps::make();
}

int held_ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (over()) return -1;
  timespec copy = timeout != nullptr ? *timeout : timespec{};
  const int n = caught(held_in_kernel, fds, count, timeout != nullptr ? &copy : nullptr, mask);
  return over() ? -1 : n;
}

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  return ppoll_for(0, fds, count, timeout, mask);
}

int ppoll_for(nfds_t asked, pollfd* fds, nfds_t count, const timespec* timeout,
              const sigset_t* mask) {
  if (over()) return -1;
  const int n = caught(real().ppoll, fds, count, timeout, mask);
  if (hardly_ever(n < 0) && errno == EINVAL) {
    return poll_by_select(fds, count, timeout, mask, asked, caught_pselect);
  }
  return n;
}

int held_futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t value, const timespec* timeout) {
  if (over()) return -1;
  const int n = caught(held_on_word, word, value, timeout);
  return over() ? -1 : n;
}

int futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t value, const timespec* timeout) {
  return over() ? -1 : caught(on_word, word, value, timeout);
}

int epoll_pwait(int epfd, epoll_event* events, int max, int timeout_ms, const sigset_t* mask) {
  if (timeout_ms == 0) {  // no sleep, and events that have been taken must be told
    return static_cast<int>(sys::call(SYS_epoll_pwait, epfd, events, max, 0, mask, _NSIG / 8));
  }
  return over() ? -1 : caught(real().epoll_pwait, epfd, events, max, timeout_ms, mask);
}

int epoll_pwait2(int epfd, epoll_event* events, int max, const timespec* timeout,
                 const sigset_t* mask) {
  return over() ? -1 : caught(real().epoll_pwait2, epfd, events, max, timeout, mask);
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
