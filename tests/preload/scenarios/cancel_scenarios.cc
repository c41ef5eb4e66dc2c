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

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/cancelling.h"

namespace ringroad::test {
namespace {

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

}  // namespace ringroad::test
