// Membership, what an instance holds: epoll_ctl(2), numbers that are closed, streams that the kernel takes
// back.
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/epoll_set.h"

namespace ringroad {
namespace {

constexpr std::uint32_t kExclusiveAllows =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

bool same_socket(int a, int b) noexcept {
  if (a == b) return true;
  struct stat of_a {};
  struct stat of_b {};
  return sys::call(SYS_fstat, a, &of_a) == 0 && sys::call(SYS_fstat, b, &of_b) == 0 &&
         of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

}  // namespace

// As the kernel's, a registration is an open file under one number: the number may be closed, and be
// another stream's by now, while a copy keeps it.
EpollSet::Item* EpollSet::find(const Stream& stream, int fd) noexcept {
  for (std::uint64_t number = 0; number < numbers_; ++number) {
    const auto it = items_.find(key_of(stream, number));
    if (it != items_.end() && it->second->fd == fd) return it->second.get();
  }
  return nullptr;
}

EpollSet::Item* EpollSet::find_any(std::uint64_t stream_id) noexcept {
  for (std::uint64_t number = 0; number < numbers_; ++number) {
    const auto it = items_.find(stream_id | number << kCountShift);
    if (it != items_.end()) return it->second.get();
  }
  return nullptr;
}

bool EpollSet::has(const Stream& stream, int fd) noexcept {
  MutexLock lock(mutex_);
  return find(stream, fd) != nullptr;
}

int EpollSet::add(const StreamPtr& stream, int fd, const epoll_event& event,
                  bool disabled) noexcept {
  if ((event.events & EPOLLEXCLUSIVE) != 0 && (event.events & ~kExclusiveAllows) != 0) {
    return EINVAL;
  }
  if (foreign()) return ENOMEM;  // there is no inner instance here
  MutexLock lock(mutex_);
  if (inner_ < 0) return ENOMEM;  // nor here any more
  if (find(*stream, fd) != nullptr) return EEXIST;
  std::uint64_t number = 0;
  while (items_.count(key_of(*stream, number)) != 0) ++number;
  if (number >= kMostNumbers) return ENOMEM;
  // An instance knows a file once under each number.
  int own_fd = -1;
  if (number > 0) {
    own_fd = sys::open_high([&] { return sys::duplicate(stream->fd()); });
    if (own_fd < 0) return ENOMEM;
  }
  Item* made = nullptr;
  try {
    const std::uint64_t key = key_of(*stream, number);
    made = items_.emplace(key, std::make_unique<Item>()).first->second.get();
    made->key = key;
  } catch (const std::bad_alloc&) {
    sys::close_quietly(own_fd);
    return ENOMEM;
  }
  numbers_ = std::max(numbers_, number + 1);
  longest_spin_ns_ = std::max(longest_spin_ns_, stream->config().spin_ns);
  Item& item = *made;
  item.own_fd = own_fd;
  item.set = this;
  item.holds = stream;
  item.stream = stream.get();
  item.fd = fd;
  item.mask = event.events;
  item.data = event.data;
  item.disabled = disabled;
  item.fresh = true;
  item.events = POLLIN | POLLOUT;
  item.woken = on_news;
  stream->waiters().add(item);
  stream->note_awaited();
  // A thread that closes the stream says so first and then looks which items there are. One of the two sees
  // the other.
  if ((stream->in_epoll_sets().fetch_add(1, std::memory_order_acq_rel) & Stream::kEntersNoMore) !=
      0) {
    erase(item);
    return ECANCELED;
  }
  if (disabled) return 0;
  changed(item);
  return 0;
}

int EpollSet::modify(const Stream& stream, int fd, const epoll_event& event, bool alone) noexcept {
  MutexLock lock(mutex_);
  Item* item = find(stream, fd);
  if (item == nullptr) return ENOENT;
  if ((event.events & EPOLLEXCLUSIVE) != 0 || (item->mask & EPOLLEXCLUSIVE) != 0) return EINVAL;
  if (item->lent && !(alone && take_back(*item))) return modify_lent(*item, event);
  item->mask = event.events;
  item->data = event.data;
  item->disabled = false;
  item->fresh = true;
  if (item->stream->on_kernel_for_good()) {
    give_to_kernel(*item);
    return 0;
  }
  changed(*item);
  return 0;
}

int EpollSet::remove(const Stream& stream, int fd) noexcept {
  MutexLock lock(mutex_);
  Item* item = find(stream, fd);
  if (item == nullptr) return ENOENT;
  if (item->lent && !item->disabled) {
    const int saved = errno;
    control(number(), EPOLL_CTL_DEL, fd, 0, 0);
    errno = saved;
  }
  erase(*item);
  return 0;
}

void EpollSet::forget(const Stream& stream) noexcept {
  MutexLock lock(mutex_);
  while (Item* item = find_any(stream.id())) erase(*item);
}

void EpollSet::number_goes(const Stream& stream, int fd, bool gone) noexcept {
  MutexLock lock(mutex_);
  for (std::uint64_t number = 0; number < numbers_; ++number) {
    const auto it = items_.find(key_of(stream, number));
    if (it == items_.end()) continue;
    Item& item = *it->second;
    if (item.lent && item.fd == fd) {
      // Nobody can take it out of the kernel's instance any more.
      item.stream->demote_for_good(Reason::kEpoll, 0);
      erase(item);
      continue;
    }
    if (item.kernel_fd != fd) continue;
    if (gone || (item.mask & EPOLLET) != 0) {
      // An edge that the kernel has told would be told again if the socket was put in anew.
      item.kernel_fd = Item::kUnnamed;
    } else {
      control(inner_, EPOLL_CTL_DEL, fd, 0, 0);
      item.kernel_fd = Item::kNone;
      changed(item);
    }
  }
}

void EpollSet::hand_back() noexcept {
  MutexLock lock(mutex_);
  for (auto it = items_.begin(); it != items_.end();) {
    Item& item = *(it++)->second;
    if (item.stream->on_kernel_for_good() && !item.disabled && !item.lent) give_to_kernel(item);
  }
}

void EpollSet::retire() noexcept {
  const int saved = errno;
  MutexLock lock(mutex_);
  if (items_.empty() && inner_ >= 0) {
    MutexLock news(dirty_mutex_);
    sys::close_quietly(std::exchange(inner_, -1));
    sys::close_quietly(std::exchange(wake_, -1));
  }
  errno = saved;
}

void EpollSet::lend_all() noexcept {
  MutexLock lock(mutex_);
  if (foreign()) return;
  for (auto it = items_.begin(); it != items_.end();) {
    Item& item = *(it++)->second;
    if (item.lent) continue;
    if (!item.stream->on_kernel_for_good() && item.stream->can_be_shared()) {
      if (kernel_can_have(item)) {
        lend(item);
        continue;
      }
      item.stream->demote_for_good(Reason::kFork, 0);
    }
    if (item.stream->on_kernel_for_good() && !item.disabled) give_to_kernel(item);
  }
}

EpollSet::Lent EpollSet::lent(const Stream& stream) noexcept {
  MutexLock lock(mutex_);
  Lent all = Lent::kNot;
  for (std::uint64_t number = 0; number < numbers_; ++number) {
    const auto it = items_.find(key_of(stream, number));
    if (it == items_.end() || !it->second->lent) continue;
    const Item& item = *it->second;
    if ((item.mask & EPOLLONESHOT) != 0 && !item.disabled) return Lent::kUntilModified;
    all = Lent::kReturnable;
  }
  return all;
}

void EpollSet::take_back(const Stream& stream) noexcept {
  MutexLock lock(mutex_);
  for (std::uint64_t number = 0; number < numbers_; ++number) {
    const auto it = items_.find(key_of(stream, number));
    if (it == items_.end() || !it->second->lent || !take_back(*it->second)) continue;
    if (!it->second->disabled) changed(*it->second);
  }
}

// Whether the kernel's instance can have it so that it can be taken out again. Nobody could say which of the
// processes an EPOLLEXCLUSIVE event was for.
bool EpollSet::kernel_can_have(const Item& item) const noexcept {
  return (item.mask & EPOLLEXCLUSIVE) == 0 && item.kernel_fd != Item::kUnnamed &&
         same_socket(item.fd, item.stream->fd());
}

// REQUIRES: kernel_can_have().
void EpollSet::lend(Item& item) noexcept {
  const int saved = errno;
  take_out(item);
  item.kernel_fd = item.channel_fd = Item::kNone;
  item.put_off = item.owes_room = item.arrived = item.tell_all = false;
  item.kernel_bits = 0;
  item.lent = true;
  item.stream->lent().fetch_add(1, std::memory_order_acq_rel);
  if (!item.disabled) control(number(), EPOLL_CTL_ADD, item.fd, item.mask, item.data.u64);
  errno = saved;
}

// False: the kernel has it no longer under the number that the program gave. It stays on TCP then.
bool EpollSet::take_back(Item& item) noexcept {
  const int saved = errno;
  const bool taken = item.disabled || control(number(), EPOLL_CTL_DEL, item.fd, 0, 0) == 0;
  errno = saved;
  if (!taken) return false;
  item.lent = false;
  item.stream->lent().fetch_sub(1, std::memory_order_acq_rel);
  item.fresh = true;
  item.stream->waiters().add(item);
  return true;
}

int EpollSet::modify_lent(Item& item, const epoll_event& event) noexcept {
  const int saved = errno;
  const int op = item.disabled ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  const bool done = control(number(), op, item.fd, event.events, event.data.u64) == 0;
  const int error = done ? 0 : errno;
  errno = saved;
  if (!done) return error;
  item.mask = event.events;
  item.data = event.data;
  item.disabled = false;
  return 0;
}

// Of the lists and the inner instance; the descriptors are still open, or were closed with the channel.
void EpollSet::take_out(Item& item) noexcept {
  item.stream->waiters().remove(item);
  {
    MutexLock lock(dirty_mutex_);
    if (item.dirty) dirty_.erase(dirty_.iterator_to(item));
    item.dirty = false;
    if (dirty_.empty()) {
      any_dirty_.store(false, std::memory_order_relaxed);
      any_in_place_.store(false, std::memory_order_relaxed);
    }
  }
  if (item.queued) queue_.erase(queue_.iterator_to(item));
  item.queued = false;
  if (item.kernel_fd >= 0) control(inner_, EPOLL_CTL_DEL, item.kernel_fd, 0, 0);
}

void EpollSet::erase(Item& item) noexcept {
  const int saved = errno;
  if (item.lent) {
    item.stream->lent().fetch_sub(1, std::memory_order_acq_rel);
  } else {
    take_out(item);
  }
  item.stream->in_epoll_sets().fetch_sub(1, std::memory_order_relaxed);
  const StreamPtr stream = item.holds;
  const int channel_fd = item.channel_fd;
  if (item.own_fd >= 0) sys::close_quietly(item.own_fd);
  items_.erase(item.key);
  if (channel_fd >= 0 && find_any(stream->id()) == nullptr && stream->channel_fd() == channel_fd) {
    control(inner_, EPOLL_CTL_DEL, channel_fd, 0, 0);
  }
  errno = saved;
}

// The kernel answers for the stream from now on, as if the program had asked it in the first place. An
// item that is disabled stays here until the program enables it: the kernel cannot add such a one.
void EpollSet::give_to_kernel(Item& item) noexcept {
  const int saved = errno;
  epoll_event event{};
  event.events = item.mask;
  event.data = item.data;
  // Under the program's number. If that has been closed since, and a copy keeps the stream: under
  // one that is closed as well, as the kernel would have it. The copy's is the program's to add.
  const int number = item.fd;
  const int known = item.stream->fd();
  const int epfd = epfd_.load(std::memory_order_relaxed);
  const bool closed = !same_socket(number, known);
  erase(item);
  if (!closed) sys::epoll_ctl(epfd, EPOLL_CTL_ADD, number, &event);
  int fd = sys::kPrivateDescriptorBase - 1;
  while (closed && (fd = sys::fcntl(known, F_DUPFD_CLOEXEC, fd + 1)) >= 0) {
    const bool taken = sys::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) != 0 && errno == EEXIST;
    sys::close_quietly(fd);
    if (!taken) break;  // by another such
  }
  errno = saved;
}

}  // namespace ringroad
