// poll, ppoll and epoll.
//
// A set without streams is libc's call, untouched. A set with streams becomes the kernel's ppoll()
// over: the program's other descriptors; each stream's TCP socket (for the directions that the
// kernel carries) and channel descriptor (for the rest); and the calling thread's eventfd.
#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <utility>

#include "preload/arguments.h"
#include "preload/cancellation.h"
#include "preload/epolls.h"
#include "preload/polling.h"
#include "preload/real.h"
#include "preload/runtime.h"
#include "rsocket-core/outside.h"
#include "rsocket-core/signals.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/waiter.h"

using namespace ringroad;
using namespace ringroad::preload;

namespace {

constexpr std::int64_t kDeafSliceNs = 5'000'000;

[[gnu::always_inline]] inline bool any_managed(const pollfd* fds, nfds_t count) noexcept {
  if (descriptors::none_managed() || arguments::is_nowhere(fds)) return false;
  for (nfds_t i = 0; i < count; ++i) {
    if (descriptors::managed(fds[i].fd)) return true;
  }
  return false;
}

// CLOCK_MONOTONIC; 0: do not sleep.
std::int64_t deadline_of(int timeout_ms) noexcept {
  if (timeout_ms < 0) return kForever;
  return timeout_ms == 0 ? 0 : sys::now_ns() + std::int64_t{timeout_ms} * 1'000'000;
}

// One entry of the program's set. Its waiter leaves with it, also when the thread is cancelled.
struct Entry {
  ~Entry() { leave(); }
  void leave() noexcept {
    if (waiting) stream->waiters().remove(waiter);
    waiting = false;
  }

  SocketRef socket;
  Stream* stream = nullptr;  // one that is, or may come to be, on a channel
  Waiter waiter;
  bool waiting = false;
  short ready = 0;
  bool held = false;       // no room, as the stream changes its carrier
  std::uint64_t frames = 0;  // PollPlan::frames, before the kernel was asked
  int kernel_index = -1;   // in the kernel's set: the program's descriptor itself
  int channel_index = -1;  // and the channel's
};

}  // namespace

bool ringroad::preload::deadline_from(const timespec* timeout, std::int64_t& deadline) noexcept {
  deadline = kForever;
  if (timeout == nullptr) return true;
  if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000) {
    return false;
  }
  if (timeout->tv_sec >= kForever / 2'000'000'000) return true;
  const std::int64_t length = timeout->tv_sec * 1'000'000'000 + timeout->tv_nsec;
  deadline = length == 0 ? 0 : sys::now_ns() + length;
  return true;
}

int ringroad::preload::poll_streams(pollfd* fds, nfds_t count, std::int64_t deadline,
                                    const sigset_t* mask, bool bounded) {
  constexpr nfds_t kFew = 4;
  Scratch<Entry, kFew> entry_memory(count);
  Scratch<pollfd, 2 * kFew + 1> kernel_memory(2 * count + 1);
  Entry* entries = entry_memory.data();
  pollfd* kernel = kernel_memory.data();
  if (entries == nullptr || kernel == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  const nfds_t asked = bounded ? count : 0;
  const int saved_errno = errno;
  for (nfds_t i = 0; i < count; ++i) {
    entries[i].socket = descriptors::find(fds[i].fd);
    Stream* stream = entries[i].socket.stream();
    if (stream != nullptr && !stream->on_kernel_for_good()) entries[i].stream = stream;
    if (EpollSet* epoll = entries[i].socket.epoll()) epoll->watch();
  }
  // One stream, as a thread waits that has one client. A mask of signals holds in the kernel's
  // sleep only.
  bool polls = count == 1 && deadline != 0 && mask == nullptr && entries[0].stream != nullptr &&
               entries[0].stream->may_spin(fds[0].events);
  bool polled = false;
  const int wake_fd = thread_wake_fd();
  bool outlasted = false;
  signals::begin_wait();
  for (;;) {
    nfds_t used = 0;
    kernel[used++] = {wake_fd, POLLIN, 0};
    int ready_now = 0;
    for (nfds_t i = 0; i < count; ++i) {
      Entry& e = entries[i];
      e.ready = 0;
      e.kernel_index = e.channel_index = -1;
      if (e.stream == nullptr) {
        e.kernel_index = static_cast<int>(used);
        kernel[used++] = {fds[i].fd, fds[i].events, 0};
        continue;
      }
      if (wake_fd >= 0 && !e.waiting) {
        e.waiter.wake_fd = wake_fd;
        e.waiter.events = POLLIN | POLLOUT;
        e.stream->waiters().add(e.waiter);
        e.stream->note_awaited();
        e.waiting = true;
      }
      Stream::PollPlan plan =
          e.stream->plan_poll(fds[i].events, polls ? Stream::Arm::kNever : Stream::Arm::kIfIdle);
      if (std::exchange(polls, false) && plan.ready == 0) {
        // What the kernel may have to tell it is asked for at once.
        polled = plan.on_channel && !plan.use_kernel;
        if (polled) {
          e.stream->spin_until_ready(fds[i].events, deadline, plan.shutdowns);
        }
        plan = e.stream->plan_poll(fds[i].events, Stream::Arm::kIfIdle);
      }
      e.ready = plan.ready;
      e.held = plan.frozen;
      e.frames = plan.frames;
      if (e.ready != 0) ++ready_now;
      if (plan.use_kernel) {
        e.kernel_index = static_cast<int>(used);
        kernel[used++] = {e.stream->fd(), plan.kernel_events, 0};
      }
      if (plan.channel_fd >= 0) {
        e.channel_index = static_cast<int>(used);
        kernel[used++] = {plan.channel_fd, POLLIN, 0};
      }
    }
    std::int64_t until = ready_now > 0 ? 0 : deadline;
    if (wake_fd < 0 && ready_now == 0) until = std::min(until, sys::now_ns() + kDeafSliceNs);
    timespec timeout{0, 0};
    if (until != kForever && until != 0) {
      const std::int64_t left = std::max<std::int64_t>(0, until - sys::now_ns());
      timeout = {left / 1'000'000'000, left % 1'000'000'000};
    }
    // It would have ended the sleep: the one before, which the library has woken at the same moment, or the
    // one that the polling was in place of.
    const bool interrupted = deadline != 0 && ready_now == 0 && signals::came_since_begin();
    if (interrupted) {
      until = 0;
      timeout = {0, 0};
    }
    int n = 0;
    if (until != 0) {
      n = cancellation::ppoll_for(asked, kernel, used, until == kForever ? nullptr : &timeout, mask);
    } else if (ready_now == 0 || used > 1) {  // else the kernel has nothing to add
      n = sys::ppoll(kernel, used, &timeout, mask, asked);
    }
    const int sleep_errno = errno;
    for (nfds_t i = 0; i < count; ++i) {
      entries[i].leave();
    }
    if (n < 0 && (ready_now == 0 || sleep_errno == EINVAL)) {
      errno = sleep_errno;
      return -1;
    }
    if (n > 0 && kernel[0].revents != 0) sys::drain_eventfd(wake_fd);
    int found = 0;
    bool look_again = false;
    for (nfds_t i = 0; i < count; ++i) {
      Entry& e = entries[i];
      short revents = e.ready;
      if (e.channel_index >= 0 && n > 0 && kernel[e.channel_index].revents != 0) {
        e.stream->after_sleep();
        revents |= e.stream->plan_poll(fds[i].events, Stream::Arm::kNever).ready;
      }
      if (e.kernel_index >= 0 && n > 0) {
        short from_kernel = kernel[e.kernel_index].revents;
        if (e.stream != nullptr && from_kernel != 0) {
          if ((from_kernel & POLLERR) != 0) e.stream->service();  // a reset is both directions' affair
          // Did the carrier change while the kernel looked? Then its answer is not the stream's.
          const Stream::PollPlan plan = e.stream->plan_poll(fds[i].events, Stream::Arm::kNever);
          revents |= plan.ready;
          e.held |= plan.frozen;
          if (plan.use_kernel) {
            from_kernel &= static_cast<short>(plan.kernel_events | POLLERR | POLLHUP | POLLNVAL);
            // Nor if a frame of the peer's library was what it saw.
            if (plan.frames != e.frames) {
              from_kernel &= e.stream->ask_kernel(e.stream->fd(), plan.kernel_events);
            }
          } else {
            from_kernel = 0;
          }
        }
        revents |= from_kernel;
        if ((from_kernel & POLLOUT) != 0 && (from_kernel & (POLLERR | POLLHUP)) == 0 &&
            e.socket.is(Socket::Kind::kConnecting)) {
          runtime::established(fds[i].fd, e.socket);
        }
      }
      fds[i].revents = revents;
      if (revents != 0) ++found;
    }
    if (found == 0 && interrupted) {
      errno = EINTR;
      return -1;
    }
    if (found == 0 && (n > 0 || until != deadline)) look_again = true;
    const bool late = deadline != kForever && found == 0 && sys::now_ns() >= deadline;
    if (late && !std::exchange(outlasted, true)) {
      bool changed = false;
      const std::int64_t asked_ns = sys::now_ns();
      for (nfds_t i = 0; i < count; ++i) {
        const bool asks = (fds[i].events & (POLLOUT | POLLWRNORM)) != 0;
        if (entries[i].stream == nullptr || !asks) continue;
        // A change may have come or gone since the looks.
        changed = changed || entries[i].stream->outlast_switch(asked_ns) || entries[i].held;
      }
      if (changed) continue;
    }
    if (!look_again || late) {
      errno = saved_errno;
      return found;
    }
  }
}

// Here and below: what there is to do about what the library manages is in functions of their own, so that
// a call which is none of its business saves no register before libc's.
namespace {

RR_NOINLINE int poll_some_streams(pollfd* fds, nfds_t count, int timeout_ms) {
  return cancellation::point<poll_streams>(fds, count, deadline_of(timeout_ms), nullptr, true);
}

RR_NOINLINE int ppoll_some_streams(pollfd* fds, nfds_t count, const timespec* timeout,
                                   const sigset_t* mask) {
  std::int64_t deadline;
  if (arguments::is_wrong(mask) || !deadline_from(timeout, deadline)) {
    return real().ppoll(fds, count, timeout, mask);
  }
  return cancellation::point<poll_streams>(fds, count, deadline, mask, true);
}

}  // namespace

int rr_poll(pollfd* fds, nfds_t count, int timeout_ms) {
  if (!any_managed(fds, count)) return real().poll(fds, count, timeout_ms);
  return poll_some_streams(fds, count, timeout_ms);
}

int rr_ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (!any_managed(fds, count)) return real().ppoll(fds, count, timeout, mask);
  return ppoll_some_streams(fds, count, timeout, mask);
}

int rr___poll_chk(pollfd* fds, nfds_t count, int timeout_ms, size_t size) {
  if (size / sizeof(pollfd) < count) return real().__poll_chk(fds, count, timeout_ms, size);
  return rr_poll(fds, count, timeout_ms);
}

int rr___ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                   size_t size) {
  if (size / sizeof(pollfd) < count) {
    return real().__ppoll_chk(fds, count, timeout, mask, size);
  }
  return rr_ppoll(fds, count, timeout, mask);
}

namespace {

[[gnu::always_inline]] inline void note_control(int epfd, int op, int fd) noexcept {
  if (op == EPOLL_CTL_ADD) {
    descriptors::note_epoll_add(fd, epfd);
  } else if (op == EPOLL_CTL_DEL) {
    descriptors::note_epoll_delete(fd, epfd);
  }
}

RR_NOINLINE int control_epoll(int epfd, int op, int fd, epoll_event* event) {
  SocketRef socket = descriptors::find(fd);
  const int saved = errno;
  int result;
  for (;;) {
    if (socket.stream() != nullptr && epolls::control(epfd, op, fd, socket, event, result)) {
      if (result == 0 || errno != ECANCELED) return result;
      errno = saved;
    } else if (op != EPOLL_CTL_ADD || (!socket && !descriptors::Change::under_way())) {
      result = real().epoll_ctl(epfd, op, fd, event);
      break;
    }
    // A stream that is being closed is unknown here before it is to the kernel, and its file may
    // outlast its number: what was added then nobody could take out.
    SocketRef now;
    bool same;
    {
      const descriptors::Change none_is_closed;
      now = descriptors::find(fd);
      same = now.get() == socket.get();
      if (same) result = real().epoll_ctl(epfd, op, fd, event);
    }
    if (same) break;
    socket = std::move(now);
  }
  if (result == 0) {
    note_control(epfd, op, fd);
    if (op == EPOLL_CTL_ADD && socket.epoll() != nullptr) socket.epoll()->watch();
  }
  return result;
}

RR_NOINLINE int control_known(int epfd, int op, int fd, epoll_event* event) {
  return cancellation::no_point<control_epoll>(epfd, op, fd, event);
}

// Puts a number that is not known here, and in range, into an instance, or takes it out.
RR_NOINLINE int control_unknown(int epfd, int op, int fd, epoll_event* event) {
  if (op == EPOLL_CTL_ADD && hardly_ever(descriptors::Change::under_way())) {
    return control_known(epfd, op, fd, event);
  }
  struct {
    int epfd, op, fd;
  } call{epfd, op, fd};
  keep_in_memory(call);
  const int result = real().epoll_ctl(epfd, op, fd, event);
  if (result != 0) return result;
  if (!descriptors::in_range(call.fd)) __builtin_unreachable();
  note_control(call.epfd, call.op, call.fd);
  return 0;
}

// The wait that the program has asked for, where the instance holds streams. False: it holds none.
RR_NOINLINE bool wait_on_set(int epfd, epoll_event* events, int max, std::int64_t deadline,
                             const sigset_t* mask, int& found) {
  const SocketRef instance = descriptors::find(epfd);
  if (instance.epoll() == nullptr) return false;
  found = instance.epoll()->wait(epfd, events, max, deadline, mask);
  return true;
}

// After a wait of the kernel's that found something. If that was only that the instance has got its
// first stream meanwhile, the wait begins again, with its time-out.
int after_kernel(int epfd, epoll_event* events, int found, int max, std::int64_t deadline,
                 const sigset_t* mask) {
  if (!epolls::found_inner(epfd, events, found) || found > 0) return found;
  return wait_on_set(epfd, events, max, deadline, mask, found) ? found : 0;
}

// A wait outside of any EpollSet.
class Outside {
 public:
  Outside() noexcept { outside::enter(); }
  ~Outside() { outside::leave(); }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;
};

// `in_kernel` is libc's call, `deadline` its time-out as CLOCK_MONOTONIC has it.
template <typename Deadline, typename Wait>
int wait_for_events(int epfd, epoll_event* events, int max, const sigset_t* mask, bool sleeps,
                    Deadline deadline, Wait in_kernel) {
  while (!epolls::holds_streams(epfd)) {
    int found = 0;
    if (!sleeps) {
      found = in_kernel();  // nobody has to wake us
    } else {
      const Outside outside;
      // Perhaps it got its first stream just now, from somebody who did not see us come.
      if (descriptors::managed_by_now(epfd)) continue;
      found = in_kernel();
    }
    if (found <= 0 || EpollSet::made() == 0) return found;
    return after_kernel(epfd, events, found, max, deadline(), mask);
  }
  int found = 0;
  // The kernel refuses these before it looks for events, but for NULL.
  constexpr int kMostEvents = std::numeric_limits<int>::max() / static_cast<int>(sizeof(epoll_event));
  if (arguments::is_nowhere(events) || arguments::is_wrong(mask) || max <= 0 || max > kMostEvents) {
    return in_kernel();
  }
  return wait_on_set(epfd, events, max, deadline(), mask, found) ? found : in_kernel();
}

RR_NOINLINE int epoll_wait_anywhere(int epfd, epoll_event* events, int max, int timeout_ms) {
  return wait_for_events(
      epfd, events, max, nullptr, timeout_ms != 0, [&] { return deadline_of(timeout_ms); },
      [&] { return cancellation::caught(real().epoll_wait, epfd, events, max, timeout_ms); });
}

RR_NOINLINE int epoll_pwait_anywhere(int epfd, epoll_event* events, int max, int timeout_ms,
                                     const sigset_t* mask) {
  return wait_for_events(
      epfd, events, max, mask, timeout_ms != 0, [&] { return deadline_of(timeout_ms); }, [&] {
        return cancellation::caught(real().epoll_pwait, epfd, events, max, timeout_ms, mask);
      });
}

RR_NOINLINE int epoll_pwait2_anywhere(int epfd, epoll_event* events, int max,
                                      const timespec* timeout, const sigset_t* mask) {
  const auto in_kernel = [&] {
    return cancellation::caught(real().epoll_pwait2, epfd, events, max, timeout, mask);
  };
  std::int64_t unused;
  if (arguments::is_wrong(timeout) || !deadline_from(timeout, unused)) return in_kernel();
  const auto deadline = [&] {
    std::int64_t out;
    deadline_from(timeout, out);
    return out;
  };
  return wait_for_events(epfd, events, max, mask, true, deadline, in_kernel);
}

RR_NOINLINE int after_kernel_of(int epfd, epoll_event* events, int found, int max, int timeout_ms,
                                const sigset_t* mask) {
  return after_kernel(epfd, events, found, max, deadline_of(timeout_ms), mask);
}

// A wait on an instance without streams, and nothing else. False: it was not made. Who is cancelled
// in it, before anybody knew that threads are, is counted as outside for good: sets then wake for
// nothing at times.
template <typename Wait>
inline bool waits_in_kernel(int epfd, bool sleeps, int& found, Wait in_kernel) {
  if (!epolls::holds_none(epfd) || cancellation::in_use.load(std::memory_order_relaxed))
    return false;
  if (sleeps) {
    outside::enter();
    if (descriptors::managed_by_now(epfd)) {
      outside::leave();
      return false;
    }
  }
  found = in_kernel();
  if (sleeps) outside::leave();
  return true;
}

// The waits of a process that may have sets, or ends threads. As long as it has none a thread comes here
// for its seat.
RR_NOINLINE int epoll_wait_beside_sets(int epfd, epoll_event* events, int max, int timeout_ms) {
  if (EpollSet::made() == 0 && timeout_ms != 0) outside::take_seat();
  int found = 0;
  if (!waits_in_kernel(epfd, timeout_ms != 0, found,
                       [&] { return real().epoll_wait(epfd, events, max, timeout_ms); })) {
    return cancellation::point<epoll_wait_anywhere>(epfd, events, max, timeout_ms);
  }
  if (found <= 0 || EpollSet::made() == 0) return found;
  return cancellation::point<after_kernel_of>(epfd, events, found, max, timeout_ms, nullptr);
}

RR_NOINLINE int epoll_pwait_beside_sets(int epfd, epoll_event* events, int max, int timeout_ms,
                                        const sigset_t* mask) {
  if (EpollSet::made() == 0 && timeout_ms != 0) outside::take_seat();
  int found = 0;
  if (!waits_in_kernel(epfd, timeout_ms != 0, found,
                       [&] { return real().epoll_pwait(epfd, events, max, timeout_ms, mask); })) {
    return cancellation::point<epoll_pwait_anywhere>(epfd, events, max, timeout_ms, mask);
  }
  if (found <= 0 || EpollSet::made() == 0) return found;
  return cancellation::point<after_kernel_of>(epfd, events, found, max, timeout_ms, mask);
}

// After a wait that began before there was any set.
RR_NOINLINE int after_first_set(int epfd, epoll_event* events, int found, int max, int timeout_ms,
                                const sigset_t* mask) {
  outside::leave_seat();
  if (found <= 0) return found;
  return cancellation::point<after_kernel_of>(epfd, events, found, max, timeout_ms, mask);
}

template <auto beside_sets, typename... Mask>
RR_NOINLINE int rise_and_wait(int epfd, epoll_event* events, int max, int timeout_ms,
                              Mask... mask) {
  outside::seat->rise();
  outside::leave_seat();
  return beside_sets(epfd, events, max, timeout_ms, mask...);
}

// A wait by `function`, of Real, in a process that has no set, and as far as is known ends no thread.
template <auto function, auto beside_sets, typename... Mask>
[[gnu::always_inline]] inline int wait_where_no_set_is(int epfd, epoll_event* events, int max,
                                                       int timeout_ms, Mask... mask) {
  if (hardly_ever(EpollSet::made() != 0) || cancellation::may_be_cancelled()) {
    return beside_sets(epfd, events, max, timeout_ms, mask...);
  }
  const bool sleeps = timeout_ms != 0;
  if (sleeps) {
    if (hardly_ever(outside::seat == nullptr)) {
      return beside_sets(epfd, events, max, timeout_ms, mask...);
    }
    outside::seat->sit();
    if (hardly_ever(EpollSet::made() != 0)) {
      return rise_and_wait<beside_sets>(epfd, events, max, timeout_ms, mask...);
    }
  }
  struct {
    epoll_event* events;
    int epfd, max, timeout_ms;
  } call{events, epfd, max, timeout_ms};
  keep_in_memory(call);
  struct {
    const sigset_t* mask;
  } with{mask...};
  if constexpr (sizeof...(mask) != 0) keep_in_memory(with);
  const int found = (real().*function)(epfd, events, max, timeout_ms, mask...);
  if (sleeps) outside::seat->rise();
  if (!hardly_ever(EpollSet::made() != 0)) return found;
  return after_first_set(call.epfd, call.events, found, call.max, call.timeout_ms, with.mask);
}

}  // namespace

int rr_epoll_ctl(int epfd, int op, int fd, epoll_event* event) {
  if (!descriptors::in_range(fd)) return real().epoll_ctl(epfd, op, fd, event);
  if (descriptors::managed(fd)) return control_known(epfd, op, fd, event);
  if (op == EPOLL_CTL_MOD) return real().epoll_ctl(epfd, op, fd, event);
  return control_unknown(epfd, op, fd, event);
}

int rr_epoll_wait(int epfd, epoll_event* events, int max, int timeout_ms) {
  return wait_where_no_set_is<&Real::epoll_wait, epoll_wait_beside_sets>(epfd, events, max,
                                                                         timeout_ms);
}

int rr_epoll_pwait(int epfd, epoll_event* events, int max, int timeout_ms, const sigset_t* mask) {
  return wait_where_no_set_is<&Real::epoll_pwait, epoll_pwait_beside_sets>(epfd, events, max,
                                                                           timeout_ms, mask);
}

int rr_epoll_pwait2(int epfd, epoll_event* events, int max, const timespec* timeout,
                    const sigset_t* mask) {
  return cancellation::point<epoll_pwait2_anywhere>(epfd, events, max, timeout, mask);
}
