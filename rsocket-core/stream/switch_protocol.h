// What a stream decides when it moves between its carriers: events in, actions out. There is no I/O and no lock
// here; StreamTransitions looks at the facts that an event stands for, and executes the actions under its locks.
//
//   send direction                                receive direction
//
//   TCP -> SECOND -> FROZEN -> TOKEN -> CHANNEL   TCP -> ANNOUNCED -> PROMISED -> TOKEN -> RESUMED -> TCP
//    ^        |        |         |        |                  |            |
//    |<-------+        v         v        v                  v            v
//    |<------------ GAVE_UP     REPLAY, LEFT                TCP     RESUMED_BARE -> TCP
//    |<----------------------------+
//
// The connector announces first (TCP -> FROZEN), the listener when it has seen the connector's token (SECOND). The
// table is in switch_protocol.cc. tests/model/stream.pml names the same transitions, and
// tests/core/switch_protocol_test.cc compares the two.
//
// Thread rule: apply() under both locks of the stream, everything else under either.
#pragma once

#include <cstdint>
#include <optional>

namespace ringroad {

// clang-format off
#define RINGROAD_SEND_STATES(X) \
  X(kTcp,            "TCP")      /* the program's bytes go to the kernel */ \
  X(kSecond,         "SECOND")   /* the same, in a switch: this end announces after the peer's token */ \
  X(kGaveUp,         "GAVE_UP")  /* the same, and SWITCH was sent but no token: the peer may wait there */ \
  X(kFrozen,         "FROZEN")   /* SWITCH is sent: nothing may be written before the peer's answer */ \
  X(kToken,          "TOKEN")    /* the token is written, or being written: no more giving up */ \
  X(kChannel,        "CHANNEL")  /* the program's bytes go to the ring */ \
  X(kReplay,         "REPLAY")   /* RESUME is sent: nothing of the program's until the ring is replayed */ \
  X(kLeft,           "LEFT")     /* the same, but LEFT was said on the channel instead of RESUME */ \
  X(kDead,           "DEAD")     /* broken before this end's token */ \
  X(kDeadCommitted,  "DEAD_COMMITTED")  /* broken after the token */ \
  X(kDeadReturning,  "DEAD_RETURNING")  /* broken after RESUME or LEFT */

#define RINGROAD_RECEIVE_STATES(X) \
  X(kTcp,            "TCP")        /* nothing is announced */ \
  X(kAnnounced,      "ANNOUNCED")  /* it is known where the peer's bytes on TCP end */ \
  X(kPromised,       "PROMISED")   /* SWITCH_ACK is sent: TCP is read up to there, where a frame may stand */ \
  X(kToken,          "TOKEN")      /* the peer's token stood there: the ring is next */ \
  X(kResumed,        "RESUMED")    /* then its RESUME, or LEFT came: TCP is next again */ \
  X(kResumedBare,    "RESUMED_BARE")  /* RESUME without a token, or none comes: the ring has nothing */

#define RINGROAD_SWITCH_EVENTS(X) \
  X(kStart,          "START")       /* a promotion begins */ \
  X(kWaitForToken,   "WAIT_FOR_TOKEN")  /* the listener has its channel */ \
  X(kAnnounce,       "ANNOUNCE")    /* nothing more goes to TCP: the connector has its channel, or the token came */ \
  X(kSwitchHeard,    "SWITCH_HEARD")    /* the peer's SWITCH, with the right proof */ \
  X(kPromise,        "PROMISE")     /* little enough is unread before the peer's frame */ \
  X(kAckHeard,       "ACK_HEARD")   /* the peer's SWITCH_ACK for where we froze */ \
  X(kTokenRead,      "TOKEN_READ")  /* a TOKEN stands at the boundary */ \
  X(kEnter,          "ENTER")       /* both tokens crossed, and ours is in the kernel */ \
  X(kLeave,          "LEAVE")       /* this end wants TCP, or has to go there */ \
  X(kGiveUp,         "GIVE_UP")     /* ... and has not written its token */ \
  X(kReturn,         "RETURN")      /* ... and has */ \
  X(kResumeRead,     "RESUME_READ") /* a RESUME stands at the boundary */ \
  X(kAnswered,       "ANSWERED")    /* the peer was told by RESUME that we gave up */ \
  X(kNoFrame,        "NO_FRAME")    /* no frame comes: bytes, or the end, stand there, or the peer gave up */ \
  X(kReplayed,       "REPLAYED")    /* the ring is replayed */ \
  X(kSayLeft,        "SAY_LEFT")    /* this end says LEFT, and waits for the peer's */ \
  X(kSayLeftAtOnce,  "SAY_LEFT_AT_ONCE")    /* ... or need not */ \
  X(kLeftHeard,      "LEFT_HEARD")  /* the peer's LEFT, which is answered, or is the answer */ \
  X(kLeftHeardAtOnce, "LEFT_HEARD_AT_ONCE")  /* the peer's LEFT, which needs no answer */ \
  X(kBroken,         "BROKEN")      /* the connection is over */

#define RINGROAD_SWITCH_ACTIONS(X) \
  X(kForgetBoundary, "forget_boundary")  /* TCP may be read without an end */ \
  X(kDoAnnounce,     "announce")         /* send SWITCH, or give up if the kernel's counts differ */ \
  X(kDoPromise,      "promise")          /* send SWITCH_ACK, once little enough is unread */ \
  X(kWriteToken,     "write_token") \
  X(kDoEnter,        "enter")            /* once the token is in the kernel */ \
  X(kDoGiveUp,       "give_up")          /* tell the peer, drop the channel */ \
  X(kDoReturn,       "return")           /* write RESUME */ \
  X(kAnswerResume,   "answer_resume")    /* if the peer asks for it, and nothing was written since */ \
  X(kDoReplay,       "replay")           /* as far as it is known from where */
// clang-format on

#define RINGROAD_ENUM(id, name) id,
enum class SendState : std::uint8_t { RINGROAD_SEND_STATES(RINGROAD_ENUM) kCount };
enum class ReceiveState : std::uint8_t { RINGROAD_RECEIVE_STATES(RINGROAD_ENUM) kCount };
enum class SwitchEvent : std::uint8_t { RINGROAD_SWITCH_EVENTS(RINGROAD_ENUM) kCount };
enum class SwitchAction : std::uint8_t { RINGROAD_SWITCH_ACTIONS(RINGROAD_ENUM) kCount };
#undef RINGROAD_ENUM

class SwitchActions {
 public:
  constexpr SwitchActions() noexcept = default;
  constexpr SwitchActions(SwitchAction action) noexcept  // NOLINT: an action is a set of one
      : bits_(static_cast<std::uint16_t>(1U << static_cast<unsigned>(action))) {}
  constexpr bool has(SwitchAction action) const noexcept { return (bits_ & SwitchActions(action).bits_) != 0; }
  constexpr SwitchActions operator|(SwitchActions other) const noexcept {
    SwitchActions both;
    both.bits_ = bits_ | other.bits_;
    return both;
  }

 private:
  std::uint16_t bits_ = 0;
};

class SwitchProtocol {
 public:
  struct Transition {
    SendState send;
    ReceiveState receive;
    SwitchActions actions;
  };
  // The table. Nothing: the event may not come in this state.
  static std::optional<Transition> next(SendState send, ReceiveState receive, SwitchEvent event) noexcept;

  bool may(SwitchEvent event) const noexcept { return next(send_, receive_, event).has_value(); }
  // Moves. Nothing: the event may not come now, and nothing has changed.
  std::optional<SwitchActions> apply(SwitchEvent event) noexcept;

  SendState send() const noexcept { return send_; }
  ReceiveState receive() const noexcept { return receive_; }

  bool sends_to_kernel() const noexcept { return send_ <= SendState::kGaveUp; }
  bool sends_to_ring() const noexcept { return send_ == SendState::kChannel; }
  // Nothing of the program's can be sent until a carrier has changed.
  bool holds_sends() const noexcept {
    return send_ == SendState::kFrozen || send_ == SendState::kToken || returns();
  }
  bool returns() const noexcept { return send_ == SendState::kReplay || send_ == SendState::kLeft; }
  bool dead() const noexcept { return send_ >= SendState::kDead; }
  bool token_sent() const noexcept {
    return send_ >= SendState::kToken && send_ != SendState::kDead;
  }
  bool resume_sent() const noexcept { return returns() || send_ == SendState::kDeadReturning; }
  bool promised() const noexcept { return receive_ >= ReceiveState::kPromised; }
  bool token_seen() const noexcept {
    return receive_ == ReceiveState::kToken || receive_ == ReceiveState::kResumed;
  }
  bool resume_seen() const noexcept { return receive_ >= ReceiveState::kResumed; }
  // Back on TCP without having written a token: a frame of the peer's may still come.
  bool gave_up() const noexcept {
    return (send_ == SendState::kTcp || send_ == SendState::kGaveUp) && promised() && !resume_seen();
  }

 private:
  SendState send_ = SendState::kTcp;
  ReceiveState receive_ = ReceiveState::kTcp;
};

const char* send_state_name(SendState state) noexcept;
const char* receive_state_name(ReceiveState state) noexcept;
const char* switch_event_name(SwitchEvent event) noexcept;
const char* switch_action_name(SwitchAction action) noexcept;

}  // namespace ringroad
