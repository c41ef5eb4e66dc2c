// Bytes in and out. Each wrapper: look the number up; a miss is libc's call; a stream that the kernel
// has for good is libc's call, counted; else the stream's.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "preload/arguments.h"
#include "preload/cancellation.h"
#include "preload/deferred_stream.h"
#include "preload/fd_room.h"
#include "preload/fd_table.h"
#include "preload/process_state.h"
#include "preload/real.h"
#include "preload/socket_lifecycle.h"
#include "preload/stream_target.h"
#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/stream_fastpath.h"

using namespace ringroad;
using namespace ringroad::preload;
using arguments::Judged;

namespace {

// Flags that a stream's own receive and send understand. The rest is the kernel's business.
constexpr int kRecvFlags = MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL | MSG_TRUNC | MSG_NOSIGNAL |
                           MSG_CMSG_CLOEXEC | MSG_WAITFORONE;
constexpr int kSendFlags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE | MSG_EOR | MSG_CONFIRM |
                           MSG_DONTROUTE;

// Of these, the ones that take what is there.
constexpr int kPlainRecvFlags = kRecvFlags & ~(MSG_PEEK | MSG_WAITALL | MSG_TRUNC);

// Why the kernel has to do a call with flags beyond those that are `known`; kNone: it has not.
constexpr Reason special(int flags, int known) noexcept {
  if ((flags & ~known) == 0) return Reason::kNone;
  return (flags & MSG_OOB) != 0 ? Reason::kOob : Reason::kDescriptorUse;
}

bool valid_vectors(const iovec* iov, std::size_t count) noexcept {
  constexpr std::size_t kMost = 1024;  // IOV_MAX; else the kernel says why
  return count <= kMost && faults::can_read(iov, count * sizeof *iov);
}

// What the kernel looks at before it knows that TCP needs no address, and refuses. `sends`: it reads the
// address.
bool refuses_address(const void* address, socklen_t length, bool sends) noexcept {
  return address != nullptr &&
         (static_cast<int>(length) < 0 || (sends && length != 0 && arguments::is_nowhere(address)));
}

bool valid_message(const msghdr* msg, bool sends) noexcept {
  return faults::can_read(msg, sizeof *msg) && !refuses_address(msg->msg_name, msg->msg_namelen, sends) &&
         valid_vectors(msg->msg_iov, msg->msg_iovlen);
}

// A descriptor in a Unix-socket message: the receiver needs a socket that the kernel serves.
void hand_over_rights(const msghdr* msg) noexcept {
  if (!faults::can_read(msg, sizeof *msg) || msg->msg_control == nullptr) return;
  if (!faults::can_read(msg->msg_control, msg->msg_controllen)) return;
  auto* header = const_cast<msghdr*>(msg);
  const char* const end = static_cast<const char*>(msg->msg_control) + msg->msg_controllen;
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    const auto room = static_cast<std::size_t>(end - reinterpret_cast<const char*>(c));
    if (c->cmsg_len < sizeof *c || c->cmsg_len > room) return;  // the kernel refuses the whole
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      socket_lifecycle::give_away(fd, Reason::kFdPassed);
    }
  }
}

// TCP_INQ's control message, as the kernel puts it: cut off where there is no room.
void tell_unread(int unread, msghdr* msg) noexcept {
  const std::size_t room = msg->msg_control != nullptr ? msg->msg_controllen : 0;
  msg->msg_controllen = 0;
  if (unread < 0) return;
  if (room < CMSG_LEN(sizeof unread)) msg->msg_flags |= MSG_CTRUNC;
  if (room < sizeof(cmsghdr)) return;
  const std::size_t length = std::min(room, CMSG_LEN(sizeof unread));
  const cmsghdr header{length, IPPROTO_TCP, TCP_CM_INQ};
  unsigned char whole[CMSG_LEN(sizeof unread)];
  std::memcpy(whole, &header, sizeof header);
  std::memcpy(whole + CMSG_LEN(0), &unread, sizeof unread);
  if (!faults::copy_apart(msg->msg_control, whole, length)) return;
  msg->msg_controllen = std::min(room, CMSG_SPACE(sizeof unread));
}

// What recvmsg() tells beside the bytes, which are gone, as the kernel has it, where there is no place for
// that.
ssize_t tell_of_message(Stream& stream, msghdr* msg, int flags, ssize_t result) noexcept {
  if (!faults::can_write(msg, sizeof *msg)) {
    errno = EFAULT;
    return -1;
  }
  if (msg->msg_name != nullptr) msg->msg_namelen = 0;
  msg->msg_flags = flags & MSG_CMSG_CLOEXEC;
  tell_unread(stream.unread_to_tell(), msg);
  return result;
}

// ---- Calls on what is managed. They may end in the unwinding of the thread's stack.

enum class Way : bool { kIn, kOut };

// A call of bytes on `fd`. `special`: why only the kernel can do it, kNone where the stream can. `valid`:
// whether its arguments are such that the stream may look at them, else the kernel says what is wrong.
// `in_kernel`: libc's function. `on_stream`: the stream's.
template <Way way, typename Valid, typename InKernel, typename OnStream>
[[gnu::always_inline]] inline ssize_t transfer(int fd, Reason special, Valid valid,
                                               InKernel in_kernel, OnStream on_stream) {
  return made_anew([&]() -> ssize_t {
    StreamTarget target(fd);
    if (target.lost) {
      errno = ECONNRESET;
      return -1;
    }
    if (special != Reason::kNone) target.to_kernel(special);
    if (!target.ours() || special != Reason::kNone || !valid()) {
      return target.count(way == Way::kOut, in_kernel());
    }
    return on_stream(*target.stream);
  });
}
constexpr auto always = [] { return true; };
constexpr auto never = [] { return false; };
constexpr auto no_stream = [](Stream&) -> ssize_t { __builtin_unreachable(); };

ssize_t recv_buffer(Stream& stream, void* buf, size_t n, int flags, Judged judged) {
  if (arguments::is_odd(buf, n)) return arguments::recv_odd(stream, buf, n, flags, judged);
  const iovec iov{buf, n};
  return stream.recv(&iov, 1, flags);
}

ssize_t send_buffer(Stream& stream, const void* buf, size_t n, int flags, Judged judged) {
  if (arguments::is_odd(buf, n)) return arguments::send_odd(stream, buf, n, flags, judged);
  const iovec iov{const_cast<void*>(buf), n};
  return stream.send(&iov, 1, flags);
}

RR_NOINLINE ssize_t stream_recv(int fd, void* buf, size_t n, int flags) {
  if (ssize_t result; deferred_stream::is(fd) && (flags & ~kPlainRecvFlags) == 0 &&
                      (flags & MSG_DONTWAIT) == 0 &&
                      deferred_stream::receives_later(fd, buf, n, flags, result)) {
    return result;
  }
  return transfer<Way::kIn>(
      fd, special(flags, kRecvFlags), always,
      [&] { return cancellation::caught(real().recv, fd, buf, n, flags); },
      [&](Stream& stream) { return recv_buffer(stream, buf, n, flags, Judged::kMovable); });
}

RR_NOINLINE ssize_t stream_read(int fd, void* buf, size_t n) {
  if (ssize_t result; deferred_stream::is(fd) && deferred_stream::receives_later(fd, buf, n, 0, result)) {
    return result;
  }
  // Unlike recv(), read() of nothing never waits.
  return transfer<Way::kIn>(
      fd, Reason::kNone, [&] { return n != 0; },
      [&] { return cancellation::caught(real().read, fd, buf, n); },
      [&](Stream& stream) { return recv_buffer(stream, buf, n, 0, Judged::kWhole); });
}

RR_NOINLINE ssize_t stream_readv(int fd, const iovec* iov, int count) {
  return transfer<Way::kIn>(
      fd, Reason::kNone, [&] { return count >= 0 && valid_vectors(iov, static_cast<size_t>(count)); },
      [&] { return cancellation::caught(real().readv, fd, iov, count); },
      [&](Stream& stream) -> ssize_t {
        std::size_t total = 0;
        if (arguments::is_odd(iov, count, total)) return arguments::recv_odd(stream, iov, count, 0);
        if (total == 0) return 0;  // it is done before the socket is asked
        return stream.recv(iov, count, 0);
      });
}

// preadv2() and pwritev2() at -1 are readv() and writev(). No socket has another place than that,
// and flags are for the kernel to know.
RR_NOINLINE ssize_t stream_preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  if (offset == -1 && flags == 0) return stream_readv(fd, iov, count);
  return transfer<Way::kIn>(
      fd, offset == -1 ? Reason::kDescriptorUse : Reason::kNone, never,
      [&] { return cancellation::caught(real().preadv2, fd, iov, count, offset, flags); }, no_stream);
}

RR_NOINLINE ssize_t stream_recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* addr,
                                    socklen_t* len) {
  return transfer<Way::kIn>(
      fd, special(flags, kRecvFlags), always,
      [&] { return cancellation::caught(real().recvfrom, fd, buf, n, flags, addr, len); },
      [&](Stream& stream) -> ssize_t {
        const ssize_t result = recv_buffer(stream, buf, n, flags, Judged::kMovable);
        if (result < 0 || addr == nullptr) return result;
        // As the kernel has it, the bytes are gone.
        int room = 0;
        constexpr socklen_t kNoAddress = 0;  // as TCP has it
        if (!faults::load(room, len)) {
          errno = EFAULT;
        } else if (room < 0) {
          errno = EINVAL;
        } else if (!faults::store(len, kNoAddress)) {
          errno = EFAULT;
        } else {
          return result;
        }
        return -1;
      });
}

RR_NOINLINE ssize_t stream_recvmsg(int fd, msghdr* msg, int flags) {
  return transfer<Way::kIn>(
      fd, special(flags, kRecvFlags), [&] { return valid_message(msg, false); },
      [&] { return cancellation::caught(real().recvmsg, fd, msg, flags); },
      [&](Stream& stream) {
        const auto count = static_cast<int>(msg->msg_iovlen);
        std::size_t total = 0;
        const ssize_t result = arguments::is_odd(msg->msg_iov, count, total)
                                   ? arguments::recv_odd(stream, msg->msg_iov, count, flags)
                                   : stream.recv(msg->msg_iov, count, flags);
        return result < 0 ? result : tell_of_message(stream, msg, flags, result);
      });
}

RR_NOINLINE ssize_t stream_send(int fd, const void* buf, size_t n, int flags) {
  return transfer<Way::kOut>(
      fd, special(flags, kSendFlags), always,
      [&] { return cancellation::caught(real().send, fd, buf, n, flags); },
      [&](Stream& stream) { return send_buffer(stream, buf, n, flags, Judged::kMovable); });
}

RR_NOINLINE ssize_t stream_write(int fd, const void* buf, size_t n) {
  return transfer<Way::kOut>(
      fd, Reason::kNone, always, [&] { return cancellation::caught(real().write, fd, buf, n); },
      [&](Stream& stream) { return send_buffer(stream, buf, n, 0, Judged::kWhole); });
}

RR_NOINLINE ssize_t stream_writev(int fd, const iovec* iov, int count) {
  return transfer<Way::kOut>(
      fd, Reason::kNone, [&] { return count >= 0 && valid_vectors(iov, static_cast<size_t>(count)); },
      [&] { return cancellation::caught(real().writev, fd, iov, count); },
      [&](Stream& stream) -> ssize_t {
        std::size_t total = 0;
        if (arguments::is_odd(iov, count, total)) return arguments::send_odd(stream, iov, count, 0);
        if (total == 0) return 0;  // as in stream_readv()
        return stream.send(iov, count, 0);
      });
}

RR_NOINLINE ssize_t stream_pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  if (offset == -1 && flags == 0) return stream_writev(fd, iov, count);
  return transfer<Way::kOut>(
      fd, offset == -1 ? Reason::kDescriptorUse : Reason::kNone, never,
      [&] { return cancellation::caught(real().pwritev2, fd, iov, count, offset, flags); }, no_stream);
}

RR_NOINLINE ssize_t stream_sendto(int fd, const void* buf, size_t n, int flags,
                                  const sockaddr* addr, socklen_t len) {
  const bool refused =
      refuses_address(addr, len, true) || (addr != nullptr && len > sizeof(sockaddr_storage));
  // A connected TCP socket ignores the address.
  return transfer<Way::kOut>(
      fd, special(flags, kSendFlags), [&] { return !refused; },
      [&] { return cancellation::caught(real().sendto, fd, buf, n, flags, addr, len); },
      [&](Stream& stream) { return send_buffer(stream, buf, n, flags, Judged::kMovable); });
}

RR_NOINLINE ssize_t stream_sendmsg(int fd, const msghdr* msg, int flags) {
  const bool controls = faults::can_read(msg, sizeof *msg) && msg->msg_controllen != 0;
  const Reason by_flags = special(flags, kSendFlags);
  return transfer<Way::kOut>(
      fd, controls && by_flags == Reason::kNone ? Reason::kDescriptorUse : by_flags,
      [&] { return valid_message(msg, true); },
      [&] { return cancellation::caught(real().sendmsg, fd, msg, flags); },
      [&](Stream& stream) {
        const auto count = static_cast<int>(msg->msg_iovlen);
        std::size_t total = 0;
        return arguments::is_odd(msg->msg_iov, count, total)
                   ? arguments::send_odd(stream, msg->msg_iov, count, flags)
                   : stream.send(msg->msg_iov, count, flags);
      });
}

// ---- The fast path of stream_fastpath.h, and else the slow one. `socket` is what peek() has found.

template <auto call, typename Buffer>
[[gnu::always_inline]] inline ssize_t try_fast_path(int fd, FdEntry* socket, Buffer* buf,
                                                       size_t n) noexcept {
  if (!mostly(SocketRef::try_hold(socket))) return -1;
  ssize_t result = -1;
  if (mostly(fd_table::table[fd].load(std::memory_order_seq_cst) == socket &&
             socket->kind.load(std::memory_order_acquire) == FdEntry::Kind::kStream)) {
    result = (socket->stream.get()->*call)(buf, n);
  }
  SocketRef::drop(socket);
  return result;
}

template <auto slow_call, typename... Args>
RR_NOINLINE ssize_t slow_path(Args... args) {
  return cancellation::point<slow_call>(args...);
}

// Of a connection that has hardly been used. What one call has not sent the next one sends, as far as
// it is let.
template <auto deferred_call, auto slow_call, typename Buffer, typename... Flags>
RR_NOINLINE ssize_t deferred_path(int fd, Buffer* buf, size_t n, Flags... flags) {
  ssize_t result;
  if (!deferred_call(fd, buf, n, (flags | ... | 0), result)) {
    return slow_path<slow_call>(fd, buf, n, flags...);
  }
  if constexpr (std::is_const_v<Buffer>) {
    if (hardly_ever(result > 0 && static_cast<size_t>(result) < n)) {
      const auto done = static_cast<size_t>(result);
      const int saved = errno;
      const ssize_t more = slow_path<slow_call>(
          fd, static_cast<Buffer*>(static_cast<const char*>(buf) + done), n - done, flags...);
      if (more > 0) result += more;
      errno = saved;
    }
  }
  return result;
}

template <auto fast_call, auto deferred_call, auto slow_call, int plain_flags = 0, typename Buffer,
          typename... Flags>
RR_NOINLINE ssize_t fast_path(int fd, Buffer* buf, size_t n, FdEntry* socket, Flags... flags) {
  // The registers are for the fast path.
  struct {
    int fd;
    Buffer* buf;
    size_t n;
  } call{fd, buf, n};
  keep_in_memory(call);
  if (((flags & ~plain_flags) | ... | 0) == 0 && !cancellation::may_be_cancelled() &&
      !arguments::is_nowhere(buf)) {
    const ssize_t result =
        cancellation::brief<try_fast_path<fast_call, Buffer>>(fd, socket, buf, n);
    if (!hardly_ever(result <= 0)) return result;
    // It is looked at again when it is held.
    if (socket->kind.load(std::memory_order_relaxed) == FdEntry::Kind::kDeferred) {
      return deferred_path<deferred_call, slow_call>(call.fd, call.buf, call.n, flags...);
    }
  }
  return slow_path<slow_call>(call.fd, call.buf, call.n, flags...);
}
constexpr auto recv_of =
    fast_path<&Stream::recv_short, deferred_stream::receives, stream_recv, kPlainRecvFlags, void, int>;
constexpr auto read_of =
    fast_path<&Stream::recv_short, deferred_stream::receives, stream_read, 0, void>;
constexpr auto send_of =
    fast_path<&Stream::send_short, deferred_stream::sends, stream_send, kSendFlags, const void, int>;
constexpr auto write_of =
    fast_path<&Stream::send_short, deferred_stream::sends, stream_write, 0, const void>;

// The kernel drops those that a message brings beyond the limit, so room is made before.
void look_at_descriptors(msghdr* msg) {
  int last = -1;
  for (cmsghdr* part = CMSG_FIRSTHDR(msg); part != nullptr; part = CMSG_NXTHDR(msg, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t bytes = part->cmsg_len - CMSG_LEN(0);
    if (bytes < sizeof last) continue;
    // The kernel has taken the lowest number for each of them in turn.
    std::memcpy(&last, CMSG_DATA(part) + bytes / sizeof last * sizeof last - sizeof last, sizeof last);
  }
  fd_room::look_at(last);
}

RR_NOINLINE ssize_t receive_descriptors(int fd, msghdr* msg, int flags) {
  const ssize_t result = real().recvmsg(fd, msg, flags);
  if (result >= 0) look_at_descriptors(msg);
  return result;
}

}  // namespace

// ---- in

ssize_t rr_recv(int fd, void* buf, size_t n, int flags) {
  FdEntry* const socket = fd_table::peek(fd);
  if (__builtin_expect(socket == nullptr, 1)) return real().recv(fd, buf, n, flags);
  return recv_of(fd, buf, n, socket, flags);
}

ssize_t rr_read(int fd, void* buf, size_t n) {
  FdEntry* const socket = fd_table::peek(fd);
  if (__builtin_expect(socket == nullptr, 1)) return real().read(fd, buf, n);
  return read_of(fd, buf, n, socket);
}

ssize_t rr_readv(int fd, const iovec* iov, int count) {
  if (!fd_table::managed(fd)) return real().readv(fd, iov, count);
  return cancellation::point<stream_readv>(fd, iov, count);
}

ssize_t rr_preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  if (!fd_table::managed(fd)) return real().preadv2(fd, iov, count, offset, flags);
  return cancellation::point<stream_preadv2>(fd, iov, count, offset, flags);
}

ssize_t rr_recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* addr, socklen_t* len) {
  if (!fd_table::managed(fd)) return real().recvfrom(fd, buf, n, flags, addr, len);
  return cancellation::point<stream_recvfrom>(fd, buf, n, flags, addr, len);
}

ssize_t rr_recvmsg(int fd, msghdr* msg, int flags) {
  if (!fd_table::managed(fd)) {
    return fd_room::is_looked_at() ? receive_descriptors(fd, msg, flags) : real().recvmsg(fd, msg, flags);
  }
  return cancellation::point<stream_recvmsg>(fd, msg, flags);
}

int rr_recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) {
  hand_back(fd);
  const int result = real().recvmmsg(fd, msgs, count, flags, timeout);
  if (fd_room::is_looked_at()) {
    for (int i = 0; i < result; ++i) look_at_descriptors(&msgs[i].msg_hdr);
  }
  return result;
}

ssize_t rr___read_chk(int fd, void* buf, size_t n, size_t size) {
  // A buffer that is too small ends the program, and that is libc's to do.
  if (!fd_table::managed(fd) || n > size) return real().__read_chk(fd, buf, n, size);
  return rr_read(fd, buf, n);
}

ssize_t rr___recv_chk(int fd, void* buf, size_t n, size_t size, int flags) {
  if (!fd_table::managed(fd) || n > size) return real().__recv_chk(fd, buf, n, size, flags);
  return rr_recv(fd, buf, n, flags);
}

ssize_t rr___recvfrom_chk(int fd, void* buf, size_t n, size_t size, int flags, sockaddr* addr,
                          socklen_t* len) {
  if (!fd_table::managed(fd) || n > size) {
    return real().__recvfrom_chk(fd, buf, n, size, flags, addr, len);
  }
  return rr_recvfrom(fd, buf, n, flags, addr, len);
}

// ---- out

ssize_t rr_send(int fd, const void* buf, size_t n, int flags) {
  FdEntry* const socket = fd_table::peek(fd);
  if (__builtin_expect(socket == nullptr, 1)) return real().send(fd, buf, n, flags);
  return send_of(fd, buf, n, socket, flags);
}

ssize_t rr_write(int fd, const void* buf, size_t n) {
  FdEntry* const socket = fd_table::peek(fd);
  if (__builtin_expect(socket == nullptr, 1)) return real().write(fd, buf, n);
  return write_of(fd, buf, n, socket);
}

ssize_t rr_writev(int fd, const iovec* iov, int count) {
  if (!fd_table::managed(fd)) return real().writev(fd, iov, count);
  return cancellation::point<stream_writev>(fd, iov, count);
}

ssize_t rr_pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  if (!fd_table::managed(fd)) return real().pwritev2(fd, iov, count, offset, flags);
  return cancellation::point<stream_pwritev2>(fd, iov, count, offset, flags);
}

ssize_t rr_sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* addr,
                  socklen_t len) {
  if (!fd_table::managed(fd)) return real().sendto(fd, buf, n, flags, addr, len);
  return cancellation::point<stream_sendto>(fd, buf, n, flags, addr, len);
}

ssize_t rr_sendmsg(int fd, const msghdr* msg, int flags) {
  if (!fd_table::none_managed()) hand_over_rights(msg);
  if (!fd_table::managed(fd)) return real().sendmsg(fd, msg, flags);
  return cancellation::point<stream_sendmsg>(fd, msg, flags);
}

int rr_sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) {
  if (!fd_table::none_managed()) {
    constexpr unsigned kMost = 1024;  // UIO_MAXIOV: the kernel sends no more at once
    for (unsigned i = 0; i < std::min(count, kMost); ++i) hand_over_rights(&msgs[i].msg_hdr);
  }
  hand_back(fd);
  return real().sendmmsg(fd, msgs, count, flags);
}
