#include "rsocket-core/net/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <cstddef>
#include <cstring>

namespace ringroad {
namespace {

std::optional<std::uint16_t> parse_port(std::string_view text) noexcept {
  std::uint16_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

}  // namespace

bool Endpoint::from_sockaddr(const sockaddr* sa, socklen_t len, Endpoint& out) noexcept {
  sa_family_t family = AF_UNSPEC;
  constexpr std::size_t kAt = offsetof(sockaddr, sa_family);
  if (sa == nullptr || len < kAt + sizeof family) return false;
  std::memcpy(&family, reinterpret_cast<const char*>(sa) + kAt, sizeof family);
  if (family == AF_INET && len >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, sa, sizeof in);
    out = Endpoint(Address::from_ipv4(&in.sin_addr), ntohs(in.sin_port));
    return true;
  }
  // Programs pass the 24 bytes of RFC 2133's sockaddr_in6, which has no scope; Linux takes both.
  constexpr socklen_t kWithoutScope = offsetof(sockaddr_in6, sin6_scope_id);
  if (family == AF_INET6 && len >= kWithoutScope) {
    sockaddr_in6 in{};
    std::memcpy(&in, sa, len < sizeof in ? kWithoutScope : sizeof in);
    out = Endpoint(Address::from_ipv6(&in.sin6_addr), ntohs(in.sin6_port));
    if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr)) out.scope = in.sin6_scope_id;
    return true;
  }
  return false;
}

std::optional<Endpoint> Endpoint::parse(std::string_view text) noexcept {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  // Without brackets the last group of an IPv6 address could pass for a port.
  if (bracketed != (host.find(':') != std::string_view::npos)) return std::nullopt;
  const std::optional<Address> address = Address::parse(host);
  const std::optional<std::uint16_t> number = parse_port(text.substr(colon + 1));
  if (!address || !number) return std::nullopt;
  return Endpoint(*address, *number);
}

socklen_t Endpoint::to_sockaddr(sockaddr_storage& out) const noexcept {
  std::memset(&out, 0, sizeof out);
  if (is_v4()) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, addr.bytes.data() + addr.first_byte(), sizeof in.sin_addr);
    std::memcpy(&out, &in, sizeof in);
    return sizeof in;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  in.sin6_scope_id = scope;
  std::memcpy(&in.sin6_addr, addr.bytes.data(), sizeof in.sin6_addr);
  std::memcpy(&out, &in, sizeof in);
  return sizeof in;
}

std::string Endpoint::to_string() const {
  const std::string host = addr.to_string();
  return (is_v4() ? host : "[" + host + "]") + ":" + std::to_string(port);
}

}  // namespace ringroad
