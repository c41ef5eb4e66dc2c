// That an end of a promotion has the key which the policy names (docs/protocol.md, section 1.2).
//
// A proof is the first 8 bytes of HMAC-SHA-256, under the key, over
//
//   0       16                 64               112              130             148
//   | label | connector's Hello | listener's Hello | connector's end | listener's end |
//
// where an end is 16 bytes of address and 2 of port. The Hellos hold both nonces and say where the rings
// are; the label says which of the three proofs it is, so that none serves in the place of another:
//
//   request   in the connector's Hello message; the listener's Hello is not known yet: zeroes
//   answer    in the listener's Hello message
//   switch    in the connector's SWITCH, which is what it says first over the channel
//   path      as answer, between network namespaces; the number of a socket follows, 4 bytes
//
// A forger has one guess a promotion, of 2^64. Nothing here depends on time but on sizes.
//
// Thread rule: none; values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rsocket-core/base/sha256.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad {

// What a policy's key file comes to. Without one nobody proves anything.
struct SharedKey {
  bool present = false;
  Digest bytes{};

  static SharedKey of(const void* secret, std::size_t n) noexcept { return {true, sha256(secret, n)}; }
};

// kAnswerByPath stands in the place of kAnswer between two network namespaces.
enum class ProofOf : std::uint8_t { kRequest, kAnswer, kSwitch, kAnswerByPath };

// 0 without a key, else never 0. `tuple` is as the connector sees it; `listener` is not looked at for
// kRequest. `socket` only for kAnswerByPath: the inode number of the listener's end of the Unix connection.
// It is the kernel's word for that socket alone, so an answer that a process between the ends has passed on
// does not fit the connection that it comes by.
Proof make_proof(const SharedKey& key, ProofOf what, const Hello& connector, const Hello& listener,
                 const FourTuple& tuple, std::uint32_t socket = 0) noexcept;

// Compared without a branch on the way.
inline bool same_proof(Proof a, Proof b) noexcept { return (a ^ b) == 0; }

// The proof behind a Hello of `hello_bytes`, where the message goes on; else 0.
Proof proof_behind(const void* message, std::size_t n, std::size_t hello_bytes) noexcept;

}  // namespace ringroad
