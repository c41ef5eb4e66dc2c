#include "rsocket-core/stream/waiter.h"

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <iterator>
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
__attribute__((tls_model("initial-exec"))) thread_local std::uint64_t tls_wake_number = 0;
std::atomic<std::uint64_t> wake_numbers{0};
// Since the thread's innermost handler began: it has asked for its descriptor, to sleep.
__attribute__((tls_model("initial-exec"))) thread_local bool tls_sleeps = false;

// What it sleeps on, or a call of its own that a handler has interrupted.
__attribute__((tls_model("initial-exec"))) thread_local std::atomic<std::uint32_t>* tls_word = nullptr;

pthread_key_t exit_key;
pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;
bool have_exit_key = false;
SleepCalls sleep_calls;

int sleep_by(SleepCall way, pollfd* fds, nfds_t count, const timespec* timeout) noexcept {
  if (way != nullptr) return way(fds, count, timeout, nullptr);
  timespec copy = timeout != nullptr ? *timeout : timespec{};
  return sys::ppoll(fds, count, timeout != nullptr ? &copy : nullptr, nullptr);
}

// An eventfd of this process that is readable at all times. It is in each thread's instance, by edges, and to
// register it again there is an edge: so one descriptor does for what wakes a thread and what it sleeps on.
std::atomic<int> bell_fd{-1};

int bell() noexcept {
  int known = bell_fd.load(std::memory_order_acquire);
  if (known >= 0) return known;
  const int made =
      above_limit(sys::open_high_or_low([] { return sys::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK); }));
  if (made < 0 || bell_fd.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made;
  sys::close_quietly(made);
  return known;
}

void close_bell() noexcept {
  if (const int fd = bell_fd.exchange(-1); fd >= 0) sys::close_quietly(fd);
}

bool ring(int instance, int op) noexcept {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  return sys::epoll_ctl(instance, op, bell(), &event) == 0;
}

int make_instance() noexcept {
  const int fd = above_limit(sys::open_high_or_low([] { return sys::epoll_create1(EPOLL_CLOEXEC); }));
  if (fd <= 0) return -1;
  if (ring(fd, EPOLL_CTL_ADD)) return fd;
  const int saved = errno;
  sys::close_quietly(fd);
  errno = saved;
  return -1;
}

// Whose the descriptors are. A thread that ends by exit(2) itself, not through libc, leaves one behind, which
// another takes over.
struct Owned {
  std::atomic<pid_t> thread{0};  // 0: nobody's; -1: it is being entered
  std::atomic<int> fd{-1};
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
    return entry.fd.load(std::memory_order_relaxed);
  }
  return -1;
}

void enter_owned(int fd) noexcept {
  for (unsigned i = 0; i < kMostOwned; ++i) {
    pid_t nobody = 0;
    if (!owned[i].thread.compare_exchange_strong(nobody, -1, std::memory_order_acq_rel)) continue;
    owned[i].fd.store(fd, std::memory_order_relaxed);
    owned[i].thread.store(this_thread(), std::memory_order_release);
    own_entry = &owned[i];
    owners.fetch_add(1, std::memory_order_relaxed);
    unsigned known = entered.load(std::memory_order_relaxed);
    while (known < i + 1 && !entered.compare_exchange_weak(known, i + 1, std::memory_order_acq_rel)) {
    }
    return;
  }
}

void close_own_instance() noexcept {
  if (tls_wake_fd > 0) sys::close_quietly(tls_wake_fd);
  tls_wake_fd = 0;
}

void close_on_thread_exit(void*) noexcept {
  if (own_entry != nullptr) {
    own_entry->thread.store(0, std::memory_order_release);
    owners.fetch_sub(1, std::memory_order_relaxed);
    own_entry = nullptr;
  }
  close_own_instance();
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
    fd = make_instance();
    if (fd <= 0) return -1;
    enter_owned(fd);
  }
  renumber_thread_wake();
  clear_wake(fd);
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

void wake_thread(int wake_fd) noexcept {
  const int saved = errno;
  // It has the bell, but for one that was made as the last one closed it.
  if (!ring(wake_fd, EPOLL_CTL_MOD) && errno == ENOENT) ring(wake_fd, EPOLL_CTL_ADD);
  errno = saved;
}

void clear_wake(int wake_fd) noexcept {
  const int saved = errno;
  epoll_event events[16];
  constexpr int kMost = static_cast<int>(std::size(events));
  for (unsigned round = 0; round < kMostWakeRounds; ++round) {
    if (sys::epoll_wait(wake_fd, events, kMost, 0) < kMost) break;
  }
  errno = saved;
}

std::uint64_t thread_wake_number() noexcept { return tls_wake_number; }

void renumber_thread_wake() noexcept {
  tls_wake_number = wake_numbers.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool handler_begins() noexcept { return std::exchange(tls_sleeps, false); }

void handler_has_ended(bool begun) noexcept {
  if (hardly_ever(tls_sleeps) && tls_wake_fd > 0) wake_thread(tls_wake_fd);
  if (tls_word != nullptr) sys::futex_ring(*tls_word);
  tls_sleeps = tls_sleeps || begun;
}

SleepOnWord::SleepOnWord(std::atomic<std::uint32_t>* word) noexcept
    : outer_(std::exchange(tls_word, word)) {}

SleepOnWord::~SleepOnWord() { tls_word = outer_; }

void close_thread_wake_fd() noexcept {
  const signals::DeferHandlers whole;
  close_on_thread_exit(nullptr);
  if (owners.load(std::memory_order_relaxed) == 0) close_bell();
}

void forget_wake_fds_after_fork() noexcept {
  for (unsigned i = 0; i < entered.load(std::memory_order_relaxed); ++i) {
    owned[i].thread.store(0, std::memory_order_relaxed);
  }
  owners.store(0, std::memory_order_relaxed);
  own_entry = nullptr;
  close_own_instance();
  close_bell();
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
      wake_thread(waiter.wake_fd);
    }
  }
}

}  // namespace ringroad
