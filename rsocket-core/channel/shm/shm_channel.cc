#include "rsocket-core/channel/shm/shm_channel.h"

#include <cassert>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

#include "rsocket-core/base/futex.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kSeqCst = std::memory_order_seq_cst;

// progress() reads the peer's report of consumption once in so many calls even when it cannot matter
// to a sender: somebody may watch tx_consumed(), SIOCOUTQ for example.
constexpr std::uint32_t kCreditLooks = 64;

// `later` - `earlier` of free-running cursors: negative when they stand the other way round.
constexpr std::int64_t distance(std::uint64_t earlier, std::uint64_t later) noexcept {
  return static_cast<std::int64_t>(later - earlier);
}
constexpr std::int32_t distance(std::uint32_t earlier, std::uint32_t later) noexcept {
  return static_cast<std::int32_t>(later - earlier);
}

// Whether a cursor of the peer's went back since an earlier look at it, or so far ahead, a quarter
// of all numbers, that its distance() to a cursor a ring behind that look could come out negative.
template <typename Cursor>
constexpr bool astray(Cursor earlier, Cursor later) noexcept {
  return static_cast<Cursor>(later - earlier) >> (std::numeric_limits<Cursor>::digits - 2) != 0;
}

bool well_formed(const ControlMessage& message) noexcept {
  switch (static_cast<ControlType>(message.type)) {
    case ControlType::kSwitch:
    case ControlType::kSwitchAck:
    case ControlType::kGiveUp:
    case ControlType::kFin:
    case ControlType::kLeft:
      break;
    case ControlType::kCredit:
    default:
      return false;
  }
  return message.reason < static_cast<std::uint8_t>(Reason::kCount) && message.zero16 == 0 &&
         message.credits == 0 &&
         (message.consumed == 0 || message.type == static_cast<std::uint8_t>(ControlType::kLeft)) &&
         (message.proof == 0 || message.type == static_cast<std::uint8_t>(ControlType::kSwitch));
}

bool is_fin(const ControlMessage& message) noexcept {
  return message.type == static_cast<std::uint8_t>(ControlType::kFin);
}

}  // namespace

ShmChannel::ShmChannel(std::shared_ptr<ShmMemory> memory, ShmSideIndex side, ShmWake wake) noexcept
    : Channel(memory->ring(0).size(), true),
      mine_(memory->header().side[static_cast<unsigned>(side)]),
      peer_(memory->header().side[1 - static_cast<unsigned>(side)]),
      tx_base_(memory->ring(static_cast<unsigned>(side)).base()),
      rx_base_(memory->ring(1 - static_cast<unsigned>(side)).base()),
      memory_(std::move(memory)),
      wake_(std::move(wake)) {}

ShmChannel::~ShmChannel() {
  if (!wake_.in_own_process()) return;
  mine_.closed.store(1, kSeqCst);
  wake_.signal_peer();
  if ((peer_.waiting.load(kSeqCst) & kShmOnWord) != 0) sys::futex_ring(peer_.wakes);
}

// ---- TX

Channel::View ShmChannel::tx_view() noexcept {
  const std::uint64_t head = tx_head_.load(kRelaxed);
  if (head - load(tx_consumed_) > ring_bytes() / 2) take_credit();
  return {tx_at(head), ring_bytes() - (head - load(tx_consumed_))};
}

void ShmChannel::commit(std::size_t n) noexcept {
  const std::uint64_t head = tx_head_.load(kRelaxed) + n;
  tx_head_.store(head, kRelease);  // before the peer can answer: see take_credit()
  mine_.tail.store(head, kSeqCst);
  wake_peer(kShmWantsArrivals);
  if (head - load(tx_consumed_) > ring_bytes() - quarter()) ask_for(kShmWantsRoom);
  check();
}

bool ShmChannel::send_control(const ControlMessage& message) noexcept {
  if (failed() || !control_room()) return false;
  if (is_fin(message)) {
    fin_sent_.store(true, kSeqCst);
    ask_for(kShmWantsEmpty);
  }
  std::uint64_t words[sizeof message / sizeof(std::uint64_t)];
  std::memcpy(words, &message, sizeof message);
  ShmControlSlot& slot = mine_.control[control_sent_ % kShmControlSlots];
  for (std::size_t i = 0; i < std::size(words); ++i) slot.words[i].store(words[i], kRelaxed);
  ++control_sent_;
  mine_.control_tail.store(control_sent_, kSeqCst);
  wake_peer(kShmWantsArrivals);
  return true;
}

bool ShmChannel::control_room() noexcept {
  if (control_sent_ - control_acked_ < kShmControlSlots) return true;
  const std::uint32_t acked = peer_.control_head.load(kAcquire);
  if (distance(control_acked_, acked) < 0 || distance(acked, control_sent_) < 0) {
    set_failure(Reason::kBadRequest);
    return false;
  }
  control_acked_ = acked;
  return control_sent_ - control_acked_ < kShmControlSlots;
}

Channel::View ShmChannel::tx_replay(std::uint64_t offset) noexcept {
  const std::uint64_t size = tx_head_.load(kRelaxed) - offset;
  if (size > ring_bytes()) return {};
  return {tx_at(offset), size};
}

// ---- RX

Channel::View ShmChannel::rx_view() noexcept {
  const std::uint64_t consumed = rx_consumed_.load(kRelaxed);
  return {rx_at(consumed), load(rx_head_) - consumed};
}

void ShmChannel::consume(std::size_t n) noexcept {
  report_consumed(rx_consumed_.load(kRelaxed) + n);
}

// ---- Taking in what the peer has done

void ShmChannel::progress() noexcept {
  const Reason reason = failure_.load(kRelaxed);
  if (reason != Reason::kNone && reason != Reason::kPeerGone) return;
  // Before the rest: what stands behind it is all there will ever be.
  const bool closed = peer_.closed.load(kAcquire) != 0;
  if (peer_.tail.load(kAcquire) != load(rx_head_)) take_arrivals();
  if (control_may_have_come()) take_control_tail();
  const std::uint32_t looks = looks_.load(kRelaxed) + 1;
  looks_.store(looks, kRelaxed);  // two threads may count one call; it does not matter
  if (load(tx_head_) - load(tx_consumed_) > quarter() || fin_sent_.load(kAcquire) ||
      looks % kCreditLooks == 0) {
    take_credit();
  }
  if (closed) take_end();
  check();
}

// The peer cannot have sent more than it was told was consumed, plus a ring. rx_consumed_ is loaded
// after the tail, so it is at least what the peer was told. rx_head_ is loaded before, and was
// loaded from the tail by some thread: the tail cannot stand behind it.
void ShmChannel::take_arrivals() noexcept {
  std::uint64_t known = load(rx_head_);
  for (;;) {
    const std::uint64_t tail = peer_.tail.load(kAcquire);
    if (tail == known) return;
    if (astray(known, tail) ||
        distance(load(rx_consumed_), tail) > static_cast<std::int64_t>(ring_bytes())) {
      set_failure(Reason::kBadRequest);
      return;
    }
    if (rx_head_.compare_exchange_weak(known, tail, std::memory_order_acq_rel, kAcquire)) return;
  }
}

// tx_head_ was stored before the tail that the peer has answered, and is loaded after the answer. ask_for()
// has just said that it waits: the report is loaded seq_cst, or it could be one from before that.
void ShmChannel::take_credit() noexcept {
  std::uint64_t known = load(tx_consumed_);
  for (;;) {
    const std::uint64_t consumed = peer_.consumed.load(kSeqCst);
    if (consumed == known) return;
    if (distance(known, consumed) < 0 || distance(consumed, load(tx_head_)) < 0) {
      set_failure(Reason::kBadRequest);
      return;
    }
    if (tx_consumed_.compare_exchange_weak(known, consumed, std::memory_order_acq_rel, kAcquire)) {
      return;
    }
  }
}

void ShmChannel::take_control_tail() noexcept {
  std::uint32_t known = control_seen_.load(kAcquire);
  for (;;) {
    const std::uint32_t tail = peer_.control_tail.load(kAcquire);
    if (tail == known) return;
    if (astray(known, tail) || distance(control_taken_.load(kAcquire), tail) >
                                   static_cast<std::int32_t>(kShmControlSlots)) {
      set_failure(Reason::kBadRequest);
      return;
    }
    if (control_seen_.compare_exchange_weak(known, tail, std::memory_order_acq_rel, kAcquire)) {
      return;
    }
  }
}

// The consumer of the last bytes looks for the end behind that, and this looks at what is consumed behind the
// end: one of the two sees the other. report_consumed() stores rx_consumed_ before the report, and only the
// report seq_cst: so the report is loaded first, for what stands before it. Its value may be a lie.
void ShmChannel::take_end() noexcept {
  peer_closed_.store(true, kSeqCst);
  (void)mine_.consumed.load(kSeqCst);
  if (load(rx_consumed_) == load(rx_head_) &&
      control_taken_.load(kSeqCst) == control_seen_.load(kAcquire)) {
    set_failure(Reason::kPeerGone);
  }
}

bool ShmChannel::take_control(ControlMessage& out) noexcept {
  if (!control_pending()) return false;
  {
    MutexLock lock(control_mutex_);
    const std::uint32_t taken = control_taken_.load(kRelaxed);
    if (control_seen_.load(kAcquire) == taken) return false;
    const ShmControlSlot& slot = peer_.control[taken % kShmControlSlots];
    std::uint64_t words[sizeof out / sizeof(std::uint64_t)];
    for (std::size_t i = 0; i < std::size(words); ++i) words[i] = slot.words[i].load(kRelaxed);
    ControlMessage message;
    std::memcpy(&message, words, sizeof message);
    control_taken_.store(taken + 1, kSeqCst);
    mine_.control_head.store(taken + 1, kRelease);
    if (!well_formed(message)) {
      set_failure(Reason::kBadRequest);
      return false;
    }
    out = message;
  }
  if (peer_closed_.load(kSeqCst)) take_end();
  return true;
}

// ---- Sleeping

// Only between processes of one user: another's could move the sleeper to a word of its own, FUTEX_REQUEUE.
Channel::WaitWord ShmChannel::wait_word() noexcept {
  if (wake_.kind() == ShmWakeKind::kSocket || !agreement().has(Feature::kWaitWord)) return {};
  return {{memory_, &mine_.wakes}, mine_.wakes.load(kSeqCst)};
}

bool ShmChannel::arm_for(std::uint32_t where) noexcept {
  mine_.waiting.fetch_or(kShmWantsArrivals | where, kSeqCst);
  // After that, so that either this sees a commit() or a kFin, or they see this sleeper and ask for
  // it. A peer that spoils the tail, which it can, spoils its own wake-ups.
  const std::uint64_t in_flight = mine_.tail.load(kSeqCst) - load(tx_consumed_);
  const std::uint32_t credit =
      (in_flight > ring_bytes() - quarter() ? kShmWantsRoom : 0) |
      (in_flight != 0 && fin_sent_.load(kSeqCst) ? kShmWantsEmpty : 0);
  if (credit != 0) mine_.waiting.fetch_or(credit, kSeqCst);
  return failure_.load(kSeqCst) == Reason::kNone && peer_.tail.load(kSeqCst) == load(rx_head_) &&
         peer_.control_tail.load(kSeqCst) == control_seen_.load(kAcquire) &&
         (credit == 0 || peer_.consumed.load(kSeqCst) == load(tx_consumed_)) &&
         (peer_.closed.load(kSeqCst) == 0 || peer_closed_.load(kAcquire));
}

// The room became short, or kFin is about to go. A thread that fell asleep before did not ask for
// credit: ask for them. A report that came too early to see this is taken in here, by the thread
// that would otherwise find no room.
void ShmChannel::ask_for(std::uint32_t bits) noexcept {
  const std::uint32_t waiting = mine_.waiting.load(kSeqCst);
  if (waiting == 0 || (waiting & bits) == bits) return;
  mine_.waiting.fetch_or(bits, kSeqCst);
  take_credit();
}

void ShmChannel::wake_for_credit(std::uint64_t consumed) noexcept {
  // Only decides about a wake-up, so the tail may be a lie. A tail that moves on meanwhile belongs
  // to a sender that is awake.
  const std::uint64_t in_flight = peer_.tail.load(kAcquire) - consumed;
  std::uint32_t bits = 0;
  if (in_flight <= ring_bytes() - quarter()) bits |= kShmWantsRoom;
  if (in_flight == 0) bits |= kShmWantsEmpty;
  if (bits != 0) wake_peer(bits);
}

void ShmChannel::wake_who_waits() noexcept {
  const int saved = errno;
  const std::uint32_t waiting = peer_.waiting.exchange(0, kSeqCst);
  if ((waiting & kShmOnWord) != 0) sys::futex_ring(peer_.wakes);
  if (waiting != 0 && (waiting & (kShmOnWord | kShmOnDescriptor)) != kShmOnWord) wake_.signal_peer();
  errno = saved;
}

// ---- The end

void ShmChannel::fail(Reason reason) noexcept {
  // What a dead peer has written before is still worth having.
  if (reason == Reason::kPeerGone) progress();
  set_failure(reason);
}

void ShmChannel::set_failure(Reason reason) noexcept {
  Reason none = Reason::kNone;
  if (failure_.compare_exchange_strong(none, reason, kSeqCst)) {
    const int saved = errno;
    wake_.signal_self();
    if ((mine_.waiting.load(kSeqCst) & kShmOnWord) != 0) sys::futex_ring(mine_.wakes);
    errno = saved;
  }
}

void ShmChannel::info(ChannelInfo& out) const noexcept {
  out = ChannelInfo{};
  out.carrier = Carrier::kShm;
  out.pinned_bytes = memory_->bytes();
  out.descriptors = wake_.descriptors();
}

Channel::Near ShmChannel::near() const noexcept {
  return {reinterpret_cast<std::uintptr_t>(this), reinterpret_cast<std::uintptr_t>(&peer_),
          reinterpret_cast<std::uintptr_t>(&mine_)};
}

#ifdef RINGROAD_CHECKS
void ShmChannel::check() const noexcept {
  // The cursor that can move on meanwhile is loaded second, or first, as the inequality allows.
  const std::uint64_t rx_consumed = load(rx_consumed_);
  const std::uint64_t rx_head = load(rx_head_);
  assert(distance(rx_consumed, rx_head) >= 0);
  assert(distance(load(rx_consumed_), rx_head) <= static_cast<std::int64_t>(ring_bytes()));
  const std::uint64_t tx_consumed = load(tx_consumed_);
  const std::uint64_t tx_head = load(tx_head_);
  assert(distance(tx_consumed, tx_head) >= 0);
  assert(distance(load(tx_consumed_), tx_head) <= static_cast<std::int64_t>(ring_bytes()));
  const std::uint32_t taken = control_taken_.load(kAcquire);
  const std::uint32_t seen = control_seen_.load(kAcquire);
  assert(distance(taken, seen) >= 0);
  assert(distance(control_taken_.load(kAcquire), seen) <=
         static_cast<std::int32_t>(kShmControlSlots));
}
#endif

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_shm_pair(
    std::uint32_t ring_bytes, ShmWakeKind kind) noexcept {
  int memfd = -1;
  Reason why = Reason::kNone;
  auto memory = ShmMemory::create(ring_bytes, memfd, why);
  if (memory == nullptr) return {};
  sys::close_quietly(memfd);
  ShmWake wakes[2];
  if (!ShmWake::make_pair(kind, wakes[0], wakes[1], why)) return {};
  std::unique_ptr<Channel> connector(new (std::nothrow) ShmChannel(
      memory, ShmSideIndex::kConnector, std::move(wakes[0])));
  std::unique_ptr<Channel> listener(new (std::nothrow) ShmChannel(
      memory, ShmSideIndex::kListener, std::move(wakes[1])));
  if (connector == nullptr || listener == nullptr) return {};
  for (Channel* end : {connector.get(), listener.get()}) end->set_agreement(agreement_with(Hello{}));
  return {std::move(connector), std::move(listener)};
}

}  // namespace ringroad
