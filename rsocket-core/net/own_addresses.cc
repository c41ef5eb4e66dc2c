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

struct Descriptor {
  ~Descriptor() {
    if (number >= 0) sys::close_quietly(number);
  }
  const int number;
};

// Whether the namespace has the address, by its flags. The kernel asks the network whether another host has a
// new one (RFC 4862, 5.4). Until then, and for good if one does, the address is not used.
bool is_had(unsigned flags) noexcept {
  if ((flags & IFA_F_DADFAILED) != 0) return false;
  return (flags & IFA_F_TENTATIVE) == 0 || (flags & IFA_F_OPTIMISTIC) != 0;
}

// "fd000000000000000000000000000002 02 40 00 80 eth0": address, interface, prefix, scope, flags, name.
void add_ipv6_line(const char* line, std::vector<Address>& out) {
  constexpr std::size_t kDigits = 32;
  unsigned scope = 1;
  unsigned flags = 0;
  std::uint8_t bytes[kDigits / 2] = {};
  if (std::sscanf(line, "%*32s %*x %*x %x %x", &scope, &flags) != 2 || scope != 0 || !is_had(flags)) return;
  for (std::size_t i = 0; i < kDigits; ++i) {
    const int value = digit(line[i]);
    if (value < 0) return;
    bytes[i / 2] = static_cast<std::uint8_t>(bytes[i / 2] << 4 | value);
  }
  out.push_back(Address::from_ipv6(bytes));
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
  const Descriptor fd{sys::open_high([] { return sys::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); })};
  if (fd.number < 0) return false;
  std::vector<ifreq> interfaces(32);
  ifconf all{};
  std::size_t bytes = 0;
  do {  // until there is room left
    interfaces.resize(2 * interfaces.size());
    bytes = interfaces.size() * sizeof(ifreq);
    all.ifc_len = static_cast<int>(bytes);
    all.ifc_req = interfaces.data();
    if (sys::ioctl(fd.number, SIOCGIFCONF, &all) != 0) return false;
  } while (static_cast<std::size_t>(all.ifc_len) > bytes - sizeof(ifreq));
  interfaces.resize(static_cast<std::size_t>(all.ifc_len) / sizeof(ifreq));
  for (const ifreq& interface : interfaces) {
    Endpoint found;
    if (!Endpoint::from_sockaddr(&interface.ifr_addr, sizeof(sockaddr_in), found)) continue;
    if (!found.is_loopback()) out.push_back(found.addr);
  }
  return true;
}

bool add_ipv6_addresses(std::vector<Address>& out) {
  char path[64];  // of this thread: each may be in a namespace of its own
  std::snprintf(path, sizeof path, "/proc/self/task/%ld/net/if_inet6", sys::raw(SYS_gettid));
  const Descriptor fd{
      sys::open_high([&] { return sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0); })};
  if (fd.number < 0) return errno == ENOENT;  // without IPv6
  char text[4096];
  std::size_t kept = 0;  // of a line whose end is not read yet
  ssize_t n = 0;
  while ((n = sys::read(fd.number, text + kept, sizeof text - 1 - kept)) > 0) {
    text[kept + static_cast<std::size_t>(n)] = '\0';
    const char* line = text;
    for (const char* end = nullptr; (end = std::strchr(line, '\n')) != nullptr; line = end + 1) {
      add_ipv6_line(line, out);
    }
    kept = std::strlen(line);
    std::memmove(text, line, kept);
  }
  return n == 0;
}

std::uint64_t network_of(int socket) noexcept {
  std::uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  const bool told = sys::getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) == 0;
  return told && length == sizeof cookie ? cookie : 0;
}

}  // namespace ringroad
