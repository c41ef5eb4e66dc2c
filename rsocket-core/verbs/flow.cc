#include "rsocket-core/verbs/flow.h"

namespace ringroad {

std::uint32_t encode_immediate(const FlowCounts& counts, unsigned shift) noexcept {
  return (counts.reposted & 0xffffU) << 16 |
         static_cast<std::uint32_t>((counts.consumed >> shift) & 0xffffU);
}

FlowCounts told_by_immediate(const FlowCounts& counts, unsigned shift) noexcept {
  return {counts.reposted, counts.consumed >> shift << shift};
}

bool SendWindow::acked(std::uint32_t reposted) noexcept {
  if (reposted - acked_count() > outstanding()) return false;
  acked_.store(reposted, std::memory_order_release);
  return true;
}

bool decode_immediate(std::uint32_t immediate, unsigned shift, std::uint32_t acked,
                      std::uint32_t outstanding, std::uint64_t tx_consumed,
                      std::uint64_t tx_posted, FlowCounts& out) noexcept {
  const std::uint32_t newly_reposted = ((immediate >> 16) - acked) & 0xffffU;
  if (newly_reposted > outstanding) return false;
  const std::uint64_t units = tx_consumed >> shift;
  const std::uint64_t newly_consumed = (immediate - units) & 0xffffU;
  // Rounding down can fall behind what a control message told exactly, but never into an earlier
  // unit: the counts only grow.
  const std::uint64_t consumed =
      newly_consumed == 0 ? tx_consumed : (units + newly_consumed) << shift;
  if (consumed > tx_posted) return false;
  out = {acked + newly_reposted, consumed};
  return true;
}

}  // namespace ringroad
