// Where a server listens: "10.9.1.1:7000", "[fd00::1]:7000" or "unix:/path". No names, so that no
// resolver's sockets are among those that are measured.
#pragma once

#include <sys/socket.h>

#include <string>

namespace net_load {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Throws std::invalid_argument.
Address parse_address(const std::string& text);

// These throw std::system_error. A connection sends small messages at once (TCP_NODELAY).
int listen_at(const Address& address);
int accept_from(int listener, const Address& address);
int connect_to(const Address& address);

}  // namespace net_load
