#include "integration/bench/net_load/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace net_load {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr int kBacklog = 1024;

int check(int result, const char* call) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), call);
  return result;
}

in_port_t parse_port(const std::string& text) {
  in_port_t port = 0;
  const auto end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, port);
  if (problem != std::errc() || stopped != end) {
    throw std::invalid_argument("no port: \"" + text + "\"");
  }
  return htons(port);
}

Address unix_address(const std::string& path) {
  Address address;
  auto* at = reinterpret_cast<sockaddr_un*>(&address.storage);
  if (path.empty() || path.size() >= sizeof at->sun_path) {
    throw std::invalid_argument("no path of a socket: \"" + path + "\"");
  }
  at->sun_family = AF_UNIX;
  std::memcpy(at->sun_path, path.c_str(), path.size() + 1);
  address.length = sizeof *at;
  return address;
}

int made_socket(const Address& address) {
  return check(socket(address.family(), SOCK_STREAM, 0), "socket");
}

void send_at_once(int fd, const Address& address) {
  const int on = 1;
  if (address.family() != AF_UNIX) {
    check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "setsockopt TCP_NODELAY");
  }
}

}  // namespace

Address parse_address(const std::string& text) {
  if (text.starts_with(kUnix)) return unix_address(text.substr(kUnix.size()));
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) throw std::invalid_argument("no address: \"" + text + "\"");
  std::string host = text.substr(0, colon);
  const in_port_t port = parse_port(text.substr(colon + 1));
  Address address;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    auto* at = reinterpret_cast<sockaddr_in6*>(&address.storage);
    at->sin6_family = AF_INET6;
    at->sin6_port = port;
    address.length = sizeof *at;
    if (inet_pton(AF_INET6, host.c_str(), &at->sin6_addr) == 1) return address;
  } else {
    auto* at = reinterpret_cast<sockaddr_in*>(&address.storage);
    at->sin_family = AF_INET;
    at->sin_port = port;
    address.length = sizeof *at;
    if (inet_pton(AF_INET, host.c_str(), &at->sin_addr) == 1) return address;
  }
  throw std::invalid_argument("no address: \"" + text + "\"");
}

int listen_at(const Address& address) {
  const int fd = made_socket(address);
  const int on = 1;
  if (address.family() != AF_UNIX) {
    check(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "setsockopt SO_REUSEADDR");
  }
  check(bind(fd, address.get(), address.length), "bind");
  check(listen(fd, kBacklog), "listen");
  return fd;
}

int accept_from(int listener, const Address& address) {
  const int fd = check(accept(listener, nullptr, nullptr), "accept");
  send_at_once(fd, address);
  return fd;
}

int connect_to(const Address& address) {
  const int fd = made_socket(address);
  send_at_once(fd, address);
  check(connect(fd, address.get(), address.length), "connect");
  return fd;
}

}  // namespace net_load
