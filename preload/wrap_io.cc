// Bytes in and out. Each wrapper: look the number up; a miss is libc's call; a stream that the kernel
// has for good is libc's call, counted; else the stream's.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <limits>
#include <type_traits>

#include "preload/arguments.h"
#include "preload/cancellation.h"
#include "preload/fresh.h"
#include "preload/real.h"
#include "preload/room.h"
#include "preload/runtime.h"
#include "rsocket-core/stream_short.h"
#include "rsocket-core/sys.h"

using namespace ringroad;
using namespace ringroad::preload;
using arguments::Judged;

namespace {

constexpr std::int64_t kPinTimeoutNs = 2'000'000'000;

// What to do with a call on `fd`.
struct Target {
  SocketRef socket;
  Stream* stream = nullptr;  // null: libc's call
  bool counted = false;      // libc's call on a stream that the kernel has for good
  bool lost = false;

  explicit Target(int fd) noexcept : socket(descriptors::find(fd)) {
    if (!socket) return;
    stream = socket.stream();
    if (stream == nullptr) {
      lost = socket.is(Socket::Kind::kLost);
      // The first use of a socket whose connect() was still under way.
      if (socket.is(Socket::Kind::kConnecting) && runtime::established(fd, socket)) {
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
    stream->pin(reason, kPinTimeoutNs);
  }
};

ssize_t fail_lost() noexcept {
  // The parent has this stream on a channel; a child cannot use it.
  errno = ECONNRESET;
  return -1;
}

// Flags that a stream's own receive and send understand. The rest is the kernel's business.
constexpr int kRecvFlags = MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL | MSG_TRUNC | MSG_NOSIGNAL |
                           MSG_CMSG_CLOEXEC | MSG_WAITFORONE;
constexpr int kSendFlags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE | MSG_EOR | MSG_CONFIRM |
                           MSG_DONTROUTE;

// Of these, the ones that take what is there.
constexpr int kPlainRecvFlags = kRecvFlags & ~(MSG_PEEK | MSG_WAITALL | MSG_TRUNC);

// Receives that the kernel has to do.
constexpr bool is_special_receive(int flags) noexcept { return (flags & ~kRecvFlags) != 0; }

Reason reason_for_flags(int flags) noexcept {
  return (flags & MSG_OOB) != 0 ? Reason::kOob : Reason::kDescriptorUse;
}

// What a sendfile reads from: at an offset without waiting for somebody; by the kernel alone; not at all, as
// the kernel says before it looks at the stream.
enum class Origin : std::uint8_t { kPlainFile, kKernels, kRefused };
Origin origin_of(int fd, const off_t* offset) noexcept {
  struct stat status;
  if (arguments::is_wrong(offset) || (offset != nullptr && *offset < 0) ||
      sys::call(SYS_fstat, fd, &status) != 0) {
    return Origin::kRefused;
  }
  return S_ISREG(status.st_mode) ? Origin::kPlainFile : Origin::kKernels;
}

// As sendfile(2). By way of a buffer: reading a file may sleep, which nobody may do over the ring,
// behind the stream's lock.
ssize_t send_file(Stream& stream, int in, off_t* offset, size_t n) {
  // A thread of the program's may have a small stack.
  constexpr std::size_t kPiece = 64 * 1024;
  struct Buffer {
    explicit Buffer(std::size_t n) noexcept {
      if (n <= sizeof few) return;
      void* const pages =
          mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) return;
      data = static_cast<char*>(pages);
      size = kPiece;
    }
    ~Buffer() {
      if (data != few) munmap(data, size);
    }
    char few[512];
    char* data = few;
    std::size_t size = sizeof few;
  } buffer(n);
  off_t at = offset != nullptr ? *offset : sys::call(SYS_lseek, in, 0, SEEK_CUR);
  // As the kernel judges it: where it would end, and then what one call moves.
  if (n > static_cast<std::size_t>(std::numeric_limits<off_t>::max() - at)) {
    errno = EINVAL;
    return -1;
  }
  n = std::min(n, arguments::kMostBytes);
  std::size_t done = 0;
  while (done < n) {
    const long got = sys::call(SYS_pread64, in, buffer.data, std::min(buffer.size, n - done), at);
    if (got < 0 && done == 0) return -1;
    if (got <= 0) break;
    const iovec piece{buffer.data, static_cast<std::size_t>(got)};
    const ssize_t sent = stream.send(&piece, 1, 0, Stream::Sleep::kUncancellable);
    if (sent < 0 && (done == 0 || errno == ECANCELED)) return -1;
    if (sent <= 0) break;
    done += static_cast<std::size_t>(sent);
    at += sent;
    if (sent < got) break;
  }
  if (offset != nullptr) {
    *offset = at;
  } else {
    sys::call(SYS_lseek, in, at, SEEK_SET);
  }
  return static_cast<ssize_t>(done);
}

bool valid_vectors(const iovec* iov, std::size_t count) noexcept {
  return count <= 1024 && (count == 0 || !arguments::is_nowhere(iov));  // IOV_MAX; else the kernel says why
}

// What the kernel looks at before it knows that TCP needs no address, and refuses. `sends`: it reads the address.
bool refuses_address(const void* address, socklen_t length, bool sends) noexcept {
  return address != nullptr &&
         (static_cast<int>(length) < 0 || (sends && length != 0 && arguments::is_nowhere(address)));
}

// A descriptor in a Unix-socket message: the receiver needs a socket that the kernel serves.
void hand_over_rights(const msghdr* msg) noexcept {
  if (arguments::is_nowhere(msg) || arguments::is_nowhere(msg->msg_control)) return;
  auto* header = const_cast<msghdr*>(msg);
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      runtime::give_away(fd, Reason::kFdPassed);
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
  std::memcpy(msg->msg_control, &header, sizeof header);
  std::memcpy(static_cast<char*>(msg->msg_control) + CMSG_LEN(0), &unread, length - CMSG_LEN(0));
  msg->msg_controllen = std::min(room, CMSG_SPACE(sizeof unread));
}

// ---- Calls on what is managed. They may end in the unwinding of the thread's stack.

RR_NOINLINE ssize_t stream_recv(int fd, void* buf, size_t n, int flags) {
  if (ssize_t result; fresh::is(fd) && (flags & ~kPlainRecvFlags) == 0 &&
                      (flags & MSG_DONTWAIT) == 0 &&
                      fresh::receives_later(fd, buf, n, flags, result)) {
    return result;
  }
  Target target(fd);
  if (target.lost) return fail_lost();
  if (is_special_receive(flags)) target.to_kernel(reason_for_flags(flags));
  if (!target.ours() || is_special_receive(flags)) {
    return target.count(false, cancellation::caught(real().recv, fd, buf, n, flags));
  }
  if (arguments::is_odd(buf, n)) {
    return arguments::recv_odd(*target.stream, buf, n, flags, Judged::kMovable);
  }
  const iovec iov{buf, n};
  return target.stream->recv(&iov, 1, flags);
}

RR_NOINLINE ssize_t stream_read(int fd, void* buf, size_t n) {
  if (ssize_t result; fresh::is(fd) && fresh::receives_later(fd, buf, n, 0, result)) return result;
  Target target(fd);
  if (target.lost) return fail_lost();
  // Unlike recv(), read() of nothing never waits.
  if (!target.ours() || n == 0) return target.count(false, cancellation::caught(real().read, fd, buf, n));
  if (arguments::is_odd(buf, n)) {
    return arguments::recv_odd(*target.stream, buf, n, 0, Judged::kWhole);
  }
  const iovec iov{buf, n};
  return target.stream->recv(&iov, 1, 0);
}

RR_NOINLINE ssize_t stream_readv(int fd, const iovec* iov, int count) {
  Target target(fd);
  if (target.lost) return fail_lost();
  if (!target.ours() || count < 0 || !valid_vectors(iov, static_cast<std::size_t>(count))) {
    return target.count(false, cancellation::caught(real().readv, fd, iov, count));
  }
  std::size_t total = 0;
  if (arguments::is_odd(iov, count, total)) return arguments::recv_odd(*target.stream, iov, count, 0);
  if (total == 0) return 0;  // it is done before the socket is asked
  return target.stream->recv(iov, count, 0);
}

// preadv2() and pwritev2() at -1 are readv() and writev(). No socket has another place than that,
// and flags are for the kernel to know.
RR_NOINLINE ssize_t stream_preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  if (offset == -1 && flags == 0) return stream_readv(fd, iov, count);
  Target target(fd);
  if (target.lost) return fail_lost();
  if (offset == -1) target.to_kernel(Reason::kDescriptorUse);
  return target.count(false, cancellation::caught(real().preadv2, fd, iov, count, offset, flags));
}

RR_NOINLINE ssize_t stream_recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* addr,
                                    socklen_t* len) {
  Target target(fd);
  if (target.lost) return fail_lost();
  if (is_special_receive(flags)) target.to_kernel(reason_for_flags(flags));
  if (!target.ours() || is_special_receive(flags)) {
    return target.count(false, cancellation::caught(real().recvfrom, fd, buf, n, flags, addr, len));
  }
  const iovec iov{buf, n};
  const ssize_t result =
      arguments::is_odd(buf, n)
          ? arguments::recv_odd(*target.stream, buf, n, flags, Judged::kMovable)
          : target.stream->recv(&iov, 1, flags);
  if (result < 0 || addr == nullptr) return result;
  // As the kernel has it, the bytes are gone.
  if (arguments::is_nowhere(len) || static_cast<int>(*len) < 0) {
    errno = arguments::is_nowhere(len) ? EFAULT : EINVAL;
    return -1;
  }
  *len = 0;  // as TCP has it: no address
  return result;
}

RR_NOINLINE ssize_t stream_recvmsg(int fd, msghdr* msg, int flags) {
  Target target(fd);
  if (target.lost) return fail_lost();
  if (is_special_receive(flags)) target.to_kernel(reason_for_flags(flags));
  if (!target.ours() || is_special_receive(flags) || arguments::is_nowhere(msg) ||
      refuses_address(msg->msg_name, msg->msg_namelen, false) ||
      !valid_vectors(msg->msg_iov, msg->msg_iovlen)) {
    return target.count(false, cancellation::caught(real().recvmsg, fd, msg, flags));
  }
  const auto count = static_cast<int>(msg->msg_iovlen);
  std::size_t total = 0;
  const ssize_t result = arguments::is_odd(msg->msg_iov, count, total)
                             ? arguments::recv_odd(*target.stream, msg->msg_iov, count, flags)
                             : target.stream->recv(msg->msg_iov, count, flags);
  if (result >= 0) {
    if (msg->msg_name != nullptr) msg->msg_namelen = 0;
    msg->msg_flags = flags & MSG_CMSG_CLOEXEC;
    tell_unread(target.stream->unread_to_tell(), msg);
  }
  return result;
}

RR_NOINLINE ssize_t stream_send(int fd, const void* buf, size_t n, int flags) {
  Target target(fd);
  if (target.lost) return fail_lost();
  if ((flags & ~kSendFlags) != 0) target.to_kernel(reason_for_flags(flags));
  if (!target.ours() || (flags & ~kSendFlags) != 0) {
    return target.count(true, cancellation::caught(real().send, fd, buf, n, flags));
  }
  if (arguments::is_odd(buf, n)) {
    return arguments::send_odd(*target.stream, buf, n, flags, Judged::kMovable);
  }
  const iovec iov{const_cast<void*>(buf), n};
  return target.stream->send(&iov, 1, flags);
}

RR_NOINLINE ssize_t stream_write(int fd, const void* buf, size_t n) {
  Target target(fd);
  if (target.lost) return fail_lost();
  if (!target.ours()) return target.count(true, cancellation::caught(real().write, fd, buf, n));
  if (arguments::is_odd(buf, n)) {
    return arguments::send_odd(*target.stream, buf, n, 0, Judged::kWhole);
  }
  const iovec iov{const_cast<void*>(buf), n};
  return target.stream->send(&iov, 1, 0);
}

RR_NOINLINE ssize_t stream_writev(int fd, const iovec* iov, int count) {
  Target target(fd);
  if (target.lost) return fail_lost();
  if (!target.ours() || count < 0 || !valid_vectors(iov, static_cast<std::size_t>(count))) {
    return target.count(true, cancellation::caught(real().writev, fd, iov, count));
  }
  std::size_t total = 0;
  if (arguments::is_odd(iov, count, total)) return arguments::send_odd(*target.stream, iov, count, 0);
  if (total == 0) return 0;  // as in stream_readv()
  return target.stream->send(iov, count, 0);
}

RR_NOINLINE ssize_t stream_pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  if (offset == -1 && flags == 0) return stream_writev(fd, iov, count);
  Target target(fd);
  if (target.lost) return fail_lost();
  if (offset == -1) target.to_kernel(Reason::kDescriptorUse);
  return target.count(true, cancellation::caught(real().pwritev2, fd, iov, count, offset, flags));
}

RR_NOINLINE ssize_t stream_sendto(int fd, const void* buf, size_t n, int flags,
                                  const sockaddr* addr, socklen_t len) {
  Target target(fd);
  if (target.lost) return fail_lost();
  if ((flags & ~kSendFlags) != 0) target.to_kernel(reason_for_flags(flags));
  const bool refused = refuses_address(addr, len, true) || (addr != nullptr && len > sizeof(sockaddr_storage));
  if (!target.ours() || (flags & ~kSendFlags) != 0 || refused) {
    return target.count(true, cancellation::caught(real().sendto, fd, buf, n, flags, addr, len));
  }
  if (arguments::is_odd(buf, n)) {
    return arguments::send_odd(*target.stream, buf, n, flags, Judged::kMovable);
  }
  // A connected TCP socket ignores the address.
  const iovec iov{const_cast<void*>(buf), n};
  return target.stream->send(&iov, 1, flags);
}

RR_NOINLINE ssize_t stream_sendmsg(int fd, const msghdr* msg, int flags) {
  Target target(fd);
  if (target.lost) return fail_lost();
  const bool special =
      (flags & ~kSendFlags) != 0 || (!arguments::is_nowhere(msg) && msg->msg_controllen != 0);
  if (special) target.to_kernel(reason_for_flags(flags));
  if (!target.ours() || special || arguments::is_nowhere(msg) ||
      refuses_address(msg->msg_name, msg->msg_namelen, true) ||
      !valid_vectors(msg->msg_iov, msg->msg_iovlen)) {
    return target.count(true, cancellation::caught(real().sendmsg, fd, msg, flags));
  }
  const auto count = static_cast<int>(msg->msg_iovlen);
  std::size_t total = 0;
  if (arguments::is_odd(msg->msg_iov, count, total)) {
    return arguments::send_odd(*target.stream, msg->msg_iov, count, flags);
  }
  return target.stream->send(msg->msg_iov, count, flags);
}

RR_NOINLINE ssize_t stream_sendfile(int out, int in, off_t* offset, size_t n) {
  Target target(out);
  const Origin origin = target.ours() ? origin_of(in, offset) : Origin::kKernels;
  if (origin == Origin::kPlainFile) return send_file(*target.stream, in, offset, n);
  if (origin == Origin::kKernels) target.to_kernel(Reason::kDescriptorUse);
  return cancellation::caught(real().sendfile, out, in, offset, n);
}

// ---- The short way of stream_short.h, and else the long one. `socket` is what peek() has found.

template <auto transfer, typename Buffer>
[[gnu::always_inline]] inline ssize_t transfer_at_once(int fd, Socket* socket, Buffer* buf,
                                                       size_t n) noexcept {
  if (!SocketRef::try_hold(socket)) return -1;
  ssize_t result = -1;
  if (descriptors::table[fd].load(std::memory_order_seq_cst) == socket &&
      socket->kind.load(std::memory_order_acquire) == Socket::Kind::kStream) {
    result = (socket->stream.get()->*transfer)(buf, n);
  }
  SocketRef::drop(socket);
  return result;
}

template <auto long_way, typename... Args>
RR_NOINLINE ssize_t go_the_long_way(Args... args) {
  return cancellation::point<long_way>(args...);
}

// Of a connection that has hardly been used. What one call has not sent the next one sends, as far as
// it is let.
template <auto fresh_way, auto long_way, typename Buffer, typename... Flags>
RR_NOINLINE ssize_t go_the_fresh_way(int fd, Buffer* buf, size_t n, Flags... flags) {
  ssize_t result;
  if (!fresh_way(fd, buf, n, (flags | ... | 0), result)) {
    return go_the_long_way<long_way>(fd, buf, n, flags...);
  }
  if constexpr (std::is_const_v<Buffer>) {
    if (hardly_ever(result > 0 && static_cast<size_t>(result) < n)) {
      const auto done = static_cast<size_t>(result);
      const int saved = errno;
      const ssize_t more = go_the_long_way<long_way>(
          fd, static_cast<Buffer*>(static_cast<const char*>(buf) + done), n - done, flags...);
      if (more > 0) result += more;
      errno = saved;
    }
  }
  return result;
}

template <auto transfer, auto fresh_way, auto long_way, int plain_flags = 0, typename Buffer,
          typename... Flags>
RR_NOINLINE ssize_t go_the_short_way(int fd, Buffer* buf, size_t n, Socket* socket, Flags... flags) {
  // The registers are for the short way.
  struct {
    int fd;
    Buffer* buf;
    size_t n;
  } call{fd, buf, n};
  keep_in_memory(call);
  if (((flags & ~plain_flags) | ... | 0) == 0 && !cancellation::may_be_cancelled() &&
      !arguments::is_nowhere(buf)) {
    // Else it is looked at again when it is held.
    if (hardly_ever(socket->kind.load(std::memory_order_relaxed) == Socket::Kind::kFresh)) {
      return go_the_fresh_way<fresh_way, long_way>(call.fd, call.buf, call.n, flags...);
    }
    const ssize_t result =
        cancellation::brief<transfer_at_once<transfer, Buffer>>(fd, socket, buf, n);
    if (!hardly_ever(result <= 0)) return result;
  }
  return go_the_long_way<long_way>(call.fd, call.buf, call.n, flags...);
}
constexpr auto recv_of = go_the_short_way<&Stream::recv_short, fresh::receives, stream_recv, kPlainRecvFlags, void, int>;
constexpr auto read_of = go_the_short_way<&Stream::recv_short, fresh::receives, stream_read, 0, void>;
constexpr auto send_of = go_the_short_way<&Stream::send_short, fresh::sends, stream_send, kSendFlags, const void, int>;
constexpr auto write_of = go_the_short_way<&Stream::send_short, fresh::sends, stream_write, 0, const void>;

RR_NOINLINE bool pin(int fd) noexcept {
  Target(fd).to_kernel(Reason::kDescriptorUse);
  return true;
}

// Before a call that is the kernel's.
void hand_back(int fd) {
  if (descriptors::managed(fd)) cancellation::no_point<pin>(fd);
}

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
  room::look_at(last);
}

RR_NOINLINE ssize_t receive_descriptors(int fd, msghdr* msg, int flags) {
  const ssize_t result = real().recvmsg(fd, msg, flags);
  if (result >= 0) look_at_descriptors(msg);
  return result;
}

}  // namespace

// ---- in

ssize_t rr_recv(int fd, void* buf, size_t n, int flags) {
  Socket* const socket = descriptors::peek(fd);
  if (__builtin_expect(socket == nullptr, 1)) return real().recv(fd, buf, n, flags);
  return recv_of(fd, buf, n, socket, flags);
}

ssize_t rr_read(int fd, void* buf, size_t n) {
  Socket* const socket = descriptors::peek(fd);
  if (__builtin_expect(socket == nullptr, 1)) return real().read(fd, buf, n);
  return read_of(fd, buf, n, socket);
}

ssize_t rr_readv(int fd, const iovec* iov, int count) {
  if (!descriptors::managed(fd)) return real().readv(fd, iov, count);
  return cancellation::point<stream_readv>(fd, iov, count);
}

ssize_t rr_preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  if (!descriptors::managed(fd)) return real().preadv2(fd, iov, count, offset, flags);
  return cancellation::point<stream_preadv2>(fd, iov, count, offset, flags);
}

ssize_t rr_recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* addr, socklen_t* len) {
  if (!descriptors::managed(fd)) return real().recvfrom(fd, buf, n, flags, addr, len);
  return cancellation::point<stream_recvfrom>(fd, buf, n, flags, addr, len);
}

ssize_t rr_recvmsg(int fd, msghdr* msg, int flags) {
  if (!descriptors::managed(fd)) {
    return room::is_looked_at() ? receive_descriptors(fd, msg, flags) : real().recvmsg(fd, msg, flags);
  }
  return cancellation::point<stream_recvmsg>(fd, msg, flags);
}

int rr_recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) {
  hand_back(fd);
  const int result = real().recvmmsg(fd, msgs, count, flags, timeout);
  if (room::is_looked_at()) {
    for (int i = 0; i < result; ++i) look_at_descriptors(&msgs[i].msg_hdr);
  }
  return result;
}

ssize_t rr___read_chk(int fd, void* buf, size_t n, size_t size) {
  // A buffer that is too small ends the program, and that is libc's to do.
  if (!descriptors::managed(fd) || n > size) return real().__read_chk(fd, buf, n, size);
  return rr_read(fd, buf, n);
}

ssize_t rr___recv_chk(int fd, void* buf, size_t n, size_t size, int flags) {
  if (!descriptors::managed(fd) || n > size) return real().__recv_chk(fd, buf, n, size, flags);
  return rr_recv(fd, buf, n, flags);
}

ssize_t rr___recvfrom_chk(int fd, void* buf, size_t n, size_t size, int flags, sockaddr* addr,
                          socklen_t* len) {
  if (!descriptors::managed(fd) || n > size) {
    return real().__recvfrom_chk(fd, buf, n, size, flags, addr, len);
  }
  return rr_recvfrom(fd, buf, n, flags, addr, len);
}

// ---- out

ssize_t rr_send(int fd, const void* buf, size_t n, int flags) {
  Socket* const socket = descriptors::peek(fd);
  if (__builtin_expect(socket == nullptr, 1)) return real().send(fd, buf, n, flags);
  return send_of(fd, buf, n, socket, flags);
}

ssize_t rr_write(int fd, const void* buf, size_t n) {
  Socket* const socket = descriptors::peek(fd);
  if (__builtin_expect(socket == nullptr, 1)) return real().write(fd, buf, n);
  return write_of(fd, buf, n, socket);
}

ssize_t rr_writev(int fd, const iovec* iov, int count) {
  if (!descriptors::managed(fd)) return real().writev(fd, iov, count);
  return cancellation::point<stream_writev>(fd, iov, count);
}

ssize_t rr_pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  if (!descriptors::managed(fd)) return real().pwritev2(fd, iov, count, offset, flags);
  return cancellation::point<stream_pwritev2>(fd, iov, count, offset, flags);
}

ssize_t rr_sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* addr,
                  socklen_t len) {
  if (!descriptors::managed(fd)) return real().sendto(fd, buf, n, flags, addr, len);
  return cancellation::point<stream_sendto>(fd, buf, n, flags, addr, len);
}

ssize_t rr_sendmsg(int fd, const msghdr* msg, int flags) {
  if (!arguments::is_nowhere(msg) && msg->msg_controllen != 0 && runtime::existing_agent() != nullptr) {
    hand_over_rights(msg);
  }
  if (!descriptors::managed(fd)) return real().sendmsg(fd, msg, flags);
  return cancellation::point<stream_sendmsg>(fd, msg, flags);
}

int rr_sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) {
  if (runtime::existing_agent() != nullptr && !arguments::is_nowhere(msgs)) {
    for (unsigned i = 0; i < count; ++i) {
      if (msgs[i].msg_hdr.msg_controllen != 0) hand_over_rights(&msgs[i].msg_hdr);
    }
  }
  hand_back(fd);
  return real().sendmmsg(fd, msgs, count, flags);
}

ssize_t rr_sendfile(int out, int in, off_t* offset, size_t n) {
  if (!descriptors::managed(out)) {
    hand_back(in);  // to a pipe this is splice()
    return real().sendfile(out, in, offset, n);
  }
  return cancellation::no_point<stream_sendfile>(out, in, offset, n);
}

ssize_t rr_sendfile64(int out, int in, off64_t* offset, size_t n) {
  static_assert(sizeof(off_t) == sizeof(off64_t));
  return rr_sendfile(out, in, offset, n);
}

ssize_t rr_splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t n,
                  unsigned flags) {
  hand_back(in);
  hand_back(out);
  return real().splice(in, in_offset, out, out_offset, n, flags);
}

// ---- Requests that threads of libc's carry out later, by calls that nobody can interpose.

int rr_aio_read(aiocb* request) {
  if (request != nullptr) hand_back(request->aio_fildes);
  return real().aio_read(request);
}

int rr_aio_write(aiocb* request) {
  if (request != nullptr) hand_back(request->aio_fildes);
  return real().aio_write(request);
}

int rr_lio_listio(int mode, aiocb* const requests[], int count, sigevent* event) {
  for (int i = 0; requests != nullptr && i < count; ++i) {
    const aiocb* request = requests[i];
    if (request != nullptr && request->aio_lio_opcode != LIO_NOP) hand_back(request->aio_fildes);
  }
  return real().lio_listio(mode, requests, count, event);
}
