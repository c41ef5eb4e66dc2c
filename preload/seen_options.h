// What the program, as far as it is known here, has made of its sockets: their kind, and the options that
// make closing or reading another thing than usual. Most programs set none, so that the kernel is hardly
// ever asked.
//
// Thread rule: any thread at any time.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>

#include "preload/fd_table.h"

namespace ringroad::preload::seen_options {

// Which numbers socket(2) has last given a TCP socket: a hint, for a caller that asks again before it
// matters.
extern std::atomic<bool> made_for_tcp[fd_table::kLimit];
inline void note_socket(int fd, int domain, int type, int protocol) noexcept {
  if (!fd_table::in_range(fd)) return;
  const bool tcp = (domain == AF_INET || domain == AF_INET6) &&
                   (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM &&
                   (protocol == 0 || protocol == IPPROTO_TCP);
  made_for_tcp[fd].store(tcp, std::memory_order_relaxed);
}
inline bool may_be_tcp(int fd) noexcept {
  return fd_table::in_range(fd) && made_for_tcp[fd].load(std::memory_order_relaxed);
}
// The kernel says whether it is one.
bool is_tcp(int fd) noexcept;

// Whether closing may take its time (SO_LINGER), as far as it is known here: the program has set
// the option, or inherited a listener that has it. Never false again.
extern std::atomic<bool> some_linger;
void note_if_lingers(int fd) noexcept;
// Whether reading from `fd` may be another thing than reading bytes as they come, by options that
// are set before it is a stream or that an accepted socket has from its listener (SO_RCVLOWAT and
// the like; on a stream they hand it back). Asks the kernel only where the program, as far as it is
// known here, has ever set one.
bool reads_unusually(int fd) noexcept;
void note_if_reads_unusually(int fd) noexcept;
// Whether a receive may be over in time (SO_RCVTIMEO), as some_linger.
extern std::atomic<bool> some_time_out;
void note_if_times_out(int fd) noexcept;
// That option of SOL_SOCKET.
constexpr bool sets_time_out(int name) noexcept {
  return name == SO_RCVTIMEO_OLD || name == SO_RCVTIMEO_NEW;
}
constexpr bool sets_time_out_to_send(int name) noexcept {
  return name == SO_SNDTIMEO_OLD || name == SO_SNDTIMEO_NEW;
}
// All three, of a listener that is new here: what it accepts is as it is.
void note_all(int fd) noexcept;

// Keeps the file that `fd` names open for as long as it lives, if closing it may take its time
// (SO_LINGER): made before a FdMutation, it waits after it. Of a number that is not known here the
// kernel is asked in any case.
class LingerHold {
 public:
  explicit LingerHold(int fd) noexcept;
  ~LingerHold();
  LingerHold(const LingerHold&) = delete;
  LingerHold& operator=(const LingerHold&) = delete;

 private:
  int copy_ = -1;
};

}  // namespace ringroad::preload::seen_options
