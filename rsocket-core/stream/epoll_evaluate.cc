#include "rsocket-core/stream/epoll_evaluate.h"

namespace ringroad::epoll {
namespace {

constexpr short kEnds = POLLHUP | POLLERR | POLLRDHUP;

bool has_room(const Stream::PollPlan& plan) noexcept {
  return (static_cast<std::uint32_t>(plan.ready) & kOutput) != 0;
}

}  // namespace

short ends_of(const Stream::PollPlan& plan) noexcept {
  return static_cast<short>((plan.ready & kEnds) | (plan.ended ? POLLRDHUP : 0));
}

bool has_edge(const EpollItem& item, const Stream::PollPlan& plan) noexcept {
  const bool bytes = plan.arrivals != item.seen_arrivals && (item.mask & kArrival) != 0;
  const bool end = (ends_of(plan) & ~item.seen_ends) != 0 || plan.shutdowns != item.seen_shutdowns;
  // Room after a send that found none, or after a change of the carrier.
  const bool room = (has_room(plan) && plan.blocked != item.seen_blocked) ||
                    (item.owes_room && !plan.frozen);
  return bytes || item.arrived || end || room;
}

bool tells(const EpollItem& item, const Stream::PollPlan& plan) noexcept {
  return item.edge_triggered() ? has_edge(item, plan) || (item.fresh && plan.ready != 0) : plan.ready != 0;
}

bool holds_room_back(const EpollItem& item, const Stream::PollPlan& plan) noexcept {
  return item.edge_triggered() && plan.frozen && (item.mask & kOutput) != 0;
}

std::uint32_t evaluate(const EpollItem& item, const Stream::PollPlan& plan,
                       std::uint32_t kernel_bits) noexcept {
  const auto ready = static_cast<std::uint32_t>(plan.ready);
  if (!item.edge_triggered()) return ready | kernel_bits;
  const bool edge = has_edge(item, plan);
  std::uint32_t events = kernel_bits;
  if (edge || item.fresh || kernel_bits != 0) events |= ready;
  const bool promised = edge || events != 0 || item.owes_room || (item.fresh && !item.kernel_pending);
  if (promised && holds_room_back(item, plan)) events |= item.mask & kOutput;
  return events;
}

void note_seen(EpollItem& item, const Stream::PollPlan& plan) noexcept {
  if (!item.edge_triggered()) return;
  item.seen_arrivals = plan.arrivals;
  item.seen_ends = ends_of(plan);
  item.seen_shutdowns = plan.shutdowns;
  if (has_room(plan)) item.seen_blocked = plan.blocked;
}

}  // namespace ringroad::epoll
