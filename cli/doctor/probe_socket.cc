#include "cli/doctor/probe_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ringroad::cli::doctor {
namespace {

using std::chrono::microseconds;

// Further away than this, a deadline is left to the socket's own time: an echo that is timed should
// cost no more system calls than it needs.
constexpr std::chrono::seconds kNear{30};

bool leave_time(int fd, int option, ProbeClock::time_point until) {
  if (until == kNoDeadline) return true;
  const auto left = std::chrono::duration_cast<microseconds>(until - ProbeClock::now());
  if (left.count() <= 0) {
    errno = EAGAIN;
    return false;
  }
  if (left < kNear) set_socket_time(fd, option, left);
  return true;
}

}  // namespace

void set_socket_time(int fd, int option, microseconds time) {
  constexpr long kMillion = 1000000;
  // Nought would be for ever.
  const long count = std::max<long>(time.count(), 1);
  const timeval value{count / kMillion, count % kMillion};
  setsockopt(fd, SOL_SOCKET, option, &value, sizeof value);
}

bool receive_all(int fd, char* to, std::size_t size, ProbeClock::time_point until) {
  for (std::size_t have = 0; have < size;) {
    if (!leave_time(fd, SO_RCVTIMEO, until)) return false;
    const ssize_t n = recv(fd, to + have, size - have, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ECONNRESET;
    if (n <= 0) return false;
    have += static_cast<std::size_t>(n);
  }
  return true;
}

bool send_all(int fd, const char* from, std::size_t size, ProbeClock::time_point until) {
  for (std::size_t sent = 0; sent < size;) {
    if (!leave_time(fd, SO_SNDTIMEO, until)) return false;
    const ssize_t n = send(fd, from + sent, size - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace ringroad::cli::doctor
