#include "preload/arguments.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "preload/cancellation.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::arguments {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 16;  // that are asked for at a time
// What a TCP socket copies at a time, and leaves out as a whole where a part of it cannot be read.
constexpr std::size_t kCopiedAtOnce = 32 * 1024;

// A copy from nowhere: the kernel looks at where it would go, as it does for readv(2), and is done.
// Negative lengths are EINVAL, addresses beyond a program's EFAULT.
int judge(const iovec* iov, int count) noexcept {
  const long result =
      sys::raw(SYS_process_vm_readv, sys::getpid(), sys::word(iov), count, 0, 0, 0);
  if (result != -ENOSYS && result != -EPERM) return result < 0 ? static_cast<int>(-result) : 0;
  // A filter of system calls, or a kernel without it: addresses of 47 bits.
  constexpr std::uintptr_t kEnd = (std::uintptr_t{1} << 47) - kPage;
  int error = 0;
  for (int i = 0; i < count; ++i) {
    const auto at = reinterpret_cast<std::uintptr_t>(iov[i].iov_base);
    if (static_cast<ssize_t>(iov[i].iov_len) < 0) return EINVAL;
    if (iov[i].iov_len > kEnd || at > kEnd - iov[i].iov_len) error = EFAULT;
  }
  return error;
}

int judge(const void* buffer, std::size_t n, Judged judged) noexcept {
  if (judged == Judged::kMovable) n = std::min(n, kMostBytes);
  // The kernel looks at the address first, and none is so far from the end of them.
  if (static_cast<ssize_t>(n) < 0) return EFAULT;
  // Of one vector alone the kernel looks at what can be moved, of several at each as it is.
  const iovec all[2] = {{const_cast<void*>(buffer), n}, {nullptr, 0}};
  return judge(all, 2);
}

ssize_t fail(int error) noexcept {
  errno = error;
  return -1;
}

// Of the next `n` bytes, those before the first page that cannot be read. REQUIRES: 0 < n <= kPages * kPage.
std::size_t readable(const char* from, std::size_t n) noexcept {
  char taken[kPages + 1];
  iovec pages[kPages + 1];
  std::size_t count = 0;
  for (std::size_t at = 0; at < n && count <= kPages; ++count) {
    const std::size_t to_end =
        kPage - reinterpret_cast<std::uintptr_t>(from + at) % kPage;
    pages[count] = {const_cast<char*>(from + at), 1};
    at += to_end;
  }
  const iovec into{taken, count};
  const long got = sys::raw(SYS_process_vm_readv, sys::getpid(), sys::word(&into), 1,
                            sys::word(pages), static_cast<long>(count), 0);
  if (got < 0) return got == -EFAULT ? 0 : n;  // else nobody can tell
  if (static_cast<std::size_t>(got) == count) return n;
  return static_cast<std::size_t>(static_cast<char*>(pages[got].iov_base) - from);
}

// Sends what can be read of it: piece by piece, as no more can be looked at in one go. As send().
ssize_t send_readable(Stream& stream, const char* from, std::size_t n, int flags) {
  std::size_t done = 0;
  const int saved = errno;
  while (done < n) {
    const std::size_t wanted = std::min(n - done, kPages * kPage);
    std::size_t there = is_nowhere(from + done) ? 0 : readable(from + done, wanted);
    if (there < wanted && there < kCopiedAtOnce) there = 0;
    // Where nothing can be read the connection has the first word.
    const iovec piece{const_cast<char*>(from + done), there};
    const ssize_t sent = stream.send(&piece, 1, flags);
    if (sent < 0 && (done == 0 || errno == ECANCELED)) return -1;
    if (sent < 0) break;
    done += static_cast<std::size_t>(sent);
    if (there == 0 && done == 0) return fail(EFAULT);
    if (there == 0 || static_cast<std::size_t>(sent) < wanted) break;
  }
  errno = saved;
  return static_cast<ssize_t>(done);
}

// Calls `whole` for the vectors before the first that is odd, and then, where that moved them all,
// `part` for what can be moved of this one.
template <typename Whole, typename Part>
ssize_t in_two(const iovec* iov, int count, Whole whole, Part part) {
  if (const int error = judge(iov, count); error != 0) return fail(error);
  std::size_t total = 0;
  int plain = 0;
  while (plain < count && iov[plain].iov_len <= kMostBytes - total &&
         (!is_nowhere(iov[plain].iov_base) || iov[plain].iov_len == 0)) {
    total += iov[plain++].iov_len;
  }
  ssize_t done = 0;
  if (total > 0) {
    done = whole(plain, total, plain < count && is_nowhere(iov[plain].iov_base));
    if (done < 0 || static_cast<std::size_t>(done) < total) return done;
  }
  if (plain == count || total == kMostBytes) return done;
  const int saved = errno;
  const ssize_t more = part(iov[plain].iov_base,
                            std::min(iov[plain].iov_len, kMostBytes - total), done > 0);
  if (more < 0 && (done == 0 || errno == ECANCELED)) return -1;
  errno = saved;
  return done + std::max<ssize_t>(more, 0);
}

ssize_t recv_into(Stream& stream, void* buffer, std::size_t n, int flags) {
  if (!is_nowhere(buffer) || (flags & MSG_TRUNC) != 0) {  // tcp(7): such bytes go nowhere
    const iovec all{buffer, n};
    return stream.recv(&all, 1, flags);
  }
  // What stands there stays there.
  char byte;
  const iovec look{&byte, 1};
  const ssize_t found = stream.recv(&look, 1, (flags & ~(MSG_WAITALL | MSG_TRUNC)) | MSG_PEEK);
  return found <= 0 ? found : fail(EFAULT);
}

}  // namespace

bool is_odd(const iovec* iov, int count, std::size_t& total) noexcept {
  std::size_t sum = 0;
  for (int i = 0; i < count; ++i) {
    if (iov[i].iov_len > kMostBytes - sum || is_odd(iov[i].iov_base, iov[i].iov_len)) return true;
    sum += iov[i].iov_len;
  }
  total = sum;
  return false;
}

ssize_t send_odd(Stream& stream, const void* buffer, std::size_t n, int flags, Judged judged) {
  if (const int error = judge(buffer, n, judged); error != 0) return fail(error);
  return send_readable(stream, static_cast<const char*>(buffer), std::min(n, kMostBytes), flags);
}

ssize_t send_odd(Stream& stream, const iovec* iov, int count, int flags) {
  return in_two(
      iov, count,
      [&](int plain, std::size_t total, bool faults) {
        if (!faults || total >= kCopiedAtOnce) return stream.send(iov, plain, flags);
        const ssize_t none = stream.send(nullptr, 0, flags);  // the connection has the first word
        return none < 0 ? none : fail(EFAULT);
      },
      [&](const void* from, std::size_t n, bool) {
        return send_readable(stream, static_cast<const char*>(from), n, flags);
      });
}

ssize_t recv_odd(Stream& stream, void* buffer, std::size_t n, int flags, Judged judged) {
  if (const int error = judge(buffer, n, judged); error != 0) return fail(error);
  return recv_into(stream, buffer, std::min(n, kMostBytes), flags);
}

ssize_t recv_odd(Stream& stream, const iovec* iov, int count, int flags) {
  return in_two(
      iov, count, [&](int plain, std::size_t, bool) { return stream.recv(iov, plain, flags); },
      [&](void* to, std::size_t n, bool more) {
        // What has come by now belongs to the call, and nothing is waited for.
        const bool waits = !more || (flags & MSG_WAITALL) != 0;
        return recv_into(stream, to, n, waits ? flags : flags | MSG_DONTWAIT);
      });
}

}  // namespace ringroad::preload::arguments
