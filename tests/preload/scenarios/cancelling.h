// Threads that are cancelled, and the calls that they are in.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {

inline constexpr std::size_t kMuch = 64 << 20;

// A thread of libc's own kind, whose end can be told from a return.
class Victim {
 public:
  explicit Victim(std::function<void()> body) : body_(std::move(body)) {
    ::pthread_create(&thread_, nullptr, enter, this);
  }
  void wait_asleep(Actor& a) const {
    if (!wait_until_asleep(tid_)) a.log("the thread does not sleep");
  }
  void cancel() const { ::pthread_cancel(thread_); }
  pthread_t thread() const { return thread_; }
  // How it ended.
  const char* join() const {
    void* result = nullptr;
    ::pthread_join(thread_, &result);
    return result == PTHREAD_CANCELED ? "cancelled" : result == nullptr ? "returned" : "exited";
  }

 private:
  static void* enter(void* self) {
    auto* const victim = static_cast<Victim*>(self);
    victim->tid_.store(static_cast<pid_t>(::syscall(SYS_gettid)));
    victim->body_();
    return nullptr;
  }

  std::function<void()> body_;
  std::atomic<pid_t> tid_{0};
  pthread_t thread_{};
};

struct Named {
  const char* name;
  std::function<long()> call;
};

inline pollfd wanted(int fd, short events) { return {fd, events, 0}; }

inline fd_set set_of(int fd) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  return set;
}

inline int instance_with(int fd) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  return epoll;
}

// Calls that wait for bytes, or tell of them.
inline std::vector<Named> receiving_calls(int fd, int epoll) {
  static char buffer[64];
  static iovec iov{buffer, sizeof buffer};
  static msghdr message;
  message = {};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  return {
      {"recv", [=] { return ::recv(fd, buffer, sizeof buffer, 0); }},
      {"read", [=] { return ::read(fd, buffer, sizeof buffer); }},
      {"readv", [=] { return ::readv(fd, &iov, 1); }},
      {"recvfrom",
       [=] { return ::recvfrom(fd, buffer, sizeof buffer, 0, nullptr, nullptr); }},
      {"recvmsg", [=] { return ::recvmsg(fd, &message, 0); }},
      {"poll", [=] { pollfd p = wanted(fd, POLLIN); return long{::poll(&p, 1, -1)}; }},
      {"ppoll",
       [=] { pollfd p = wanted(fd, POLLIN); return long{::ppoll(&p, 1, nullptr, nullptr)}; }},
      {"select",
       [=] {
         fd_set set = set_of(fd);
         return long{::select(fd + 1, &set, nullptr, nullptr, nullptr)};
       }},
      {"pselect",
       [=] {
         fd_set set = set_of(fd);
         return long{::pselect(fd + 1, &set, nullptr, nullptr, nullptr, nullptr)};
       }},
      {"epoll_wait",
       [=] { epoll_event event; return long{::epoll_wait(epoll, &event, 1, -1)}; }},
      {"epoll_pwait",
       [=] { epoll_event event; return long{::epoll_pwait(epoll, &event, 1, -1, nullptr)}; }},
  };
}

inline std::vector<Named> sending_calls(int fd) {
  static char byte = 'b';
  static iovec iov{&byte, 1};
  static msghdr message;
  message = {};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  return {
      {"send", [=] { return ::send(fd, &byte, 1, MSG_NOSIGNAL); }},
      {"write", [=] { return ::write(fd, &byte, 1); }},
      {"writev", [=] { return ::writev(fd, &iov, 1); }},
      {"sendto", [=] { return ::sendto(fd, &byte, 1, MSG_NOSIGNAL, nullptr, 0); }},
      {"sendmsg", [=] { return ::sendmsg(fd, &message, MSG_NOSIGNAL); }},
  };
}

// Whether a thread that is cancelled already, and only now allows it, ends in `call`.
inline const char* with_a_pending_request(const std::function<long()>& call) {
  std::atomic<bool> go{false};
  std::atomic<bool> disabled{false};
  Victim victim([&] {
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    disabled.store(true);
    while (!go.load()) ::sched_yield();
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    call();
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  });
  while (!disabled.load()) ::sched_yield();
  victim.cancel();
  go.store(true);
  return victim.join();
}

}  // namespace ringroad::test
