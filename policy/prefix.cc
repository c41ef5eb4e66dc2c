#include "policy/prefix.h"

#include <cstdint>
#include <cstring>

namespace ringroad::policy {

Prefix Prefix::of(const Address& address, unsigned length) noexcept {
  Prefix prefix{address, length};
  for (unsigned bit = 8 * address.first_byte() + length; bit < 128; ++bit) {
    prefix.addr.bytes[bit / 8] &= static_cast<std::uint8_t>(~(0x80U >> (bit % 8U)));
  }
  return prefix;
}

bool Prefix::contains(const Address& address) const noexcept {
  if (address.is_v4() != addr.is_v4()) return false;
  const std::uint8_t* theirs = address.bytes.data() + addr.first_byte();
  const std::uint8_t* ours = addr.bytes.data() + addr.first_byte();
  const unsigned whole_bytes = length / 8;
  if (std::memcmp(theirs, ours, whole_bytes) != 0) return false;
  const unsigned rest = length % 8;
  if (rest == 0) return true;
  const unsigned difference = static_cast<unsigned>(theirs[whole_bytes]) ^ ours[whole_bytes];
  return (difference >> (8U - rest)) == 0;
}

std::string Prefix::to_string() const { return addr.to_string() + "/" + std::to_string(length); }

}  // namespace ringroad::policy
