#include "rsocket-core/process/control_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/process/control_target.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad::control {
namespace {

bool may_ask(const ucred& asker) noexcept {
  return asker.uid == 0 || asker.uid == static_cast<uid_t>(sys::call(SYS_geteuid));
}

// The process that sent it, if the kernel says so.
std::optional<ucred> sender(msghdr& message) noexcept {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS) continue;
    ucred asker;
    if (c->cmsg_len != CMSG_LEN(sizeof asker)) return std::nullopt;
    std::memcpy(&asker, CMSG_DATA(c), sizeof asker);
    return asker;
  }
  return std::nullopt;
}

// Whether the socket was bound beside the file of that name. It may have another name by now.
bool is_beside(int fd, const Target& target) noexcept {
  sockaddr_un bound{};
  socklen_t length = sizeof bound;
  if (sys::call(SYS_getsockname, fd, &bound, &length) != 0 || length > sizeof bound) return false;
  bound.sun_path[sizeof bound.sun_path - 1] = '\0';
  const char* const slash = std::strrchr(bound.sun_path, '/');
  const std::size_t bytes = strnlen(target.name, sizeof target.name);
  return slash != nullptr && std::strncmp(slash + 1, target.name, bytes) == 0 &&
         std::strncmp(slash + 1 + bytes, kSuffix, std::strlen(kSuffix)) == 0;
}

}  // namespace

const char* mode_name(Mode mode) noexcept {
  switch (mode) {
    case Mode::kAuto:
      return "auto";
    case Mode::kTcp:
      return "tcp";
    case Mode::kRdma:
      return "rdma";
  }
  return "invalid";
}

bool ControlSocket::open(const char* path) noexcept {
  if (open_as(path, kSuffix)) return true;
  if (errno != EADDRINUSE) return false;
  // Somebody else's, in a directory where nobody can remove what is another's.
  Nonce random;
  if (!make_nonce(random)) return false;
  std::uint64_t number;
  static_assert(sizeof number <= sizeof random);
  std::memcpy(&number, random.data(), sizeof number);
  char suffix[kSuffixBytes];
  std::snprintf(suffix, sizeof suffix, "%s.%016llx", kSuffix,
                static_cast<unsigned long long>(number));
  return open_as(path, suffix);
}

bool ControlSocket::open_as(const char* path, const char* suffix) noexcept {
  errno = ENAMETOOLONG;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int length =
      std::snprintf(address.sun_path, sizeof address.sun_path, "%s%s", path, suffix);
  if (length <= 0 || static_cast<std::size_t>(length) >= sizeof address.sun_path) return false;
  const int fd = above_limit(sys::open_high(
      [&] { return sys::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }));
  if (fd < 0) return false;
  // What stands under our pid is from a dead process.
  sys::call(SYS_unlinkat, AT_FDCWD, address.sun_path, 0);
  const int yes = 1;
  // The file has the permissions of its socket from the first: of those that another user connects before
  // they are set, one could send descriptors that wait when recvmsg(2) drops them.
  if (sys::setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0 ||
      sys::call(SYS_fchmod, fd, 0600) != 0 ||
      sys::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    sys::close_quietly(fd);
    errno = error;
    return false;
  }
  fd_ = fd;
  std::snprintf(suffix_, sizeof suffix_, "%s", suffix);
  return true;
}

void ControlSocket::close() noexcept {
  if (fd_ >= 0) sys::close_quietly(std::exchange(fd_, -1));
}

std::optional<Request> ControlSocket::receive() noexcept {
  for (;;) {
    Request request;
    Target target;
    target.magic = 0;
    iovec bytes[] = {{&request, sizeof request}, {&target, sizeof target}};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];  // and no descriptors
    msghdr message{};
    message.msg_iov = bytes;
    message.msg_iovlen = std::size(bytes);
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = sys::recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) {
      if (errno == EINTR) continue;
      return std::nullopt;
    }
    const std::optional<ucred> asker = sender(message);
    // What a newer command says besides is cut off.
    const bool is_for_another = n >= static_cast<ssize_t>(sizeof request + sizeof target) &&
                                target.magic == kTargetMagic && !is_beside(fd_, target);
    const bool whole = n >= static_cast<ssize_t>(sizeof request) && request.magic == kMagic &&
                       request.version == kVersion && request.serial != 0 &&
                       request.mode <= static_cast<std::uint16_t>(kLastMode);
    if (whole && asker && may_ask(*asker) && !is_for_another) return request;
  }
}

}  // namespace ringroad::control
