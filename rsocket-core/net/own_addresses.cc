#include "rsocket-core/net/own_addresses.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "rsocket-core/base/sys.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace ringroad {
namespace {

// By its routes, which hold addresses of interfaces and ranges that are made local. `unknown`: no answer.
bool has_local_route(const Address& address, bool unknown) noexcept {
  struct {
    nlmsghdr header;
    rtmsg body;
    rtattr attribute;
    std::uint8_t bytes[16];
  } question{};
  const unsigned length = address.bits() / 8;
  question.header.nlmsg_len = static_cast<std::uint32_t>(offsetof(decltype(question), bytes) + length);
  question.header.nlmsg_type = RTM_GETROUTE;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.body.rtm_family = address.is_v4() ? AF_INET : AF_INET6;
  question.body.rtm_dst_len = static_cast<std::uint8_t>(address.bits());
  question.attribute.rta_len = static_cast<std::uint16_t>(RTA_LENGTH(length));
  question.attribute.rta_type = RTA_DST;
  std::memcpy(question.bytes, address.bytes.data() + address.first_byte(), length);
  const int fd = sys::open_high([&] {
    return sys::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
  });
  if (fd < 0) return unknown;
  struct {
    nlmsghdr header;
    union {
      rtmsg route;
      nlmsgerr error;
    };
    std::uint8_t attributes[1024];
  } answer;
  // The kernel has answered by the time it has taken the question.
  ssize_t n = sys::send(fd, &question, question.header.nlmsg_len, 0);
  if (n > 0) n = sys::recv(fd, &answer, sizeof answer, 0);
  sys::close_quietly(fd);
  if (n < static_cast<ssize_t>(sizeof answer.header + sizeof answer.route)) return unknown;
  if (answer.header.nlmsg_type == RTM_NEWROUTE) return answer.route.rtm_type == RTN_LOCAL;
  const bool none = answer.header.nlmsg_type == NLMSG_ERROR &&
                    (answer.error.error == -ENETUNREACH || answer.error.error == -EHOSTUNREACH);
  return !none && unknown;
}

int digit(char c) noexcept {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

bool is_own_address(const Endpoint& endpoint) noexcept {
  if (endpoint.is_loopback()) return true;
  Endpoint any_port = endpoint;
  any_port.port = 0;
  sockaddr_storage address;
  const socklen_t length = any_port.to_sockaddr(address);
  const int fd =
      sys::open_high([&] { return sys::socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
  if (fd < 0) return false;
  const bool binds = sys::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0;
  sys::close_quietly(fd);
  // A link-local address has a route for each interface.
  return binds && (endpoint.scope != 0 || has_local_route(endpoint.addr, true));
}

bool add_ipv4_addresses(std::vector<Address>& out) {
  const int fd =
      sys::open_high([] { return sys::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
  if (fd < 0) return false;
  ifreq interfaces[64];
  ifconf all{};
  all.ifc_len = sizeof interfaces;
  all.ifc_req = interfaces;
  const bool told = sys::ioctl(fd, SIOCGIFCONF, &all) == 0;
  sys::close_quietly(fd);
  for (int i = 0; told && i < all.ifc_len / static_cast<int>(sizeof(ifreq)); ++i) {
    Endpoint found;
    if (!Endpoint::from_sockaddr(&interfaces[i].ifr_addr, sizeof(sockaddr_in), found)) continue;
    if (!found.is_loopback()) out.push_back(found.addr);
  }
  return told;
}

// "fd000000000000000000000000000002 02 40 00 80 eth0": address, interface, prefix, scope, flags, name.
bool add_ipv6_addresses(std::vector<Address>& out) {
  char path[64];  // of this thread: each may be in a namespace of its own
  std::snprintf(path, sizeof path, "/proc/self/task/%ld/net/if_inet6", sys::raw(SYS_gettid));
  const int fd =
      sys::open_high([&] { return sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0); });
  if (fd < 0) return errno == ENOENT;  // without IPv6
  char text[8192];
  const ssize_t n = sys::read(fd, text, sizeof text - 1);
  sys::close_quietly(fd);
  text[n > 0 ? n : 0] = '\0';
  constexpr std::size_t kDigits = 32;
  for (const char* line = text; *line != '\0';) {
    const char* const end = std::strchr(line, '\n');
    if (end == nullptr) break;
    unsigned scope = 1;
    std::uint8_t bytes[kDigits / 2] = {};
    bool good = std::sscanf(line, "%*32s %*x %*x %x", &scope) == 1 && scope == 0;
    for (std::size_t i = 0; good && i < kDigits; ++i) {
      const int value = digit(line[i]);
      good = value >= 0;
      bytes[i / 2] = static_cast<std::uint8_t>(bytes[i / 2] << 4 | (value & 15));
    }
    if (good) out.push_back(Address::from_ipv6(bytes));
    line = end + 1;
  }
  return n >= 0;
}

std::uint64_t network_of(int socket) noexcept {
  std::uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  const bool told = sys::getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) == 0;
  return told && length == sizeof cookie ? cookie : 0;
}

}  // namespace ringroad
