#include "policy/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <cstddef>
#include <cstring>

namespace ringroad::policy {
namespace {

constexpr std::array<std::uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// A sockaddr_in6 without its scope id (RFC 2133) is still accepted by the kernel.
constexpr std::size_t kShortestIpv6Name = offsetof(sockaddr_in6, sin6_scope_id);

std::optional<std::uint16_t> parse_port(std::string_view text) noexcept {
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc{} || stop != end) {
    return std::nullopt;
  }
  return port;
}

}  // namespace

Address Address::from_ipv4(const std::uint8_t* four_bytes) noexcept {
  Address address;
  std::memcpy(address.bytes.data(), four_bytes, 4);
  return address;
}

Address Address::from_ipv6(const std::uint8_t* sixteen_bytes) noexcept {
  if (std::memcmp(sixteen_bytes, kMappedPrefix.data(), kMappedPrefix.size()) == 0) {
    return from_ipv4(sixteen_bytes + kMappedPrefix.size());
  }
  Address address;
  address.family = ProcessGroup::kIpv6;
  std::memcpy(address.bytes.data(), sixteen_bytes, address.bytes.size());
  return address;
}

std::optional<Address> Address::from_sockaddr(const sockaddr* name, socklen_t length) noexcept {
  const std::optional<Endpoint> endpoint = Endpoint::from_sockaddr(name, length);
  if (!endpoint) {
    return std::nullopt;
  }
  return endpoint->addr;
}

std::optional<Address> Address::parse(std::string_view text) noexcept {
  char terminated[INET6_ADDRSTRLEN];
  if (text.size() >= sizeof(terminated) || text.find('\0') != std::string_view::npos) {
    return std::nullopt;
  }
  text.copy(terminated, text.size());
  terminated[text.size()] = '\0';
  std::array<std::uint8_t, 16> bytes{};
  if (inet_pton(AF_INET, terminated, bytes.data()) == 1) {
    return from_ipv4(bytes.data());
  }
  if (inet_pton(AF_INET6, terminated, bytes.data()) == 1) {
    return from_ipv6(bytes.data());
  }
  return std::nullopt;
}

std::string Address::to_string() const {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family == ProcessGroup::kIpv4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
  return text;
}

std::optional<Endpoint> Endpoint::from_sockaddr(const sockaddr* name, socklen_t length) noexcept {
  sa_family_t family = AF_UNSPEC;
  if (name == nullptr || length < offsetof(sockaddr, sa_family) + sizeof(family)) {
    return std::nullopt;
  }
  std::memcpy(&family, reinterpret_cast<const char*>(name) + offsetof(sockaddr, sa_family),
              sizeof(family));
  Endpoint endpoint;
  std::array<std::uint8_t, 16> bytes{};
  if (family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in copy;
    std::memcpy(&copy, name, sizeof(copy));
    std::memcpy(bytes.data(), &copy.sin_addr, sizeof(copy.sin_addr));
    endpoint.addr = Address::from_ipv4(bytes.data());
    endpoint.port = ntohs(copy.sin_port);
    return endpoint;
  }
  if (family == AF_INET6 && length >= kShortestIpv6Name) {
    sockaddr_in6 copy;
    std::memcpy(&copy, name, kShortestIpv6Name);
    std::memcpy(bytes.data(), &copy.sin6_addr, sizeof(copy.sin6_addr));
    endpoint.addr = Address::from_ipv6(bytes.data());
    endpoint.port = ntohs(copy.sin6_port);
    return endpoint;
  }
  return std::nullopt;
}

std::optional<Endpoint> Endpoint::parse(std::string_view text) noexcept {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) {
    host = host.substr(1, host.size() - 2);
  }
  // Without brackets the last group of an IPv6 address could pass for a port.
  if (bracketed != (host.find(':') != std::string_view::npos)) {
    return std::nullopt;
  }
  const std::optional<Address> address = Address::parse(host);
  const std::optional<std::uint16_t> port = parse_port(text.substr(colon + 1));
  if (!address || !port) {
    return std::nullopt;
  }
  return Endpoint{*address, *port};
}

std::string Endpoint::to_string() const {
  const std::string host = addr.to_string();
  const std::string number = std::to_string(port);
  return addr.family == ProcessGroup::kIpv4 ? host + ":" + number : "[" + host + "]:" + number;
}

Prefix Prefix::of(const Address& address, unsigned length) noexcept {
  Prefix prefix{address, length};
  for (unsigned bit = length; bit < address.bits(); ++bit) {
    prefix.addr.bytes[bit / 8] &= static_cast<std::uint8_t>(~(0x80U >> (bit % 8U)));
  }
  return prefix;
}

bool Prefix::contains(const Address& address) const noexcept {
  if (address.family != addr.family) {
    return false;
  }
  const std::size_t whole_bytes = length / 8;
  if (std::memcmp(address.bytes.data(), addr.bytes.data(), whole_bytes) != 0) {
    return false;
  }
  const unsigned rest = length % 8;
  if (rest == 0) {
    return true;
  }
  const unsigned difference =
      static_cast<unsigned>(address.bytes[whole_bytes]) ^ addr.bytes[whole_bytes];
  return (difference >> (8U - rest)) == 0;
}

std::string Prefix::to_string() const { return addr.to_string() + "/" + std::to_string(length); }

}  // namespace ringroad::policy
