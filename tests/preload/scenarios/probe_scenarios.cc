// What programs have found wrong with other sockets over RDMA: closing, waiting and waking, each with the
// kernel's answer. docs/compatibility.md names the files that have the rest of these probes.
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <list>
#include <memory>
#include <string>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

int entries_of(const char* directory) {
  int count = 0;
  if (DIR* entries = ::opendir(directory)) {
    while (::readdir(entries) != nullptr) ++count;
    ::closedir(entries);
  }
  return count;
}

// How many events epoll_wait() reports in `ms`.
int events_within(int epoll, int ms) {
  int events = 0;
  const auto end = Clock::now() + milliseconds(ms);
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    const auto left = std::chrono::ceil<milliseconds>(end - now).count();
    epoll_event event{};
    const int n = ::epoll_wait(epoll, &event, 1, static_cast<int>(left));
    if (n > 0) events += n;
  }
  return events;
}

int add(int epoll, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int watching(Actor& a, int fd, std::uint32_t events) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  a.result("add", add(epoll, fd, events));
  return epoll;
}

// How often the calling thread has gone to sleep.
long sleeps() {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%ld/status", ::syscall(SYS_gettid));
  long count = -1;
  if (std::FILE* file = std::fopen(path, "r")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1) break;
    }
    std::fclose(file);
  }
  return count;
}

}  // namespace

SCENARIO(probe_close_of_an_unused_udp_socket, kStaysOnChannel) {
  a.stream();
  a.both([&] {
    const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
    a.log("socket: %d", fd >= 0);
    a.result("close", ::close(fd));
  });
}

SCENARIO(probe_an_idle_socket_has_room_once, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    const int epoll = watching(a, fd, EPOLLET | EPOLLOUT);
    a.log("%d events", events_within(epoll, 200));
    ::close(epoll);
  });
}

SCENARIO(probe_an_unread_byte_is_told_once, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    const int epoll = watching(a, fd, EPOLLIN | EPOLLONESHOT);
    a.log("%d events", events_within(epoll, 200));
    ::close(epoll);
    a.recv(fd, 1);
  });
}

SCENARIO(probe_an_instance_is_closed_with_its_members, kStaysOnChannel) {
  const int fd = a.stream();
  const int other = a.stream();
  a.both([&] {
    // Whatever the library keeps for threads that wait is there by now. What it opens once, for itself, may
    // be on its way on a busy host; what a closed instance leaves behind comes with each.
    ::close(watching(a, fd, EPOLLIN));
    int descriptors = 0;
    int threads = 0;
    int wrong = 0;  // in any of them
    for (int attempt = 0; attempt < 20; ++attempt) {
      descriptors = -entries_of("/proc/self/fd");
      threads = -entries_of("/proc/self/task");
      for (int i = 0; i < 5; ++i) {
        const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        wrong += add(epoll, fd, EPOLLIN | EPOLLOUT) != 0;
        wrong += add(epoll, other, EPOLLIN) != 0;
        wrong += ::epoll_wait(epoll, &event, 1, 0) != 1;
        wrong += ::close(epoll) != 0;
      }
      descriptors += entries_of("/proc/self/fd");
      threads += entries_of("/proc/self/task");
      if (descriptors == 0 && threads == 0) break;
    }
    a.log("%d calls went wrong", wrong);
    a.log("%d descriptors more", descriptors);
    a.log("%d threads more", threads);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.recv(fd, 1); });
}

SCENARIO(probe_idle_threads_sleep_until_their_time_is_over, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    std::list<Thread> threads;
    for (int i = 0; i < 64; ++i) {
      threads.emplace_back(a, [&] {
        pollfd entry{fd, POLLIN, 0};
        ::poll(&entry, 1, 1);  // the thread's first wait
        const long before = sleeps();
        const int n = ::poll(&entry, 1, 500);
        // Once for the wait itself; now and then for a lock that another thread has.
        a.log("%d ready, %s", n, sleeps() - before <= 8 ? "asleep" : "awake again and again");
      });
    }
    for (Thread& thread : threads) thread.join();
  });
}

}  // namespace ringroad::test
