// Calls of epoll(7) as scenarios make them, logged: what was asked, how it ended, and each event.
//
// Thread rule: as an Actor's.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {

inline constexpr int kSoon = 2000;
inline constexpr std::uint64_t kTag = 0x1122334455667788;

inline int change(Actor& a, const char* what, int epoll, int op, int fd, std::uint32_t events,
           std::uint64_t data = kTag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  return static_cast<int>(a.result(what, ::epoll_ctl(epoll, op, fd, &event)));
}

inline int add(Actor& a, int epoll, int fd, std::uint32_t events, std::uint64_t data = kTag) {
  return change(a, "add", epoll, EPOLL_CTL_ADD, fd, events, data);
}
inline int modify(Actor& a, int epoll, int fd, std::uint32_t events, std::uint64_t data = kTag) {
  return change(a, "mod", epoll, EPOLL_CTL_MOD, fd, events, data);
}
inline int remove(Actor& a, int epoll, int fd) {
  return change(a, "del", epoll, EPOLL_CTL_DEL, fd, 0);
}

// One wait: how many, and each event with its data, in the order of the data.
inline int wait(Actor& a, int epoll, int timeout_ms, int max = 8) {
  std::vector<epoll_event> events(static_cast<std::size_t>(max));
  errno = 0;
  const int n = ::epoll_wait(epoll, events.data(), max, timeout_ms);
  std::string line;
  if (n > 0) {
    std::sort(events.begin(), events.begin() + n, [](const epoll_event& x, const epoll_event& y) {
      return x.data.u64 < y.data.u64;
    });
    for (int i = 0; i < n; ++i) {
      line += " " + poll_names(static_cast<short>(events[static_cast<std::size_t>(i)].events));
      if (events[static_cast<std::size_t>(i)].data.u64 != kTag) {
        line += "@" + std::to_string(events[static_cast<std::size_t>(i)].data.u64);
      }
    }
  }
  if (n < 0) line = std::string(" ") + strerrorname_np(errno);
  a.log("wait = %d:%s", n, line.c_str());
  return n;
}

inline int make() { return ::epoll_create1(EPOLL_CLOEXEC); }

// Several connections at once, told apart by their place.
inline std::vector<int> streams(Actor& a, int count) {
  std::vector<int> out;
  for (int i = 0; i < count; ++i) out.push_back(a.stream());
  return out;
}

}  // namespace ringroad::test
