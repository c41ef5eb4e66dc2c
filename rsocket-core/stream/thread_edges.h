// Channels that tell of a wake-up by an edge alone (Channel::wait_events()), for a thread that sleeps in
// ppoll(2): they are in the instance on which it sleeps, thread_wake_fd().
//
// A channel stays there from one sleep to the next. A new one tells at once, without a wake-up: the thread
// looks and sleeps again. One that the thread sleeps on no more is taken out when it tells something.
//
// Thread rule: of the calling thread alone. A handler that interrupts a sleep may take what that is told of:
// the call that is interrupted arms the channel anew.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/waiter.h"

namespace ringroad::thread_edges {

inline constexpr unsigned kGenerationBits = 24;

// Sees to it that `fd`, of the stream's channel, is in the instance.
bool watch(int wake_fd, std::uint64_t stream, int fd, std::uint32_t events) noexcept;

// Says that this generation of a stream's channel is in the thread's instance, as that is now.
inline std::uint64_t mark_of(std::uint64_t generation) noexcept {
  constexpr std::uint64_t kGenerations = (std::uint64_t{1} << kGenerationBits) - 1;
  return thread_wake_number() << kGenerationBits | (generation & kGenerations);
}

// Streams, by their id, whose channels have told something.
struct Told {
  std::array<std::uint64_t, 16> streams;
  unsigned count = 0;
  bool more = false;  // others too: each may have

  bool has(std::uint64_t stream) const noexcept {
    return more || std::find(streams.begin(), streams.begin() + count, stream) != streams.begin() + count;
  }
};
// Takes what the instance has to tell. `sleeps_on(id)`: whether the thread sleeps on it.
template <typename SleepsOn>
Told take(int wake_fd, SleepsOn sleeps_on) noexcept;

// Below: no business of a caller's.
inline constexpr unsigned kIdBits = 40;
inline std::uint64_t stream_of(const epoll_event& event) noexcept {
  return event.data.u64 & ((std::uint64_t{1} << kIdBits) - 1);
}

template <typename SleepsOn>
Told take(int wake_fd, SleepsOn sleeps_on) noexcept {
  Told told;
  epoll_event events[told.streams.size()];
  constexpr int kMost = static_cast<int>(std::size(events));
  int n = kMost;
  for (unsigned round = 0; n == kMost && round < kMostWakeRounds; ++round) {
    n = sys::epoll_wait(wake_fd, events, kMost, 0);
    for (int i = 0; i < n; ++i) {
      const std::uint64_t stream = stream_of(events[i]);
      if (stream == 0) continue;  // wake_thread()
      if (told.count == told.streams.size()) {
        told.more = true;
      } else if (sleeps_on(stream)) {
        told.streams[told.count++] = stream;
      } else {
        // If the number is another channel's by now, that one is new again.
        const int fd = static_cast<int>(events[i].data.u64 >> kIdBits);
        sys::epoll_ctl(wake_fd, EPOLL_CTL_DEL, fd, nullptr);
        renumber_thread_wake();
      }
    }
  }
  return told;
}

}  // namespace ringroad::thread_edges
