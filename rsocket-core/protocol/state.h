// The states of a stream and the one table of its transitions. docs/protocol.md has the story.
#pragma once

#include <cstdint>

namespace ringroad {

// clang-format off
#define RINGROAD_STATES(X) \
  X(kOnTcp,      "ON_TCP")      /* the kernel carries both directions */ \
  X(kConnecting, "CONNECTING")  /* a channel is being built; the kernel carries both directions */ \
  X(kSwitching,  "SWITCHING")   /* announcements, answers and tokens cross, one direction after the other */ \
  X(kOnChannel,  "ON_CHANNEL")  /* both tokens seen: the channel carries both directions */ \
  X(kResuming,   "RESUMING")    /* RESUME frames cross; the transmit ring is replayed into TCP */ \
  X(kReset,      "RESET")       /* the connection is broken beyond repair */ \
  X(kClosed,     "CLOSED")      /* nothing is left to do */

#define RINGROAD_EVENTS(X) \
  X(kStart,      "start")       /* the rule's threshold is passed (connector), or a peer asks (listener) */ \
  X(kRefused,    "refused")     /* no channel came of it, or the promotion is cancelled */ \
  X(kChannelUp,  "channel_up")  /* both ends have the channel */ \
  X(kGiveUp,     "give_up")     /* the promotion ends here; this end has not written its token */ \
  X(kSwitched,   "switched")    /* this end wrote its token and has seen the peer's */ \
  X(kLeave,      "leave")       /* back to TCP; this end wrote its token (failure, hand-back, exit) */ \
  X(kPeerResume, "peer_resume") /* the peer's RESUME was read */ \
  X(kResumed,    "resumed")     /* both RESUMEs crossed and the transmit ring is replayed */ \
  X(kBroken,     "broken")      /* the TCP connection ended or carried what it must not */ \
  X(kFinished,   "finished")    /* closed by the program and drained */
// clang-format on

enum class State : std::uint8_t {
#define RINGROAD_ENUM(id, name) id,
  RINGROAD_STATES(RINGROAD_ENUM)
#undef RINGROAD_ENUM
      kCount
};

enum class StreamEvent : std::uint8_t {
#define RINGROAD_ENUM(id, name) id,
  RINGROAD_EVENTS(RINGROAD_ENUM)
#undef RINGROAD_ENUM
      kCount
};

const char* state_name(State state) noexcept;
const char* event_name(StreamEvent event) noexcept;

// The state that `event` leads to, or kCount when the table has no such entry: that is a bug of
// the library, asserted in builds with RINGROAD_CHECKS and otherwise treated as kBroken.
State next_state(State state, StreamEvent event) noexcept;

}  // namespace ringroad
