// A subnet, as the policy's rules name it.
//
// A value, freely copied between threads. Nothing throws but to_string(), which allocates.
#pragma once

#include <string>

#include "rsocket-core/net/address.h"

namespace ringroad::policy {

// Of one family: "::/0" holds every IPv6 address and no IPv4 one.
// Invariant: every bit of `addr` after the first `length` is zero.
struct Prefix {
  Address addr;
  unsigned length = 0;  // 0 to addr.bits()

  // The prefix of that length that holds `address`. REQUIRES: length <= address.bits().
  static Prefix of(const Address& address, unsigned length) noexcept;

  bool contains(const Address& address) const noexcept;
  bool contains(const Prefix& inner) const noexcept {
    return inner.length >= length && contains(inner.addr);
  }
  std::string to_string() const;
};

}  // namespace ringroad::policy
