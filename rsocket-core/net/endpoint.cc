#include "rsocket-core/net/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

constexpr std::uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

bool Endpoint::from_sockaddr(const sockaddr* sa, socklen_t len, Endpoint& out) noexcept {
  if (sa == nullptr || len < sizeof(sa_family_t)) return false;
  if (sa->sa_family == AF_INET && len >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, sa, sizeof in);
    out = Endpoint{};
    std::memcpy(out.addr.data(), kMappedPrefix, sizeof kMappedPrefix);
    std::memcpy(out.addr.data() + 12, &in.sin_addr, 4);
    out.port = ntohs(in.sin_port);
    return true;
  }
  // Programs pass the 24 bytes of RFC 2133's sockaddr_in6, which has no scope; Linux takes both.
  constexpr socklen_t kWithoutScope = offsetof(sockaddr_in6, sin6_scope_id);
  if (sa->sa_family == AF_INET6 && len >= kWithoutScope) {
    sockaddr_in6 in{};
    std::memcpy(&in, sa, len < sizeof in ? kWithoutScope : sizeof in);
    out = Endpoint{};
    std::memcpy(out.addr.data(), &in.sin6_addr, 16);
    if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr)) out.scope = in.sin6_scope_id;
    out.port = ntohs(in.sin6_port);
    return true;
  }
  return false;
}

bool Endpoint::local_of(int fd, Endpoint& out) noexcept {
  sockaddr_storage ss{};
  socklen_t len = sizeof ss;
  return sys::getsockname(fd, reinterpret_cast<sockaddr*>(&ss), &len) == 0 &&
         from_sockaddr(reinterpret_cast<sockaddr*>(&ss), len, out);
}

bool Endpoint::peer_of(int fd, Endpoint& out) noexcept {
  sockaddr_storage ss{};
  socklen_t len = sizeof ss;
  return sys::getpeername(fd, reinterpret_cast<sockaddr*>(&ss), &len) == 0 &&
         from_sockaddr(reinterpret_cast<sockaddr*>(&ss), len, out);
}

bool Endpoint::is_v4() const noexcept {
  return std::memcmp(addr.data(), kMappedPrefix, sizeof kMappedPrefix) == 0;
}

bool Endpoint::is_any() const noexcept {
  static constexpr std::uint8_t kZero[16] = {};
  return is_v4() ? std::memcmp(addr.data() + 12, kZero, 4) == 0
                 : std::memcmp(addr.data(), kZero, 16) == 0;
}

bool Endpoint::is_loopback() const noexcept {
  static constexpr std::uint8_t kV6Loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0,
                                                   0, 0, 0, 0, 0, 0, 0, 1};
  return is_v4() ? addr[12] == 127 : std::memcmp(addr.data(), kV6Loopback, 16) == 0;
}

socklen_t Endpoint::to_sockaddr(sockaddr_storage& out) const noexcept {
  std::memset(&out, 0, sizeof out);
  if (is_v4()) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, addr.data() + 12, 4);
    std::memcpy(&out, &in, sizeof in);
    return sizeof in;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  in.sin6_scope_id = scope;
  std::memcpy(&in.sin6_addr, addr.data(), 16);
  std::memcpy(&out, &in, sizeof in);
  return sizeof in;
}

std::string Endpoint::to_string() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_v4()) {
    inet_ntop(AF_INET, addr.data() + 12, text, sizeof text);
    return std::string(text) + ":" + std::to_string(port);
  }
  inet_ntop(AF_INET6, addr.data(), text, sizeof text);
  return "[" + std::string(text) + "]:" + std::to_string(port);
}

}  // namespace ringroad
