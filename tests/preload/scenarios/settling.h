// For scenarios that begin where a stream is on its channel, whichever half of the test's runs it is, or
// where there is no room.
#pragma once

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {

// Bytes that the kernel has carried here.
inline std::uint64_t carried_by_kernel(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_bytes_received : 0;
}

// With the library, until round trips go past the kernel, for a second at most. Calls that wait have been
// seen at both ends then, and no promotion is under way. Not logged.
inline void settle_by_libc(Actor& a, int fd) {
  if (std::getenv("LD_PRELOAD") == nullptr) return;
  constexpr int kQuietRounds = 20;
  char c = 0;
  const auto read = [&] {
    pollfd entry{fd, POLLIN, 0};
    return ::poll(&entry, 1, 5000) == 1 && ::recv(fd, &c, 1, 0) == 1;
  };
  if (a.is_client()) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (int quiet = 0; c != 'e';) {
      const std::uint64_t before = carried_by_kernel(fd);
      const char next = quiet == kQuietRounds || std::chrono::steady_clock::now() > until ? 'e' : 'g';
      if (::send(fd, &next, 1, 0) != 1 || !read()) break;
      quiet = carried_by_kernel(fd) == before ? quiet + 1 : 0;
    }
  } else {
    while (c != 'e' && read()) {
      if (::send(fd, &c, 1, 0) != 1) break;
    }
  }
  a.sync();
}

// Until there is no room, and none will come: what is on its way makes some when it arrives. The thread does
// not sleep, as others may wait for the sleep that follows.
inline void fill(int fd) {
  using Clock = std::chrono::steady_clock;
  const std::string bytes = patterned(0, 100'000);
  for (auto moved = Clock::now(); Clock::now() - moved < std::chrono::milliseconds(20); ::sched_yield()) {
    tcp_info info{};
    socklen_t length = sizeof info;
    ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    bool room = false;
    while (::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) room = true;
    if (room || info.tcpi_unacked != 0) moved = Clock::now();
  }
}

// The same for longer: what is left of a window the kernel uses when it has waited 0.2 s for more.
inline void fill_for_long(int fd) {
  fill(fd);
  ::usleep(300'000);
  fill(fd);
}

}  // namespace ringroad::test
