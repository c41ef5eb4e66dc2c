// What a probe and its answerer do with their sockets, which are blocking ones.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>

namespace ringroad::cli::doctor {

using ProbeClock = std::chrono::steady_clock;
constexpr ProbeClock::time_point kNoDeadline = ProbeClock::time_point::max();

// `option`: SO_RCVTIMEO or SO_SNDTIMEO; how long one call may wait.
void set_socket_time(int fd, int option, std::chrono::microseconds time);

// All bytes, through interruptions by signals. False with errno when there is an error, when one
// call waited for longer than the socket's time (EAGAIN), when `until` comes (EAGAIN), or when the
// peer is gone (ECONNRESET). Near `until` they shorten the socket's time.
bool receive_all(int fd, char* to, std::size_t size, ProbeClock::time_point until = kNoDeadline);
bool send_all(int fd, const char* from, std::size_t size,
              ProbeClock::time_point until = kNoDeadline);

}  // namespace ringroad::cli::doctor
