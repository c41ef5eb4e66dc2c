// An instance's life, and the news that wake its sleepers.
#include "rsocket-core/stream/epoll_set.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

// A tag is random but for its low bits, so that no program's data is one.
constexpr std::uint64_t kTagIndex = (1 << 16) - 1;

std::uint64_t magic() noexcept {
  static const std::uint64_t drawn = [] {
    Nonce nonce{};
    make_nonce(nonce);  // without randomness: a constant that is as unlikely
    std::uint64_t value = 0x7e31'9bd4'52c6'0000;
    for (std::size_t i = 0; i < sizeof value; ++i) value ^= std::uint64_t{nonce[i]} << (8 * i);
    return value & ~kTagIndex;
  }();
  return drawn;
}

}  // namespace

std::atomic<unsigned> EpollSet::made_{0};

// ---- Life

int EpollSet::control(int instance, int op, int fd, std::uint32_t events,
                      std::uint64_t data) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  return sys::epoll_ctl(instance, op, fd, &event);
}

std::shared_ptr<EpollSet> EpollSet::create(int epfd, const Calls& calls) noexcept {
  int both[] = {
      sys::open_high_or_low([&] { return sys::epoll_create1(EPOLL_CLOEXEC); }),
      sys::open_high_or_low([&] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })};
  move_above_limit(both, 2);
  const auto [inner, wake] = both;
  if (inner >= 0 && wake >= 0 && control(inner, EPOLL_CTL_ADD, wake, EPOLLIN | EPOLLET, 0) == 0) {
    try {
      std::shared_ptr<EpollSet> set(new EpollSet(epfd, calls, inner, wake));
      unmanaged_waiters::count_seated();
      epoll_event event{};
      event.events = EPOLLIN | EPOLLET;
      event.data.u64 = set->tag();
      if (sys::epoll_ctl(epfd, EPOLL_CTL_ADD, inner, &event) == 0) return set;
      return nullptr;  // the set closes both
    } catch (const std::bad_alloc&) {
      errno = ENOMEM;
    }
  }
  const int saved = errno;
  sys::close_quietly(inner);
  sys::close_quietly(wake);
  errno = saved;
  return nullptr;
}

EpollSet::EpollSet(int epfd, const Calls& calls, int inner, int wake) noexcept
    : epfd_(epfd),
      tag_(magic() | (made_.fetch_add(1, std::memory_order_seq_cst) & kTagIndex)),
      calls_(calls),
      inner_(inner),
      wake_(wake) {}

epoll_event* EpollSet::find_inner(epoll_event* events, int count) noexcept {
  for (int i = 0; i < count; ++i) {
    if ((events[i].data.u64 & ~kTagIndex) == magic()) return events + i;
  }
  return nullptr;
}

std::uint64_t EpollSet::hide(epoll_event* events, int& count) noexcept {
  epoll_event* const inner = find_inner(events, count);
  if (inner == nullptr) return 0;
  const std::uint64_t tag = inner->data.u64;
  std::copy(inner + 1, events + count, inner);
  --count;
  return tag;
}

EpollSet::~EpollSet() {
  const int saved = errno;
  {
    MutexLock lock(mutex_);
    while (!items_.empty()) erase(*items_.begin()->second);
  }
  sys::close_quietly(inner_);
  sys::close_quietly(wake_);
  errno = saved;
}

void EpollSet::after_fork_child() noexcept {
  mutex_.reset_after_fork();
  dirty_mutex_.reset_after_fork();
  foreign_.store(true);
  // The items hang on streams of the parent's, which are never touched again.
  new (&items_) Items;
  new (&queue_) decltype(queue_);
  new (&dirty_) decltype(dirty_);
  sys::close_quietly(std::exchange(inner_, -1));
  sys::close_quietly(std::exchange(wake_, -1));
}

bool EpollSet::is_in(int epfd) noexcept {
  const int saved = errno;
  MutexLock lock(mutex_);
  const bool there = control(epfd, EPOLL_CTL_MOD, inner_, EPOLLIN | EPOLLET, tag_) == 0;
  errno = saved;
  return there;
}

// ---- News

// Called with the stream's locks held.
void EpollSet::on_news(Waiter& waiter) noexcept {
  Item& item = static_cast<Item&>(waiter);
  EpollSet& set = *item.set;
  MutexLock lock(set.dirty_mutex_);
  const bool known = std::exchange(item.dirty, true);
  if (!known) set.dirty_.push_back(item);
  (item.takes_place ? set.any_in_place_ : set.any_dirty_).store(true, std::memory_order_relaxed);
  // The channel is about to be silent; by the eventfd the inner instance keeps the place that it has.
  if ((item.takes_place && !known) || set.somebody_sleeps()) sys::signal_eventfd(set.wake_);
}

// A thread that sleeps here is to look.
void EpollSet::wake() noexcept {
  MutexLock lock(dirty_mutex_);
  if (somebody_sleeps()) sys::signal_eventfd(wake_);
}

// The program has added or modified it.
void EpollSet::changed(Item& item) noexcept {
  item.put_off = false;  // a thread that polls looks again
  enqueue(item);
  if (watched_) {
    settle();
  } else {
    wake();
  }
}

void EpollSet::watch() noexcept {
  MutexLock lock(mutex_);
  {
    MutexLock dirty(dirty_mutex_);
    always_wake_.store(true, std::memory_order_relaxed);
  }
  watched_ = true;
  settle();
}

}  // namespace ringroad
