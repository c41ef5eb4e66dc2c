// How one end of a shared-memory channel sleeps and the other wakes it: the descriptors, not the
// decision (shm_channel.h has that).
//
//   kOneEvent an eventfd for both directions. It is EFD_SEMAPHORE and half full, so it can be read and
//             written at any time. A write is an edge of EPOLLIN, by which the listener wakes the connector,
//             and a read one of EPOLLOUT, by which the connector wakes the listener. Each end watches for
//             its own edge alone (eventfd_read() and ep_poll_callback() of Linux).
//             It is the cheapest wake-up there is, but both ends share one open file: an end could make it
//             blocking and fill it, and the other would hang in write(2). So only between processes of one
//             user, which could as well attach a debugger to each other.
//   kEvents   an eventfd each, which the other end holds too: with a peer that does not know
//             Feature::kOneEvent. Also only between processes of one user.
//   kSocket   the two ends of a connected Unix socket, one byte a wake-up. Neither process holds
//             the other's end, and MSG_DONTWAIT belongs to the call: no thread can be made to wait.
//             (A peer could attach descriptors to a byte, and dropping those could wait; Linux
//             6.16 and later refuses them here, SO_PASSRIGHTS.)
//             An edge-triggered epoll instance stands before it, so that the end of the peer is
//             one event and not a descriptor that is readable for ever.
//
// All functions may be called by any thread at any time, and none of them waits.
#pragma once

#include <sys/epoll.h>
#include <sys/types.h>

#include <cstdint>

#include "rsocket-core/protocol/reason.h"

namespace ringroad {

enum class ShmWakeKind : unsigned char { kEvents = 0, kSocket = 1, kOneEvent = 2 };

class ShmWake {
 public:
  ShmWake() noexcept = default;
  ~ShmWake() { reset(); }
  ShmWake(ShmWake&& other) noexcept;
  ShmWake& operator=(ShmWake&& other) noexcept;
  ShmWake(const ShmWake&) = delete;
  ShmWake& operator=(const ShmWake&) = delete;

  // Takes both eventfds over. REQUIRES: non-blocking; made by processes of one user.
  static ShmWake over_events(int own, int peer) noexcept;
  // Takes over what make_shared_event() has made. `by_writing`: this end wakes its peer by writing.
  // REQUIRES: as above, and not so at the other end.
  static ShmWake over_one_event(int event, bool by_writing) noexcept;
  // Takes the connected socket over, also when it fails: then the result is empty, with a reason.
  static ShmWake over_socket(int socket, Reason& why) noexcept;
  // Two ends inside this process: the connector's and the listener's.
  static bool make_pair(ShmWakeKind kind, ShmWake& a, ShmWake& b, Reason& why) noexcept;

  explicit operator bool() const noexcept { return wait_ >= 0; }
  ShmWakeKind kind() const noexcept { return kind_; }
  // False in a forked child: there it may only be destroyed, and that leaves the parent's alone.
  bool in_own_process() const noexcept;
  unsigned descriptors() const noexcept { return kind_ == ShmWakeKind::kOneEvent ? 1 : 2; }
  // After a wake-up it tells by events(), as Channel::wait_events(). kEvents and kSocket: until drain().
  int fd() const noexcept { return wait_; }
  std::uint32_t events() const noexcept { return events_; }
  void signal_peer() const noexcept;
  // At most once is enough: in kSocket it ends what the peer can do here.
  void signal_self() const noexcept;
  void drain() const noexcept;

 private:
  ShmWake(ShmWakeKind kind, int wait, int link, std::uint32_t events = EPOLLIN) noexcept;
  void reset() noexcept;
  bool wakes_by_writing() const noexcept { return (events_ & EPOLLOUT) != 0; }
  void signal_one_event(bool by_writing) const noexcept;

  ShmWakeKind kind_ = ShmWakeKind::kEvents;
  std::uint32_t events_ = 0;
  int wait_ = -1;  // own eventfd, or the one, or the epoll instance
  int link_ = -1;  // the peer's eventfd, or none, or the socket
  pid_t owner_ = 0;
};

// A new eventfd as ShmWake wants it, for one direction and for both, or -1 with errno.
int make_wake_event() noexcept;
int make_shared_event() noexcept;

// True when `fd` is an eventfd and nothing else (a FUSE file, for one, could make poll(2) wait);
// made non-blocking then.
bool adopt_wake_event(int fd) noexcept;

}  // namespace ringroad
