#include "rsocket-core/net/socket_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

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

}  // namespace

bool tcp_socket_owner(const FourTuple& of, uid_t& owner) noexcept {
  const int saved = errno;
  bool found = false;
  const int fd = sys::open_high([&] {
    return sys::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
  });
  if (fd >= 0) {
    const Question question = question_about(of);
    struct {
      nlmsghdr header;
      inet_diag_msg socket;
      char attributes[512];
    } answer;
    ssize_t n = sys::send(fd, &question, sizeof question, 0);
    // The kernel has answered by the time it has taken the question.
    if (n > 0) n = sys::recv(fd, &answer, sizeof answer, 0);
    // Without a connection it finds the listener. A socket that nobody has accepted has no inode, and
    // no user.
    found = n >= static_cast<ssize_t>(offsetof(decltype(answer), attributes)) &&
            answer.header.nlmsg_type == SOCK_DIAG_BY_FAMILY &&
            answer.socket.idiag_state != TCP_LISTEN && answer.socket.idiag_inode != 0;
    if (found) owner = answer.socket.idiag_uid;
    sys::close_quietly(fd);
  }
  errno = saved;
  return found;
}

}  // namespace ringroad
