#include "preload/epolls.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>
#include <string_view>
#include <vector>

#include "preload/cancellation.h"
#include "preload/epoll_marks.h"
#include "preload/process_state.h"
#include "rsocket-core/agent/agent.h"
#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/unmanaged_waiters.h"

namespace ringroad::preload::epolls {
namespace {

constexpr std::int64_t kPinTimeoutNs = 2'000'000'000;

Mutex making_mutex RR_RANK(epoll_making);
Mutex sets_mutex RR_RANK(epoll_list);
// Few, and each as long-lived as the program's instance.
std::vector<std::weak_ptr<EpollSet>>& sets() noexcept RR_REQUIRES(sets_mutex) {
  static auto* all = new std::vector<std::weak_ptr<EpollSet>>;
  return *all;
}

std::vector<std::shared_ptr<EpollSet>> all_sets() noexcept {
  std::vector<std::shared_ptr<EpollSet>> out;
  MutexLock lock(sets_mutex);
  try {
    auto& all = sets();
    for (std::size_t i = 0; i < all.size();) {
      if (auto set = all[i].lock()) {
        out.push_back(std::move(set));
        ++i;
      } else {
        all[i] = all.back();
        all.pop_back();
      }
    }
  } catch (const std::bad_alloc&) {
  }
  return out;
}

// Is `epfd` a duplicate, made before there was a set, of an instance that has one by now? Then it
// is entered as such.
std::shared_ptr<EpollSet> known_by_another_number(int epfd) noexcept {
  if (EpollSet::made() == 0 || fd_table::managed(epfd)) return nullptr;
  for (const auto& set : all_sets()) {
    if (!set->is_in(epfd)) continue;
    const SocketRef known = fd_table::find(set->number());
    if (known.epoll() == set.get()) fd_table::add_number(epfd, known);
    return set;
  }
  return nullptr;
}

// The set of the instance `epfd`, made if need be. Null with errno, also where the number is known here as
// something else (end_stale_instance()).
std::shared_ptr<EpollSet> set_of(int epfd) noexcept {
  MutexLock making(making_mutex);
  {
    const SocketRef there = fd_table::find(epfd);
    if (there.epoll() != nullptr) return there->epoll;
  }
  if (auto set = known_by_another_number(epfd)) return set;
  EpollSet::Calls calls;
  calls.pwait = cancellation::epoll_pwait;
  calls.pwait2 = cancellation::epoll_pwait2;
  std::shared_ptr<EpollSet> set = EpollSet::create(epfd, calls);
  if (set == nullptr) return nullptr;
  if (!fd_table::insert_instance(epfd, set)) {
    errno = ENOMEM;
    return nullptr;
  }
  try {
    MutexLock lock(sets_mutex);
    sets().push_back(set);
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
  if (epoll_marks::instance_of(epfd) != epoll_marks::kNone) set->watch();
  return set;
}

// What the kernel has for `fd` in the instance `epfd`: the lines of /proc/self/fdinfo (proc(5)).
// -1: it does not say, 0: nothing, 1: this.
int registration_of(int epfd, int fd, epoll_event& event) noexcept {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epfd);
  const int file = sys::open_high(
      [&] { return sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0); });
  if (file < 0) return -1;
  char buffer[4096];
  std::size_t filled = 0;
  int found = 0;
  for (;;) {
    const ssize_t n = sys::read(file, buffer + filled, sizeof buffer - 1 - filled);
    if (n <= 0) break;
    filled += static_cast<std::size_t>(n);
    buffer[filled] = '\0';
    char* line = buffer;
    for (char* end; (end = std::strchr(line, '\n')) != nullptr; line = end + 1) {
      *end = '\0';
      int number = -1;
      unsigned events = 0;
      unsigned long long data = 0;
      constexpr const char* kLine = "tfd: %d events: %x data: %llx";
      if (std::sscanf(line, kLine, &number, &events, &data) != 3 || number != fd) continue;
      event.events = events;
      event.data.u64 = data;
      found = 1;
    }
    filled -= static_cast<std::size_t>(line - buffer);
    std::memmove(buffer, line, filled);
  }
  sys::close_quietly(file);
  return found;
}

enum class Kind : std::uint8_t { kEpoll, kRing, kOther };

Kind kind_of(int fd) noexcept {
  constexpr std::string_view kEpoll = "anon_inode:[eventpoll]";
  constexpr std::string_view kRing = "anon_inode:[io_uring]";
  char path[48];
  char link[kEpoll.size() + 1];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const long n = sys::call(SYS_readlinkat, AT_FDCWD, path, link, sizeof link);
  const std::string_view name(link, n > 0 ? static_cast<std::size_t>(n) : 0);
  return name == kEpoll ? Kind::kEpoll : name == kRing ? Kind::kRing : Kind::kOther;
}

// An entry of this number is that of a file which has been closed out of our sight, if an instance has it
// now. Ending it takes locks of its own, so none is held. One thread at a time: another, which comes beside
// it or in its course, goes without, and then set_of() makes no set, so that nothing but the entry is ended.
std::atomic<bool> ends_stale_instance{false};
bool is_known_as_other(int epfd) noexcept {
  const SocketRef there = fd_table::find(epfd);
  return there && there.epoll() == nullptr;
}
void end_stale_instance(int epfd) noexcept {
  if (!is_known_as_other(epfd) || ends_stale_instance.exchange(true)) return;
  if (is_known_as_other(epfd) && kind_of(epfd) == Kind::kEpoll) fd_table::end_stale_entry(epfd);
  ends_stale_instance.store(false);
}

// Calls visit(number) until that is false, for each number that is an entry of the folder. False: it cannot
// be read.
template <typename Visit>
bool each_number(const char* folder, Visit visit) noexcept {
  const int directory = sys::open_high([folder] {
    return sys::call(SYS_openat, AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  });
  if (directory < 0) return false;
  alignas(dirent64) char buffer[4096];
  bool on = true;
  long n = 0;
  while (on && (n = sys::call(SYS_getdents64, directory, buffer, sizeof buffer)) > 0) {
    const dirent64* entry;
    for (char* at = buffer; at < buffer + n && on; at += entry->d_reclen) {
      entry = reinterpret_cast<const dirent64*>(at);
      int number;
      if (std::sscanf(entry->d_name, "%d", &number) == 1) on = visit(number);
    }
  }
  sys::close_quietly(directory);
  return n >= 0;
}

// The same, for every instance that this process has open: `epfd` is the one. -1: several have it,
// or there is no telling.
int only_registration_of(int fd, int& epfd, epoll_event& event) noexcept {
  int found = 0;
  const bool told = each_number("/proc/self/fd", [&](int number) noexcept {
    if (reserved_fds::is_marked(number) || kind_of(number) != Kind::kEpoll) return true;
    const int there = registration_of(number, fd, event);
    if (there == 1) epfd = number;
    found = there == -1 || found + there > 1 ? -1 : found + there;
    return found >= 0;
  });
  return told ? found : -1;
}

// Whether a thread is in a receive, or in a poll, that has the number: /proc/PID/task/TID/syscall (proc(5)).
bool sleeps_in_a_call_on(int thread, int fd) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
  const int file = sys::open_high(
      [&] { return sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0); });
  if (file < 0) return false;
  char line[256];
  const ssize_t n = sys::read(file, line, sizeof line - 1);
  sys::close_quietly(file);
  line[std::max<ssize_t>(n, 0)] = '\0';
  long call = -1;
  unsigned long first = 0;
  unsigned long second = 0;
  if (std::sscanf(line, "%ld %lx %lx", &call, &first, &second) != 3) return false;
  switch (call) {
    case SYS_read:
    case SYS_readv:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_recvmmsg:
      return static_cast<int>(first) == fd;
#ifdef SYS_poll
    case SYS_poll:
#endif
    case SYS_ppoll:
      break;
    default:
      return false;
  }
  // The thread may have left it, with all that it points to.
  pollfd set[64];
  const iovec here{set, std::min<std::size_t>(second, std::size(set)) * sizeof *set};
  const iovec there{reinterpret_cast<void*>(first), here.iov_len};  // NOLINT: as the kernel says
  const long got = sys::call(SYS_process_vm_readv, sys::getpid(), &here, 1, &there, 1, 0);
  const pollfd* const end = set + std::max<long>(got, 0) / static_cast<long>(sizeof *set);
  return std::any_of(set, const_cast<pollfd*>(end), [fd](const pollfd& e) { return e.fd == fd; });
}

// No other process has the stream, or the instance.
bool is_alone(const Stream& stream, const EpollSet& set) noexcept {
  ProcessGroup& group = process_state::existing_agent()->process_group();
  return group.alone(stream.share()) && group.alone(set.share());
}

}  // namespace

bool control(int epfd, int op, int fd, const SocketRef& socket, const epoll_event* event,
             int& result) noexcept {
  Stream& stream = *socket.stream();
  const bool wants_event = op == EPOLL_CTL_ADD || op == EPOLL_CTL_MOD;
  if (wants_event && !faults::can_read(event, sizeof *event)) return false;
  if (stream.in_epoll_sets().load(std::memory_order_relaxed) != 0) known_by_another_number(epfd);
  const SocketRef instance = fd_table::find(epfd);
  EpollSet* known = instance.epoll();
  int error = ENOENT;
  if (known != nullptr && known->has(stream, fd)) {
    switch (op) {
      case EPOLL_CTL_ADD:
        error = EEXIST;
        break;
      case EPOLL_CTL_MOD:
        error = known->modify(stream, fd, *event, stream.lent() != 0 && is_alone(stream, *known));
        break;
      case EPOLL_CTL_DEL:
        error = known->remove(stream, fd);
        break;
      default:
        error = EINVAL;
    }
    if (error == ENOENT) return false;  // handed back meanwhile
  } else {
    if (op != EPOLL_CTL_ADD || stream.on_kernel_for_good()) return false;
    end_stale_instance(epfd);
    const std::shared_ptr<EpollSet> set = set_of(epfd);
    if (set == nullptr) {
      // What the library lacks is not to be the program's: the kernel has room for its own.
      const bool lacks = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOSPC;
      if (lacks) stream.demote_for_good(Reason::kEpoll, kPinTimeoutNs);
      return false;
    }
    error = set->add(socket->stream, fd, *event, false);
    if (error == ENOMEM) {
      stream.demote_for_good(Reason::kEpoll, kPinTimeoutNs);
      set->hand_back();
      return false;
    }
  }
  result = error == 0 ? 0 : -1;
  if (error != 0) errno = error;
  return true;
}

void end_stale_instance_of(int fd) noexcept {
  const int epfd = epoll_marks::instance_of(fd);
  if (epfd < 0) return;
  const int saved = errno;
  end_stale_instance(epfd);
  errno = saved;
}

void take_over(int fd, const StreamPtr& stream) noexcept {
  int epfd = epoll_marks::instance_of(fd);
  if (epfd == epoll_marks::kNone) return;
  const int saved = errno;
  epoll_event event{};
  int there = epfd == epoll_marks::kSeveral ? -1 : registration_of(epfd, fd, event);
  // A program may make an instance for each time that it waits, and close it with the descriptor in
  // it.
  if (there == -1) there = only_registration_of(fd, epfd, event);
  std::shared_ptr<EpollSet> set = there == 1 ? set_of(epfd) : nullptr;
  if (there == -1 || (there == 1 && set == nullptr)) {
    stream->demote_for_good(Reason::kEpoll, 0);
  } else if (there == 1) {
    constexpr std::uint32_t kFlags = EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE;
    const bool fired = (event.events & EPOLLONESHOT) != 0 && (event.events & ~kFlags) == 0;
    epoll_event unused{};
    const int error = sys::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, &unused) == 0
                          ? set->add(stream, fd, event, fired)
                          : ECANCELED;
    if (error != 0 && error != ECANCELED) {
      stream->demote_for_good(Reason::kEpoll, 0);
      sys::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event);
    } else {
      epoll_marks::note_end(fd);
    }
  }
  errno = saved;
}

void forget(Stream& stream) noexcept {
  if (stream.in_epoll_sets().fetch_or(Stream::kEntersNoMore, std::memory_order_acq_rel) == 0)
    return;
  for (const auto& set : all_sets()) set->forget(stream);
}

void number_goes(Stream& stream, int fd, bool gone) noexcept {
  if (stream.in_epoll_sets().load(std::memory_order_relaxed) == 0) return;
  for (const auto& set : all_sets()) set->number_goes(stream, fd, gone);
}

std::atomic<unsigned> looked_up[fd_table::kLimit];

bool holds_streams(int epfd) noexcept {
  if (fd_table::managed(epfd)) return true;
  const unsigned made = EpollSet::made();
  if (holds_none(epfd)) return false;
  known_by_another_number(epfd);
  looked_up[epfd].store(made, std::memory_order_relaxed);
  return fd_table::managed(epfd);
}

bool found_inner(int epfd, epoll_event* events, int& count) noexcept {
  const std::uint64_t tag = EpollSet::hide(events, count);
  if (tag == 0) return false;
  for (const auto& set : all_sets()) {
    if (set->tag() != tag) continue;
    set->has_news();
    known_by_another_number(epfd);
  }
  return true;
}

void retire() noexcept {
  for (const auto& set : all_sets()) {
    set->hand_back();
    set->retire();
  }
}

void lend_all() noexcept {
  for (const auto& set : all_sets()) set->lend_all();
}

void share_with_child(EpollSet& set, ProcessGroup& group, ProcessGroup::Member member) noexcept {
  if (set.share() == 0 && member != 0 && !set.foreign()) {
    // By a name that is nobody's address.
    FourTuple name;
    static_assert(sizeof(Nonce) <= sizeof name.remote.addr);
    Nonce drawn{};
    if (!make_nonce(drawn)) return;
    std::memcpy(name.remote.addr.bytes.data(), drawn.data(), sizeof drawn);
    set.set_share(group.enter(name));
  }
  if (set.share() != 0 && (member == 0 || !group.add(set.share(), member))) group.keep(set.share());
}

bool take_back(Stream& stream) noexcept {
  using Lent = EpollSet::Lent;
  Agent* agent = process_state::existing_agent();
  const auto sets = all_sets();
  for (const auto& set : sets) {
    const Lent lent = set->lent(stream);
    if (lent == Lent::kNot) continue;
    if (lent == Lent::kUntilModified || !agent->process_group().alone(set->share())) return false;
  }
  for (const auto& set : sets) set->take_back(stream);
  return stream.lent().load(std::memory_order_acquire) == 0;
}

namespace {

bool found_waiting_past(int fd, bool awaited) noexcept {
  bool found = false;
  epoll_event unused;
  const bool told = awaited || each_number("/proc/self/fd", [&](int number) noexcept {
    const Kind kind = reserved_fds::is_marked(number) ? Kind::kOther : kind_of(number);
    found = kind == Kind::kRing || (kind == Kind::kEpoll && registration_of(number, fd, unused) != 0);
    return !found;
  });
  if (found || !told) return true;
  each_number("/proc/self/task", [&](int thread) noexcept {
    found = sleeps_in_a_call_on(thread, fd);
    return !found;
  });
  return found;
}

}  // namespace

bool waits_past(int fd, bool awaited) noexcept {
  // It takes as long as the process has threads and descriptors: a tenth of the agent's time at most, where
  // it is long at all. A stream that nobody was looked for is watched on its channel.
  constexpr std::int64_t kShortNs = 200'000;
  constexpr std::int64_t kPauses = 9;
  static std::atomic<std::int64_t> not_before_ns{0};
  const std::int64_t began = sys::now_ns();
  if (began < not_before_ns.load(std::memory_order_relaxed)) return false;
  const bool found = found_waiting_past(fd, awaited);
  const std::int64_t ended = sys::now_ns();
  if (ended - began > kShortNs) {
    not_before_ns.store(ended + kPauses * (ended - began), std::memory_order_relaxed);
  }
  return found;
}

void after_fork_child() noexcept {
  making_mutex.reset_after_fork();
  ends_stale_instance.store(false);
  sets_mutex.reset_after_fork();
  unmanaged_waiters::forget_after_fork();
}

}  // namespace ringroad::preload::epolls
