#include "rsocket-core/stream/thread_edges.h"

#include <cerrno>

namespace ringroad::thread_edges {

bool watch(int wake_fd, std::uint64_t stream, int fd, std::uint32_t events) noexcept {
  const int saved = errno;
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<std::uint64_t>(fd) << kIdBits | stream;
  const bool is_there = sys::epoll_ctl(wake_fd, EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST;
  errno = saved;
  return is_there;
}

}  // namespace ringroad::thread_edges
