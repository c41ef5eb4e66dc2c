// The addresses of the calling thread's network namespace. Each call asks the kernel.
//
// Errors: what the kernel does not tell counts as below; errno is unspecified after a call.
#pragma once

#include <cstdint>
#include <vector>

#include "rsocket-core/net/endpoint.h"

namespace ringroad {

// Whether the endpoint's address is this namespace's own. One that a program may bind all the same is not
// (net.ipv4.ip_nonlocal_bind), unless the kernel does not tell the two apart.
bool is_own_address(const Endpoint& endpoint) noexcept;

// What the interfaces have, without loopback and link-local addresses, and without those that another host
// may have, too (duplicate address detection). False: the kernel has not told all of it. May throw
// std::bad_alloc.
bool add_ipv4_addresses(std::vector<Address>& out);
bool add_ipv6_addresses(std::vector<Address>& out);

// Names the network namespace of a socket (SO_NETNS_COOKIE, since Linux 5.14). 0: the kernel does not say.
std::uint64_t network_of(int socket) noexcept;

}  // namespace ringroad
