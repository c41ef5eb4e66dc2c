// waiting_program MILLISECONDS: waits on streams that stay silent, beside others that do not.
//
// Makes the streams, has four threads move bytes over two of them as fast as they go, says "made"
// and waits for a line. Then, all at once and each in a thread of its own, it waits so long by
// epoll_wait(2), poll(2), select(2) and recv(2) (SO_RCVTIMEO), for silent streams and, so that it
// is known what this kernel does under this load, for silent Unix sockets. Prints of each, and last
// how much was moved meanwhile:
//
//   wait poll stream RESULT MICROSECONDS SLEEPS      (or kernel; how often the thread went to
//   sleep) moved BYTES end
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <functional>
#include <latch>
#include <string>
#include <vector>

#include "tests/preload/programs/loopback.h"

namespace {

using ringroad::test::fail;
using ringroad::test::Listener;
using ringroad::test::Loopback;

constexpr int kRepeats = 3;  // threads for each way to wait

std::int64_t now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

long sleeps() {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%ld/status", syscall(SYS_gettid));
  long count = -1;
  if (std::FILE* file = std::fopen(path, "re")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1) break;
    }
    std::fclose(file);
  }
  return count;
}

// ---- The load

std::atomic<bool> over{false};
std::atomic<std::uint64_t> moved{0};

void send_all_the_time(int fd) {
  const std::vector<char> bytes(16 * 1024, 'b');
  while (!over.load(std::memory_order_relaxed)) {
    if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) <= 0) fail("send");
  }
  shutdown(fd, SHUT_WR);
}

void receive_all(int fd) {
  std::vector<char> bytes(16 * 1024);
  ssize_t n;
  while ((n = recv(fd, bytes.data(), bytes.size(), 0)) > 0) {
    moved.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
  }
  if (n < 0) fail("recv");
}

// ---- The waits

struct Way {
  const char* name;
  int (*wait)(int fd, int ms);
};

int by_epoll(int fd, int ms) {
  const int instance = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
  const int result = epoll_wait(instance, &event, 1, ms);
  close(instance);
  return result;
}

int by_poll(int fd, int ms) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, ms);
}

int by_select(int fd, int ms) {
  fd_set in;
  FD_ZERO(&in);
  FD_SET(fd, &in);
  timeval timeout{ms / 1000, ms % 1000 * 1000};
  return select(fd + 1, &in, nullptr, nullptr, &timeout);
}

// 0, as the others, if there was nothing.
int by_recv(int fd, int ms) {
  const timeval timeout{ms / 1000, ms % 1000 * 1000};
  if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) != 0) fail("SO_RCVTIMEO");
  char byte;
  const ssize_t n = recv(fd, &byte, 1, 0);
  return n < 0 && errno == EAGAIN ? 0 : static_cast<int>(n) + 100;
}

constexpr Way kWays[] = {
    {"epoll_wait", by_epoll}, {"poll", by_poll}, {"select", by_select}, {"recv", by_recv}};

struct Wait {
  const Way* way;
  const char* whose;
  int fd;
  int result = -1;
  std::int64_t took_us = 0;
  long slept = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int ms = argc == 2 ? std::atoi(argv[1]) : 0;
  if (ms <= 0) {
    std::fprintf(stderr, "usage: waiting_program MILLISECONDS\n");
    return 2;
  }
  Listener listener;
  std::vector<Wait> waits;
  for (const Way& way : kWays) {
    for (int i = 0; i < kRepeats; ++i) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) fail("socketpair");
      waits.push_back({&way, "stream", listener.connect_to().server});
      waits.push_back({&way, "kernel", pair[0]});
    }
  }
  std::vector<std::thread> load;
  for (int i = 0; i < 2; ++i) {
    const Loopback busy = listener.connect_to();
    load.emplace_back(send_all_the_time, busy.client);
    load.emplace_back(receive_all, busy.server);
  }
  std::printf("made\n");
  std::fflush(stdout);
  if (std::getchar() == EOF) return 1;
  const std::uint64_t before = moved.load();
  std::latch ready(static_cast<std::ptrdiff_t>(waits.size()));
  std::vector<std::thread> threads;
  for (Wait& wait : waits) {
    threads.emplace_back([&ready, &wait, ms] {
      wait.way->wait(wait.fd, 1);  // whatever a thread's first wait takes
      ready.arrive_and_wait();
      const long slept = sleeps();
      const std::int64_t began = now_us();
      wait.result = wait.way->wait(wait.fd, ms);
      wait.took_us = now_us() - began;
      wait.slept = sleeps() - slept;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::uint64_t bytes = moved.load() - before;
  over.store(true);
  for (std::thread& thread : load) thread.join();
  for (const Wait& wait : waits) {
    std::printf("wait %s %s %d %lld %ld\n", wait.way->name, wait.whose, wait.result,
                static_cast<long long>(wait.took_us), wait.slept);
  }
  std::printf("moved %llu end\n", static_cast<unsigned long long>(bytes));
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
