#include "rsocket-core/protocol/wire.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "rsocket-core/protocol/ring.h"

namespace ringroad {

bool make_nonce(Nonce& out) noexcept {
  const int saved = errno;
  const bool made = getrandom(out.data(), out.size(), GRND_NONBLOCK) ==
                    static_cast<ssize_t>(out.size());
  errno = saved;
  return made;
}

void encode_token(const Nonce& nonce, std::uint8_t out[kTokenBytes]) noexcept {
  std::memcpy(out, nonce.data(), nonce.size());
  out[kNonceBytes] = static_cast<std::uint8_t>(FrameKind::kToken);
}

void encode_resume(const Nonce& nonce, const ResumeFrame& frame,
                   std::uint8_t out[kResumeBytes]) noexcept {
  std::memset(out, 0, kResumeBytes);
  std::memcpy(out, nonce.data(), nonce.size());
  out[kNonceBytes] = static_cast<std::uint8_t>(FrameKind::kResume);
  std::memcpy(out + 16, &frame.consumed, sizeof frame.consumed);
  out[24] = static_cast<std::uint8_t>(frame.reason);
  out[25] = frame.answer ? 1 : 0;
  std::memcpy(out + 26, &frame.given_back, sizeof frame.given_back);
}

FrameMatch match_frame(const Nonce& nonce, const std::uint8_t* bytes, std::size_t n,
                       ResumeFrame& resume) noexcept {
  if (std::memcmp(bytes, nonce.data(), std::min(n, nonce.size())) != 0) return FrameMatch::kOther;
  if (n <= kNonceBytes) return FrameMatch::kPartial;
  const std::uint8_t kind = bytes[kNonceBytes];
  if (kind == static_cast<std::uint8_t>(FrameKind::kToken)) return FrameMatch::kToken;
  if (kind != static_cast<std::uint8_t>(FrameKind::kResume)) return FrameMatch::kOther;
  if (n < kResumeBytes) return FrameMatch::kPartial;
  if (bytes[25] > 1 ||
      std::any_of(bytes + 30, bytes + kResumeBytes, [](std::uint8_t b) { return b != 0; })) {
    return FrameMatch::kOther;
  }
  std::uint32_t given_back;
  std::memcpy(&given_back, bytes + 26, sizeof given_back);
  // A peer that gives back has seen our token, and so waits for our RESUME.
  if (given_back != 0 && bytes[25] == 0) return FrameMatch::kOther;
  std::memcpy(&resume.consumed, bytes + 16, sizeof resume.consumed);
  resume.reason = reason_from_wire(bytes[24]);
  resume.answer = bytes[25] != 0;
  resume.given_back = given_back;
  return FrameMatch::kResume;
}

namespace {

constexpr unsigned highest_of(const Hello& hello) noexcept {
  return hello.highest != 0 ? hello.highest : hello.version;
}

}  // namespace

Agreement agreement_with(const Hello& peer) noexcept {
  return {static_cast<std::uint8_t>(std::min<unsigned>(highest_of(peer), kHighestVersion)),
          static_cast<std::uint8_t>(peer.features & kFeatures)};
}

Reason parse_hello(const void* data, std::size_t n, Hello& out) noexcept {
  if (n < sizeof(Hello)) return Reason::kBadRequest;
  Hello hello;
  std::memcpy(&hello, data, sizeof hello);
  if (hello.magic != kMagic) return Reason::kBadRequest;
  if (hello.version == 0 || highest_of(hello) < hello.version) return Reason::kBadRequest;
  if (hello.version > kHighestVersion || highest_of(hello) < kLowestVersion) return Reason::kVersion;
  if (hello.tcp_port == 0 || !valid_ring_bytes(hello.ring_bytes)) return Reason::kBadRequest;
  out = hello;
  return Reason::kNone;
}

Redirect make_redirect(const Rendezvous& where) noexcept {
  Redirect out;
  out.refusal.reason = static_cast<std::uint8_t>(Reason::kRedirect);
  out.rdma_port = where.rdma_port;
  out.token = where.token;
  return out;
}

bool parse_redirect(const void* data, std::size_t n, Rendezvous& where) noexcept {
  if (parse_refusal(data, n) != Reason::kRedirect || n < sizeof(Redirect)) return false;
  Redirect redirect;
  std::memcpy(&redirect, data, sizeof redirect);
  // The process that is named there may speak other versions than the one that names it.
  where.rdma_port = redirect.rdma_port;
  where.token = redirect.token;
  return where.has_shm() || where.rdma_port != 0;
}

Reason parse_refusal(const void* data, std::size_t n) noexcept {
  Refusal refusal;
  if (data == nullptr || n < sizeof refusal) return Reason::kPeerRefused;
  std::memcpy(&refusal, data, sizeof refusal);
  return refusal.magic == kMagic ? reason_from_wire(refusal.reason) : Reason::kPeerRefused;
}

}  // namespace ringroad
