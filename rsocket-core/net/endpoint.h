// An IP address and TCP port, and the pair of them that names a connection.
//
// IPv4 addresses are kept v4-mapped (::ffff:a.b.c.d), so that a connection has one name whichever
// family its sockets were made with.
#pragma once

#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ringroad {

struct Endpoint {
  std::array<std::uint8_t, 16> addr{};
  std::uint32_t scope = 0;  // interface index of a link-local address, else 0
  std::uint16_t port = 0;   // host byte order

  // AF_INET or AF_INET6; anything else gives false and leaves `out` alone.
  static bool from_sockaddr(const sockaddr* sa, socklen_t len, Endpoint& out) noexcept;
  static bool local_of(int fd, Endpoint& out) noexcept;  // getsockname
  static bool peer_of(int fd, Endpoint& out) noexcept;   // getpeername

  bool is_v4() const noexcept;
  bool is_any() const noexcept;       // 0.0.0.0 or ::
  bool is_loopback() const noexcept;  // 127.0.0.0/8 or ::1
  // AF_INET for a v4-mapped address, else AF_INET6. Returns the length used.
  socklen_t to_sockaddr(sockaddr_storage& out) const noexcept;
  std::string to_string() const;  // 10.9.0.1:3306 or [fd00::1]:3306

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
