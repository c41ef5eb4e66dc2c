#include "rsocket-core/epoll_set.h"

#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "rsocket-core/above_limit.h"
#include "rsocket-core/sys.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
constexpr int kInnerBatch = 64;
// Fewer are still in the first cache when their turn comes again.
constexpr std::size_t kManyQueued = 16;
// With more streams than that the next look finds something anyway.
constexpr std::size_t kMostPolled = 64;
// Waits in a row that streams alone may fill.
constexpr std::size_t kMostUnasked = 16;
// Each so many looks at them the kernel is asked what else there is, for the first time after half
// of them.
constexpr unsigned kLooksPerQuestion = 16;
constexpr std::uint32_t kInput = EPOLLIN | EPOLLRDNORM;
// The kernel wakes those who ask for any of these when bytes arrive (sock_def_readable).
constexpr std::uint32_t kArrival = EPOLLIN | EPOLLRDNORM | EPOLLPRI | EPOLLRDBAND;
constexpr std::uint32_t kOutput = EPOLLOUT | EPOLLWRNORM;
constexpr short kEnds = POLLHUP | POLLERR | POLLRDHUP;

// In the inner instance an item's key, shifted, names it, and a stream's id its channel; the lowest bit says
// which of the two. 0 is the eventfd.
constexpr std::uint64_t kOfKernel = 0;
constexpr std::uint64_t kOfChannel = 1;

short poll_bits(std::uint32_t mask) noexcept { return static_cast<short>(mask & 0x7fff); }

// A tag is random but for its low bits, so that no program's data is one.
constexpr std::uint64_t kTagIndex = (1 << 16) - 1;

std::uint64_t magic() noexcept {
  static const std::uint64_t drawn = [] {
    Nonce nonce{};
    make_nonce(nonce);  // without randomness: a constant that is as unlikely
    std::uint64_t value = 0x7e31'9bd4'52c6'0000;
    for (std::size_t i = 0; i < sizeof value; ++i) value ^= std::uint64_t{nonce[i]} << (8 * i);
    return value & ~kTagIndex;
  }();
  return drawn;
}

// The inner instance's event; null: it is not there.
epoll_event* find_inner(epoll_event* events, int count) noexcept {
  for (int i = 0; i < count; ++i) {
    if ((events[i].data.u64 & ~kTagIndex) == magic()) return events + i;
  }
  return nullptr;
}

}  // namespace

std::atomic<unsigned> EpollSet::made_{0};

// ---- Life

int EpollSet::control(int instance, int op, int fd, std::uint32_t events,
                      std::uint64_t data) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  return sys::epoll_ctl(instance, op, fd, &event);
}

std::shared_ptr<EpollSet> EpollSet::create(int epfd, const Calls& calls) noexcept {
  int both[] = {
      sys::open_high_or_low([&] { return sys::epoll_create1(EPOLL_CLOEXEC); }),
      sys::open_high_or_low([&] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })};
  move_above_limit(both, 2);
  const auto [inner, wake] = both;
  if (inner >= 0 && wake >= 0 && control(inner, EPOLL_CTL_ADD, wake, EPOLLIN | EPOLLET, 0) == 0) {
    try {
      std::shared_ptr<EpollSet> set(new EpollSet(epfd, calls, inner, wake));
      outside::count_seated();
      epoll_event event{};
      event.events = EPOLLIN | EPOLLET;
      event.data.u64 = set->tag();
      if (sys::epoll_ctl(epfd, EPOLL_CTL_ADD, inner, &event) == 0) return set;
      return nullptr;  // the set closes both
    } catch (const std::bad_alloc&) {
      errno = ENOMEM;
    }
  }
  const int saved = errno;
  sys::close_quietly(inner);
  sys::close_quietly(wake);
  errno = saved;
  return nullptr;
}

EpollSet::EpollSet(int epfd, const Calls& calls, int inner, int wake) noexcept
    : epfd_(epfd),
      tag_(magic() | (made_.fetch_add(1, std::memory_order_seq_cst) & kTagIndex)),
      calls_(calls),
      inner_(inner),
      wake_(wake) {}

std::uint64_t EpollSet::hide(epoll_event* events, int& count) noexcept {
  epoll_event* const inner = find_inner(events, count);
  if (inner == nullptr) return 0;
  const std::uint64_t tag = inner->data.u64;
  std::copy(inner + 1, events + count, inner);
  --count;
  return tag;
}

EpollSet::~EpollSet() {
  const int saved = errno;
  {
    MutexLock lock(mutex_);
    while (!items_.empty()) erase(*items_.begin()->second);
  }
  sys::close_quietly(inner_);
  sys::close_quietly(wake_);
  errno = saved;
}

void EpollSet::after_fork_child() noexcept {
  mutex_.reset_after_fork();
  dirty_mutex_.reset_after_fork();
  foreign_.store(true);
  // The items hang on streams of the parent's, which are never touched again.
  new (&items_) Items;
  new (&queue_) decltype(queue_);
  new (&dirty_) decltype(dirty_);
  sys::close_quietly(std::exchange(inner_, -1));
  sys::close_quietly(std::exchange(wake_, -1));
}

bool EpollSet::is_in(int epfd) noexcept {
  const int saved = errno;
  MutexLock lock(mutex_);
  const bool there = control(epfd, EPOLL_CTL_MOD, inner_, EPOLLIN | EPOLLET, tag_) == 0;
  errno = saved;
  return there;
}

// ---- News

// Called with the stream's locks held.
void EpollSet::on_news(Waiter& waiter) noexcept {
  Item& item = static_cast<Item&>(waiter);
  EpollSet& set = *item.set;
  MutexLock lock(set.dirty_mutex_);
  if (!item.dirty) {
    item.dirty = true;
    set.dirty_.push_back(item);
    set.any_dirty_.store(true, std::memory_order_relaxed);
  }
  if (set.somebody_sleeps()) sys::signal_eventfd(set.wake_);
}

// Somebody who sleeps should look.
void EpollSet::wake() noexcept {
  MutexLock lock(dirty_mutex_);
  if (somebody_sleeps()) sys::signal_eventfd(wake_);
}

void EpollSet::enqueue(Item& item) noexcept {
  if (item.queued) return;
  item.queued = true;
  queue_.push_back(item);
}

void EpollSet::take_dirty() noexcept {
  alone_ = !somebody_sleeps();
  if (!any_dirty_.load(std::memory_order_relaxed)) return;
  MutexLock lock(dirty_mutex_);
  any_dirty_.store(false, std::memory_order_relaxed);
  while (!dirty_.empty()) {
    Item& item = dirty_.front();
    dirty_.pop_front();
    item.dirty = false;
    enqueue(item);
  }
}

void EpollSet::take_inner() noexcept {
  if (!look_inside_.load(std::memory_order_relaxed) ||
      !look_inside_.exchange(false, std::memory_order_acq_rel)) {
    return;
  }
  epoll_event events[kInnerBatch];
  const int n = sys::epoll_wait(inner_, events, kInnerBatch, 0);
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
  if (numbers_ > 1) take_dirty();  // a channel's event was for all of its stream's items
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
  if (item.kernel_fd == kUnnamed) {
    if (!unwanted && item.kernel_mask == wanted && !item.fresh) return false;
    item.kernel_fd = kNone;  // nobody can take it out; it tells of edges that are looked into
  } else if (item.kernel_fd != kNone && (item.kernel_fd != fd || unwanted)) {
    control(inner_, EPOLL_CTL_DEL, item.kernel_fd, 0, 0);
    item.kernel_fd = kNone;
  }
  if (unwanted) return false;
  if (item.kernel_fd != kNone && item.kernel_mask == wanted && !item.fresh) return false;
  const int op = item.kernel_fd != kNone ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
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
  if (control(inner_, EPOLL_CTL_ADD, plan.channel_fd, EPOLLIN | EPOLLET, id) != 0) {
    control(inner_, EPOLL_CTL_MOD, plan.channel_fd, EPOLLIN | EPOLLET, id);
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
    ask_again(item);
  }
  // Where the carrier changed while the kernel looked, its answer is not the stream's.
  if (!plan.use_kernel || item.kernel_bits == 0) return 0;
  std::uint32_t bits = item.kernel_bits &
                       (static_cast<std::uint32_t>(plan.kernel_events) | EPOLLERR | EPOLLHUP);
  // Nor where a frame of the peer's library was what it saw.
  if (bits != 0 && (item.kernel_bits_of != collects_ || frames_came)) {
    bits &= kernel_has(item, poll_bits(bits));
  }
  if ((item.mask & EPOLLET) != 0 && (bits & kInput) != 0 && !in_any_case && !item.tell_all) {
    bool ends = false;
    const std::uint64_t arrivals = item.stream->tcp_arrivals(ends);
    // It was a frame of the peer's library that came, and nothing of its program's.
    if (ends && arrivals == item.seen_tcp_arrivals && plan.blocked == item.seen_blocked) bits = 0;
    if (consume) item.seen_tcp_arrivals = arrivals;
  }
  return bits;
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

bool EpollSet::look_closely(Item& item, epoll_event& out, bool consume, bool stays) noexcept {
  if (item.disabled) {
    item.kernel_bits = 0;
    return false;
  }
  // A reset is both directions' affair, also where one of them is not the kernel's.
  if ((item.kernel_bits & EPOLLERR) != 0) item.stream->service();
  const bool edge_triggered = (item.mask & EPOLLET) != 0;
  // Nobody sleeps in an instance that is watched from outside: there the kernel tells each.
  const bool exclusive = (item.mask & EPOLLEXCLUSIVE) != 0 && !watched_;
  // What had something new may have something to tell; then nobody will sleep before the next look.
  const bool put_off =
      consume && alone_ && !watched_ && !exclusive && (polls_ || (edge_triggered && !item.put_off));
  const Stream::PollPlan plan = item.stream->plan_poll(
      poll_bits(item.mask), put_off                       ? Stream::Arm::kNever
                            : edge_triggered || exclusive ? Stream::Arm::kAlways
                                                          : Stream::Arm::kIfIdle);
  const bool unarmed = put_off && plan.on_channel;
  item.put_off = unarmed;
  if (!stays && item.stream->on_kernel_for_good()) {
    // The kernel tells a newcomer all that holds. Who waits for edges has been told of that, and moves
    // with the next one.
    const bool told = edge_triggered && !item.fresh && item.kernel_bits == 0 &&
                      item.kernel_fd != kNone && item.kernel_mask == kernel_wants(item, plan);
    if (!told) {
      give_to_kernel(item);
      moved_ = true;
    }
    return false;
  }
  // Room is told with every arrival. What the kernel has to say of one goes with what it was asked.
  const bool arrivals_count = edge_triggered && (item.mask & kArrival) != 0 &&
                              (item.mask & kOutput) != 0 && item.kernel_fd != kNone;
  std::uint64_t tcp_arrivals = 0;
  if (arrivals_count) {
    bool ends = false;
    tcp_arrivals = item.stream->tcp_arrivals(ends);
    const bool changes = !plan.use_kernel || item.kernel_mask != kernel_wants(item, plan);
    item.arrived |= changes && !item.fresh && tcp_arrivals != item.seen_tcp_arrivals;
  }
  const bool put = watch_kernel(item, plan);  // the inner instance has not been asked about it yet
  watch_channel(item, plan);
  held_ |= plan.frozen && (item.mask & kOutput) != 0;
  auto ready = static_cast<std::uint32_t>(plan.ready);
  bool edge = false;
  if (edge_triggered) {
    const short ends = static_cast<short>((plan.ready & kEnds) | (plan.ended ? POLLRDHUP : 0));
    edge = (plan.arrivals != item.seen_arrivals && (item.mask & kArrival) != 0) || item.arrived ||
           (ends & ~item.seen_ends) != 0 || plan.shutdowns != item.seen_shutdowns ||
           ((ready & kOutput) != 0 && plan.blocked != item.seen_blocked) ||
           (item.owes_room && !plan.frozen);
    if (consume) {
      item.seen_arrivals = plan.arrivals;
      item.seen_ends = ends;
      item.seen_shutdowns = plan.shutdowns;
      if ((ready & kOutput) != 0) item.seen_blocked = plan.blocked;
    }
    if (!edge && !item.fresh) ready = 0;
  }
  // An edge on one carrier tells what holds on the other, and so does all that is told: of a stream
  // that was reset during a switch the one knows the error, and the other the ends.
  const bool tells = edge_triggered ? edge : ready != 0;
  const std::uint32_t from_kernel = kernel_says(item, plan, tells, consume);
  if (edge_triggered && from_kernel != 0) ready = static_cast<std::uint32_t>(plan.ready);
  std::uint32_t events = ready | from_kernel;
  // An edge tells all that holds. A switch takes a moment; a program that runs into it gets EAGAIN, and
  // the edge that ends it.
  const bool held = edge_triggered && plan.frozen && (item.mask & kOutput) != 0;
  if (held && (edge || events != 0 || item.owes_room || (item.fresh && !put)))
    events |= item.mask & kOutput;
  if (!consume) return events != 0;
  if (exclusive) {
    if (events == EPOLLIN && is_anothers(item, plan)) events = 0;
    // A newcomer is told what there is, which here the inner instance is yet to say.
    item.keeps = put && item.fresh ? kernel_has(item, POLLIN) != 0
                                   : !edge_triggered && (events & EPOLLIN) != 0;
  }
  // Also where the inner instance was to tell of it, and the change came first.
  item.owes_room = held && (item.fresh || item.tell_all) && events == 0;
  if (arrivals_count && (item.fresh || events != 0)) item.seen_tcp_arrivals = tcp_arrivals;
  item.arrived = false;
  item.tell_all = item.fresh && put;
  item.fresh = false;
  item.kernel_bits = 0;
  if (unarmed) note_unarmed(item, plan);
  if (events == 0) {
    again_ |= put;
    left_unarmed_ |= unarmed;
    if (unarmed || item.owes_room) enqueue(item);
    return false;
  }
  out.events = events;
  out.data = item.data;
  if ((item.mask & EPOLLONESHOT) != 0) {
    item.disabled = true;
    item.put_off = false;
    watch_kernel(item, plan);
  } else if (unarmed || (!edge_triggered && ready != 0)) {
    enqueue(item);
  }
  return true;
}

// The program has added or modified it.
void EpollSet::changed(Item& item) noexcept {
  item.put_off = false;  // for who polls to look again
  enqueue(item);
  if (watched_) {
    settle();
  } else {
    wake();
  }
}

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
      ask_again(item);
      enqueue(item);
      any = true;
    }
  }
  if (any) wake();
}

// Who looks at streams in turns finds each in no cache. What the next three looks and what follows them will
// touch is asked for now: what names it is there, as it was asked for a look before.
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
        ask_again(item);
        enqueue(item);
        continue;
      }
      if (!look(item, out[n], true, asked)) {
        owed |= !queue_.empty() && queue_.back().owes_room;
        continue;
      }
      item.told_in = wait;  // who is reported is still here
      ++n;
    }
    owed |= std::exchange(again_, false);
    owed |= left_unarmed_ && !polls_ && n == 0;
  }
  ++collects_;
  // What is left is for whoever waits besides us, or watches from outside. Nobody has come to sleep
  // here since the looks began.
  if (alone_ && max > 0) return n;
  if (!queue_.empty() || (n > 0 && look_inside_.load(std::memory_order_relaxed))) wake();
  return n;
}

// Who returns with something to say does not sleep, and tells of all room that there is: also of what will be
// there when a change of the carrier is over, for which a send waits.
int EpollSet::promise_room(std::uint64_t wait, epoll_event* out, int max) noexcept {
  if (max == 0 || !std::exchange(held_, false) || !Stream::any_switches()) return 0;
  const std::size_t first = promise_from_;
  promise_from_ = 0;
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
      held_ = true;
      if (n == max) {
        promise_from_ = place - 1;
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

// ---- epoll_wait

// Neither side can keep the other from a program that takes one event: turn about where both have some, and else
// once a round of the streams that stand in the queue, or sooner, as something new would have to wait for in
// the kernel, too.
bool EpollSet::kernel_is_next() const noexcept {
  const std::size_t most =
      kernel_had_some_.load(std::memory_order_relaxed) ? 1 : std::min(queue_.size(), kMostUnasked);
  return unasked_.load(std::memory_order_relaxed) >= std::max<std::size_t>(most, 1);
}

// A mask of signals holds in the kernel's sleep only.
bool EpollSet::may_poll(const sigset_t* mask) noexcept {
  return mask == nullptr && longest_spin_ns_ != 0 && !queue_.empty() &&
         queue_.size() <= kMostPolled && spin_.pays();
}

// Interrupted where another thread wants to look: who polls hardly lets go.
Spin::Look EpollSet::look_for_moves() noexcept {
  const bool was_free = mutex_.lock_and_tell();
  const Spin::Look found = find_move();
  const bool awaited = (mutex_.unlock_and_tell() & Mutex::kAwaited) != 0 && was_free;
  return found == Spin::Look::kNothing && awaited ? Spin::Look::kInterrupted : found;
}

Spin::Look EpollSet::find_move() noexcept {
  using Look = Spin::Look;
  if (look_inside_.load(std::memory_order_relaxed)) return Look::kReady;
  if (any_dirty_.load(std::memory_order_relaxed)) return Look::kReady;
  bool interrupted = queue_.empty();  // another thread has armed them all
  for (Item& item : queue_) {
    if (!item.put_off) return Look::kReady;
    const bool filled =
        (item.mask & kOutput) != 0 && item.stream->blocked() != item.blocked_at_look;
    const Look found = filled ? Look::kReady
                              : item.stream->look_at_channel(item.seen_arrivals, item.awaits_room,
                                                             item.seen_shutdowns);
    interrupted |= found == Look::kInterrupted;
    if (found != Look::kReady) continue;
    item.put_off = false;
    return Look::kReady;
  }
  return interrupted ? Look::kInterrupted : Look::kNothing;
}

// Until a stream has moved, the program's instance has something else to tell, or a handler has
// run.
void EpollSet::poll(int epfd, std::int64_t deadline_ns) noexcept {
  std::int64_t longest_ns;
  {
    MutexLock lock(mutex_);
    longest_ns = put_off_spin_ns_;
  }
  if (deadline_ns != kForever) {
    longest_ns = std::clamp<std::int64_t>(deadline_ns - sys::now_ns(), 0, longest_ns);
  }
  signals::begin_wait();
  unsigned looks = 0;
  const auto look = [&]() noexcept {
    if (signals::came_since_begin()) return Spin::Look::kInterrupted;
    const Spin::Look found = look_for_moves();
    if (found != Spin::Look::kNothing || ++looks % kLooksPerQuestion != kLooksPerQuestion / 2) {
      return found;
    }
    pollfd others{epfd, POLLIN, 0};
    timespec zero{0, 0};
    const bool there = sys::ppoll(&others, 1, &zero, nullptr) > 0;
    return there ? Spin::Look::kReady : Spin::Look::kNothing;
  };
  spin_.until(look, longest_ns);
}

// A real wait. As epoll_pwait2(2).
int EpollSet::sleep(int epfd, epoll_event* out, int max, std::int64_t deadline_ns,
                    const sigset_t* mask) {
  if (deadline_ns == 0) return calls_.pwait(epfd, out, max, 0, mask);
  if (deadline_ns == kForever) return calls_.pwait(epfd, out, max, -1, mask);
  const std::int64_t left = std::max<std::int64_t>(0, deadline_ns - sys::now_ns());
  if (calls_.pwait2 != nullptr) {
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    const int n = calls_.pwait2(epfd, out, max, &timeout, mask);
    if (n >= 0 || errno != ENOSYS) return n;
  }
  const std::int64_t ms = std::min<std::int64_t>((left + 999'999) / 1'000'000,
                                                 std::numeric_limits<int>::max());
  return calls_.pwait(epfd, out, max, static_cast<int>(ms), mask);
}

// Whether there may be room now that there was none for while a stream changed its carrier.
bool EpollSet::outlast_switches() noexcept {
  std::vector<StreamPtr> asked;
  bool changed = false;
  try {
    MutexLock lock(mutex_);
    changed = std::exchange(held_, false);  // and over by now, perhaps
    if (!changed && !Stream::any_switches()) return false;
    for (const auto& [id, item] : items_) {
      const bool wants_room = (item->mask & (EPOLLOUT | EPOLLWRNORM)) != 0 && !item->disabled;
      const State now = item->stream->state();
      if (wants_room && (now == State::kSwitching || now == State::kResuming)) {
        asked.push_back(item->holds);
      }
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  const std::int64_t asked_ns = sys::now_ns();
  for (const StreamPtr& stream : asked) {
    if (stream->outlast_switch(asked_ns)) return true;
  }
  return changed;
}

int EpollSet::wait(int epfd, epoll_event* out, int max, std::int64_t deadline_ns,
                   const sigset_t* mask) {
  // Also when the thread is cancelled in its sleep.
  struct Sleeping {
    explicit Sleeping(EpollSet& of) noexcept : set(of) {}
    ~Sleeping() { leave(); }
    // False: there is news already.
    bool enter() noexcept {
      MutexLock lock(set.dirty_mutex_);
      if (!set.dirty_.empty()) return false;
      set.sleepers_.fetch_add(1, std::memory_order_relaxed);
      inside = true;
      return true;
    }
    void leave() noexcept {
      if (!inside) return;
      MutexLock lock(set.dirty_mutex_);
      set.sleepers_.fetch_sub(1, std::memory_order_relaxed);
      inside = false;
    }
    EpollSet& set;
    bool inside = false;
  };
  Sleeping sleeping(*this);
  const int saved = errno;
  std::uint64_t number = 0;
  bool outlasted = false;
  bool polled = false;
  bool slept = false;
  bool interrupted = false;
  for (;;) {
    const bool last = deadline_ns != kForever && (deadline_ns == 0 || sys::now_ns() >= deadline_ns);
    const bool foreign = foreign_.load(std::memory_order_relaxed);
    int n = 0;
    int ours_most = 0;
    bool poll_first = false;
    bool promised = false;
    if (!foreign) {
      MutexLock lock(mutex_);
      ours_most = kernel_is_next() ? max / 2 : max;
      if (number == 0) number = ++waits_;
      // And so with what is promised, which is neither's turn.
      promises_ = owes_promise_ && !promises_;
      if (promises_) {
        n = promise_room(number, out, max);
        if (n > 0) ours_most = max;
        promised = n > 0;
      }
      polls_ = !last && !polled && n == 0 && ours_most > 0 && may_poll(mask);
      put_off_spin_ns_ = 0;
      n += collect(number, out + n, std::max(ours_most - n, 0));
      owes_promise_ = n >= max && held_;
      poll_first = std::exchange(polls_, false) && n == 0 && left_unarmed_;
      if (n == 0 && ours_most > 0 && !last && !poll_first) {
        if (left_unarmed_) continue;
        // The kernel would have slept, and been woken by it.
        if (polled && signals::came_since_begin()) {
          errno = EINTR;
          return -1;
        }
        if (!sleeping.enter()) continue;
      }
    }
    if (poll_first) {
      poll(epfd, deadline_ns);
      polled = true;
      continue;
    }
    if (n >= max) {
      if (!promised) unasked_.fetch_add(1, std::memory_order_relaxed);
      errno = saved;
      return n;
    }
    unasked_.store(0, std::memory_order_relaxed);
    const bool sleeps = sleeping.inside || (foreign && !last);
    // A handler may have run as the sleep before this one ended by news of the library's own. Outside of the sleep
    // the program's mask does not hold, and what runs there would have come behind the call.
    const bool ran_between = slept && mask == nullptr && signals::came_since_begin();
    if (n == 0 && sleeps && (interrupted || ran_between)) {
      errno = EINTR;
      return -1;
    }
    if (sleeps && (mask != nullptr || (!slept && !polled))) signals::begin_wait();
    int m = sleep(epfd, out + n, max - n, sleeps ? deadline_ns : 0, mask);
    interrupted |= sleeps && signals::came_since_begin();
    slept |= sleeps;
    sleeping.leave();
    kernel_had_some_.store(m > 0, std::memory_order_relaxed);
    if (m < 0) {
      if (n == 0) return -1;
      m = 0;
    }
    const bool full = m == max - n;
    // The kernel's batch is in the order of arrival: what streams have to tell came when the inner instance did.
    epoll_event* const place = find_inner(out + n, m);
    const bool news = place != nullptr;
    if (news) {
      std::copy(place + 1, out + n + m, place);
      --m;
      has_news();
    }
    n += m;
    if (news && full) {
      // Ours had the place of another's, which the program may have no other chance to hear of.
      int more = calls_.pwait(epfd, out + n, max - n, 0, nullptr);
      if (more > 0 && hide(out + n, more) != 0) has_news();
      n += std::max(more, 0);
    }
    if ((news || ours_most < max) && n < max && !foreign) {
      MutexLock lock(mutex_);
      moved_ = false;
      const int streams = collect(number, out + n, max - n, n > 0);
      if (news && place != out + n) std::rotate(place, out + n, out + n + streams);
      n += streams;
      if (n == 0 && moved_) continue;  // the kernel has it to tell
    }
    if (n == 0 && last && !std::exchange(outlasted, true) && outlast_switches()) {
      continue;
    }
    if (n > 0 || last || (sleeps && !news)) {
      if (n > 0 && !foreign) {
        MutexLock lock(mutex_);
        const bool held = held_;
        n += promise_room(number, out + n, max - n);
        if (held && !held_ && n < max) n += collect(number, out + n, max - n);  // it is over
        owes_promise_ = n == max && held_;
      }
      errno = saved;
      return n;
    }
  }
}

void EpollSet::watch() noexcept {
  MutexLock lock(mutex_);
  {
    MutexLock dirty(dirty_mutex_);
    always_wake_.store(true, std::memory_order_relaxed);
  }
  watched_ = true;
  settle();
}

}  // namespace ringroad
