// What a call of bytes on a managed number is for: the stream, or libc's function, counted where the stream
// is the kernel's for good.
//
// Thread rule: within cancellation::point() or no_point().
#pragma once

#include <cerrno>

#include "preload/cancellation.h"
#include "preload/socket_lifecycle.h"

namespace ringroad::preload {

struct StreamTarget {
  static constexpr std::int64_t kDemotionTimeoutNs = 2'000'000'000;

  SocketRef socket;
  Stream* stream = nullptr;  // null: libc's call
  bool counted = false;      // libc's call on a stream that the kernel has for good
  bool lost = false;         // the parent has it on a channel, so that a child cannot use it

  explicit StreamTarget(int fd) noexcept : socket(socket_lifecycle::find(fd)) {
    if (!socket) return;
    stream = socket.stream();
    if (stream == nullptr) {
      lost = socket.is(FdEntry::Kind::kLost);
      // The first use of a socket whose connect() was still under way.
      if (socket.is(FdEntry::Kind::kConnecting) && socket_lifecycle::establish(fd, socket)) {
        stream = socket.stream();
      }
    }
    counted = stream != nullptr && stream->on_kernel_for_good();
  }

  bool ours() const noexcept { return stream != nullptr && !counted; }
  ssize_t count(bool sent, ssize_t result) const noexcept {
    if (counted) stream->count_kernel_io(sent, result);
    return result;
  }
  // Something that only the kernel can do: bring the stream to TCP for good first.
  void to_kernel(Reason reason) noexcept {
    if (!ours()) return;
    stream->demote_for_good(reason, kDemotionTimeoutNs);
  }
};

// A call that looks the number up each time that it is made. As the kernel's, it is made anew behind a
// handler that asks for it (SA_RESTART): that may have closed the number, or said that nobody waits.
template <typename Call>
[[gnu::always_inline]] inline ssize_t made_anew(Call call) {
  const int saved = errno;
  ssize_t result;
  while (hardly_ever((result = call()) < 0) && errno == ERESTART) errno = saved;
  return result;
}

RR_NOINLINE inline bool demote_for_kernel(int fd) noexcept {
  StreamTarget(fd).to_kernel(Reason::kDescriptorUse);
  return true;
}

// Before a call that is the kernel's. For the outermost wrappers.
inline void hand_back(int fd) {
  if (fd_table::managed(fd)) cancellation::no_point<demote_for_kernel>(fd);
}

}  // namespace ringroad::preload
