// epoll: an instance without streams is libc's call, untouched. One with streams is an EpollSet's
// (epoll_set.h).
#include <sys/epoll.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <limits>
#include <utility>

#include "preload/arguments.h"
#include "preload/cancellation.h"
#include "preload/epoll_marks.h"
#include "preload/epolls.h"
#include "preload/fd_table.h"
#include "preload/polling.h"
#include "preload/real.h"
#include "preload/socket_lifecycle.h"
#include "rsocket-core/stream/unmanaged_waiters.h"

using namespace ringroad;
using namespace ringroad::preload;

// What there is to do about what the library manages is in functions of their own, so that a call which is
// none of its business saves no register before libc's.
namespace {

[[gnu::always_inline]] inline void note_control(int epfd, int op, int fd) noexcept {
  if (op == EPOLL_CTL_ADD) {
    epoll_marks::note_add(fd, epfd);
  } else if (op == EPOLL_CTL_DEL) {
    epoll_marks::note_delete(fd, epfd);
  }
}

RR_NOINLINE int control_epoll(int epfd, int op, int fd, epoll_event* event) {
  SocketRef socket = socket_lifecycle::find(fd);
  const int saved = errno;
  int result;
  for (;;) {
    if (socket.stream() != nullptr && epolls::control(epfd, op, fd, socket, event, result)) {
      if (result == 0 || errno != ECANCELED) return result;
      errno = saved;
    } else if (op != EPOLL_CTL_ADD || (!socket && !fd_table::FdMutation::under_way())) {
      result = real().epoll_ctl(epfd, op, fd, event);
      break;
    }
    // A stream that is being closed is unknown here before it is to the kernel, and its file may
    // outlast its number: what was added then nobody could take out.
    SocketRef now;
    bool same;
    {
      const fd_table::FdMutation none_is_closed;
      now = socket_lifecycle::find(fd);
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
  if (op == EPOLL_CTL_ADD && hardly_ever(fd_table::FdMutation::under_way())) {
    return control_known(epfd, op, fd, event);
  }
  struct {
    int epfd, op, fd;
  } call{epfd, op, fd};
  keep_in_memory(call);
  const int result = real().epoll_ctl(epfd, op, fd, event);
  if (result != 0) return result;
  if (!fd_table::in_range(call.fd)) __builtin_unreachable();
  note_control(call.epfd, call.op, call.fd);
  return 0;
}

// The wait that the program has asked for, where the instance holds streams. False: it holds none.
RR_NOINLINE bool wait_on_set(int epfd, epoll_event* events, int max, std::int64_t deadline,
                             const sigset_t* mask, int& found) {
  const SocketRef instance = socket_lifecycle::find(epfd);
  if (instance.epoll() == nullptr) return false;
  found = instance.epoll()->wait(epfd, events, max, deadline, mask);
  return true;
}

// Nothing that the inner instance of a set can have brought about.
inline bool is_final(int found) noexcept { return found == 0 || errno != EFAULT; }

// After a wait of the kernel's that found something, or had no memory for that. If that was only that the
// instance has got its first stream meanwhile, the wait begins again, with its time-out.
int after_kernel(int epfd, epoll_event* events, int found, int max, std::int64_t deadline,
                 const sigset_t* mask) {
  if (found < 0) {
    if (epolls::holds_streams(epfd)) wait_on_set(epfd, events, max, deadline, mask, found);
    return found;
  }
  if (!epolls::found_inner(epfd, events, found) || found > 0) return found;
  return wait_on_set(epfd, events, max, deadline, mask, found) ? found : 0;
}

// A wait outside of any EpollSet.
class Outside {
 public:
  Outside() noexcept { unmanaged_waiters::enter(); }
  ~Outside() { unmanaged_waiters::leave(); }
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
      // Perhaps it got its first stream just now, from a thread that did not see us come.
      if (fd_table::managed_by_now(epfd)) continue;
      found = in_kernel();
    }
    if ((found <= 0 && is_final(found)) || EpollSet::made() == 0) return found;
    return after_kernel(epfd, events, found, max, deadline(), mask);
  }
  int found = 0;
  // The kernel refuses these before it looks for events.
  constexpr int kMostEvents = std::numeric_limits<int>::max() / static_cast<int>(sizeof(epoll_event));
  if (arguments::is_beyond(events) || arguments::is_wrong(mask) || max <= 0 || max > kMostEvents) {
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
  const bool looks = !fd_table::none_managed();
  if (looks && (arguments::is_wrong(timeout, sizeof *timeout) || !deadline_from(timeout, unused))) {
    return in_kernel();
  }
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

// A wait on an instance without streams, and nothing else. False: it was not made. A thread that is cancelled
// in it, before anybody knew that threads are, is counted as outside for good: sets then wake for
// nothing at times.
template <typename Wait>
inline bool waits_in_kernel(int epfd, bool sleeps, int& found, Wait in_kernel) {
  if (!epolls::holds_none(epfd) || cancellation::in_use.load(std::memory_order_relaxed))
    return false;
  if (sleeps) {
    unmanaged_waiters::enter();
    if (fd_table::managed_by_now(epfd)) {
      unmanaged_waiters::leave();
      return false;
    }
  }
  found = in_kernel();
  if (sleeps) unmanaged_waiters::leave();
  return true;
}

// The waits of a process that may have sets, or ends threads. As long as it has none a thread comes here
// for its seat.
RR_NOINLINE int epoll_wait_beside_sets(int epfd, epoll_event* events, int max, int timeout_ms) {
  if (EpollSet::made() == 0 && timeout_ms != 0) unmanaged_waiters::take_seat();
  int found = 0;
  if (!waits_in_kernel(epfd, timeout_ms != 0, found,
                       [&] { return real().epoll_wait(epfd, events, max, timeout_ms); })) {
    return cancellation::point<epoll_wait_anywhere>(epfd, events, max, timeout_ms);
  }
  if ((hardly_ever(found <= 0) && is_final(found)) || EpollSet::made() == 0) return found;
  return cancellation::point<after_kernel_of>(epfd, events, found, max, timeout_ms, nullptr);
}

RR_NOINLINE int epoll_pwait_beside_sets(int epfd, epoll_event* events, int max, int timeout_ms,
                                        const sigset_t* mask) {
  if (EpollSet::made() == 0 && timeout_ms != 0) unmanaged_waiters::take_seat();
  int found = 0;
  if (!waits_in_kernel(epfd, timeout_ms != 0, found,
                       [&] { return real().epoll_pwait(epfd, events, max, timeout_ms, mask); })) {
    return cancellation::point<epoll_pwait_anywhere>(epfd, events, max, timeout_ms, mask);
  }
  if ((hardly_ever(found <= 0) && is_final(found)) || EpollSet::made() == 0) return found;
  return cancellation::point<after_kernel_of>(epfd, events, found, max, timeout_ms, mask);
}

// After a wait that began before there was any set.
RR_NOINLINE int after_first_set(int epfd, epoll_event* events, int found, int max, int timeout_ms,
                                const sigset_t* mask) {
  unmanaged_waiters::leave_seat();
  if (found <= 0 && is_final(found)) return found;
  return cancellation::point<after_kernel_of>(epfd, events, found, max, timeout_ms, mask);
}

template <auto beside_sets, typename... Mask>
RR_NOINLINE int rise_and_wait(int epfd, epoll_event* events, int max, int timeout_ms,
                              Mask... mask) {
  unmanaged_waiters::seat->leave();
  unmanaged_waiters::leave_seat();
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
    if (hardly_ever(unmanaged_waiters::seat == nullptr)) {
      return beside_sets(epfd, events, max, timeout_ms, mask...);
    }
    unmanaged_waiters::seat->enter();
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
  if (sleeps) unmanaged_waiters::seat->leave();
  if (!hardly_ever(EpollSet::made() != 0)) return found;
  return after_first_set(call.epfd, call.events, found, call.max, call.timeout_ms, with.mask);
}

}  // namespace

int rr_epoll_ctl(int epfd, int op, int fd, epoll_event* event) {
  if (!fd_table::in_range(fd)) return real().epoll_ctl(epfd, op, fd, event);
  if (fd_table::managed(fd)) return control_known(epfd, op, fd, event);
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
