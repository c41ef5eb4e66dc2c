// Threads that are cancelled, pthreads(7): while they sleep in a call on a stream, before one, and in
// between.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/preload/actor.h"

namespace ringroad::test {
namespace {

constexpr std::size_t kMuch = 64 << 20;

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

pollfd wanted(int fd, short events) { return {fd, events, 0}; }

fd_set set_of(int fd) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  return set;
}

int instance_with(int fd) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  return epoll;
}

// Calls that wait for bytes, or tell of them.
std::vector<Named> receiving_calls(int fd, int epoll) {
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

std::vector<Named> sending_calls(int fd) {
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
const char* with_a_pending_request(const std::function<long()>& call) {
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

// The pattern's bytes until the end, how many there may be.
void drain_pattern(Actor& a, int fd) {
  std::uint64_t done = 0;
  std::vector<char> buffer(1 << 16);
  ssize_t n;
  while ((n = ::recv(fd, buffer.data(), buffer.size(), 0)) > 0) {
    for (ssize_t i = 0; i < n; ++i, ++done) {
      if (buffer[static_cast<std::size_t>(i)] == pattern(done)) continue;
      a.log("wrong byte at %llu", static_cast<unsigned long long>(done));
      return;
    }
  }
  a.log("%s bytes, then %s", done > 0 ? "some" : "no", n == 0 ? "the end" : "an error");
}

// Some nanoseconds for each.
void pass_time(int steps) {
  for (int i = 0; i < steps; ++i) asm volatile("" : : "r"(i));
}

// What a cleanup handler leaves behind.
struct Cleanup {
  int fd = -1;
  std::atomic<int> ran{0};
};

void say_goodbye_and_close(void* of) {
  auto* const cleanup = static_cast<Cleanup*>(of);
  char byte = 0;
  const bool received = ::recv(cleanup->fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  const bool sent = ::send(cleanup->fd, "goodbye", 7, MSG_NOSIGNAL) == 7;
  const bool closed = ::close(cleanup->fd) == 0;
  cleanup->ran.store(received && sent && closed ? 1 : -1);
}

// Without an object: a thread that is cancelled anywhere has no time for destructors.
std::atomic<int> shared_fd{-1};
std::atomic<bool> entered{false};

void* call_for_ever(void*) {
  char byte = 'b';
  ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
  entered.store(true);
  for (;;) {
    ::send(shared_fd.load(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    ::recv(shared_fd.load(), &byte, 1, MSG_DONTWAIT);
    int value = 0;
    socklen_t length = sizeof value;
    ::getsockopt(shared_fd.load(), SOL_SOCKET, SO_ERROR, &value, &length);
    ::ioctl(shared_fd.load(), FIONREAD, &value);
    ::setsockopt(shared_fd.load(), SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value);
  }
}

void* sleep_for_ever(void*) {
  char byte;
  ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
  ::recv(shared_fd.load(), &byte, 1, 0);
  return nullptr;
}

void end_this_thread(int) { ::pthread_exit(&shared_fd); }

}  // namespace

SCENARIO(cancelled_while_it_waits_for_bytes, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    const int epoll = instance_with(fd);
    for (const Named& named : receiving_calls(fd, epoll)) {
      Victim victim([&] { named.call(); });
      victim.wait_asleep(a);
      victim.cancel();
      a.log("%s: %s", named.name, victim.join());
    }
  }
  a.sync();
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] { a.recv(fd, 9); a.send(fd, "def"); });
  a.client([&] { a.recv(fd, 9); });
}

SCENARIO(cancelled_while_it_waits_for_room, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    const std::string bytes = patterned(0, kMuch);
    Victim victim([&] { ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    victim.wait_asleep(a);
    victim.cancel();
    a.log("%s", victim.join());
    a.shutdown(fd, SHUT_WR);
  }
  a.sync();
  a.server([&] { drain_pattern(a, fd); a.send(fd, "all"); });
  a.client([&] { a.recv(fd, 9); });
}

SCENARIO(a_pending_request_ends_a_call_that_need_not_wait, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "abc"); });
  if (a.is_server()) {
    const int epoll = instance_with(fd);
    a.settle(fd, POLLIN, POLLIN);
    for (const Named& named : receiving_calls(fd, epoll)) {
      a.log("%s: %s", named.name, with_a_pending_request(named.call));
    }
    for (const Named& named : sending_calls(fd)) {
      a.log("%s: %s", named.name, with_a_pending_request(named.call));
    }
    a.log("close: %s", with_a_pending_request([&] { return long{::close(fd)}; }));
    a.recv(fd, 9);
    a.send(fd, "end");
  }
  a.sync();
  a.client([&] { a.recv(fd, 9); });
}

SCENARIO(calls_that_are_no_cancellation_points, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "abc"); });
  if (a.is_server()) {
    a.settle(fd, POLLIN, POLLIN);
    const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int value = 0;
    socklen_t length = sizeof value;
    char byte;
    const std::vector<Named> calls = {
        {"setsockopt",
         [&] { return ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value); }},
        {"getsockopt", [&] { return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length); }},
        {"ioctl", [&] { return ::ioctl(fd, FIONREAD, &value); }},
        {"fcntl", [&] { return ::fcntl(fd, F_GETFL); }},
        {"dup", [&] { return ::close_range(static_cast<unsigned>(::dup(fd)), 0, 0); }},
        {"sendfile", [&] { return ::sendfile(fd, file, nullptr, 3); }},
        {"recvfrom by number",
         [&] { return ::syscall(SYS_recvfrom, fd, &byte, 1, 0, nullptr, nullptr); }},
        {"shutdown", [&] { return ::shutdown(fd, SHUT_WR); }},
    };
    for (const Named& named : calls) {
      a.log("%s: %s", named.name, with_a_pending_request(named.call));
    }
    a.recv(fd, 9);
  }
  a.sync();
  a.client([&] { a.settle(fd, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP); a.unread(fd); });
}

SCENARIO(sendfile_outlasts_a_request, kStaysOnChannel) {
  const int fd = a.stream();
  constexpr std::size_t kBytes = 16 << 20;
  if (a.is_client()) {
    const int file = ::memfd_create("pattern", MFD_CLOEXEC);
    const std::string bytes = patterned(0, kBytes);
    std::size_t written = 0;
    while (written < kBytes) {
      const ssize_t n = ::write(file, bytes.data() + written, kBytes - written);
      if (n <= 0) break;
      written += static_cast<std::size_t>(n);
    }
    ssize_t sent = 0;
    off_t offset = 0;
    Victim victim([&] {
      while (sent >= 0 && offset < static_cast<off_t>(kBytes)) {
        sent = ::sendfile(fd, file, &offset, kBytes - static_cast<std::size_t>(offset));
      }
      ::pthread_testcancel();
    });
    victim.wait_asleep(a);
    victim.cancel();
    a.sync();
    const char* const end = victim.join();
    a.log("%s after %lld bytes", end, static_cast<long long>(offset));
  } else {
    a.sync();
    a.recv_pattern(fd, 0, kBytes, 1 << 16);
  }
  a.sync();
}

SCENARIO(a_handler_ends_its_thread_in_sendfile, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    struct sigaction action {};
    action.sa_handler = end_this_thread;
    ::sigaction(SIGUSR1, &action, nullptr);
    const int file = ::memfd_create("much", MFD_CLOEXEC);
    a.result("ftruncate", ::ftruncate(file, kMuch));
    Victim victim([&] {
      off_t offset = 0;
      while (::sendfile(fd, file, &offset, kMuch) > 0) {
      }
    });
    victim.wait_asleep(a);
    ::pthread_kill(victim.thread(), SIGUSR1);
    a.log("%s", victim.join());
    ::close(file);
    a.shutdown(fd, SHUT_WR);
    a.sync();
  } else {
    a.sync();
    char buffer[4096];
    ssize_t n;
    while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
    }
    a.result("recv", n);
  }
}

// Its signal comes while the library is amid something, and is put off to a moment that need not be a sleep.
SCENARIO(a_handler_ends_its_thread_at_any_moment, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    struct sigaction action {};
    action.sa_handler = end_this_thread;
    ::sigaction(SIGUSR1, &action, nullptr);
    int exited = 0;
    for (int i = 0; i < 50; ++i) {
      std::atomic<int> sends{0};
      Victim victim([&] {
        for (;;) {
          ::send(fd, "m", 1, MSG_NOSIGNAL);
          ++sends;
        }
      });
      while (sends.load() < i) ::sched_yield();
      ::pthread_kill(victim.thread(), SIGUSR1);
      exited += std::string(victim.join()) == "exited" ? 1 : 0;
    }
    a.log("exited %d", exited);
    a.shutdown(fd, SHUT_WR);
  } else {
    char buffer[4096];
    ssize_t n;
    while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
    }
    a.result("recv", n);
  }
  a.sync();
}

SCENARIO(a_thread_that_forbids_it_goes_on, kStaysOnChannel) {
  const int fd = a.stream();
  ssize_t received = 0;
  ssize_t received_then = 0;
  char buffer[8];
  Victim victim([&] {
    if (!a.is_server()) return;
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    received = ::recv(fd, buffer, sizeof buffer, 0);
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    received_then = ::recv(fd, buffer, sizeof buffer, 0);
  });
  if (a.is_server()) {
    victim.wait_asleep(a);
    victim.cancel();
  }
  a.sync();
  a.client([&] { a.send(fd, "abc"); });
  const char* const end = victim.join();
  a.log("%s, %zd bytes and %zd", end, received, received_then);
  a.sync();
  a.client([&] { a.send(fd, "def"); });
  a.server([&] { a.recv(fd, 9); });
}

SCENARIO(a_cleanup_handler_talks_on_and_closes, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    Cleanup cleanup;
    cleanup.fd = fd;
    Victim victim([&] {
      char byte;
      pthread_cleanup_push(say_goodbye_and_close, &cleanup);
      ::recv(fd, &byte, 1, 0);
      pthread_cleanup_pop(0);
    });
    victim.wait_asleep(a);
    victim.cancel();
    const char* const end = victim.join();
    a.log("%s, cleaned up: %d", end, cleanup.ran.load());
  } else {
    a.recv(fd, 7, MSG_WAITALL);
    a.recv(fd, 1);
  }
  a.sync();
}

SCENARIO(cancelled_at_any_moment_of_a_receive, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    int cancelled = 0;
    for (int round = 0; round < 200; ++round) {
      std::atomic<bool> begun{false};
      Victim victim([&] {
        char byte;
        begun.store(true);
        for (;;) ::recv(fd, &byte, 1, 0);
      });
      while (!begun.load()) ::sched_yield();
      // The way into the sleep takes some microseconds.
      pass_time(round * 200);
      victim.cancel();
      cancelled += std::strcmp(victim.join(), "cancelled") == 0 ? 1 : 0;
    }
    a.log("%d threads were cancelled", cancelled);
  }
  a.sync();
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] { a.recv(fd, 9); });
}

SCENARIO(cancelled_among_others_that_wait, kStaysOnChannel) {
  // The others still get what comes, and their time-outs are their own.
  const int fd = a.stream();
  if (a.is_server()) {
    char byte = 0;
    ssize_t received = 0;
    Victim stays([&] { received = ::recv(fd, &byte, 1, 0); });
    Victim goes([&] { char other; ::recv(fd, &other, 1, 0); });
    stays.wait_asleep(a);
    goes.wait_asleep(a);
    goes.cancel();
    a.log("%s", goes.join());
    a.sync();
    const char* const end = stays.join();
    a.log("%s with %zd: %c", end, received, byte);
  } else {
    a.sync();
    a.send(fd, "x");
  }
  a.sync();
}

SCENARIO(cancelled_where_the_kernel_has_the_stream, kComesBack) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.recv(fd, 1); });
  // Out-of-band data is the kernel's.
  a.both([&] { char byte; a.result("oob", ::recv(fd, &byte, 1, MSG_OOB)); });
  if (a.is_server()) {
    const int epoll = instance_with(fd);
    for (const Named& named : receiving_calls(fd, epoll)) {
      Victim victim([&] { named.call(); });
      victim.wait_asleep(a);
      victim.cancel();
      a.log("%s: %s", named.name, victim.join());
    }
  }
  a.sync();
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] { a.recv(fd, 9); });
}

SCENARIO(cancelled_in_accept, 0) {
  a.meet();
  if (a.is_server()) {
    Victim victim([&] { ::accept(a.listening(), nullptr, nullptr); });
    victim.wait_asleep(a);
    victim.cancel();
    a.log("%s", victim.join());
  }
  a.sync();
  const int fd = a.stream();
  if (a.is_server()) {
    a.log("accept: %s", with_a_pending_request([&] {
            return long{::accept4(a.listening(), nullptr, nullptr, SOCK_CLOEXEC)};
          }));
  }
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] { a.recv(fd, 9); });
}

SCENARIO(cancelled_in_connect, 0) {
  a.meet();
  if (a.is_client()) {
    // A queue that is full: the kernel leaves the next ones without an answer.
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    ::bind(listener, address, length);
    ::getsockname(listener, address, &length);
    ::listen(listener, 0);
    std::vector<int> queued;
    for (int i = 0; i < 4; ++i) {
      queued.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      ::connect(queued.back(), address, length);
    }
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    Victim victim([&] { ::connect(fd, address, length); });
    victim.wait_asleep(a);
    victim.cancel();
    a.log("%s", victim.join());
    a.log("connect: %s",
          with_a_pending_request([&] { return long{::connect(fd, address, length)}; }));
    a.close(fd);
    for (const int each : queued) ::close(each);
    ::close(listener);
  }
  a.sync();
  const int fd = a.stream();
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] { a.recv(fd, 9); });
}

SCENARIO(cancelled_wherever_it_is, 0) {
  const int fd = a.stream();
  shared_fd.store(fd);
  if (a.is_server()) {
    int cancelled = 0;
    for (int round = 0; round < 100; ++round) {
      entered.store(false);
      pthread_t thread;
      ::pthread_create(&thread, nullptr, call_for_ever, nullptr);
      while (!entered.load()) ::sched_yield();
      pass_time(round * 500);
      ::pthread_cancel(thread);
      void* result = nullptr;
      ::pthread_join(thread, &result);
      cancelled += result == PTHREAD_CANCELED ? 1 : 0;
    }
    a.log("%d threads were cancelled", cancelled);
    pthread_t thread;
    ::pthread_create(&thread, nullptr, sleep_for_ever, nullptr);
    ::usleep(20'000);
    ::pthread_cancel(thread);
    void* result = nullptr;
    ::pthread_join(thread, &result);
    a.log("asleep: %s", result == PTHREAD_CANCELED ? "cancelled" : "returned");
    a.shutdown(fd, SHUT_WR);
  } else {
    char buffer[4096];
    ssize_t n;
    while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
    }
    a.result("recv", n);
    a.send(fd, "last");
  }
  a.sync();
  a.server([&] { a.recv(fd, 4, MSG_WAITALL); });
}

SCENARIO(a_handler_ends_its_thread, kStaysOnChannel) {
  // Programs that know no pthread_cancel(3) send a signal.
  const int fd = a.stream();
  if (a.is_server()) {
    struct sigaction action {};
    action.sa_handler = end_this_thread;
    ::sigaction(SIGUSR1, &action, nullptr);
    for (const Named& named : receiving_calls(fd, instance_with(fd))) {
      Victim victim([&] { named.call(); });
      victim.wait_asleep(a);
      ::pthread_kill(victim.thread(), SIGUSR1);
      a.log("%s: %s", named.name, victim.join());
    }
  }
  a.sync();
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] { a.recv(fd, 9); });
}

}  // namespace ringroad::test
