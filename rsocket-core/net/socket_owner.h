// Whose is a TCP socket of this network namespace? The kernel says so to anybody: sock_diag(7).
//
// A rendezvous on shared memory has no permissions, so anybody may answer under a listener's name.
// Before the connector writes a byte for an answerer, it asks the kernel whether the answerer's user holds
// the other end of the TCP connection.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "rsocket-core/net/endpoint.h"

namespace ringroad {

enum class SocketOwner : std::uint8_t {
  kNamed,
  kUnnamed,  // nobody has accepted it yet, there is no inet_diag, or a security module forbids the question
  kNotHere,  // this network namespace has no such socket: another has it, or addresses are translated
};

// The user who made, or accepted, the socket whose own view of its connection is `of`.
using OwnerOf = SocketOwner (*)(const FourTuple& of, uid_t& owner) noexcept;
SocketOwner tcp_socket_owner(const FourTuple& of, uid_t& owner) noexcept;

// The inode number of the Unix socket at the other end of `fd`, whichever network namespace that is in: as
// fstat(2) gives it there. 0: the kernel does not say (unix_diag), or nobody has accepted the connection.
std::uint32_t unix_peer_inode(int fd) noexcept;
// The same of `fd` itself.
std::uint32_t socket_inode(int fd) noexcept;

}  // namespace ringroad
