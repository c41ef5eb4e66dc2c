// Whether, and when, a stream that is on TCP asks for a channel again. Only the end that connected asks.
//
// What happened and the two reasons decide (decide_*(), pure functions); the counters of earlier attempts say
// how long the pause is. There is no lock, no socket and no clock here: the caller gives the time.
//
//   what happened                                       asks again
//   refused: an end forks                               after a pause, 250 ms to 4 s
//   refused: the peer's operator keeps it               never by itself: the agent finds out when that ends
//   refused: no channel is free                         after a pause, 10 ms to 1.3 s
//   refused: busy, and it was on a channel before       after 10 ms
//   refused for something that passes                   after 64 uses, doubled 6 times; then after a pause
//   refused: nobody answers at the peer's address       after a pause, once: a server may be about to; as
//                                                       often as it takes if a peer answered before
//   refused for anything else                           never
//   switch given up by a program that does not wait     after 16 uses, 4 times; then after a pause
//   back on TCP: not used for long                      as a new connection does
//   back on TCP for something that passes               after a pause, 1 s to 16 s
//   back on TCP for anything else                       never
//
// A program that waits in connect() for its channel, as the rule's `wait` says, asks again sooner after what
// passes: StreamReadiness::wait_promoted().
//
// Thread rule. Functions that change what is planned need both locks of the stream. count_use(),
// not_before_ns(), claim(), passes(), hold() and impatiences() may be called by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/protocol/state.h"

namespace ringroad {

enum class Retry : std::uint8_t {
  kNever,        // the stream stays on TCP for good
  kByAgent,      // the agent asks for all that the peer keeps
  kAfterUses,    // after more uses with each attempt, at last after a pause
  kAfterFewUses, // the same, with few uses each time
  kWhenRead,     // soon: an end has not read all yet, or is not back yet
  kWhenUsed,     // as a new connection is
  kAfterPause,   // at least a second, twice as long each time
  kAfterFork,    // while another process has the connection too
  kForRoom,      // when another stream's channel may be free
  kImpatience,   // a program could not wait for the end of the switch
};

class PromotionRetry {
 public:
  // Switches that are given up, in a row, for programs that do not wait, before a pause.
  static constexpr unsigned kMostImpatiences = 4;
  // How often the patience doubles with them: to 0.64 s, which is little beside the pauses.
  static constexpr unsigned kPatienceDoublings = 6;
  static constexpr unsigned kMostAttempts = 6;
  static constexpr std::uint64_t kFirstUses = 64;
  static constexpr std::uint64_t kUsesAfterImpatience = 16;
  static constexpr std::int64_t kReadPauseNs = 10'000'000;
  static constexpr std::int64_t kFirstForkPauseNs = 250'000'000;
  static constexpr std::int64_t kLongestForkPauseNs = 4'000'000'000;
  static constexpr std::int64_t kFirstPauseNs = 1'000'000'000;
  static constexpr unsigned kPauseDoublings = 4;
  static constexpr std::int64_t kFirstRoomPauseNs = 10'000'000;
  static constexpr unsigned kRoomPauseDoublings = 7;
  // A channel that held for so long makes the next pause the shortest again.
  static constexpr std::int64_t kWellAfterForkNs = 1'000'000'000;
  static constexpr std::int64_t kWellAfterNs = 60'000'000'000;

  // `asks`: the end that connected. Promotion starts once either threshold is reached.
  PromotionRetry(bool asks, std::uint64_t messages, std::uint64_t bytes) noexcept
      : asks_(asks), threshold_messages_(messages), threshold_bytes_(bytes) {}

  // ---- Uses
  void count_before(std::uint64_t messages) noexcept { uses_.store(messages, std::memory_order_relaxed); }
  void count_bytes(std::uint64_t bytes) noexcept { used_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  // Whether the uses, these included, are enough to ask; claim() comes next.
  bool count_use(std::uint64_t messages, std::uint64_t bytes) noexcept {
    if (!asks_ || asked_.load(std::memory_order_relaxed)) return false;
    const std::uint64_t uses = uses_.fetch_add(messages, std::memory_order_relaxed) + messages;
    const std::uint64_t used = used_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (uses < threshold_messages_ && used < threshold_bytes_ &&
        !at_any_use_.load(std::memory_order_relaxed)) {
      return false;
    }
    return uses >= retry_at_uses_.load(std::memory_order_relaxed);
  }
  // CLOCK_MONOTONIC; 0: at any time.
  std::int64_t not_before_ns() const noexcept { return retry_at_ns_.load(std::memory_order_relaxed); }
  // True: the caller is the one to ask.
  bool claim() noexcept { return !asked_.exchange(true, std::memory_order_acq_rel); }

  // The last refusal was for something that passes, so a next request may fare better.
  bool passes() const noexcept { return passes_.load(); }

  // ---- What happened
  void after_refusal(Reason reason, Reason peer_reason, std::int64_t now_ns) noexcept;
  void after_give_up(Reason reason, Reason peer_reason, std::int64_t now_ns) noexcept;
  // True: the caller asks at once.
  bool after_return(Reason reason, Reason peer_reason, std::int64_t now_ns) noexcept;
  void on_channel(std::int64_t now_ns) noexcept;

  // The decisions. `returned`: it was on a channel once. `impatient`: the last switch was given up for a
  // program that does not wait. `before`: kNone at the first attempt since it was on a channel;
  // kPeerHasNoRingroad or kOtherNamespace if nobody answered any; else why another was refused.
  static Retry decide_after_refusal(Reason reason, Reason peer_reason, bool returned, bool impatient,
                                    Reason before) noexcept;
  static Retry decide_after_return(Reason reason, Reason peer_reason) noexcept;
  // Whether a program, here or there, could not wait for the end of the switch. The channel may be gone
  // before the peer's word of it has come: then its RESUME says so.
  static bool was_impatience(Reason reason, Reason peer_reason) noexcept {
    return reason == Reason::kBusy || peer_reason == Reason::kBusy;
  }

  // ---- Kept on TCP
  void stop() noexcept { stopped_ = true; }
  bool stopped() const noexcept { return stopped_; }  // for good
  // An operator keeps it; kNone: none does.
  Reason hold() const noexcept { return hold_.load(std::memory_order_relaxed); }
  void set_hold(Reason reason) noexcept;
  // `at_any_use`: whatever the rule's threshold.
  void end_hold(bool at_any_use) noexcept;
  // After end_hold(): forgets what failed. True: the caller asks at once. What is on its way to a channel has
  // been asked for already.
  bool begin_anew(State state, bool at_once) noexcept;
  // True once after the peer has said that it is kept on TCP there.
  bool take_peer_keeps() noexcept { return std::exchange(peer_keeps_, false); }

  // At most kPatienceDoublings.
  unsigned impatiences() const noexcept { return impatiences_.load(std::memory_order_relaxed); }

 private:
  bool may_ask() const noexcept { return asks_ && !stopped_ && hold() == Reason::kNone; }
  void plan(Retry retry, std::int64_t now_ns) noexcept;
  void ask_after_uses(std::uint64_t uses) noexcept;
  void ask_at(std::int64_t time_ns) noexcept;  // with the first use from then on
  bool attempt_after(std::uint64_t uses) noexcept;  // false: there were enough attempts
  void ask_after_impatience(std::int64_t now_ns) noexcept;
  void ask_after_fork(std::int64_t now_ns) noexcept;
  void ask_after_pause(std::int64_t now_ns) noexcept;

  const bool asks_;
  bool stopped_ = false;
  bool returned_ = false;    // was on a channel once
  bool peer_keeps_ = false;
  bool start_when_back_ = false;
  std::atomic<bool> asked_{false};
  std::atomic<bool> at_any_use_{false};
  std::atomic<bool> passes_{false};
  std::atomic<Reason> hold_{Reason::kNone};
  std::atomic<unsigned> impatiences_{0};
  unsigned attempts_ = 0;
  Reason refused_before_ = Reason::kNone;  // see decide_after_refusal()
  unsigned fork_pauses_ = 0;
  unsigned pauses_ = 0;
  unsigned room_pauses_ = 0;
  const std::uint64_t threshold_messages_;
  const std::uint64_t threshold_bytes_;
  std::atomic<std::uint64_t> uses_{0};  // messages either way
  std::atomic<std::uint64_t> used_bytes_{0};
  std::atomic<std::uint64_t> retry_at_uses_{0};
  std::atomic<std::int64_t> retry_at_ns_{0};
  std::int64_t switched_ns_ = 0;  // when it last came to a channel; 0: a pause has taken it into account
};

}  // namespace ringroad
