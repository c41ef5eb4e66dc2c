// The kernel, by system call.
//
// Inside the preloaded object the libc names (recv, poll, close ...) are the interposed ones, so
// the library itself must not use them on descriptors: it would meet itself. These wrappers are
// not cancellation points, work before libc is initialised, and return what the libc function of
// the same name returns: -1 with errno on failure. On success errno is left as it was.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

#include "rsocket-core/base/lock_ranks.h"
#include "rsocket-core/base/poll_by_select.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/system_call.h"
#include "rsocket-core/base/thread_annotations.h"

namespace ringroad::sys {

inline ssize_t recv(int fd, void* buf, size_t n, int flags) noexcept {
  return call(SYS_recvfrom, fd, buf, n, flags, nullptr, nullptr);
}
inline ssize_t send(int fd, const void* buf, size_t n, int flags) noexcept {
  return call(SYS_sendto, fd, buf, n, flags, nullptr, 0);
}
inline ssize_t recvmsg(int fd, msghdr* msg, int flags) noexcept {
  return call(SYS_recvmsg, fd, msg, flags);
}
inline ssize_t sendmsg(int fd, const msghdr* msg, int flags) noexcept {
  return call(SYS_sendmsg, fd, msg, flags);
}
inline ssize_t read(int fd, void* buf, size_t n) noexcept { return call(SYS_read, fd, buf, n); }
inline ssize_t write(int fd, const void* buf, size_t n) noexcept {
  return call(SYS_write, fd, buf, n);
}
inline int close(int fd) noexcept {
  reserved_fds::unmark(fd);
  return static_cast<int>(call(SYS_close, fd));
}
// For a descriptor of the library's own, on a path where errno says something else already.
inline void close_quietly(int fd) noexcept {
  reserved_fds::unmark(fd);
  raw(SYS_close, fd);
}
inline int fcntl(int fd, int cmd, long arg = 0) noexcept {
  return static_cast<int>(call(SYS_fcntl, fd, cmd, arg));
}
inline int ioctl(int fd, unsigned long request, void* arg) noexcept {
  return static_cast<int>(call(SYS_ioctl, fd, request, arg));
}
inline int socket(int domain, int type, int protocol) noexcept {
  return static_cast<int>(call(SYS_socket, domain, type, protocol));
}
inline int bind(int fd, const sockaddr* addr, socklen_t len) noexcept {
  return static_cast<int>(call(SYS_bind, fd, addr, len));
}
inline int listen(int fd, int backlog) noexcept {
  return static_cast<int>(call(SYS_listen, fd, backlog));
}
inline int connect(int fd, const sockaddr* addr, socklen_t len) noexcept {
  return static_cast<int>(call(SYS_connect, fd, addr, len));
}
inline int accept4(int fd, sockaddr* addr, socklen_t* len, int flags) noexcept {
  return static_cast<int>(call(SYS_accept4, fd, addr, len, flags));
}
inline int shutdown(int fd, int how) noexcept {
  return static_cast<int>(call(SYS_shutdown, fd, how));
}
inline int getsockname(int fd, sockaddr* addr, socklen_t* len) noexcept {
  return static_cast<int>(call(SYS_getsockname, fd, addr, len));
}
inline int getpeername(int fd, sockaddr* addr, socklen_t* len) noexcept {
  return static_cast<int>(call(SYS_getpeername, fd, addr, len));
}
inline int getsockopt(int fd, int level, int name, void* value, socklen_t* len) noexcept {
  return static_cast<int>(call(SYS_getsockopt, fd, level, name, value, len));
}
inline int setsockopt(int fd, int level, int name, const void* value, socklen_t len) noexcept {
  return static_cast<int>(call(SYS_setsockopt, fd, level, name, value, len));
}
// `timeout` may be written by the kernel; pass a copy. `mask` as in ppoll(2), or nullptr. `asked`: entries
// that are the program's own, where RLIMIT_NOFILE is to hold for those (poll_by_select.h).
inline int ppoll(pollfd* fds, nfds_t n, timespec* timeout, const sigset_t* mask,
                 nfds_t asked = 0) noexcept {
  const auto found = static_cast<int>(call(SYS_ppoll, fds, n, timeout, mask, _NSIG / 8));
  if (hardly_ever(found < 0) && errno == EINVAL) {
    return poll_by_select(fds, n, timeout, mask, asked, nullptr);
  }
  return found;
}
inline int epoll_create1(int flags) noexcept {
  return static_cast<int>(call(SYS_epoll_create1, flags));
}
inline int epoll_ctl(int epfd, int op, int fd, epoll_event* event) noexcept {
  return static_cast<int>(call(SYS_epoll_ctl, epfd, op, fd, event));
}
inline int epoll_wait(int epfd, epoll_event* events, int n, int timeout_ms) noexcept {
  return static_cast<int>(
      call(SYS_epoll_pwait, epfd, events, n, timeout_ms, nullptr, _NSIG / 8));
}
inline int eventfd(unsigned initial, int flags) noexcept {
  return static_cast<int>(call(SYS_eventfd2, initial, flags));
}
inline pid_t getpid() noexcept { return static_cast<pid_t>(call(SYS_getpid)); }

// Private descriptors go high, out of the way of programs that size tables by number: the lowest
// number that one may have, unless the limit on descriptors is lower.
inline constexpr int kPrivateDescriptorBase = 768;

// The kernel gives a new descriptor the lowest free number, so each of the library's own stands for
// some microseconds where the program may just now put another by dup2(2). One of the two at a
// time.
//
// Never waits for more than kPatience: the thread that has the turn may be what a handler
// interrupted. Then it is taken from him.
class RR_SCOPED_CAPABILITY DescriptorTurn {
 public:
  DescriptorTurn() noexcept RR_TAKES_RANK(descriptor_turn) {
    for (int i = 0; taken.exchange(true, std::memory_order_acquire) && i < kPatience; ++i) {
      const timespec nap{0, 100'000};
      i < kYields ? raw(SYS_sched_yield) : raw(SYS_nanosleep, word(&nap));
    }
  }
  ~DescriptorTurn() RR_RELEASE() { taken.store(false, std::memory_order_release); }
  DescriptorTurn(const DescriptorTurn&) = delete;
  DescriptorTurn& operator=(const DescriptorTurn&) = delete;

  // In a child of fork(2): the thread that had it may be the parent's.
  static void forget() noexcept { taken.store(false, std::memory_order_relaxed); }

 private:
  static constexpr int kYields = 100;
  static constexpr int kPatience = 500;  // yields, then naps of 0.1 ms
  static inline std::atomic<bool> taken{false};
};

// Part of open_high(), for descriptors that come several at a time or from another library: a caller
// that can has the DescriptorTurn. -1 stays -1.
inline int move_high(int fd, bool or_stay = false) noexcept {
  if (fd < 0) return fd;
  if (fd < kPrivateDescriptorBase) {
    const long high = raw(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kPrivateDescriptorBase);
    if (high == -EBADF) {  // the program has closed what it had not opened
      errno = EBADF;
      return -1;
    }
    if (high == -EMFILE && !or_stay) {
      raw(SYS_close, fd);
      errno = EMFILE;
      return -1;
    }
    if (high >= 0) {
      raw(SYS_close, fd);
      fd = static_cast<int>(high);
    }
  }
  reserved_fds::mark(fd);
  return fd;
}

// Makes what `open` opens a descriptor of the library's own: moves it to a number at or above
// kPrivateDescriptorBase, close-on-exec, and marks it, so that the program cannot close it by
// accident. -1 and errno if `open` says so, and EMFILE where all those numbers are taken: what is
// left below is the program's, which may keep just one in reserve. Where RLIMIT_NOFILE allows none
// of them it keeps its number. `open` must not wait.
template <typename Open>
inline int open_high(Open open) noexcept {
  const DescriptorTurn turn;
  return move_high(static_cast<int>(open()));
}

// As open_high(), of what a call cannot do without: where no high number is free it keeps its own.
template <typename Open>
inline int open_high_or_low(Open open) noexcept {
  const DescriptorTurn turn;
  return move_high(static_cast<int>(open()), true);
}

// As ftruncate(2). Beyond RLIMIT_FSIZE the kernel also sends SIGXFSZ, which ends a program: there it is not
// asked.
inline bool make_long(int fd, std::uint64_t bytes) noexcept {
  rlimit most{};
  if (call(SYS_prlimit64, 0, RLIMIT_FSIZE, nullptr, &most) != 0) return false;
  if (most.rlim_cur < bytes) {
    errno = EFBIG;
    return false;
  }
  return call(SYS_ftruncate, fd, bytes) == 0;
}

// A copy for open_high(), also where RLIMIT_NOFILE allows no number as high.
inline int duplicate(int fd) noexcept {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, kPrivateDescriptorBase);
  return copy < 0 && errno == EINVAL ? fcntl(fd, F_DUPFD_CLOEXEC) : copy;
}

// Wakes the thread that sleeps on an eventfd; a full counter is awake already.
inline void signal_eventfd(int fd) noexcept {
  const int saved = errno;
  const std::uint64_t one = 1;
  while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = saved;
}

// Empties an eventfd that was made non-blocking.
inline void drain_eventfd(int fd) noexcept {
  const int saved = errno;
  std::uint64_t count;
  while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
  errno = saved;
}

// CLOCK_MONOTONIC in nanoseconds.
inline std::int64_t now_ns() noexcept {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return std::int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

}  // namespace ringroad::sys
