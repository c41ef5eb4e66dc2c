#include "rsocket-core/protocol/state.h"

namespace ringroad {
namespace {

constexpr const char* kStateNames[] = {
#define RINGROAD_NAME(id, name) name,
    RINGROAD_STATES(RINGROAD_NAME)
};
constexpr const char* kEventNames[] = {RINGROAD_EVENTS(RINGROAD_NAME)};
#undef RINGROAD_NAME

struct Transition {
  State from;
  StreamEvent event;
  State to;
};

using S = State;
using E = StreamEvent;

constexpr Transition kTable[] = {
    {S::kOnTcp, E::kStart, S::kConnecting},
    {S::kOnTcp, E::kBroken, S::kReset},
    {S::kOnTcp, E::kFinished, S::kClosed},

    {S::kConnecting, E::kRefused, S::kOnTcp},
    {S::kConnecting, E::kChannelUp, S::kSwitching},
    {S::kConnecting, E::kBroken, S::kReset},
    {S::kConnecting, E::kFinished, S::kClosed},

    {S::kSwitching, E::kGiveUp, S::kOnTcp},
    {S::kSwitching, E::kSwitched, S::kOnChannel},
    {S::kSwitching, E::kLeave, S::kResuming},
    {S::kSwitching, E::kPeerResume, S::kResuming},
    {S::kSwitching, E::kBroken, S::kReset},
    {S::kSwitching, E::kFinished, S::kClosed},

    {S::kOnChannel, E::kLeave, S::kResuming},
    {S::kOnChannel, E::kPeerResume, S::kResuming},
    {S::kOnChannel, E::kBroken, S::kReset},
    {S::kOnChannel, E::kFinished, S::kClosed},

    {S::kResuming, E::kPeerResume, S::kResuming},
    {S::kResuming, E::kResumed, S::kOnTcp},
    {S::kResuming, E::kBroken, S::kReset},
    {S::kResuming, E::kFinished, S::kClosed},

    {S::kReset, E::kBroken, S::kReset},
    {S::kReset, E::kFinished, S::kClosed},
};

}  // namespace

const char* state_name(State state) noexcept {
  return state < State::kCount ? kStateNames[static_cast<unsigned>(state)] : "INVALID";
}

const char* event_name(StreamEvent event) noexcept {
  return event < StreamEvent::kCount ? kEventNames[static_cast<unsigned>(event)] : "invalid";
}

State next_state(State state, StreamEvent event) noexcept {
  for (const Transition& t : kTable) {
    if (t.from == state && t.event == event) return t.to;
  }
  return State::kCount;
}

}  // namespace ringroad
