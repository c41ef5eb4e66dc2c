// Threads that end at any moment of a call on a stream: they are cancelled, or a handler ends them.
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

// Some nanoseconds for each.
void pass_time(int steps) {
  for (int i = 0; i < steps; ++i) asm volatile("" : : "r"(i));
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
