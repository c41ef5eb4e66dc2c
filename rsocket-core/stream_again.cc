// Whether, and when, a stream that is on TCP asks for a channel again. Only the end that connected
// asks.
#include <algorithm>

#include "rsocket-core/stream.h"
#include "rsocket-core/sys.h"

namespace ringroad {
namespace {

constexpr unsigned kMaxRetries = 6;
constexpr std::int64_t kFirstForkPauseNs = 250'000'000;
constexpr std::int64_t kLongestForkPauseNs = 4'000'000'000;
constexpr std::int64_t kWellAfterForkNs = 1'000'000'000;
constexpr std::int64_t kReadPauseNs = 10'000'000;
constexpr std::int64_t kFirstPauseNs = 1'000'000'000;
constexpr unsigned kPauseDoublings = 6;
constexpr std::int64_t kFirstRoomPauseNs = 10'000'000;
constexpr unsigned kRoomPauseDoublings = 7;
constexpr std::uint64_t kFirstUses = 64;
constexpr std::uint64_t kUsesAfterHurry = 16;
constexpr std::int64_t kWellAfterNs = 60'000'000'000;

// Whether another attempt, later, may fare better.
bool passing(Reason reason) noexcept {
  switch (reason) {
    case Reason::kBusy:
    case Reason::kTimeout:
    case Reason::kNoMemory:
    case Reason::kNoDescriptors:
    case Reason::kPeerGaveUp:
    case Reason::kQpError:
    case Reason::kPeerGone:
    case Reason::kRedirect:
    case Reason::kUnseenWait:  // one may be seen yet
      return true;
    default:
      return false;
  }
}

// The same of one that was on a channel: what is missing was there, and may be mended.
bool passing_for_returned(Reason reason) noexcept {
  switch (reason) {
    case Reason::kNone:
    case Reason::kPeerLeft:
    case Reason::kMemlock:
    case Reason::kNoRdmaDevice:
    case Reason::kPeerHasNoRingroad:
    case Reason::kOperator:
    case Reason::kPolicy:
    case Reason::kFork:
    case Reason::kIdle:
    case Reason::kStalled:
    case Reason::kExec:  // of which nothing came, or the peer will say so
      return true;
    default:
      return passing(reason);
  }
}

}  // namespace

void Stream::plan_after_refusal(Reason reason, Reason peer_reason) noexcept {
  if (role_ != StreamRole::kConnect || pinned_ || kept() != Reason::kNone) return;
  const Reason cause = reason == Reason::kPeerRefused ? peer_reason : reason;
  if (reason == Reason::kFork || peer_reason == Reason::kFork) {
    ask_after_fork();
  } else if (peer_reason == Reason::kOperator) {
    leave_to_agent();
  } else if (cause == Reason::kMaxChannels) {
    ask_for_room();
  } else if (returned_ && cause == Reason::kBusy) {
    ask_at(sys::now_ns() + kReadPauseNs);  // one end has not read all yet, or is not back yet
  } else if (returned_ && cause != Reason::kExec && passing_for_returned(cause)) {
    ask_after_pause();
  } else if (passing(reason) || passing(peer_reason)) {
    // A peer may not know yet of a switch that was given up.
    const bool soon = cause == Reason::kBusy && hurries_.load(std::memory_order_relaxed) > 0;
    if (!ask_later(soon ? kUsesAfterHurry : kFirstUses << retries_)) ask_after_pause();
  } else if (cause == Reason::kMemlock || cause == Reason::kNoRdmaDevice ||
             (cause == Reason::kPeerHasNoRingroad && retries_ > 0)) {
    // In the last case somebody was there, and another may be about to take the place.
    ask_after_pause();
  } else {
    pinned_ = true;
  }
}

void Stream::plan_after_give_up(Reason reason) noexcept {
  if (was_hurry(reason)) return plan_after_hurry();
  hurries_.store(0, std::memory_order_relaxed);
  if (role_ != StreamRole::kConnect || pinned_ || kept() != Reason::kNone) return;
  if (!ask_later(kFirstUses << retries_)) ask_after_pause();
}

// Whether a program, here or there, could not wait for the end of the switch. The channel may be
// gone before the peer's word of it has come: then its RESUME says so.
bool Stream::was_hurry(Reason reason) const noexcept {
  const Reason peer_reason = reason_from_wire(slot_->peer_reason.load(std::memory_order_relaxed));
  return reason == Reason::kBusy || peer_reason == Reason::kBusy;
}

// It says nothing about the peer, but how long a switch takes: the next one may take longer.
void Stream::plan_after_hurry() noexcept {
  const unsigned hurries = hurries_.load(std::memory_order_relaxed);
  hurries_.store(std::min(hurries + 1, kMostHurries), std::memory_order_relaxed);
  if (role_ != StreamRole::kConnect || pinned_ || kept() != Reason::kNone) return;
  if (hurries < kMostHurries) {
    ask_after_uses(kUsesAfterHurry);
  } else {
    ask_after_pause();
  }
}

void Stream::plan_after_return() noexcept {
  returned_ = true;
  const Reason peer_reason = reason_from_wire(slot_->peer_reason.load(std::memory_order_relaxed));
  const Reason cause = leave_reason_ == Reason::kPeerLeft ? peer_reason : leave_reason_;
  const bool hurry = was_hurry(leave_reason_);
  if (!hurry) hurries_.store(0, std::memory_order_relaxed);
  if (pinned_ || kept() != Reason::kNone) return;
  if (!passing_for_returned(cause)) {
    pinned_ = true;
  } else if (role_ != StreamRole::kConnect) {
    return;
  } else if (std::exchange(start_when_back_, false)) {
    promotion_asked_.store(true, std::memory_order_relaxed);
    host_->start_promotion(*this);
  } else if (peer_reason == Reason::kOperator || peer_reason == Reason::kPolicy) {
    leave_to_agent();
  } else if (hurry) {
    plan_after_hurry();
  } else if (cause == Reason::kFork) {
    ask_after_fork();
  } else if (cause == Reason::kIdle) {
    ask_when_used();
  } else {
    ask_after_pause();
  }
}

// Which asks for all that the peer keeps; see take_peer_keeps().
void Stream::leave_to_agent() noexcept {
  peer_keeps_ = true;
  promotion_asked_.store(true, std::memory_order_relaxed);
}

// Once the stream has been used for a while. False: there were enough attempts.
bool Stream::ask_later(std::uint64_t uses) noexcept {
  if (retries_ >= kMaxRetries) return false;
  ++retries_;
  ask_after_uses(uses);
  return true;
}

void Stream::ask_after_uses(std::uint64_t uses) noexcept {
  retry_at_uses_.store(uses_.load(std::memory_order_relaxed) + uses, std::memory_order_relaxed);
  retry_at_ns_.store(0, std::memory_order_relaxed);
  promotion_asked_.store(false, std::memory_order_relaxed);
}

// With the first use from then on.
void Stream::ask_at(std::int64_t time_ns) noexcept {
  retry_at_uses_.store(uses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  retry_at_ns_.store(time_ns, std::memory_order_relaxed);
  promotion_asked_.store(false, std::memory_order_relaxed);
}

// As a new connection is. It is worth a channel when it is used, as it was before.
void Stream::ask_when_used() noexcept {
  const std::uint64_t threshold = config_.promote_messages;
  const bool by_bytes_only = threshold == std::numeric_limits<std::uint64_t>::max();
  ask_after_uses(by_bytes_only ? 1 : std::max<std::uint64_t>(threshold, 1));
}

// As often as it takes: another stream's channel is free as soon as that one is not busy.
void Stream::ask_for_room() noexcept {
  ask_at(sys::now_ns() + (kFirstRoomPauseNs << room_pauses_));
  room_pauses_ = std::min(room_pauses_ + 1, kRoomPauseDoublings);
}

// As often as it takes: a server's child may end today or tomorrow. More seldom each time, unless the last channel
// held for a while.
void Stream::ask_after_fork() noexcept {
  const std::int64_t now = sys::now_ns();
  if (switched_ns_ != 0 && now - switched_ns_ >= kWellAfterForkNs) fork_pauses_ = 0;
  switched_ns_ = 0;
  const std::int64_t pause = std::min(kFirstForkPauseNs << fork_pauses_, kLongestForkPauseNs);
  if (pause < kLongestForkPauseNs) ++fork_pauses_;
  ask_at(now + pause);
}

// As often as it takes, and more seldom each time, unless the last channel held for long: what fails
// again and again shall not keep the program from its work.
void Stream::ask_after_pause() noexcept {
  const std::int64_t now = sys::now_ns();
  if (switched_ns_ != 0 && now - switched_ns_ >= kWellAfterNs) pauses_ = 0;
  switched_ns_ = 0;
  ask_at(now + (kFirstPauseNs << pauses_));
  pauses_ = std::min(pauses_ + 1, kPauseDoublings);
}

void Stream::keep_on_tcp(Reason reason) noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (kept() == reason) return;
    kept_.store(reason, std::memory_order_relaxed);
    start_when_back_ = peer_keeps_ = false;
    promotion_asked_.store(true, std::memory_order_relaxed);
    // Whose peer has closed stays where it is: nobody would answer, and what it sent is here.
    if (!peer_closed()) leave_or_give_up(reason);
    if (state() == State::kOnTcp && !pinned_) reason_ = reason;
  }
  publish_state();
  host_->attend(*this);
}

bool Stream::let_off_tcp(bool at_once) noexcept {
  bool start = false;
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    kept_.store(Reason::kNone, std::memory_order_relaxed);
    promote_now_.store(at_once, std::memory_order_relaxed);
    if (pinned_ || app_closed_) return false;
    peer_keeps_ = false;
    retries_ = fork_pauses_ = pauses_ = room_pauses_ = 0;
    hurries_.store(0, std::memory_order_relaxed);
    if (state() == State::kOnTcp) reason_ = Reason::kPending;
    // What is on its way to a channel has been asked for.
    if (role_ == StreamRole::kConnect &&
        (state() == State::kOnTcp || state() == State::kResuming)) {
      start = at_once && state() == State::kOnTcp;
      start_when_back_ = at_once && state() == State::kResuming;
      retry_at_uses_.store(0, std::memory_order_relaxed);
      retry_at_ns_.store(0, std::memory_order_relaxed);
      promotion_asked_.store(start, std::memory_order_relaxed);
    }
  }
  publish_state();
  return start;
}

}  // namespace ringroad
