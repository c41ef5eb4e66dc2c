// For the sends and receives of a stream: pieces of the program's vectors.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/stream.h"

namespace ringroad {

inline std::size_t total_bytes(const iovec* iov, int count) noexcept {
  std::size_t total = 0;
  for (int i = 0; i < count; ++i) total += iov[i].iov_len;
  return total;
}

// Whether a call may sleep, as the open file says when that is asked first, and for the whole call. Where
// other processes have the file too, that takes a system call: it is asked where it matters, and else at
// once.
class MaySleep {
 public:
  MaySleep(const Stream& stream, int flags, bool shared) noexcept
      : stream_(stream), may_((flags & MSG_DONTWAIT) == 0), asked_(!may_) {
    if (!shared) (*this)();
  }
  bool operator()() noexcept {
    if (!std::exchange(asked_, true)) may_ = !stream_.nonblocking();
    return may_;
  }

 private:
  const Stream& stream_;
  bool may_;
  bool asked_;
};

// Programs have threads with small stacks, and hardly any call has more vectors than the first.
inline constexpr int kFewVectors = 8;
inline constexpr int kMostVectors = 64;

// At most `limit` bytes of the vectors after their first `skip` bytes. More vectors than fit are
// left for the next call: a stream may always be read and written in pieces.
template <int vectors>
struct Window {
  iovec iov[std::size_t{vectors}];
  int count = 0;

  Window(const iovec* from, int from_count, std::size_t skip, std::size_t limit) noexcept {
    for (int i = 0; i < from_count && count < vectors && limit > 0; ++i) {
      if (skip >= from[i].iov_len) {
        skip -= from[i].iov_len;
        continue;
      }
      iovec& out = iov[count++];
      out.iov_base = static_cast<char*>(from[i].iov_base) + skip;
      out.iov_len = std::min(from[i].iov_len - skip, limit);
      limit -= out.iov_len;
      skip = 0;
    }
  }
};

inline constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// All of the vectors: where there is one, by the call for that, which costs the kernel less.
template <auto one, auto many>
ssize_t move_all(int fd, const iovec* iov, int count, int flags) noexcept {
  if (count == 1) return one(fd, iov->iov_base, iov->iov_len, flags);
  msghdr msg{};
  msg.msg_iov = const_cast<iovec*>(iov);
  msg.msg_iovlen = static_cast<std::size_t>(count);
  return many(fd, &msg, flags);
}

// sendmsg(2) or recvmsg(2) of such a window.
template <auto call, int vectors>
[[gnu::noinline]] ssize_t move_window_of(int fd, const iovec* iov, int count, std::size_t skip,
                                         std::size_t limit, int flags) noexcept {
  Window<vectors> window(iov, count, skip, limit);
  msghdr msg{};
  msg.msg_iov = window.iov;
  msg.msg_iovlen = static_cast<std::size_t>(window.count);
  return call(fd, &msg, flags);
}
template <auto call>
ssize_t move_window(int fd, const iovec* iov, int count, std::size_t skip, std::size_t limit,
                    int flags) noexcept {
  return count <= kFewVectors
             ? move_window_of<call, kFewVectors>(fd, iov, count, skip, limit, flags)
             : move_window_of<call, kMostVectors>(fd, iov, count, skip, limit, flags);
}

// Calls copy(pointer, bytes) for each contiguous piece of the vectors after `skip`, up to `limit`, as long as
// it says true. False: one has said no.
template <typename Copy>
bool for_each_piece(const iovec* iov, int count, std::size_t skip, std::size_t limit,
                    Copy copy) noexcept {
  for (int i = 0; i < count && limit > 0; ++i) {
    if (skip >= iov[i].iov_len) {
      skip -= iov[i].iov_len;
      continue;
    }
    const std::size_t n = std::min(iov[i].iov_len - skip, limit);
    if (!copy(static_cast<std::byte*>(iov[i].iov_base) + skip, n)) return false;
    limit -= n;
    skip = 0;
  }
  return true;
}

}  // namespace ringroad
