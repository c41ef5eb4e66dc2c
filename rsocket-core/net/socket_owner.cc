#include "rsocket-core/net/socket_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

void put_address(const Endpoint& from, bool v4, __be32 to[4]) noexcept {
  if (v4) {
    std::memcpy(to, from.addr.bytes.data() + 12, 4);
  } else {
    std::memcpy(to, from.addr.bytes.data(), 16);
  }
}

Question question_about(const FourTuple& of) noexcept {
  const bool v4 = of.local.is_v4();
  Question out{};
  out.header.nlmsg_len = sizeof out;
  out.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  out.header.nlmsg_flags = NLM_F_REQUEST;
  out.body.sdiag_family = v4 ? AF_INET : AF_INET6;  // finds v4-mapped sockets as well
  out.body.sdiag_protocol = IPPROTO_TCP;
  out.body.idiag_states = ~0U;
  out.body.id.idiag_sport = htons(of.local.port);
  out.body.id.idiag_dport = htons(of.remote.port);
  put_address(of.local, v4, out.body.id.idiag_src);
  put_address(of.remote, v4, out.body.id.idiag_dst);
  out.body.id.idiag_if = of.local.scope;
  out.body.id.idiag_cookie[0] = out.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return out;
}

// Asks sock_diag(7) one question. The bytes of the answer, or below 0. Keeps errno.
ssize_t ask_kernel(const void* question, std::size_t size, void* answer, std::size_t most) noexcept {
  const int saved = errno;
  ssize_t n = -1;
  const int fd = sys::open_high([&] {
    return sys::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
  });
  if (fd >= 0) {
    n = sys::send(fd, question, size, 0);
    // The kernel has answered by the time it has taken the question.
    if (n > 0) n = sys::recv(fd, answer, most, 0);
    sys::close_quietly(fd);
  }
  errno = saved;
  return n;
}

// Whether the answer is the error ENOENT, whose number stands at `body`.
bool says_there_is_none(const nlmsghdr& header, const void* body, ssize_t n) noexcept {
  int error = 0;
  const bool whole = n >= static_cast<ssize_t>(sizeof header + sizeof error);
  if (!whole || header.nlmsg_type != NLMSG_ERROR) return false;
  std::memcpy(&error, body, sizeof error);
  return error == -ENOENT;
}

}  // namespace

SocketOwner tcp_socket_owner(const FourTuple& of, uid_t& owner) noexcept {
  struct {
    nlmsghdr header;
    inet_diag_msg socket;
    char attributes[512];
  } answer;
  const Question question = question_about(of);
  const ssize_t n = ask_kernel(&question, sizeof question, &answer, sizeof answer);
  if (says_there_is_none(answer.header, &answer.socket, n)) return SocketOwner::kNotHere;
  if (n < static_cast<ssize_t>(offsetof(decltype(answer), attributes)) ||
      answer.header.nlmsg_type != SOCK_DIAG_BY_FAMILY) {
    return SocketOwner::kUnnamed;
  }
  // Without a connection it finds the listener.
  if (answer.socket.idiag_state == TCP_LISTEN) return SocketOwner::kNotHere;
  // A socket that nobody has accepted has no inode, and no user.
  if (answer.socket.idiag_inode == 0) return SocketOwner::kUnnamed;
  owner = answer.socket.idiag_uid;
  return SocketOwner::kNamed;
}

std::uint32_t socket_inode(int fd) noexcept {
  const int saved = errno;
  struct stat facts{};
  const bool known = sys::call(SYS_fstat, fd, &facts) == 0 && S_ISSOCK(facts.st_mode);
  errno = saved;
  return known ? static_cast<std::uint32_t>(facts.st_ino) : 0;
}

std::uint32_t unix_peer_inode(int fd) noexcept {
  struct {
    nlmsghdr header;
    unix_diag_req body;
  } question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.body.sdiag_family = AF_UNIX;
  question.body.udiag_states = ~0U;
  question.body.udiag_ino = socket_inode(fd);
  question.body.udiag_show = UDIAG_SHOW_PEER;
  question.body.udiag_cookie[0] = question.body.udiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (question.body.udiag_ino == 0) return 0;
  struct {
    nlmsghdr header;
    unix_diag_msg socket;
    alignas(nlattr) std::uint8_t attributes[512];
  } answer;
  const ssize_t n = ask_kernel(&question, sizeof question, &answer, sizeof answer);
  constexpr std::size_t kFirst = offsetof(decltype(answer), attributes);
  if (n < static_cast<ssize_t>(kFirst) || answer.header.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      answer.socket.udiag_ino != question.body.udiag_ino) {
    return 0;
  }
  const std::size_t size = static_cast<std::size_t>(n) - kFirst;
  for (std::size_t at = 0; at + sizeof(nlattr) <= size;) {
    nlattr attribute;
    std::memcpy(&attribute, answer.attributes + at, sizeof attribute);
    if (attribute.nla_len < sizeof attribute || attribute.nla_len > size - at) break;
    std::uint32_t peer;
    if (attribute.nla_type == UNIX_DIAG_PEER && attribute.nla_len == sizeof attribute + sizeof peer) {
      std::memcpy(&peer, answer.attributes + at + sizeof attribute, sizeof peer);
      return peer;
    }
    at += NLMSG_ALIGN(attribute.nla_len);
  }
  return 0;
}

}  // namespace ringroad
