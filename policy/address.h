// Numeric addresses as the policy compares them.
//
// Values, freely copied between threads. Nothing here throws except to_string(), which allocates.
// Ports and prefix lengths are plain numbers; no field is in network byte order.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringroad::policy {

enum class ProcessGroup : std::uint8_t { kIpv4, kIpv6 };

// An IPv4 address uses bytes[0..3] and keeps the rest zero, so that equality is member-wise.
// An IPv4-mapped IPv6 address (::ffff:a.b.c.d, RFC 4291 2.5.5.2), which is how a dual-stack
// socket reports an IPv4 peer, never occurs: every way in turns it into IPv4.
struct Address {
  std::array<std::uint8_t, 16> bytes{};
  ProcessGroup family = ProcessGroup::kIpv4;

  static Address from_ipv4(const std::uint8_t* four_bytes) noexcept;
  static Address from_ipv6(const std::uint8_t* sixteen_bytes) noexcept;

  // None unless the family is AF_INET or AF_INET6 and `length` holds the whole address.
  // An IPv6 scope id is not looked at.
  static std::optional<Address> from_sockaddr(const sockaddr* name, socklen_t length) noexcept;

  // Strict numeric notation, as inet_pton(3) has it: no names, no scope, no short IPv4 forms.
  static std::optional<Address> parse(std::string_view text) noexcept;

  unsigned bits() const noexcept { return family == ProcessGroup::kIpv4 ? 32U : 128U; }
  bool bit(unsigned index) const noexcept {
    return ((static_cast<unsigned>(bytes[index / 8]) >> (7U - index % 8U)) & 1U) != 0;
  }
  std::string to_string() const;

  friend bool operator==(const Address&, const Address&) = default;
};

struct Endpoint {
  Address addr;
  std::uint16_t port = 0;  // host byte order

  static std::optional<Endpoint> from_sockaddr(const sockaddr* name, socklen_t length) noexcept;

  // "10.9.1.1:3306" or "[fd00::1]:3306".
  static std::optional<Endpoint> parse(std::string_view text) noexcept;

  std::string to_string() const;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// Invariant: every bit of `addr` after the first `length` is zero.
struct Prefix {
  Address addr;
  unsigned length = 0;  // 0 to addr.bits()

  // The prefix of that length that holds `address`. REQUIRES: length <= address.bits().
  static Prefix of(const Address& address, unsigned length) noexcept;

  bool contains(const Address& address) const noexcept;
  bool contains(const Prefix& inner) const noexcept {
    return inner.length >= length && contains(inner.addr);
  }
  std::string to_string() const;
};

}  // namespace ringroad::policy
