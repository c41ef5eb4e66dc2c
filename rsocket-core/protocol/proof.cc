#include "rsocket-core/protocol/proof.h"

#include <cstring>

namespace ringroad {
namespace {

constexpr std::size_t kLabelBytes = 16;
constexpr std::size_t kEndBytes = 18;
constexpr const char* kLabels[] = {"rr1 request", "rr1 answer", "rr1 switch", "rr1 answer path"};

std::uint8_t* put_end(std::uint8_t* out, const Endpoint& end) noexcept {
  std::memcpy(out, end.addr.bytes.data(), end.addr.bytes.size());
  std::memcpy(out + end.addr.bytes.size(), &end.port, sizeof end.port);
  return out + kEndBytes;
}

}  // namespace

Proof make_proof(const SharedKey& key, ProofOf what, const Hello& connector, const Hello& listener,
                 const FourTuple& tuple, std::uint32_t socket) noexcept {
  if (!key.present) return 0;
  constexpr std::size_t kAlways = kLabelBytes + 2 * sizeof(Hello) + 2 * kEndBytes;
  std::uint8_t text[kAlways + sizeof socket] = {};
  const char* const label = kLabels[static_cast<std::size_t>(what)];
  std::memcpy(text, label, std::strlen(label));
  std::memcpy(text + kLabelBytes, &connector, sizeof connector);
  if (what != ProofOf::kRequest) {
    std::memcpy(text + kLabelBytes + sizeof connector, &listener, sizeof listener);
  }
  put_end(put_end(text + kLabelBytes + 2 * sizeof(Hello), tuple.local), tuple.remote);
  std::memcpy(text + kAlways, &socket, sizeof socket);
  const std::size_t size = what == ProofOf::kAnswerByPath ? sizeof text : kAlways;
  const Digest digest = hmac_sha256(key.bytes.data(), key.bytes.size(), text, size);
  Proof proof;
  std::memcpy(&proof, digest.data(), sizeof proof);
  return proof != 0 ? proof : 1;
}

Proof proof_behind(const void* message, std::size_t n, std::size_t hello_bytes) noexcept {
  Proof proof = 0;
  if (n >= hello_bytes + sizeof proof) {
    std::memcpy(&proof, static_cast<const std::uint8_t*>(message) + hello_bytes, sizeof proof);
  }
  return proof;
}

}  // namespace ringroad
