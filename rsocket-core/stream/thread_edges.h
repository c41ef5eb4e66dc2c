// Channels that tell of a wake-up by an edge alone (Channel::wait_events()), for a thread that sleeps in
// ppoll(2): they are in an epoll instance of the thread's, thread_edges_fd(), and it sleeps on that.
//
// A channel stays there from one sleep to the next. A new one tells at once, without a wake-up: the thread
// looks and sleeps again. One that the thread sleeps on no more is taken out when it tells something.
//
// Thread rule: of the calling thread alone. A handler that interrupts a sleep may take what that is told of:
// who is interrupted arms the channel anew.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/waiter.h"

namespace ringroad::thread_edges {

// Sees to it that `fd`, of the stream's channel, is there. REQUIRES: thread_edges_fd() >= 0.
bool watch(std::uint64_t stream, int fd, std::uint32_t events) noexcept;

// Streams, by their id, whose channels have told something.
struct Told {
  std::array<std::uint64_t, 16> streams;
  unsigned count = 0;

  bool has(std::uint64_t stream) const noexcept {
    return std::find(streams.begin(), streams.begin() + count, stream) != streams.begin() + count;
  }
};
// Takes what the instance has to tell, the rest later. `sleeps_on(id)`: whether the thread sleeps on it.
template <typename SleepsOn>
Told take(SleepsOn sleeps_on) noexcept;

// Below: no business of a caller's.
inline constexpr unsigned kIdBits = 40;
inline std::uint64_t stream_of(const epoll_event& event) noexcept {
  return event.data.u64 & ((std::uint64_t{1} << kIdBits) - 1);
}

template <typename SleepsOn>
Told take(SleepsOn sleeps_on) noexcept {
  Told told;
  epoll_event events[told.streams.size()];
  const int n = sys::epoll_wait(thread_edges_fd(), events, static_cast<int>(told.streams.size()), 0);
  for (int i = 0; i < n; ++i) {
    const std::uint64_t stream = stream_of(events[i]);
    if (sleeps_on(stream)) {
      told.streams[told.count++] = stream;
    } else {
      // If the number is another channel's by now, that one is new again.
      const int fd = static_cast<int>(events[i].data.u64 >> kIdBits);
      sys::epoll_ctl(thread_edges_fd(), EPOLL_CTL_DEL, fd, nullptr);
    }
  }
  return told;
}

}  // namespace ringroad::thread_edges
