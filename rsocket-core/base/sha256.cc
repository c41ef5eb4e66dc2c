#include "rsocket-core/base/sha256.h"

#include <bit>
#include <cstring>

namespace ringroad {
namespace {

constexpr std::size_t kBlock = 64;

// FIPS 180-4, 4.2.2.
constexpr std::uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

Sha256::Sha256() noexcept
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      block_{} {}

void Sha256::take_block(const std::uint8_t* block) noexcept {
  std::uint32_t w[64];
  for (std::size_t i = 0; i < 16; ++i) {
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 =
        std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  std::uint32_t v[8];
  std::memcpy(v, state_, sizeof v);
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
    const std::uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
    const std::uint32_t t1 = v[7] + s1 + choice + kRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
    const std::uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    std::memmove(v + 1, v, 7 * sizeof v[0]);
    v[4] += t1;
    v[0] = t1 + s0 + majority;
  }
  for (std::size_t i = 0; i < 8; ++i) state_[i] += v[i];
}

void Sha256::add(const void* data, std::size_t n) noexcept {
  const auto* from = static_cast<const std::uint8_t*>(data);
  for (; n > 0; --n, ++from) {
    block_[bytes_++ % kBlock] = *from;
    if (bytes_ % kBlock == 0) take_block(block_);
  }
}

Digest Sha256::finish() noexcept {
  const std::uint64_t bits = bytes_ * 8;
  constexpr std::uint8_t kEnd = 0x80;
  constexpr std::uint8_t kZero = 0;
  add(&kEnd, 1);
  while (bytes_ % kBlock != kBlock - 8) add(&kZero, 1);
  for (int shift = 56; shift >= 0; shift -= 8) {
    const auto byte = static_cast<std::uint8_t>(bits >> shift);
    add(&byte, 1);
  }
  Digest out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return out;
}

Digest sha256(const void* data, std::size_t n) noexcept {
  Sha256 hash;
  hash.add(data, n);
  return hash.finish();
}

Digest hmac_sha256(const void* key, std::size_t key_bytes, const void* data,
                   std::size_t n) noexcept {
  std::uint8_t pad[kBlock] = {};
  if (key_bytes > kBlock) {
    const Digest shorter = sha256(key, key_bytes);
    std::memcpy(pad, shorter.data(), shorter.size());
  } else if (key_bytes > 0) {
    std::memcpy(pad, key, key_bytes);
  }
  for (std::uint8_t& byte : pad) byte ^= 0x36;
  Sha256 inner;
  inner.add(pad, sizeof pad);
  inner.add(data, n);
  const Digest middle = inner.finish();
  for (std::uint8_t& byte : pad) byte ^= 0x36 ^ 0x5c;
  Sha256 outer;
  outer.add(pad, sizeof pad);
  outer.add(middle.data(), middle.size());
  return outer.finish();
}

}  // namespace ringroad
