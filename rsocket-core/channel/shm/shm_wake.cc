#include "rsocket-core/channel/shm/shm_wake.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/deferred_close.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_memory.h"

namespace ringroad {
namespace {

// More wake-ups than this in one drain() are a peer's mischief; the rest waits for the next one.
constexpr int kDrainBatch = 16;
// More wake-ups than come in the life of a host, in either direction.
constexpr std::uint64_t kHalfFull = std::uint64_t{1} << 62;
// Of Linux 6.16, and the same on every architecture that this runs on.
constexpr int kSoPassRights = 83;
constexpr std::uint32_t kSocketEvents = EPOLLIN | EPOLLRDHUP | EPOLLET;

bool watch(int epoll, int op, int socket) noexcept {
  epoll_event event{};
  event.events = kSocketEvents;
  return sys::epoll_ctl(epoll, op, socket, &event) == 0;
}

}  // namespace

ShmWake::ShmWake(ShmWakeKind kind, int wait, int link, std::uint32_t events) noexcept
    : kind_(kind),
      events_(events),
      wait_(wait),
      link_(link),
      owner_(sys::getpid()) {}

ShmWake::ShmWake(ShmWake&& other) noexcept
    : kind_(other.kind_),
      events_(other.events_),
      wait_(std::exchange(other.wait_, -1)),
      link_(std::exchange(other.link_, -1)),
      owner_(other.owner_) {}

ShmWake& ShmWake::operator=(ShmWake&& other) noexcept {
  if (this != &other) {
    reset();
    kind_ = other.kind_;
    events_ = other.events_;
    wait_ = std::exchange(other.wait_, -1);
    link_ = std::exchange(other.link_, -1);
    owner_ = other.owner_;
  }
  return *this;
}

void ShmWake::reset() noexcept {
  if (kind_ == ShmWakeKind::kSocket && link_ >= 0 && in_own_process()) {
    close_foreign_socket(std::exchange(link_, -1));
  }
  close_own(link_);
  close_own(wait_);
}

bool ShmWake::in_own_process() const noexcept { return owner_ == sys::getpid(); }

ShmWake ShmWake::over_events(int own, int peer) noexcept {
  return ShmWake(ShmWakeKind::kEvents, above_limit(own), above_limit(peer));
}

ShmWake ShmWake::over_one_event(int event, bool by_writing) noexcept {
  const std::uint32_t its_own = by_writing ? EPOLLOUT : EPOLLIN;
  return ShmWake(ShmWakeKind::kOneEvent, above_limit(event), -1, its_own | EPOLLET);
}

ShmWake ShmWake::over_socket(int socket, Reason& why) noexcept {
  const int off = 0;
  sys::setsockopt(socket, SOL_SOCKET, kSoPassRights, &off, sizeof off);  // older kernels have none
  const int epoll =
      above_limit(sys::open_high([&] { return sys::epoll_create1(EPOLL_CLOEXEC); }));
  ShmWake wake(ShmWakeKind::kSocket, epoll, socket);
  if (epoll < 0 || !watch(epoll, EPOLL_CTL_ADD, socket)) {
    why = shm_reason_of(errno);
    wake.reset();
  }
  return wake;
}

bool ShmWake::make_pair(ShmWakeKind kind, ShmWake& a, ShmWake& b, Reason& why) noexcept {
  if (kind == ShmWakeKind::kSocket) {
    int ends[2];
    constexpr int kType = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
    {
      const sys::DescriptorTurn turn;
      if (sys::call(SYS_socketpair, AF_UNIX, kType, 0, ends) != 0) {
        why = shm_reason_of(errno);
        return false;
      }
      for (int& end : ends) end = sys::move_high(end);
    }
    a = over_socket(ends[0], why);
    b = over_socket(ends[1], why);
    return a && b;
  }
  if (kind == ShmWakeKind::kOneEvent) {
    const int event = make_shared_event();
    const int copy = event < 0 ? -1 : sys::fcntl(event, F_DUPFD_CLOEXEC, event);
    const int error = errno;
    a = over_one_event(event, false);
    b = over_one_event(copy, true);
    if (a && b) return true;
    why = shm_reason_of(error);
    return false;
  }
  const int own_a = make_wake_event();
  const int own_b = make_wake_event();
  const int peer_a = own_b < 0 ? -1 : sys::fcntl(own_b, F_DUPFD_CLOEXEC, own_b);
  const int peer_b = own_a < 0 ? -1 : sys::fcntl(own_a, F_DUPFD_CLOEXEC, own_a);
  const int error = errno;
  a = over_events(own_a, peer_a);
  b = over_events(own_b, peer_b);
  if (own_a >= 0 && own_b >= 0 && peer_a >= 0 && peer_b >= 0) return true;
  why = shm_reason_of(error);
  return false;
}

void ShmWake::signal_one_event(bool by_writing) const noexcept {
  if (by_writing) {
    sys::signal_eventfd(wait_);
  } else {
    sys::drain_eventfd(wait_);  // of one
  }
}

void ShmWake::signal_peer() const noexcept {
  if (kind_ == ShmWakeKind::kOneEvent) return signal_one_event(wakes_by_writing());
  if (kind_ == ShmWakeKind::kEvents) {
    sys::signal_eventfd(link_);
    return;
  }
  // A full queue means a peer with wake-ups to take; a broken one means a peer that is gone.
  const char byte = 0;
  while (sys::send(link_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

void ShmWake::signal_self() const noexcept {
  if (kind_ == ShmWakeKind::kOneEvent) return signal_one_event(!wakes_by_writing());
  if (kind_ == ShmWakeKind::kEvents) {
    sys::signal_eventfd(wait_);
  } else {
    sys::shutdown(link_, SHUT_RD);
  }
}

void ShmWake::drain() const noexcept {
  if (kind_ == ShmWakeKind::kOneEvent) return;  // an edge is told once
  if (kind_ == ShmWakeKind::kEvents) {
    sys::drain_eventfd(wait_);
    return;
  }
  // The edge first: one that comes later belongs to what the caller may not see yet.
  epoll_event event;
  sys::epoll_wait(wait_, &event, 1, 0);
  for (int i = 0; i < kDrainBatch; ++i) {
    char byte;
    const ssize_t n = sys::recv(link_, &byte, 1, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EINTR)) return;
  }
  watch(wait_, EPOLL_CTL_MOD, link_);
}

int make_wake_event() noexcept {
  return sys::open_high([&] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

int make_shared_event() noexcept {
  const int fd =
      sys::open_high([&] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE); });
  if (fd >= 0 && sys::call(SYS_write, fd, &kHalfFull, sizeof kHalfFull) < 0) {
    sys::close_quietly(fd);
    return -1;
  }
  return fd;
}

bool adopt_wake_event(int fd) noexcept {
  char path[32];
  char target[32] = {};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (sys::call(SYS_readlinkat, AT_FDCWD, path, target, sizeof target - 1) < 0) return false;
  if (std::strcmp(target, "anon_inode:[eventfd]") != 0) return false;
  const int flags = sys::fcntl(fd, F_GETFL);
  if (flags < 0 || sys::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return false;
  reserved_fds::close_in_children(fd);
  return true;
}

}  // namespace ringroad
