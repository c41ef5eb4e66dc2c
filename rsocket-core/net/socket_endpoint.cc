// The endpoints of a socket. They are apart from endpoint.cc, which the policy uses too: that makes no system
// calls.
#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/endpoint.h"

namespace ringroad {

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

}  // namespace ringroad
