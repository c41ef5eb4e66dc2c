#include "rsocket-core/net/tcp_counters.h"

#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

// TCP_ESTABLISHED of netinet/tcp.h, which cannot stand beside linux/tcp.h.
constexpr std::uint8_t kEstablished = 1;

bool memory_of(int fd, std::uint32_t& taken, std::uint32_t& limit) noexcept {
  std::uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t length = sizeof memory;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &length) != 0) return false;
  taken = memory[SK_MEMINFO_RMEM_ALLOC];
  limit = memory[SK_MEMINFO_RCVBUF];
  return true;
}

}  // namespace

bool tcp_counters(int fd, bool connected, std::uint64_t& written, std::uint64_t& read) noexcept {
  // Each direction is two calls (bytes received and not yet read, acknowledged and not yet), with
  // the peer possibly sending or acknowledging between them, so the counts must be the same before
  // and after. A peer that never pauses for so long is not promoted this time.
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    tcp_info before{};
    tcp_info after{};
    int unread = 0;
    int unacknowledged = 0;
    socklen_t length = sizeof before;
    if (sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &before, &length) != 0) return false;
    if (length < offsetof(tcp_info, tcpi_bytes_received) + sizeof before.tcpi_bytes_received) {
      return false;
    }
    if (sys::ioctl(fd, SIOCINQ, &unread) != 0) return false;
    if (sys::ioctl(fd, SIOCOUTQ, &unacknowledged) != 0) return false;
    length = sizeof after;
    if (sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &after, &length) != 0) return false;
    if (after.tcpi_bytes_received != before.tcpi_bytes_received ||
        after.tcpi_bytes_acked != before.tcpi_bytes_acked) {
      continue;
    }
    // Not tcpi_bytes_sent less tcpi_bytes_retrans: what could not leave the host at first (no
    // route, a full queue) is in the former twice, and never in the latter. See docs/decisions.md.
    const unsigned syn = connected ? 1 : 0;
    written = after.tcpi_bytes_acked - syn + static_cast<unsigned>(unacknowledged);
    read = after.tcpi_bytes_received - static_cast<unsigned>(unread);
    return true;
  }
  return false;
}

bool tcp_counters_are(int fd, bool connected, std::uint64_t written, std::uint64_t read) noexcept {
  std::uint64_t kernel_written = 0;
  std::uint64_t kernel_read = 0;
  return tcp_counters(fd, connected, kernel_written, kernel_read) && kernel_written == written &&
         kernel_read == read;
}

bool tcp_has_room_behind(int fd, std::uint64_t unread) noexcept {
  if (unread == 0) return true;
  int arrived = 0;
  if (sys::ioctl(fd, SIOCINQ, &arrived) != 0) return false;
  if (static_cast<unsigned>(arrived) < unread) return false;
  std::uint32_t taken = 0;
  std::uint32_t limit = 0;
  return memory_of(fd, taken, limit) && taken <= limit / 2;
}

void tcp_make_room(int fd, std::uint64_t bytes) noexcept {
  std::uint32_t taken = 0;
  std::uint32_t limit = 0;
  // The kernel counts what its packets take, which is seldom twice what is in them.
  if (!memory_of(fd, taken, limit) || bytes <= limit / 4) return;
  int before = 0;
  socklen_t length = sizeof before;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &before, &length) != 0) return;
  // socket(7): a program that asks to be woken for so many bytes is given a buffer that takes them (since
  // Linux 4.18), and keeps it.
  const int wanted =
      static_cast<int>(std::min<std::uint64_t>(bytes, std::numeric_limits<int>::max()));
  if (wanted <= before) return;
  sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
  sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &before, sizeof before);
}

bool tcp_is_half_full(int fd) noexcept {
  std::uint32_t taken = 0;
  std::uint32_t limit = 0;
  return memory_of(fd, taken, limit) && taken > limit / 2;
}

bool tcp_established(int fd) noexcept {
  // The kernel fills as much of it as is asked for: the rest would be a good part of a small stack.
  static_assert(offsetof(tcp_info, tcpi_state) == 0);
  decltype(tcp_info::tcpi_state) state = 0;
  socklen_t length = sizeof state;
  return sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &state, &length) == 0 && state == kEstablished;
}

bool tcp_peer_ended(int fd) noexcept {
  if (tcp_established(fd)) return false;
  pollfd ends{fd, POLLRDHUP, 0};
  timespec now{0, 0};
  return sys::ppoll(&ends, 1, &now, nullptr) > 0 &&
         (ends.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace ringroad
