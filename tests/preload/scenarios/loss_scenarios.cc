// What a program does to the library without knowing: it closes numbers that it has not opened, and ends
// threads behind libc's back. And peers that read nothing.
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

std::vector<int> open_numbers() {
  std::vector<int> numbers;
  DIR* const directory = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(directory)) {
    if (entry->d_name[0] != '.') numbers.push_back(std::atoi(entry->d_name));
  }
  ::closedir(directory);
  return numbers;
}

int stream_fd = -1;

void* wait_and_end(void*) {
  pollfd entry{stream_fd, POLLIN, 0};
  ::poll(&entry, 1, 1);
  ::syscall(SYS_exit, 0);
  return nullptr;
}

void set_user_timeout(Actor& a, int fd, unsigned ms) {
  a.result("TCP_USER_TIMEOUT", ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
}

char bytes[65536];

}  // namespace

// Those of the library's that it has closed since the program has seen them.
SCENARIO(a_program_closes_all_numbers_that_it_has_seen, 0) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "ping"); });
  a.server([&] { a.recv(fd, 4); });
  a.client([&] {
    constexpr int kAboveAllOfTheScenarios = 500;
    const std::vector<int> before = open_numbers();
    a.close(fd);
    int refused = 0;
    for (int tries = 0; tries < 1000; ++tries) {
      const std::vector<int> now = open_numbers();
      bool one_is_gone = false;
      for (const int number : before) {
        const bool is_there = std::find(now.begin(), now.end(), number) != now.end();
        if (number < kAboveAllOfTheScenarios || is_there) continue;
        one_is_gone = true;
        if (::close(number) != 0) ++refused;
      }
      if (one_is_gone) break;
      ::usleep(1'000);
    }
    a.log("refused: %d", refused);
  });
}

SCENARIO(a_program_closes_all_numbers_that_it_sees, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "ping"); });
  a.server([&] { a.recv(fd, 4); });
  a.client([&] {
    constexpr int kAboveAllOfTheScenarios = 500;
    int refused = 0;
    for (const int number : open_numbers()) {
      if (number >= kAboveAllOfTheScenarios && ::close(number) != 0) ++refused;
    }
    a.log("refused: %d", refused);
    // A program that closes until nothing is left comes to an end.
    int again = 0;
    for (const int number : open_numbers()) {
      if (number >= kAboveAllOfTheScenarios && ::close(number) == 0) ++again;
    }
    a.log("closed once more: %d", again);
  });
  a.client([&] { a.send(fd, "ping"); });
  a.server([&] { a.recv(fd, 4); });
}

SCENARIO(threads_that_end_by_the_system_call_leave_few_descriptors, kStaysOnChannel) {
  stream_fd = a.stream();
  a.client([&] { a.send(stream_fd, "ping"); });
  a.server([&] { a.recv(stream_fd, 4); });
  a.client([&] {
    const std::size_t before = open_numbers().size();
    for (int i = 0; i < 80; ++i) {
      pthread_t thread;
      if (::pthread_create(&thread, nullptr, wait_and_end, nullptr) != 0) return;
      ::pthread_join(thread, nullptr);
    }
    a.log("many are left: %s", open_numbers().size() > before + 40 ? "yes" : "no");
  });
  a.client([&] { a.send(stream_fd, "ping"); });
  a.server([&] { a.recv(stream_fd, 4); });
}

SCENARIO(a_send_to_a_peer_that_reads_nothing_ends_after_the_user_timeout, 0) {
  const int fd = a.stream();
  a.client([&] {
    set_user_timeout(a, fd, 400);
    ssize_t n;
    while ((n = ::send(fd, bytes, sizeof bytes, MSG_NOSIGNAL)) > 0) {
    }
    a.result("send", n);
    a.result("send", ::send(fd, bytes, 1, MSG_NOSIGNAL));
  });
}

SCENARIO(a_wait_for_room_ends_after_the_user_timeout, 0) {
  const int fd = a.stream();
  a.client([&] {
    set_user_timeout(a, fd, 400);
    a.set_nonblocking(fd);
    short told = 0;
    while ((told & POLLERR) == 0) {
      while (::send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0) {
      }
      pollfd entry{fd, POLLOUT, 0};
      if (::poll(&entry, 1, 10'000) <= 0) break;
      told = entry.revents;
    }
    a.log("an error is told: %s", (told & POLLERR) != 0 ? "yes" : "no");
    a.error(fd);
  });
}

SCENARIO(a_peer_that_reads_slowly_outlasts_the_user_timeout, 0) {
  const int fd = a.stream();
  constexpr std::uint64_t kBytes = 4'000'000;
  if (a.is_client()) {
    set_user_timeout(a, fd, 400);
    a.send_pattern(fd, 0, kBytes, 100'000);
  } else {
    // A large part each time, so that the kernel opens its window.
    static char taken[1'000'000];
    std::uint64_t all = 0;
    while (all < kBytes) {
      const ssize_t n = ::recv(fd, taken, sizeof taken, MSG_WAITALL);
      if (n <= 0) break;
      all += static_cast<std::uint64_t>(n);
      ::poll(nullptr, 0, 150);  // the reader's pace is what this is about
    }
    a.log("%llu bytes", static_cast<unsigned long long>(all));
  }
  a.sync();
}

}  // namespace ringroad::test
