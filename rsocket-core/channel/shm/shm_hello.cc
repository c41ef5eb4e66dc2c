#include "rsocket-core/channel/shm/shm_hello.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "rsocket-core/base/deferred_close.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

// What a user that has no name in this user namespace looks like (/proc/sys/kernel/overflowuid):
// many users, perhaps.
constexpr uid_t kOverflowUser = 65534;

// Whether every user has a name here (user_namespaces(7)), so that this one is itself: in the initial
// namespace, and in one that maps as it does.
bool all_users_have_names() noexcept {
  const int saved = errno;
  const int file = sys::open_high(
      [] { return sys::call(SYS_openat, AT_FDCWD, "/proc/self/uid_map", O_RDONLY | O_CLOEXEC, 0); });
  if (file < 0) {
    errno = saved;
    return false;
  }
  char text[64];
  const ssize_t n = sys::read(file, text, sizeof text - 1);
  text[n > 0 ? n : 0] = '\0';
  sys::close_quietly(file);
  unsigned first = 1;
  unsigned outside = 1;
  unsigned count = 0;
  const bool all = std::sscanf(text, "%u %u %u", &first, &outside, &count) == 3 && first == 0 && count == ~0U;
  errno = saved;
  return all;
}

// A part of the names, whatever versions are spoken behind them.
constexpr unsigned kNames = 1;

constexpr std::size_t kControlBytes =
    CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(ShmPacket::kMaxDescriptors * sizeof(int));

}  // namespace

ShmAddress ShmAddress::from(const Endpoint& endpoint) noexcept {
  ShmAddress out;
  std::memcpy(out.addr, endpoint.addr.bytes.data(), sizeof out.addr);
  out.scope = endpoint.scope;
  out.port = endpoint.port;
  return out;
}

Endpoint ShmAddress::endpoint() const noexcept {
  Endpoint out;
  std::memcpy(out.addr.bytes.data(), addr, sizeof addr);
  out.scope = scope;
  out.port = port;
  return out;
}

ShmName shm_name_of_listener(const Endpoint& endpoint) noexcept {
  if (!endpoint.is_any()) return ShmName::kExact;
  return endpoint.is_v4() ? ShmName::kAny4 : ShmName::kAny6;
}

socklen_t make_shm_name(ShmName kind, const Endpoint& endpoint, sockaddr_un& out) noexcept {
  char address[INET6_ADDRSTRLEN + 16] = {};
  if (kind != ShmName::kExact) {
    std::snprintf(address, sizeof address, "%s", kind == ShmName::kAny4 ? "any4" : "any6");
  } else if (endpoint.is_v4()) {
    inet_ntop(AF_INET, endpoint.addr.bytes.data() + 12, address, sizeof address);
  } else {
    char text[INET6_ADDRSTRLEN] = {};
    inet_ntop(AF_INET6, endpoint.addr.bytes.data(), text, sizeof text);
    if (endpoint.scope != 0) {
      std::snprintf(address, sizeof address, "[%s%%%u]", text, endpoint.scope);
    } else {
      std::snprintf(address, sizeof address, "[%s]", text);
    }
  }
  out = sockaddr_un{};
  out.sun_family = AF_UNIX;
  const int length = std::snprintf(out.sun_path + 1, sizeof out.sun_path - 1, "ringroad/%u/%s:%u",
                                   kNames, address, unsigned{endpoint.port});
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1) +
         static_cast<socklen_t>(length);
}

socklen_t make_shm_process_name(const std::array<std::uint8_t, 16>& token,
                                sockaddr_un& out) noexcept {
  char hex[2 * sizeof token + 1] = {};
  for (std::size_t i = 0; i < token.size(); ++i) {
    std::snprintf(hex + 2 * i, 3, "%02x", unsigned{token[i]});
  }
  out = sockaddr_un{};
  out.sun_family = AF_UNIX;
  const int length = std::snprintf(out.sun_path + 1, sizeof out.sun_path - 1,
                                   "ringroad/%u/process/%s", kNames, hex);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1) +
         static_cast<socklen_t>(length);
}

ShmPacket::~ShmPacket() {
  for (const int fd : fds_) close_foreign(fd);
}

int ShmPacket::take_descriptor(unsigned index) noexcept {
  const int fd = fds_[index];
  fds_[index] = -1;
  return fd;
}

bool ShmPacket::from_user(uid_t user) const noexcept {
  return has_sender_ && sender_ == user && (sender_ != kOverflowUser || all_users_have_names());
}

Reason ShmPacket::proves_user(uid_t user) const noexcept {
  if (from_user(user)) return Reason::kNone;
  return has_sender_ && sender_ == user ? Reason::kOtherUserNamespace : Reason::kForged;
}

bool ShmPacket::from_same_user() const noexcept { return from_user(geteuid()); }

ShmPacket::Got ShmPacket::receive(int socket) noexcept {
  iovec piece{bytes_, sizeof bytes_};
  alignas(cmsghdr) char control[kControlBytes];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const sys::DescriptorTurn turn;
  ssize_t n;
  // The other end has answered, but had not taken all that this one has sent (close_foreign_socket()): that
  // is told once, before the answer.
  do {
    n = sys::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_PEEK);
  } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
  if (n < 0) return errno == EAGAIN ? Got::kNothing : Got::kEnd;

  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    const std::size_t bytes = part->cmsg_len - CMSG_LEN(0);
    if (part->cmsg_type == SCM_CREDENTIALS && bytes == sizeof(ucred)) {
      ucred sender;
      std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
      sender_ = sender.uid;
      has_sender_ = true;
    } else if (part->cmsg_type == SCM_RIGHTS) {
      for (std::size_t i = 0; i < bytes / sizeof(int); ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
        fd = sys::move_high(fd);
        // Until it is known what it is: a fork does not wait for what closing it may take.
        reserved_fds::keep_in_children(fd);
        if (count_ < kMaxDescriptors) {
          fds_[count_++] = fd;
        } else {
          close_foreign(fd);
        }
      }
    }
  }
  // The end of the stream has no sender.
  if (n == 0 && !has_sender_ && count_ == 0) return Got::kEnd;
  size_ = static_cast<std::size_t>(n);
  truncated_ = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  // The kernel closes what has found no room, on the thread that takes the message. That can wait, for the
  // data of a TCP socket that lingers. So such a message goes with the socket (close_foreign_socket()). Of
  // the descriptors of any other there are copies by now.
  char byte;
  if (!truncated_) sys::recv(socket, &byte, sizeof byte, MSG_DONTWAIT);
  return Got::kPacket;
}

int send_shm_packet(int socket, const void* data, std::size_t size, const int* fds,
                    unsigned count) noexcept {
  // sendmsg(2) does not write through it.
  iovec piece{const_cast<void*>(data), size};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_CREDENTIALS;
  part->cmsg_len = CMSG_LEN(sizeof(ucred));
  const ucred self{sys::getpid(), geteuid(), getegid()};
  std::memcpy(CMSG_DATA(part), &self, sizeof self);
  std::size_t used = CMSG_SPACE(sizeof(ucred));
  if (count > 0) {
    part = CMSG_NXTHDR(&message, part);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(part), fds, count * sizeof(int));
    used += CMSG_SPACE(count * sizeof(int));
  }
  message.msg_controllen = used;
  ssize_t n;
  do {
    n = sys::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n < 0 ? errno : 0;
}

bool receive_credentials(int socket) noexcept {
  const int on = 1;
  return sys::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0;
}

}  // namespace ringroad
