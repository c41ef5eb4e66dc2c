// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for proofs of a shared key (proof.h). A few hundred
// bytes a promotion: written to be short, not fast. No tables that depend on secrets, no allocation.
//
// Thread rule: none; values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ringroad {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  Sha256() noexcept;
  void add(const void* data, std::size_t n) noexcept;
  // Once, at the end.
  Digest finish() noexcept;

 private:
  void take_block(const std::uint8_t* block) noexcept;

  std::uint32_t state_[8];
  std::uint8_t block_[64];
  std::uint64_t bytes_ = 0;
};

Digest sha256(const void* data, std::size_t n) noexcept;
Digest hmac_sha256(const void* key, std::size_t key_bytes, const void* data, std::size_t n) noexcept;

}  // namespace ringroad
