#include <algorithm>
#include <memory>
#include <vector>

#include "rsocket-core/protocol/ring.h"
#include "rsocket-core/protocol/wire.h"
#include "tests/fuzz/target.h"

namespace ringroad::fuzz {
namespace {

bool known(Reason reason) { return reason < Reason::kCount; }

std::string try_hello(Bytes bytes) {
  Hello hello;
  hello.tcp_port = 0xdead;
  const Reason why = parse_hello(bytes.data(), bytes.size(), hello);
  if (why == Reason::kNone) {
    if (hello.magic != kMagic || hello.tcp_port == 0 || !valid_ring_bytes(hello.ring_bytes)) {
      return "a hello with impossible fields is taken";
    }
    const Agreement agreement = agreement_with(hello);
    if (agreement.version < std::max(hello.version, kLowestVersion) ||
        agreement.version > kHighestVersion ||
        (hello.highest != 0 && agreement.version > hello.highest)) {
      return "a version is agreed on that one end does not speak";
    }
    if ((agreement.features & ~(hello.features & kFeatures)) != 0) {
      return "a feature is agreed on that one end does not know";
    }
    return {};
  }
  if (why != Reason::kBadRequest && why != Reason::kVersion) return "an odd reason";
  return hello.tcp_port == 0xdead ? "" : "a hello that is refused is handed out";
}

std::string try_refusal(Bytes bytes) {
  if (!known(parse_refusal(bytes.data(), bytes.size()))) return "a reason that is none";
  Rendezvous where;
  if (!parse_redirect(bytes.data(), bytes.size(), where)) return {};
  const Redirect again = make_redirect(where);
  Rendezvous once_more;
  if (!parse_redirect(&again, sizeof again, once_more) || once_more.token != where.token ||
      once_more.rdma_port != where.rdma_port) {
    return "a redirect does not come back";
  }
  return {};
}

// In memory that ends where the bytes do, so that a sanitizer sees a read beyond.
FrameMatch match(const Nonce& nonce, const std::vector<std::uint8_t>& stream, std::size_t n,
                 ResumeFrame& resume) {
  const std::unique_ptr<std::uint8_t[]> bytes(new std::uint8_t[n]);
  std::copy_n(stream.begin(), n, bytes.get());
  return match_frame(nonce, bytes.get(), n, resume);
}

// The input is what stands in the TCP stream; with `own`, behind the nonce that is looked for.
std::string try_frame(Bytes bytes, bool own) {
  Nonce nonce;
  nonce.fill(0xa5);
  std::vector<std::uint8_t> stream;
  if (own) stream.assign(nonce.begin(), nonce.end());
  stream.insert(stream.end(), bytes.begin(), bytes.end());
  ResumeFrame resume;
  resume.consumed = 77;
  const FrameMatch whole = match(nonce, stream, stream.size(), resume);
  if (whole == FrameMatch::kResume) {
    std::uint8_t encoded[kResumeBytes];
    encode_resume(nonce, resume, encoded);
    const bool odd_reason = stream[24] >= static_cast<std::uint8_t>(Reason::kCount);
    if (odd_reason) encoded[24] = stream[24];
    if (stream.size() < kResumeBytes || !std::equal(encoded, encoded + kResumeBytes, stream.data()))
      return "a RESUME that does not come back";
    if (!known(resume.reason)) return "a RESUME with a reason that is none";
  } else if (resume.consumed != 77) {
    return "what is no RESUME is handed out";
  }
  if (whole == FrameMatch::kToken && stream.size() < kTokenBytes) return "a token that is too short";
  if (whole == FrameMatch::kPartial && stream.size() >= kResumeBytes) return "a frame without an end";
  // Arriving byte by byte it is the same thing, and never changes its mind.
  for (std::size_t n = 0; n < std::min(stream.size(), kResumeBytes); ++n) {
    const FrameMatch part = match(nonce, stream, n, resume);
    if (part != FrameMatch::kPartial && part != whole) return "a part of a frame says otherwise";
  }
  return {};
}

}  // namespace

std::string try_wire(Bytes input) {
  Reader reader(input);
  const unsigned what = reader.byte() % 4;
  const Bytes rest = reader.take_bytes(input.size());
  switch (what) {
    case 0:
      return try_hello(rest);
    case 1:
      return try_refusal(rest);
    default:
      return try_frame(rest, what == 2);
  }
}

}  // namespace ringroad::fuzz
