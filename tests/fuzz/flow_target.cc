#include "rsocket-core/channel/verbs/flow.h"
#include "tests/fuzz/target.h"

namespace ringroad::fuzz {

// A sender whose peer acknowledges whatever it likes.
std::string try_flow(Bytes input) {
  Reader reader(input);
  const unsigned bits = 12 + reader.byte() % 19;
  const std::size_t ring = std::size_t{1} << bits;
  const unsigned shift = consumed_shift(ring);
  SendWindow window;
  window.open(kMinPeerDataReceives + reader.byte());
  // Far from where 64 bits end: no stream gets there.
  std::uint64_t posted = reader.take<std::uint64_t>() >> 2;
  std::uint64_t consumed = posted;
  // A peer that lies ends the channel: nothing is taken from it behind that.
  while (!reader.empty()) {
    switch (reader.byte() % 3) {
      case 0:
        if (!window.may_send_data()) break;
        window.sent();
        posted += reader.take<std::uint16_t>() % (ring - (posted - consumed) + 1);
        break;
      case 1: {
        FlowCounts counts;
        const std::uint32_t outstanding = window.outstanding();
        if (!decode_immediate(reader.take<std::uint32_t>(), shift, window.acked_count(),
                              outstanding, consumed, posted, counts)) {
          return {};
        }
        if (counts.reposted - window.acked_count() > outstanding) {
          return "more receives are acknowledged than messages were sent";
        }
        if (!window.acked(counts.reposted)) return "an immediate is taken, its count is not";
        if (counts.consumed - consumed > posted - consumed) {
          return "bytes are consumed that were not sent";
        }
        consumed = counts.consumed;
        break;
      }
      default:
        if (!window.acked(reader.take<std::uint32_t>())) return {};
        break;
    }
    if (window.outstanding() > kMaxPeerDataReceives) return "more is under way than was sent";
    if (posted - consumed > ring) return "more than a ring is under way";
  }
  return {};
}

}  // namespace ringroad::fuzz
