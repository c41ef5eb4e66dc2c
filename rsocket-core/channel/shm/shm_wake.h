// How one end of a shared-memory channel sleeps and the other wakes it: the descriptors, not the
// decision (shm_channel.h has that).
//
//   kEvents   an eventfd each, which the other end holds too. The cheapest wake-up there is, but
//             both ends share one open file: an end could make it blocking and fill it, and the
//             other would hang in write(2). So only between processes of one user, which could as
//             well attach a debugger to each other.
//   kSocket   the two ends of a connected Unix socket, one byte a wake-up. Neither process holds
//             the other's end, and MSG_DONTWAIT belongs to the call: no thread can be made to wait.
//             (A peer could attach descriptors to a byte, and dropping those could wait; Linux
//             6.16 and later refuses them here, SO_PASSRIGHTS.)
//             An edge-triggered epoll instance stands before it, so that the end of the peer is
//             one event and not a descriptor that is readable for ever.
//
// Both hold two descriptors. All functions may be called by any thread at any time, and none of
// them waits.
#pragma once

#include <sys/types.h>

#include "rsocket-core/protocol/reason.h"

namespace ringroad {

enum class ShmWakeKind : unsigned char { kEvents = 0, kSocket = 1 };

class ShmWake {
 public:
  static constexpr unsigned kDescriptors = 2;

  ShmWake() noexcept = default;
  ~ShmWake() { reset(); }
  ShmWake(ShmWake&& other) noexcept;
  ShmWake& operator=(ShmWake&& other) noexcept;
  ShmWake(const ShmWake&) = delete;
  ShmWake& operator=(const ShmWake&) = delete;

  // Takes both eventfds over. REQUIRES: non-blocking; made by processes of one user.
  static ShmWake over_events(int own, int peer) noexcept;
  // Takes the connected socket over, also when it fails: then the result is empty, with a reason.
  static ShmWake over_socket(int socket, Reason& why) noexcept;
  // Two ends inside this process.
  static bool make_pair(ShmWakeKind kind, ShmWake& a, ShmWake& b, Reason& why) noexcept;

  explicit operator bool() const noexcept { return wait_ >= 0; }
  ShmWakeKind kind() const noexcept { return kind_; }
  // False in a forked child: there it may only be destroyed, and that leaves the parent's alone.
  bool in_own_process() const noexcept;
  // Readable after a wake-up, until drain().
  int fd() const noexcept { return wait_; }
  void signal_peer() const noexcept;
  // At most once is enough: in kSocket it ends what the peer can do here.
  void signal_self() const noexcept;
  void drain() const noexcept;

 private:
  ShmWake(ShmWakeKind kind, int wait, int link) noexcept;
  void reset() noexcept;

  ShmWakeKind kind_ = ShmWakeKind::kEvents;
  int wait_ = -1;  // own eventfd, or the epoll instance
  int link_ = -1;  // the peer's eventfd, or the socket
  pid_t owner_ = 0;
};

// A new eventfd as ShmWake wants it, or -1 with errno.
int make_wake_event() noexcept;

// True when `fd` is an eventfd and nothing else (a FUSE file, for one, could make poll(2) wait);
// made non-blocking then.
bool adopt_wake_event(int fd) noexcept;

}  // namespace ringroad
