#include "rsocket-core/net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <iterator>

namespace ringroad {
namespace {

constexpr std::uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

Address Address::from_ipv4(const void* four_bytes) noexcept {
  Address address;
  std::memcpy(address.bytes.data(), kMappedPrefix, sizeof kMappedPrefix);
  std::memcpy(address.bytes.data() + sizeof kMappedPrefix, four_bytes, 4);
  return address;
}

Address Address::from_ipv6(const void* sixteen_bytes) noexcept {
  Address address;
  std::memcpy(address.bytes.data(), sixteen_bytes, address.bytes.size());
  return address;
}

std::optional<Address> Address::parse(std::string_view text) noexcept {
  char terminated[INET6_ADDRSTRLEN];
  if (text.size() >= sizeof terminated || text.find('\0') != std::string_view::npos) return std::nullopt;
  text.copy(terminated, text.size());
  terminated[text.size()] = '\0';
  std::uint8_t bytes[16];
  if (inet_pton(AF_INET, terminated, bytes) == 1) return from_ipv4(bytes);
  if (inet_pton(AF_INET6, terminated, bytes) == 1) return from_ipv6(bytes);
  return std::nullopt;
}

bool Address::is_v4() const noexcept {
  return std::memcmp(bytes.data(), kMappedPrefix, sizeof kMappedPrefix) == 0;
}

bool Address::is_any() const noexcept {
  static constexpr std::uint8_t kZero[16] = {};
  const unsigned first = first_byte();
  return std::memcmp(bytes.data() + first, kZero, sizeof kZero - first) == 0;
}

bool Address::is_loopback() const noexcept {
  static constexpr std::uint8_t kV6Loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return is_v4() ? bytes[12] == 127 : std::memcmp(bytes.data(), kV6Loopback, sizeof kV6Loopback) == 0;
}

std::string Address::to_string() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_v4()) {  // libc's takes ten times as long
    char* end = text;
    for (std::size_t i = first_byte(); i < bytes.size(); ++i) {
      if (end != text) *end++ = '.';
      end = std::to_chars(end, std::end(text), unsigned{bytes[i]}).ptr;
    }
    return {text, end};
  }
  inet_ntop(AF_INET6, bytes.data() + first_byte(), text, sizeof text);
  return text;
}

}  // namespace ringroad
