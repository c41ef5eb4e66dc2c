// idle_program COUNT: what an epoll_wait(2) costs beside descriptors that have nothing to tell.
// Makes two instances, each with a stream that is used, one with an idle stream beside it and one
// with COUNT. Says "made", waits for a line, asleep with all of the idle streams, and prints the
// time that a message takes, with either.
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>

#include "tests/preload/programs/loopback.h"

namespace {

using ringroad::test::fail;
using ringroad::test::Listener;
using Stream = ringroad::test::Loopback;

struct Set {
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  Stream used;
  std::int64_t best_ns = std::numeric_limits<std::int64_t>::max();

  void add(const Stream& stream) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = stream.server;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, stream.server, &event) != 0) fail("epoll_ctl");
  }
};

// The best of many rounds is the one that nobody has disturbed.
std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void measure(Set& set) {
  constexpr int kMessages = 20;
  const std::int64_t began = now_ns();
  for (int i = 0; i < kMessages; ++i) {
    char byte = 'b';
    epoll_event event{};
    if (send(set.used.client, &byte, 1, MSG_NOSIGNAL) != 1) fail("send");
    if (epoll_wait(set.epoll, &event, 1, -1) != 1 || event.data.fd != set.used.server) {
      fail("epoll_wait");
    }
    if (recv(set.used.server, &byte, 1, 0) != 1) fail("recv");
  }
  set.best_ns = std::min(set.best_ns, (now_ns() - began) / kMessages);
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc == 2 ? std::atoi(argv[1]) : 0;
  if (count <= 0) {
    std::fprintf(stderr, "usage: idle_program COUNT\n");
    return 2;
  }
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  Listener listener;
  Set few;
  Set many;
  few.used = listener.connect_to();
  many.used = listener.connect_to();
  few.add(few.used);
  few.add(listener.connect_to());
  for (int i = 0; i < count; ++i) many.add(listener.connect_to());
  many.add(many.used);
  std::printf("made\n");
  std::fflush(stdout);
  epoll_event line{};
  line.events = EPOLLIN;
  line.data.fd = STDIN_FILENO;
  if (epoll_ctl(many.epoll, EPOLL_CTL_ADD, STDIN_FILENO, &line) != 0) fail("epoll_ctl");
  if (epoll_wait(many.epoll, &line, 1, -1) != 1 || line.data.fd != STDIN_FILENO) fail("epoll_wait");
  if (epoll_ctl(many.epoll, EPOLL_CTL_DEL, STDIN_FILENO, &line) != 0) fail("epoll_ctl");
  if (std::getchar() == EOF) return 1;
  for (int round = 0; round < 100; ++round) {
    measure(few);
    measure(many);
  }
  std::printf("cost %lld %lld end\n", static_cast<long long>(few.best_ns),
              static_cast<long long>(many.best_ns));
  std::fflush(stdout);
  return 0;
}
