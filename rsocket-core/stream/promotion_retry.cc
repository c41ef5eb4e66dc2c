#include "rsocket-core/stream/promotion_retry.h"

#include <algorithm>
#include <limits>

namespace ringroad {
namespace {

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
    case Reason::kUnseenWait:         // one may be seen yet
    case Reason::kUnknownConnection:  // its program may be late to accept it
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
    case Reason::kOtherNamespace:
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

// ---- The decisions

Retry PromotionRetry::decide_after_refusal(Reason reason, Reason peer_reason, bool returned,
                                           bool impatient, Reason before) noexcept {
  const Reason cause = reason == Reason::kPeerRefused ? peer_reason : reason;
  if (reason == Reason::kFork || peer_reason == Reason::kFork) return Retry::kAfterFork;
  if (peer_reason == Reason::kOperator) return Retry::kByAgent;
  if (cause == Reason::kMaxChannels) return Retry::kForRoom;
  if (returned && cause == Reason::kBusy) return Retry::kWhenRead;
  if (returned && cause != Reason::kExec && passing_for_returned(cause)) return Retry::kAfterPause;
  if (passing(reason) || passing(peer_reason)) {
    // A peer may not know yet of a switch that was given up.
    return cause == Reason::kBusy && impatient ? Retry::kAfterFewUses : Retry::kAfterUses;
  }
  if (cause == Reason::kMemlock || cause == Reason::kNoRdmaDevice) return Retry::kAfterPause;
  // A server answers a moment after it listens, or after its first accept() of a listener that it was given.
  // One that answered before may have another in its place soon.
  const bool nobody = cause == Reason::kPeerHasNoRingroad || reason == Reason::kOtherNamespace;
  if (nobody && before != cause) return Retry::kAfterPause;
  return Retry::kNever;
}

Retry PromotionRetry::decide_after_return(Reason reason, Reason peer_reason) noexcept {
  const Reason cause = reason == Reason::kPeerLeft ? peer_reason : reason;
  if (!passing_for_returned(cause)) return Retry::kNever;
  if (peer_reason == Reason::kOperator || peer_reason == Reason::kPolicy) return Retry::kByAgent;
  if (was_impatience(reason, peer_reason)) return Retry::kImpatience;
  if (cause == Reason::kFork) return Retry::kAfterFork;
  if (cause == Reason::kIdle) return Retry::kWhenUsed;
  return Retry::kAfterPause;
}

// ---- What happened

void PromotionRetry::after_refusal(Reason reason, Reason peer_reason, std::int64_t now_ns) noexcept {
  if (!may_ask()) return;
  const Retry retry =
      decide_after_refusal(reason, peer_reason, returned_, impatiences() > 0, refused_before_);
  // One that was refused for anything else is not forgotten.
  const bool nobody = reason == Reason::kPeerHasNoRingroad || reason == Reason::kOtherNamespace;
  if (refused_before_ == Reason::kNone || !nobody) refused_before_ = reason;
  plan(retry, now_ns);
}

void PromotionRetry::after_give_up(Reason reason, Reason peer_reason, std::int64_t now_ns) noexcept {
  if (was_impatience(reason, peer_reason)) return ask_after_impatience(now_ns);
  impatiences_.store(0, std::memory_order_relaxed);
  if (may_ask()) plan(Retry::kAfterUses, now_ns);
}

bool PromotionRetry::after_return(Reason reason, Reason peer_reason, std::int64_t now_ns) noexcept {
  returned_ = true;
  if (!was_impatience(reason, peer_reason)) impatiences_.store(0, std::memory_order_relaxed);
  if (stopped_ || hold() != Reason::kNone) return false;
  const Retry retry = decide_after_return(reason, peer_reason);
  if (retry == Retry::kNever) {
    stopped_ = true;
  } else if (asks_) {
    if (std::exchange(start_when_back_, false)) {
      asked_.store(true, std::memory_order_relaxed);
      return true;
    }
    plan(retry, now_ns);
  }
  return false;
}

void PromotionRetry::on_channel(std::int64_t now_ns) noexcept {
  attempts_ = room_pauses_ = 0;
  refused_before_ = Reason::kNone;
  impatiences_.store(0, std::memory_order_relaxed);
  switched_ns_ = now_ns;
}

// ---- The plans

void PromotionRetry::plan(Retry retry, std::int64_t now_ns) noexcept {
  passes_.store(retry == Retry::kAfterUses || retry == Retry::kAfterFewUses);
  switch (retry) {
    case Retry::kNever:
      stopped_ = true;
      return;
    case Retry::kByAgent:
      peer_keeps_ = true;
      asked_.store(true, std::memory_order_relaxed);
      return;
    case Retry::kAfterUses:
      if (!attempt_after(kFirstUses << attempts_)) ask_after_pause(now_ns);
      return;
    case Retry::kAfterFewUses:
      if (!attempt_after(kUsesAfterImpatience)) ask_after_pause(now_ns);
      return;
    case Retry::kWhenRead:
      return ask_at(now_ns + kReadPauseNs);
    case Retry::kWhenUsed: {
      const bool by_bytes_only = threshold_messages_ == std::numeric_limits<std::uint64_t>::max();
      return ask_after_uses(by_bytes_only ? 1 : std::max<std::uint64_t>(threshold_messages_, 1));
    }
    case Retry::kAfterPause:
      return ask_after_pause(now_ns);
    case Retry::kAfterFork:
      return ask_after_fork(now_ns);
    case Retry::kForRoom:
      // As often as it takes: another stream's channel is free as soon as that one is not busy.
      ask_at(now_ns + (kFirstRoomPauseNs << room_pauses_));
      room_pauses_ = std::min(room_pauses_ + 1, kRoomPauseDoublings);
      return;
    case Retry::kImpatience:
      return ask_after_impatience(now_ns);
  }
}

void PromotionRetry::ask_after_uses(std::uint64_t uses) noexcept {
  retry_at_uses_.store(uses_.load(std::memory_order_relaxed) + uses, std::memory_order_relaxed);
  retry_at_ns_.store(0, std::memory_order_relaxed);
  asked_.store(false, std::memory_order_relaxed);
}

void PromotionRetry::ask_at(std::int64_t time_ns) noexcept {
  retry_at_uses_.store(uses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  retry_at_ns_.store(time_ns, std::memory_order_relaxed);
  asked_.store(false, std::memory_order_relaxed);
}

bool PromotionRetry::attempt_after(std::uint64_t uses) noexcept {
  if (attempts_ >= kMostAttempts) return false;
  ++attempts_;
  ask_after_uses(uses);
  return true;
}

// Impatience says nothing about the peer, but how long a switch takes: the next one may take longer.
void PromotionRetry::ask_after_impatience(std::int64_t now_ns) noexcept {
  const unsigned before = impatiences();
  impatiences_.store(std::min(before + 1, kPatienceDoublings), std::memory_order_relaxed);
  if (!may_ask()) return;
  if (before < kMostImpatiences) {
    ask_after_uses(kUsesAfterImpatience);
  } else {
    ask_after_pause(now_ns);
  }
}

// As often as it takes: a server's child may end today or tomorrow. More seldom each time, unless the last
// channel held for a while.
void PromotionRetry::ask_after_fork(std::int64_t now_ns) noexcept {
  if (switched_ns_ != 0 && now_ns - switched_ns_ >= kWellAfterForkNs) fork_pauses_ = 0;
  switched_ns_ = 0;
  const std::int64_t pause = std::min(kFirstForkPauseNs << fork_pauses_, kLongestForkPauseNs);
  if (pause < kLongestForkPauseNs) ++fork_pauses_;
  ask_at(now_ns + pause);
}

// As often as it takes, and more seldom each time, unless the last channel held for long: what fails
// again and again shall not keep the program from its work.
void PromotionRetry::ask_after_pause(std::int64_t now_ns) noexcept {
  if (switched_ns_ != 0 && now_ns - switched_ns_ >= kWellAfterNs) pauses_ = 0;
  switched_ns_ = 0;
  ask_at(now_ns + (kFirstPauseNs << pauses_));
  pauses_ = std::min(pauses_ + 1, kPauseDoublings);
}

// ---- Kept on TCP

void PromotionRetry::set_hold(Reason reason) noexcept {
  hold_.store(reason, std::memory_order_relaxed);
  start_when_back_ = peer_keeps_ = false;
  passes_.store(false);
  asked_.store(true, std::memory_order_relaxed);
}

void PromotionRetry::end_hold(bool at_any_use) noexcept {
  hold_.store(Reason::kNone, std::memory_order_relaxed);
  at_any_use_.store(at_any_use, std::memory_order_relaxed);
}

bool PromotionRetry::begin_anew(State state, bool at_once) noexcept {
  peer_keeps_ = false;
  attempts_ = fork_pauses_ = pauses_ = room_pauses_ = 0;
  refused_before_ = Reason::kNone;
  impatiences_.store(0, std::memory_order_relaxed);
  if (!asks_ || (state != State::kOnTcp && state != State::kResuming)) return false;
  const bool start = at_once && state == State::kOnTcp;
  start_when_back_ = at_once && state == State::kResuming;
  retry_at_uses_.store(0, std::memory_order_relaxed);
  retry_at_ns_.store(0, std::memory_order_relaxed);
  asked_.store(start, std::memory_order_relaxed);
  return start;
}

}  // namespace ringroad
