// An IP address and TCP port, and the pair of them that names a connection.
#pragma once

#include <sys/socket.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rsocket-core/net/address.h"

namespace ringroad {

// Lies in memory that processes share: the order of the members is a format.
struct Endpoint {
  Address addr;
  std::uint32_t scope = 0;  // interface index of a link-local address, else 0
  std::uint16_t port = 0;   // host byte order

  Endpoint() noexcept = default;
  Endpoint(const Address& address, std::uint16_t port_number) noexcept : addr(address), port(port_number) {}

  // AF_INET or AF_INET6; anything else gives false and leaves `out` alone.
  static bool from_sockaddr(const sockaddr* sa, socklen_t len, Endpoint& out) noexcept;
  // "10.9.1.1:3306" or "[fd00::1]:3306".
  static std::optional<Endpoint> parse(std::string_view text) noexcept;
  // By the library's own system calls: socket_endpoint.cc.
  static bool local_of(int fd, Endpoint& out) noexcept;  // getsockname
  static bool peer_of(int fd, Endpoint& out) noexcept;   // getpeername

  bool is_v4() const noexcept { return addr.is_v4(); }
  bool is_any() const noexcept { return addr.is_any(); }
  bool is_loopback() const noexcept { return addr.is_loopback(); }
  // AF_INET for an IPv4 address, else AF_INET6. Returns the length used.
  socklen_t to_sockaddr(sockaddr_storage& out) const noexcept;
  std::string to_string() const;  // as parse() takes it

  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
};

// A connection as one end sees it.
struct FourTuple {
  Endpoint local;
  Endpoint remote;

  FourTuple reversed() const noexcept { return {remote, local}; }
  friend auto operator<=>(const FourTuple&, const FourTuple&) = default;
};

}  // namespace ringroad
