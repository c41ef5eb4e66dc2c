// Looking at streams: which of them may have something to tell, and what it is.
#include <algorithm>
#include <utility>

#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/epoll_evaluate.h"
#include "rsocket-core/stream/epoll_set.h"

namespace ringroad {
namespace {

using epoll::kInput;
using epoll::kOutput;

constexpr int kInnerBatch = 64;
// Fewer are still in the first cache when their turn comes again.
constexpr std::size_t kManyQueued = 16;

// In the inner instance an item's key, shifted, names it, and a stream's id its channel; the lowest bit says
// which of the two. 0 is the eventfd.
constexpr std::uint64_t kOfKernel = 0;
constexpr std::uint64_t kOfChannel = 1;

}  // namespace

// ---- What may have something to tell

void EpollSet::enqueue(Item& item) noexcept {
  if (item.queued) return;
  item.queued = true;
  queue_.push_back(item);
}

void EpollSet::take_dirty() noexcept {
  alone_ = !somebody_sleeps();
  if (any_dirty_.load(std::memory_order_relaxed)) take_news();
}

void EpollSet::take_news() noexcept {
  MutexLock lock(dirty_mutex_);
  any_dirty_.store(false, std::memory_order_relaxed);
  any_in_place_.store(false, std::memory_order_relaxed);
  while (!dirty_.empty()) {
    Item& item = dirty_.front();
    dirty_.pop_front();
    item.dirty = false;
    enqueue(item);
  }
}

// Whether there is one stream here, with all that moves it on its channel: then nobody need ask which it is.
// Nor is anybody told: it may be news of this process that has come. What the inner instance has to say it
// says again, and only a set that is watched would mind.
bool EpollSet::take_only_item() noexcept {
  if (items_.size() != 1 || watched_) return false;
  Item& item = *items_.begin()->second;
  const bool on_channel_alone = item.kernel_fd == Item::kNone && item.channel_fd >= 0 && !item.lent;
  if (!on_channel_alone || !item.stream->take_in_by_edge()) return false;
  if (any_in_place_.load(std::memory_order_relaxed)) take_news();
  enqueue(item);
  return true;
}

// True: it had something to say.
[[gnu::noinline]] bool EpollSet::read_inner() noexcept {
  epoll_event events[kInnerBatch];
  const int n = sys::epoll_wait(inner_, events, kInnerBatch, 0);
  // Another thread has taken these from their channels, before it came to what the channels still tell of.
  if (any_in_place_.load(std::memory_order_relaxed)) take_news();
  for (int i = 0; i < n; ++i) {
    const std::uint64_t named = events[i].data.u64 >> 1;
    const bool of_channel = (events[i].data.u64 & 1) == kOfChannel;
    const auto it = items_.find(named);
    Item* there = it != items_.end() ? it->second.get() : of_channel ? find_any(named) : nullptr;
    if (there == nullptr || there->lent) continue;  // the eventfd, or gone
    Item& item = *there;
    if (of_channel) {
      item.stream->after_sleep(&item);  // which tells the stream's other items
    } else {
      if (item.kernel_bits == 0) item.kernel_bits_of = collects_;
      item.kernel_bits |= events[i].events;
      // Level-triggered, it will say so again.
      if ((item.mask & EPOLLET) == 0) look_inside_.store(true, std::memory_order_relaxed);
    }
    enqueue(item);
  }
  if (n == kInnerBatch) look_inside_.store(true, std::memory_order_relaxed);
  if (numbers_ > 1) take_news();  // a channel's event was for all of its stream's items
  return n > 0;
}

void EpollSet::take_inner() noexcept {
  if (!look_inside_.load(std::memory_order_relaxed) ||
      !look_inside_.exchange(false, std::memory_order_acq_rel)) {
    return;
  }
  if (!take_only_item()) read_inner();
}

// ---- Looking

// The TCP socket's number for the inner instance.
int EpollSet::kernel_number(const Item& item) noexcept {
  return item.own_fd >= 0 ? item.own_fd : item.stream->fd();
}

// What the inner instance is to watch the TCP socket for.
std::uint32_t EpollSet::kernel_wants(const Item& item, const Stream::PollPlan& plan) noexcept {
  return static_cast<std::uint32_t>(plan.kernel_events) | (item.mask & EPOLLET);
}

// True if the inner instance has something to say that it had not.
bool EpollSet::watch_kernel(Item& item, const Stream::PollPlan& plan) noexcept {
  const int fd = kernel_number(item);
  const bool unwanted = !plan.use_kernel || item.disabled;
  const std::uint32_t wanted = kernel_wants(item, plan);
  if (item.kernel_fd == Item::kUnnamed) {
    if (!unwanted && item.kernel_mask == wanted && !item.fresh) return false;
    item.kernel_fd = Item::kNone;  // nobody can take it out; it tells of edges that are looked into
  } else if (item.kernel_fd != Item::kNone && (item.kernel_fd != fd || unwanted)) {
    control(inner_, EPOLL_CTL_DEL, item.kernel_fd, 0, 0);
    item.kernel_fd = Item::kNone;
  }
  if (unwanted) return false;
  if (item.kernel_fd != Item::kNone && item.kernel_mask == wanted && !item.fresh) return false;
  const int op = item.kernel_fd != Item::kNone ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  const std::uint64_t id = item.key << 1 | kOfKernel;
  // The file may have been there under this number before: the number was closed, and is its again.
  if (control(inner_, op, fd, wanted, id) != 0 &&
      (errno != EEXIST || control(inner_, EPOLL_CTL_MOD, fd, wanted, id) != 0)) {
    return false;
  }
  item.kernel_fd = fd;
  item.kernel_mask = wanted;
  // It says again whatever holds; what it said before the change is part of that.
  item.kernel_bits = 0;
  look_inside_.store(true, std::memory_order_relaxed);
  return true;
}

void EpollSet::watch_channel(Item& item, const Stream::PollPlan& plan) noexcept {
  if (plan.channel_fd < 0) return;
  if (item.channel_fd == plan.channel_fd && item.channel_generation == plan.channel_generation) {
    return;
  }
  const std::uint64_t id = item.stream->id() << 1 | kOfChannel;
  const std::uint32_t events = plan.channel_events | EPOLLET;
  if (control(inner_, EPOLL_CTL_ADD, plan.channel_fd, events, id) != 0) {
    control(inner_, EPOLL_CTL_MOD, plan.channel_fd, events, id);
  }
  item.channel_fd = plan.channel_fd;
  item.channel_generation = plan.channel_generation;
  look_inside_.store(true, std::memory_order_relaxed);
}

// What the inner instance has said of the TCP socket, as far as it is the stream's. `in_any_case`:
// the kernel is to be asked.
std::uint32_t EpollSet::kernel_says(Item& item, const Stream::PollPlan& plan, bool in_any_case,
                                    bool consume) noexcept {
  const bool frames_came = std::exchange(item.seen_frames, plan.frames) != plan.frames;
  if (in_any_case) {
    item.kernel_bits |= static_cast<std::uint32_t>(plan.kernel_events) | EPOLLERR | EPOLLHUP;
    item.ask_again();
  }
  // Where the carrier changed while the kernel looked, its answer is not the stream's.
  if (!plan.use_kernel || item.kernel_bits == 0) return 0;
  std::uint32_t bits = item.kernel_bits &
                       (static_cast<std::uint32_t>(plan.kernel_events) | EPOLLERR | EPOLLHUP);
  // Nor where a frame of the peer's library was what it saw.
  if (bits != 0 && (item.kernel_bits_of != collects_ || frames_came)) {
    bits &= kernel_has(item, poll_bits(bits));
  }
  if ((item.mask & EPOLLET) != 0 && ((bits & kInput) != 0 || item.repeats) && !in_any_case) {
    bool ends = false;
    const std::uint64_t arrivals = item.stream->tcp_arrivals(ends);
    // It was a frame of the peer's library that came, and nothing of its program's. Or nothing came.
    const bool known = ends || (item.repeats && repeats_only(item, bits));
    const bool nothing_new = arrivals == item.seen_tcp_arrivals && plan.blocked == item.seen_blocked;
    if (known && nothing_new && !item.tell_all) bits = 0;
    if (consume) item.seen_tcp_arrivals = arrivals;
  }
  return bits;
}

// Whether all of that may have been told before: an end and an error are told again.
bool EpollSet::repeats_only(const Item& item, std::uint32_t bits) noexcept {
  return (bits & ~(kInput | kOutput)) == 0 && ((bits & kOutput) == 0 || item.told_room) &&
         kernel_has(item, POLLRDHUP) == 0;
}

// EPOLLEXCLUSIVE: of bytes that come, the kernel tells one of the instances that ask so. The thread
// that looks first is the one. REQUIRES: what is to be told is that there are bytes, and nothing
// else.
bool EpollSet::is_anothers(Item& item, const Stream::PollPlan& plan) noexcept {
  if (item.fresh || item.keeps || plan.ended) return false;
  // An end is everybody's.
  if (plan.use_kernel && kernel_has(item, POLLRDHUP) != 0) return false;
  return !item.stream->claim_arrivals();
}

std::uint32_t EpollSet::kernel_has(const Item& item, short bits) noexcept {
  return static_cast<std::uint32_t>(item.stream->ask_kernel(kernel_number(item), bits));
}

// Does the stream have something to say? Without `consume` an answer of yes may be given again.
// `stays`: also if the stream is the kernel's for good, which has no turn any more to tell of it.
bool EpollSet::look(Item& item, epoll_event& out, bool consume, bool stays) noexcept {
  Stream::PollPlan plan;
  const bool unarmed = polls_ && consume && alone_ && !watched_;
  if (!item.is_plain() ||
      !item.stream->plan_plainly(poll_bits(item.mask),
                                 unarmed ? Stream::Arm::kNever : Stream::Arm::kIfIdle, plan)) {
    return look_closely(item, out, consume, stays);
  }
  watch_channel(item, plan);
  item.put_off = unarmed;
  return consume ? tell_plainly(item, plan, out, unarmed) : plan.ready != 0;
}

// The end of a look that weighs nothing.
bool EpollSet::tell_plainly(Item& item, const Stream::PollPlan& plan, epoll_event& out,
                            bool unarmed) noexcept {
  if (hardly_ever(unarmed)) note_unarmed(item, plan);
  if (plan.ready == 0) {
    left_unarmed_ |= unarmed;
    if (unarmed) enqueue(item);
    return false;
  }
  out.events = static_cast<std::uint32_t>(plan.ready);
  out.data = item.data;
  enqueue(item);
  return true;
}

void EpollSet::note_unarmed(Item& item, const Stream::PollPlan& plan) noexcept {
  item.seen_arrivals = plan.arrivals;
  item.seen_shutdowns = plan.shutdowns;
  item.awaits_room =
      (item.mask & kOutput) != 0 && (static_cast<std::uint32_t>(plan.ready) & kOutput) == 0;
  item.blocked_at_look = plan.blocked;
  if (polls_) put_off_spin_ns_ = std::max(put_off_spin_ns_, item.stream->config().spin_ns);
}

// A look that has to weigh what was before.
bool EpollSet::look_closely(Item& item, epoll_event& out, bool consume, bool stays) noexcept {
  if (item.disabled) {
    item.kernel_bits = 0;
    return false;
  }
  // A reset is both directions' affair, also where one of them is not the kernel's.
  if ((item.kernel_bits & EPOLLERR) != 0) item.stream->service();
  // Nobody sleeps in an instance that is watched from outside: there the kernel tells each.
  const bool exclusive = (item.mask & EPOLLEXCLUSIVE) != 0 && !watched_;
  const Stream::PollPlan plan = plan_closely(item, consume, exclusive);
  if (!stays && item.stream->on_kernel_for_good()) {
    // The kernel tells a newcomer all that holds. An item that waits for edges has told of that, and moves
    // with the next one.
    const bool told = item.edge_triggered() && !item.fresh && item.kernel_bits == 0 &&
                      item.kernel_fd != Item::kNone && item.kernel_mask == kernel_wants(item, plan);
    if (!told) {
      give_to_kernel(item);
      moved_ = true;
    }
    return false;
  }
  // Room is told with every arrival. What the kernel has to say of one goes with what it was asked.
  const bool arrivals_count = item.edge_triggered() && (item.mask & epoll::kArrival) != 0 &&
                              (item.mask & kOutput) != 0 && item.kernel_fd != Item::kNone;
  const bool counts = arrivals_count ||
                      (item.edge_triggered() && plan.use_kernel && epoll::tells(item, plan));
  std::uint64_t tcp_arrivals = 0;
  bool ends = false;
  if (counts) tcp_arrivals = item.stream->tcp_arrivals(ends);
  if (arrivals_count) {
    const bool changes = !plan.use_kernel || item.kernel_mask != kernel_wants(item, plan);
    item.arrived |= changes && !item.fresh && tcp_arrivals != item.seen_tcp_arrivals;
  }
  item.kernel_pending = watch_kernel(item, plan);
  watch_channel(item, plan);
  room_.held |= plan.frozen && (item.mask & kOutput) != 0;
  // All that is told is told of both carriers: of a stream that was reset during a switch the one knows the
  // error, and the other the ends.
  const bool asks = epoll::tells(item, plan);
  const std::uint32_t kernel_bits = kernel_says(item, plan, asks, consume);
  std::uint32_t events = epoll::evaluate(item, plan, kernel_bits);
  if (!consume) return events != 0;
  if (exclusive) {
    if (events == EPOLLIN && is_anothers(item, plan)) events = 0;
    // A newcomer is told what there is, which here the inner instance is yet to say.
    item.keeps = item.kernel_pending && item.fresh ? kernel_has(item, POLLIN) != 0
                                                   : !item.edge_triggered() && (events & EPOLLIN) != 0;
  }
  if (counts && (item.fresh || events != 0)) item.seen_tcp_arrivals = tcp_arrivals;
  item.repeats = item.kernel_pending && (asks || !item.fresh);
  settle_look(item, plan, events);
  if (events == 0) return false;
  out.events = events;
  out.data = item.data;
  return true;
}

Stream::PollPlan EpollSet::plan_closely(Item& item, bool consume, bool exclusive) noexcept {
  // What had something new may have something to tell; then nobody will sleep before the next look.
  const bool put_off = consume && alone_ && !watched_ && !exclusive &&
                       (polls_ || (item.edge_triggered() && !item.put_off));
  const Stream::PollPlan plan = item.stream->plan_poll(
      poll_bits(item.mask), put_off                              ? Stream::Arm::kNever
                            : item.edge_triggered() || exclusive ? Stream::Arm::kAlways
                                                                 : Stream::Arm::kIfIdle);
  item.put_off = put_off && plan.on_channel;
  return plan;
}

// After a look that tells `events`, or nothing: what the next one is to know, and whether it comes by itself.
void EpollSet::settle_look(Item& item, const Stream::PollPlan& plan, std::uint32_t events) noexcept {
  const bool unarmed = item.put_off;
  epoll::note_seen(item, plan);
  // Also where the inner instance was to tell of it, and the change came first.
  item.owes_room =
      events == 0 && (item.fresh || item.tell_all) && epoll::holds_room_back(item, plan);
  item.arrived = false;
  item.told_room = (item.told_room && !item.fresh) || (events & kOutput) != 0;
  item.tell_all = item.fresh && item.kernel_pending && !item.repeats;
  item.fresh = false;
  item.kernel_bits = 0;
  if (unarmed) note_unarmed(item, plan);
  if (events == 0) {
    again_ |= item.kernel_pending;
    left_unarmed_ |= unarmed;
    if (unarmed || item.owes_room) enqueue(item);
  } else if ((item.mask & EPOLLONESHOT) != 0) {
    item.disabled = true;
    item.put_off = false;
    watch_kernel(item, plan);
  } else if (unarmed || (!item.edge_triggered() && plan.ready != 0)) {
    enqueue(item);
  }
}

// ---- Rounds of looks

// Leaves the inner instance readable if one of the streams has something to say, and else not.
void EpollSet::settle() noexcept {
  look_inside_.store(true, std::memory_order_relaxed);
  bool any = false;
  // A look may put something into the inner instance that is readable from before.
  for (int round = 0; round < 3 && !any && look_inside_.load(std::memory_order_relaxed); ++round) {
    take_dirty();
    take_inner();
    for (std::size_t left = queue_.size(); left > 0 && !queue_.empty(); --left) {
      Item& item = queue_.front();
      queue_.pop_front();
      item.queued = false;
      epoll_event unused;
      if (!look(item, unused, false)) continue;
      item.ask_again();
      enqueue(item);
      any = true;
    }
  }
  if (any) wake();
}

// A program that asks many streams in turns has none of them in a cache. What the next three looks and what
// follows them will touch is asked for here. The pointers to it are there, for a look before asked for them.
void EpollSet::prefetch_queued() noexcept {
  auto item = queue_.begin();
  item->stream->prefetch_more();
  (++item)->stream->prefetch();
  const auto third = reinterpret_cast<std::uintptr_t>(&*++item);
  prefetch(third + kLineBytes);
}

// Events for the wait of that number; none that it has been told of already. `asked`: so has the
// kernel.
int EpollSet::collect(std::uint64_t wait, epoll_event* out, int max, bool asked) noexcept {
  int n = 0;
  // A look may put something into the inner instance that is readable from before.
  bool owed = false;
  faulted_ = false;
  for (int round = 0; round < 3 && n < max; ++round) {
    if (round > 0 && !owed && (n > 0 || !look_inside_.load(std::memory_order_relaxed))) break;
    owed = left_unarmed_ = false;
    take_dirty();
    take_inner();
    for (std::size_t left = queue_.size(); left > 0 && n < max && !queue_.empty(); --left) {
      Item& item = queue_.front();
      queue_.pop_front();
      item.queued = false;
      if (queue_.size() >= kManyQueued) prefetch_queued();
      if (item.told_in == wait) {
        item.ask_again();
        enqueue(item);
        continue;
      }
      if (hardly_ever(!faults::can_write(&out[n], sizeof out[n]))) {
        epoll_event unused;
        // The inner instance is yet to say what the kernel has of a newcomer.
        faulted_ = look(item, unused, false) ||
                   (item.kernel_pending && (item.fresh || !item.edge_triggered()) &&
                    kernel_has(item, poll_bits(item.mask)) != 0);
        if (!faulted_) continue;
        if (!std::exchange(item.queued, true)) queue_.push_front(item);  // the kernel keeps its place
        break;
      }
      if (!look(item, out[n], true, asked)) {
        owed |= !queue_.empty() && queue_.back().owes_room;
        continue;
      }
      item.told_in = wait;  // an item that is reported is still here
      ++n;
    }
    if (hardly_ever(faulted_)) break;
    owed |= std::exchange(again_, false);
    owed |= left_unarmed_ && !polls_ && n == 0;
  }
  ++collects_;
  // What is left is for other threads that wait, or for an instance that this one is in. No thread has come
  // to sleep here since the looks began.
  if (alone_ && max > 0) return n;
  if (!queue_.empty() || (n > 0 && look_inside_.load(std::memory_order_relaxed))) wake();
  return n;
}

// A wait that returns with something to say does not sleep, and tells of all room that there is: also of what
// will be there when a change of the carrier is over, for which a send waits.
int EpollSet::promise_room(std::uint64_t wait, epoll_event* out, int max) noexcept {
  if (max == 0 || !std::exchange(room_.held, false) || !Stream::any_switches()) return 0;
  const std::size_t first = room_.from;
  room_.from = 0;
  int n = 0;
  // From where the last wait had no place for more, to the end, and then from the beginning.
  for (const bool behind : {true, false}) {
    std::size_t place = 0;
    for (const auto& [key, item] : items_) {
      if ((place++ >= first) != behind) continue;
      constexpr std::uint32_t kOther = EPOLLET | EPOLLONESHOT;
      if ((item->mask & kOther) != 0 || (item->mask & kOutput) == 0 || item->told_in == wait)
        continue;
      const Stream::PollPlan plan =
          item->stream->plan_poll(poll_bits(item->mask), Stream::Arm::kNever);
      if (!plan.frozen || !item->stream->room_is_near()) continue;
      room_.held = true;
      if (n == max || !faults::can_write(&out[n], sizeof out[n])) {
        room_.from = place - 1;
        return n;
      }
      // And what is there to be read, wherever it is.
      const std::uint32_t there = plan.use_kernel ? kernel_has(*item, plan.kernel_events) : 0;
      out[n].events = static_cast<std::uint32_t>(plan.ready) | (item->mask & kOutput) | there;
      out[n++].data = item->data;
      item->told_in = wait;
    }
  }
  return n;
}

}  // namespace ringroad
