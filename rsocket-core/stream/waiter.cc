#include "rsocket-core/stream/waiter.h"

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/futex.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

// initial-exec: the object is preloaded, never dlopen'ed, so an access is one instruction and can
// not allocate. 0 means none yet (descriptor 0 is never a private one).
__attribute__((tls_model("initial-exec"))) thread_local int tls_wake_fd = 0;
__attribute__((tls_model("initial-exec"))) thread_local int tls_edges_fd = 0;
__attribute__((tls_model("initial-exec"))) thread_local std::uint64_t tls_edges_number = 0;
std::atomic<std::uint64_t> edges_numbers{0};
// Since the thread's innermost handler began: it has asked for its eventfd, to sleep.
__attribute__((tls_model("initial-exec"))) thread_local bool tls_sleeps = false;

pthread_key_t exit_key;
pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;
bool have_exit_key = false;
SleepCalls sleep_calls;

int sleep_by(SleepCall way, pollfd* fds, nfds_t count, const timespec* timeout) noexcept {
  if (way != nullptr) return way(fds, count, timeout, nullptr);
  timespec copy = timeout != nullptr ? *timeout : timespec{};
  return sys::ppoll(fds, count, timeout != nullptr ? &copy : nullptr, nullptr);
}

// Whose the descriptors are. A thread that ends by exit(2) itself, not through libc, leaves them behind, and
// another takes them over.
struct Owned {
  std::atomic<pid_t> thread{0};  // 0: nobody's; -1: it is being entered
  std::atomic<int> fd{-1};
  std::atomic<int> edges{0};  // 0: none yet
};
constexpr unsigned kMostOwned = 4096;  // of more threads nobody asks
Owned owned[kMostOwned];
std::atomic<unsigned> owners{0};      // that have an entry
std::atomic<unsigned> entered{0};     // entries that were ever used are the first so many
std::atomic<unsigned> asked_last{0};
// As long as there are fewer owners, at most so many have ended.
constexpr unsigned kFewOwners = 16;
constexpr unsigned kAskedAtATime = 2;
constinit thread_local Owned* own_entry __attribute__((tls_model("initial-exec"))) = nullptr;

pid_t this_thread() noexcept { return static_cast<pid_t>(sys::raw(SYS_gettid)); }

bool has_ended(pid_t thread) noexcept {
  return thread > 0 && sys::raw(SYS_tgkill, sys::getpid(), thread, 0) == -ESRCH;
}

// That of a thread which has ended, if two looks find one. -1: they do not. Each new thread looks at two
// more, so those that are left behind are about as many as live ones.
int take_over_wake_fd() noexcept {
  if (owners.load(std::memory_order_relaxed) < kFewOwners) return -1;
  const unsigned end = entered.load(std::memory_order_acquire);
  for (unsigned i = 0; i < kAskedAtATime && end > 0; ++i) {
    Owned& entry = owned[asked_last.fetch_add(1, std::memory_order_relaxed) % end];
    pid_t thread = entry.thread.load(std::memory_order_acquire);
    // A new thread may have got the number of the one that has ended.
    if (thread != this_thread() && !has_ended(thread)) continue;
    if (!entry.thread.compare_exchange_strong(thread, this_thread(), std::memory_order_acq_rel)) {
      continue;
    }
    own_entry = &entry;
    tls_edges_fd = entry.edges.load(std::memory_order_relaxed);
    renumber_thread_edges();
    const int fd = entry.fd.load(std::memory_order_relaxed);
    sys::drain_eventfd(fd);
    return fd;
  }
  return -1;
}

void enter_owned(int fd) noexcept {
  for (unsigned i = 0; i < kMostOwned; ++i) {
    pid_t nobody = 0;
    if (!owned[i].thread.compare_exchange_strong(nobody, -1, std::memory_order_acq_rel)) continue;
    owned[i].fd.store(fd, std::memory_order_relaxed);
    owned[i].edges.store(0, std::memory_order_relaxed);
    owned[i].thread.store(this_thread(), std::memory_order_release);
    own_entry = &owned[i];
    owners.fetch_add(1, std::memory_order_relaxed);
    unsigned known = entered.load(std::memory_order_relaxed);
    while (known < i + 1 && !entered.compare_exchange_weak(known, i + 1, std::memory_order_acq_rel)) {
    }
    return;
  }
}

void close_descriptors() noexcept {
  for (int* fd : {&tls_wake_fd, &tls_edges_fd}) {
    if (*fd > 0) sys::close_quietly(*fd);
    *fd = 0;
  }
}

void close_on_thread_exit(void*) noexcept {
  if (own_entry != nullptr) {
    own_entry->thread.store(0, std::memory_order_release);
    owners.fetch_sub(1, std::memory_order_relaxed);
    own_entry = nullptr;
  }
  close_descriptors();
}

void make_exit_key() noexcept {
  have_exit_key = pthread_key_create(&exit_key, close_on_thread_exit) == 0;
}

}  // namespace

int thread_wake_fd() noexcept {
  tls_sleeps = true;
  if (tls_wake_fd > 0) return tls_wake_fd;
  // A handler here would find the entry taken and the number not known.
  const signals::DeferHandlers whole;
  int fd = take_over_wake_fd();
  if (fd <= 0) {
    fd = above_limit(
        sys::open_high_or_low([&] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }));
    if (fd <= 0) return -1;
    enter_owned(fd);
  }
  pthread_once(&exit_key_once, make_exit_key);
  if (!have_exit_key || pthread_setspecific(exit_key, &exit_key) != 0) {
    tls_wake_fd = fd;
    close_on_thread_exit(nullptr);
    errno = ENOMEM;
    return -1;
  }
  tls_wake_fd = fd;
  return fd;
}

int thread_edges_fd() noexcept {
  if (tls_edges_fd > 0) return tls_edges_fd;
  if (tls_wake_fd <= 0) return -1;  // nobody would close it
  const signals::DeferHandlers whole;
  const int fd =
      above_limit(sys::open_high_or_low([&] { return sys::epoll_create1(EPOLL_CLOEXEC); }));
  if (fd <= 0) return -1;
  if (own_entry != nullptr) own_entry->edges.store(fd, std::memory_order_relaxed);
  tls_edges_fd = fd;
  renumber_thread_edges();
  return fd;
}

std::uint64_t thread_edges_number() noexcept { return tls_edges_number; }

void renumber_thread_edges() noexcept {
  tls_edges_number = edges_numbers.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool handler_begins() noexcept { return std::exchange(tls_sleeps, false); }

void handler_has_ended(bool begun) noexcept {
  if (hardly_ever(tls_sleeps) && tls_wake_fd > 0) {
    const int saved = errno;
    sys::signal_eventfd(tls_wake_fd);
    errno = saved;
  }
  tls_sleeps = tls_sleeps || begun;
}

void close_thread_wake_fd() noexcept {
  const signals::DeferHandlers whole;
  close_on_thread_exit(nullptr);
}

void forget_wake_fds_after_fork() noexcept {
  for (unsigned i = 0; i < entered.load(std::memory_order_relaxed); ++i) {
    owned[i].thread.store(0, std::memory_order_relaxed);
  }
  owners.store(0, std::memory_order_relaxed);
  own_entry = nullptr;
  close_descriptors();
}

void set_sleep(const SleepCalls& calls) noexcept { sleep_calls = calls; }

int cancellable_sleep(pollfd* fds, nfds_t count, const timespec* timeout) noexcept {
  return sleep_by(sleep_calls.poll, fds, count, timeout);
}

int held_sleep(pollfd* fds, nfds_t count, const timespec* timeout) noexcept {
  return sleep_by(sleep_calls.held_poll, fds, count, timeout);
}

int word_sleep(const Channel::WaitWord& on, const timespec* timeout, bool cancellable) noexcept {
  const WordSleepCall way = cancellable ? sleep_calls.word : sleep_calls.held_word;
  return (way != nullptr ? way : sys::futex_wait)(on.word.get(), on.value, timeout);
}

void WaitList::add(Waiter& waiter) noexcept {
  MutexLock lock(mutex_);
  waiter.sleeps = Waiter::Sleeps::kOnDescriptor;
  waiters_.push_back(waiter);
  count_.fetch_add(1, std::memory_order_seq_cst);
}

void WaitList::remove(Waiter& waiter) noexcept {
  MutexLock lock(mutex_);
  waiters_.erase(waiters_.iterator_to(waiter));
  count_.fetch_sub(1, std::memory_order_relaxed);
}

bool WaitList::sleeps_on_word(ThreadWaiter& waiter) noexcept {
  MutexLock lock(mutex_);
  if (waiter.sleeps == Waiter::Sleeps::kNoMore) return false;
  waiter.sleeps = Waiter::Sleeps::kOnWord;
  return true;
}

void WaitList::wake_those(short events, const Waiter* except, bool in_place) noexcept {
  MutexLock lock(mutex_);
  for (Waiter& waiter : waiters_) {
    if ((waiter.events & events) == 0 || &waiter == except) continue;
    if (waiter.woken != nullptr) {
      waiter.takes_place = in_place;
      waiter.woken(waiter);
    } else if (waiter.sleeps == Waiter::Sleeps::kOnWord) {
      sys::futex_ring(*static_cast<ThreadWaiter&>(waiter).on.word);
    } else {
      waiter.sleeps = Waiter::Sleeps::kNoMore;
      sys::signal_eventfd(waiter.wake_fd);
    }
  }
}

}  // namespace ringroad
