#include "rsocket-core/waiter.h"

#include <pthread.h>

#include "rsocket-core/sys.h"

namespace ringroad {
namespace {

// initial-exec: the object is preloaded, never dlopen'ed, so an access is one instruction and can
// not allocate. 0 means none yet (descriptor 0 is never a private one).
__attribute__((tls_model("initial-exec"))) thread_local int tls_wake_fd = 0;

pthread_key_t exit_key;
pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;
bool have_exit_key = false;
SleepCall sleep_call = nullptr;
SleepCall held_call = nullptr;

int sleep_by(SleepCall way, pollfd* fds, nfds_t count, const timespec* timeout) noexcept {
  if (way != nullptr) return way(fds, count, timeout, nullptr);
  timespec copy = timeout != nullptr ? *timeout : timespec{};
  return sys::ppoll(fds, count, timeout != nullptr ? &copy : nullptr, nullptr);
}

void close_on_thread_exit(void*) noexcept {
  if (tls_wake_fd > 0) sys::close_quietly(tls_wake_fd);
  tls_wake_fd = 0;
}

void make_exit_key() noexcept {
  have_exit_key = pthread_key_create(&exit_key, close_on_thread_exit) == 0;
}

}  // namespace

int thread_wake_fd() noexcept {
  if (tls_wake_fd > 0) return tls_wake_fd;
  const int fd = sys::open_high_or_low([&] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (fd <= 0) return -1;
  pthread_once(&exit_key_once, make_exit_key);
  if (!have_exit_key || pthread_setspecific(exit_key, &exit_key) != 0) {
    sys::close_quietly(fd);
    errno = ENOMEM;
    return -1;
  }
  tls_wake_fd = fd;
  return fd;
}

void forget_wake_fds_after_fork() noexcept {
  if (tls_wake_fd > 0) sys::close_quietly(tls_wake_fd);
  tls_wake_fd = 0;
}

void set_sleep(SleepCall call, SleepCall held) noexcept {
  sleep_call = call;
  held_call = held;
}

int cancellable_sleep(pollfd* fds, nfds_t count, const timespec* timeout) noexcept {
  return sleep_by(sleep_call, fds, count, timeout);
}

int held_sleep(pollfd* fds, nfds_t count, const timespec* timeout) noexcept {
  return sleep_by(held_call, fds, count, timeout);
}

void WaitList::add(Waiter& waiter) noexcept {
  MutexLock lock(mutex_);
  waiters_.push_back(waiter);
  count_.fetch_add(1, std::memory_order_seq_cst);
}

void WaitList::remove(Waiter& waiter) noexcept {
  MutexLock lock(mutex_);
  waiters_.erase(waiters_.iterator_to(waiter));
  count_.fetch_sub(1, std::memory_order_relaxed);
}

void WaitList::wake(short events, const Waiter* except) noexcept {
  if (empty()) return;
  MutexLock lock(mutex_);
  for (Waiter& waiter : waiters_) {
    if ((waiter.events & events) == 0 || &waiter == except) continue;
    if (waiter.woken != nullptr) {
      waiter.woken(waiter);
    } else {
      sys::signal_eventfd(waiter.wake_fd);
    }
  }
}

}  // namespace ringroad
