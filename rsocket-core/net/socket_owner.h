// Whose is a TCP socket of this network namespace? The kernel says so to anybody: sock_diag(7).
//
// A rendezvous on shared memory has no permissions, so anybody may answer under a listener's name.
// Before the connector writes a byte for an answerer, it asks the kernel whether the answerer's user holds
// the other end of the TCP connection.
#pragma once

#include <sys/types.h>

#include "rsocket-core/net/endpoint.h"

namespace ringroad {

// The user who made, or accepted, the socket whose own view of its connection is `of`. False when the
// kernel names none: this network namespace has no such socket (address translation), nobody has
// accepted it yet, there is no inet_diag, or a security module forbids the question.
using OwnerOf = bool (*)(const FourTuple& of, uid_t& owner) noexcept;
bool tcp_socket_owner(const FourTuple& of, uid_t& owner) noexcept;

}  // namespace ringroad
