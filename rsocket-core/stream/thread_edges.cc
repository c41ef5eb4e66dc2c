#include "rsocket-core/stream/thread_edges.h"

#include <cerrno>

namespace ringroad::thread_edges {

bool watch(std::uint64_t stream, int fd, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<std::uint64_t>(fd) << kIdBits | stream;
  return sys::epoll_ctl(thread_edges_fd(), EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST;
}

}  // namespace ringroad::thread_edges
