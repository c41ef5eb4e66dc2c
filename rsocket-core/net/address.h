// An IP address as connections and policies compare it.
//
// A value of 16 bytes, freely copied between threads; nothing throws but to_string(), which allocates. An
// IPv4 address is kept IPv4-mapped (::ffff:a.b.c.d, RFC 4291 2.5.5.2), which is how a dual-stack socket
// reports an IPv4 peer: so a peer has one address, whichever family its socket was made with.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringroad {

struct Address {
  std::array<std::uint8_t, 16> bytes{};  // in the order of the network; at first ::

  static Address from_ipv4(const void* four_bytes) noexcept;
  static Address from_ipv6(const void* sixteen_bytes) noexcept;
  // Strict numeric notation, as inet_pton(3) has it: no names, no scope, no short IPv4 forms.
  static std::optional<Address> parse(std::string_view text) noexcept;

  bool is_v4() const noexcept;
  bool is_any() const noexcept;       // 0.0.0.0 or ::
  bool is_loopback() const noexcept;  // 127.0.0.0/8 or ::1

  // Of the address in its own family, 4 bytes or 16 from bytes[first_byte()] on.
  unsigned first_byte() const noexcept { return is_v4() ? 12U : 0U; }
  unsigned bits() const noexcept { return is_v4() ? 32U : 128U; }
  bool bit(unsigned index) const noexcept { return (bytes[first_byte() + index / 8] & mask_of(index)) != 0; }
  void flip(unsigned index) noexcept { bytes[first_byte() + index / 8] ^= mask_of(index); }

  std::string to_string() const;

  friend auto operator<=>(const Address&, const Address&) = default;

 private:
  static constexpr std::uint8_t mask_of(unsigned index) noexcept {
    return static_cast<std::uint8_t>(0x80U >> (index % 8U));
  }
};

}  // namespace ringroad
