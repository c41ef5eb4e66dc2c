// select and pselect, by poll(2)'s means.
#include <sys/select.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "preload/arguments.h"
#include "preload/cancellation.h"
#include "preload/fd_table.h"
#include "preload/polling.h"
#include "preload/real.h"
#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/sys.h"

using namespace ringroad;
using namespace ringroad::preload;

namespace {

// select(2)'s sets as poll(2)'s bits: the kernel's own table (fs/select.c).
constexpr short kSelectsIn = POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR;
constexpr short kSelectsOut = POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR;
constexpr short kSelectsExcept = POLLPRI;

// A set of as many numbers as the program made room for: more than an fd_set holds, or fewer.
constexpr int kWordBits = static_cast<int>(sizeof(fd_mask)) * 8;
constexpr int words_for(int count) noexcept { return (count + kWordBits - 1) / kWordBits; }
fd_mask* words_of(fd_set* set) noexcept { return reinterpret_cast<fd_mask*>(set); }
bool is_in(int fd, const fd_set* set) noexcept {
  unsigned long word;
  return set != nullptr && faults::load(word, reinterpret_cast<const fd_mask*>(set) + fd / kWordBits) &&
         (word >> fd % kWordBits & 1) != 0;
}

// Whether the numbers that are asked for are all below those that were ever managed.
inline bool asks_below_managed(int count) noexcept {
  return count <= fd_table::lowest.load(std::memory_order_relaxed);
}

bool any_managed(int count, const fd_set* in, const fd_set* out, const fd_set* except) noexcept {
  const int end = std::min(count, fd_table::highest.load(std::memory_order_relaxed) + 1);
  for (int fd = fd_table::lowest.load(std::memory_order_relaxed); fd < end; ++fd) {
    if (!fd_table::managed(fd)) continue;
    if (is_in(fd, in) || is_in(fd, out) || is_in(fd, except)) return true;
  }
  return false;
}

// As the kernel does, which looks at no more of the sets than can be open.
int looked_at(int count) noexcept {
  int size = 0;
  return fd_table::exceeds_kernels_table(count, size) ? size : count;
}

std::size_t bytes_for(int count) noexcept {
  return static_cast<std::size_t>(words_for(count)) * sizeof(fd_mask);
}

// The kernel says so, before it looks at any.
bool is_any_wrong(int count, const fd_set* in, const fd_set* out, const fd_set* except) noexcept {
  const std::size_t bytes = bytes_for(looked_at(count));
  return arguments::is_wrong(in, bytes) || arguments::is_wrong(out, bytes) ||
         arguments::is_wrong(except, bytes);
}

// REQUIRES: 0 <= count, and not is_any_wrong().
RR_NOINLINE int select_streams(int count, fd_set* in, fd_set* out, fd_set* except,
                               std::int64_t deadline, const sigset_t* mask) {
  count = looked_at(count);
  const auto asked_in_word = [&](int word) noexcept {
    unsigned long all = 0;
    for (fd_set* set : {in, out, except}) {
      if (set != nullptr) all |= static_cast<unsigned long>(words_of(set)[word]);
    }
    return all;
  };
  std::size_t asked = 0;
  for (int word = 0; word < words_for(count); ++word) {
    asked += static_cast<std::size_t>(std::popcount(asked_in_word(word)));
  }
  Scratch<pollfd, 4> memory(asked);
  pollfd* fds = memory.data();
  if (fds == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  nfds_t used = 0;
  for (int fd = 0; fd < count; ++fd) {
    if (fd % kWordBits == 0 && asked_in_word(fd / kWordBits) == 0) {
      fd += kWordBits - 1;
      continue;
    }
    short events = 0;
    if (is_in(fd, in)) events |= kSelectsIn;
    if (is_in(fd, out)) events |= kSelectsOut;
    if (is_in(fd, except)) events |= kSelectsExcept;
    if (events != 0) fds[used++] = {fd, events, 0};
  }
  for (;;) {
    const int n = poll_streams(fds, used, deadline, mask, false);
    if (n < 0) return -1;
    int found = 0;
    for (nfds_t i = 0; n > 0 && i < used; ++i) {
      if ((fds[i].revents & POLLNVAL) != 0) {
        errno = EBADF;
        return -1;
      }
      // What poll() reports unasked may be nothing to select(): do not ask for it again.
      if (fds[i].revents != 0 && (fds[i].revents & fds[i].events) == 0) fds[i].fd = -1;
      if ((fds[i].revents & fds[i].events) != 0) ++found;
    }
    if (found > 0 || n == 0) break;
  }
  for (fd_set* set : {in, out, except}) {
    if (set == nullptr) continue;
    if (!faults::can_write(set, bytes_for(count))) {
      errno = EFAULT;
      return -1;
    }
    std::fill_n(words_of(set), words_for(count), 0);
  }
  int bits = 0;
  for (nfds_t i = 0; i < used; ++i) {
    const auto tell = [&](short selects, fd_set* set) noexcept {
      if ((fds[i].events & selects & ~POLLERR) == 0 || (fds[i].revents & selects) == 0) return;
      words_of(set)[fds[i].fd / kWordBits] |= fd_mask(1UL << fds[i].fd % kWordBits);
      ++bits;
    };
    if (fds[i].fd < 0) continue;
    tell(kSelectsIn, in);
    tell(kSelectsOut, out);
    tell(kSelectsExcept, except);
  }
  return bits;
}

RR_NOINLINE int select_anywhere(int count, fd_set* in, fd_set* out, fd_set* except,
                                timeval* timeout) {
  const bool valid =
      count >= 0 && !arguments::is_wrong(timeout, sizeof *timeout) &&
      (timeout == nullptr || (timeout->tv_sec >= 0 && timeout->tv_usec >= 0));
  if (!valid || !any_managed(count, in, out, except) || is_any_wrong(count, in, out, except)) {
    return real().select(count, in, out, except, timeout);
  }
  std::int64_t deadline = kForever;
  if (timeout != nullptr && timeout->tv_sec < kForever / 2'000'000'000) {
    const std::int64_t length =
        timeout->tv_sec * 1'000'000'000 + std::int64_t{timeout->tv_usec} * 1000;
    deadline = length == 0 ? 0 : sys::now_ns() + length;
  }
  const int result = cancellation::point<select_streams>(count, in, out, except, deadline, nullptr);
  if (timeout != nullptr && deadline != kForever) {
    // Linux says how much was left, where that can be written.
    const std::int64_t left =
        deadline == 0 ? 0 : std::max<std::int64_t>(0, deadline - sys::now_ns());
    const timeval unused{left / 1'000'000'000, left % 1'000'000'000 / 1000};
    if (faults::store(&timeout->tv_sec, unused.tv_sec)) faults::store(&timeout->tv_usec, unused.tv_usec);
  }
  return result;
}

RR_NOINLINE int pselect_anywhere(int count, fd_set* in, fd_set* out, fd_set* except,
                                 const timespec* timeout, const sigset_t* mask) {
  std::int64_t deadline;
  if (count < 0 || arguments::is_wrong(mask) || !deadline_from(timeout, deadline) ||
      !any_managed(count, in, out, except) || is_any_wrong(count, in, out, except)) {
    return real().pselect(count, in, out, except, timeout, mask);
  }
  return cancellation::point<select_streams>(count, in, out, except, deadline, mask);
}

}  // namespace

int rr_select(int count, fd_set* in, fd_set* out, fd_set* except, timeval* timeout) {
  if (asks_below_managed(count)) return real().select(count, in, out, except, timeout);
  return select_anywhere(count, in, out, except, timeout);
}

int rr_pselect(int count, fd_set* in, fd_set* out, fd_set* except, const timespec* timeout,
               const sigset_t* mask) {
  if (asks_below_managed(count)) return real().pselect(count, in, out, except, timeout, mask);
  return pselect_anywhere(count, in, out, except, timeout, mask);
}
