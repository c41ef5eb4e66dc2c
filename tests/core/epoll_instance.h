// An epoll instance of a test with its EpollSet, whose waits call libc.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "rsocket-core/stream/epoll_set.h"

namespace ringroad::test {

inline constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

// Called by each thread that is about to sleep.
inline std::function<void()> before_sleep;

inline EpollSet::Calls libc_calls() {
  EpollSet::Calls calls;
  calls.pwait = [](int epfd, epoll_event* events, int max, int timeout, const sigset_t* mask) {
    if (timeout != 0 && before_sleep) before_sleep();
    return ::epoll_pwait(epfd, events, max, timeout, mask);
  };
  calls.pwait2 = [](int epfd, epoll_event* events, int max, const timespec* timeout,
                    const sigset_t* mask) {
    if (before_sleep) before_sleep();
    return ::epoll_pwait2(epfd, events, max, timeout, mask);
  };
  return calls;
}

inline epoll_event event_of(std::uint32_t mask, std::uint64_t data) {
  epoll_event event{};
  event.events = mask;
  event.data.u64 = data;
  return event;
}

struct Instance {
  Instance() : set(EpollSet::create(fd, libc_calls())) {}
  ~Instance() {
    set.reset();
    ::close(fd);
  }
  // What is ready now: data and events.
  std::map<std::uint64_t, std::uint32_t> ready(int max = 16, std::int64_t deadline_ns = 0) {
    std::vector<epoll_event> events(static_cast<std::size_t>(max));
    const int n = set->wait(fd, events.data(), max, deadline_ns, nullptr);
    std::map<std::uint64_t, std::uint32_t> out;
    for (int i = 0; i < n; ++i) {
      const epoll_event event = events[static_cast<std::size_t>(i)];
      const std::uint64_t data = event.data.u64;  // of a packed structure: no reference to it
      out[data] = event.events;
    }
    EXPECT_EQ(out.size(), static_cast<std::size_t>(std::max(n, 0))) << "an event twice";
    return out;
  }

  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  std::shared_ptr<EpollSet> set;
};

using Ready = std::map<std::uint64_t, std::uint32_t>;

}  // namespace ringroad::test
