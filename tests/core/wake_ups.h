// What tells a thread that sleeps on a channel's descriptor, as Channel::wait_events() has it.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <cstdint>

#include "rsocket-core/channel/channel.h"

namespace ringroad {

class WakeUps {
 public:
  explicit WakeUps(const Channel& channel) noexcept : WakeUps(channel.wait_fd(), channel.wait_events()) {}
  WakeUps(int fd, std::uint32_t events) noexcept {
    epoll_event event{};
    event.events = events;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    if ((events & EPOLLET) != 0) told();  // that it is there
  }
  ~WakeUps() { ::close(epoll_); }
  WakeUps(const WakeUps&) = delete;
  WakeUps& operator=(const WakeUps&) = delete;

  // By an edge once, else until Channel::drain().
  bool told(int timeout_ms = 0) noexcept {
    epoll_event event;
    return ::epoll_wait(epoll_, &event, 1, timeout_ms) == 1;
  }

 private:
  const int epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
};

}  // namespace ringroad
