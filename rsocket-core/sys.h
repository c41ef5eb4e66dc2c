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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace ringroad::sys {

inline ssize_t recv(int fd, void* buf, size_t n, int flags) noexcept {
  return syscall(SYS_recvfrom, fd, buf, n, flags, nullptr, nullptr);
}
inline ssize_t send(int fd, const void* buf, size_t n, int flags) noexcept {
  return syscall(SYS_sendto, fd, buf, n, flags, nullptr, 0);
}
inline ssize_t recvmsg(int fd, msghdr* msg, int flags) noexcept {
  return syscall(SYS_recvmsg, fd, msg, flags);
}
inline ssize_t sendmsg(int fd, const msghdr* msg, int flags) noexcept {
  return syscall(SYS_sendmsg, fd, msg, flags);
}
inline ssize_t read(int fd, void* buf, size_t n) noexcept { return syscall(SYS_read, fd, buf, n); }
inline ssize_t write(int fd, const void* buf, size_t n) noexcept {
  return syscall(SYS_write, fd, buf, n);
}
inline int close(int fd) noexcept { return static_cast<int>(syscall(SYS_close, fd)); }
// For a descriptor of the library's own, on a path where errno says something else already.
inline void close_quietly(int fd) noexcept {
  const int saved = errno;
  syscall(SYS_close, fd);
  errno = saved;
}
inline int fcntl(int fd, int cmd, long arg = 0) noexcept {
  return static_cast<int>(syscall(SYS_fcntl, fd, cmd, arg));
}
inline int ioctl(int fd, unsigned long request, void* arg) noexcept {
  return static_cast<int>(syscall(SYS_ioctl, fd, request, arg));
}
inline int socket(int domain, int type, int protocol) noexcept {
  return static_cast<int>(syscall(SYS_socket, domain, type, protocol));
}
inline int bind(int fd, const sockaddr* addr, socklen_t len) noexcept {
  return static_cast<int>(syscall(SYS_bind, fd, addr, len));
}
inline int listen(int fd, int backlog) noexcept {
  return static_cast<int>(syscall(SYS_listen, fd, backlog));
}
inline int connect(int fd, const sockaddr* addr, socklen_t len) noexcept {
  return static_cast<int>(syscall(SYS_connect, fd, addr, len));
}
inline int accept4(int fd, sockaddr* addr, socklen_t* len, int flags) noexcept {
  return static_cast<int>(syscall(SYS_accept4, fd, addr, len, flags));
}
inline int shutdown(int fd, int how) noexcept {
  return static_cast<int>(syscall(SYS_shutdown, fd, how));
}
inline int getsockname(int fd, sockaddr* addr, socklen_t* len) noexcept {
  return static_cast<int>(syscall(SYS_getsockname, fd, addr, len));
}
inline int getpeername(int fd, sockaddr* addr, socklen_t* len) noexcept {
  return static_cast<int>(syscall(SYS_getpeername, fd, addr, len));
}
inline int getsockopt(int fd, int level, int name, void* value, socklen_t* len) noexcept {
  return static_cast<int>(syscall(SYS_getsockopt, fd, level, name, value, len));
}
inline int setsockopt(int fd, int level, int name, const void* value, socklen_t len) noexcept {
  return static_cast<int>(syscall(SYS_setsockopt, fd, level, name, value, len));
}
// `timeout` may be written by the kernel; pass a copy. `mask` as in ppoll(2), or nullptr.
inline int ppoll(pollfd* fds, nfds_t n, timespec* timeout, const sigset_t* mask) noexcept {
  return static_cast<int>(syscall(SYS_ppoll, fds, n, timeout, mask, _NSIG / 8));
}
inline int epoll_create1(int flags) noexcept {
  return static_cast<int>(syscall(SYS_epoll_create1, flags));
}
inline int epoll_ctl(int epfd, int op, int fd, epoll_event* event) noexcept {
  return static_cast<int>(syscall(SYS_epoll_ctl, epfd, op, fd, event));
}
inline int epoll_wait(int epfd, epoll_event* events, int n, int timeout_ms) noexcept {
  return static_cast<int>(
      syscall(SYS_epoll_pwait, epfd, events, n, timeout_ms, nullptr, _NSIG / 8));
}
inline int eventfd(unsigned initial, int flags) noexcept {
  return static_cast<int>(syscall(SYS_eventfd2, initial, flags));
}
inline pid_t getpid() noexcept { return static_cast<pid_t>(syscall(SYS_getpid)); }

// Private descriptors go high, out of the way of programs that size tables by number or close
// ranges: the lowest number that one may have, unless the limit on descriptors is lower.
inline constexpr int kPrivateDescriptorBase = 768;

// Moves `fd` to a number at or above kPrivateDescriptorBase, close-on-exec, and closes the old one. Where
// no such number is free (RLIMIT_NOFILE), returns `fd` itself. Keeps errno. -1 stays -1.
inline int move_high(int fd) noexcept {
  if (fd < 0 || fd >= kPrivateDescriptorBase) return fd;
  const int saved = errno;
  const int high = fcntl(fd, F_DUPFD_CLOEXEC, kPrivateDescriptorBase);
  if (high >= 0) close(fd);
  errno = saved;
  return high >= 0 ? high : fd;
}

// Wakes whoever sleeps on an eventfd; a full counter is awake already.
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
