#include "rsocket-core/stream/switch_protocol.h"

#include <cassert>
#include <cstddef>
#include <iterator>

namespace ringroad {
namespace {

using Event = SwitchEvent;
using Action = SwitchAction;

// Sets of states, one bit each.
constexpr unsigned bit(SendState s) noexcept { return 1U << static_cast<unsigned>(s); }
constexpr unsigned bit(ReceiveState r) noexcept { return 1U << static_cast<unsigned>(r); }
constexpr unsigned operator|(SendState a, SendState b) noexcept { return bit(a) | bit(b); }
constexpr unsigned operator|(ReceiveState a, ReceiveState b) noexcept { return bit(a) | bit(b); }
constexpr unsigned kAny = ~0U;

struct SendSet {
  constexpr SendSet(unsigned all) noexcept : bits(all) {}          // NOLINT
  constexpr SendSet(SendState one) noexcept : bits(bit(one)) {}    // NOLINT
  unsigned bits;
};
struct ReceiveSet {
  constexpr ReceiveSet(unsigned all) noexcept : bits(all) {}             // NOLINT
  constexpr ReceiveSet(ReceiveState one) noexcept : bits(bit(one)) {}    // NOLINT
  unsigned bits;
};

constexpr SendState kSameSend = SendState::kCount;
constexpr ReceiveState kSameReceive = ReceiveState::kCount;

struct Rule {
  Event event;
  SendSet send;
  ReceiveSet receive;
  SendState to_send;
  ReceiveState to_receive;
  SwitchActions actions = {};
};

using S = SendState;
using R = ReceiveState;

// clang-format off
constexpr Rule kTable[] = {
  // Promotion
  {Event::kStart,        S::kTcp | S::kGaveUp,   kAny,                    S::kTcp,    R::kTcp},
  {Event::kWaitForToken, S::kTcp,                R::kTcp,                 S::kSecond, kSameReceive},
  {Event::kAnnounce,     S::kTcp,                R::kTcp,                 S::kFrozen, kSameReceive},
  {Event::kAnnounce,     S::kSecond,             R::kToken,               S::kFrozen, kSameReceive},
  {Event::kSwitchHeard,  S::kSecond | S::kToken, R::kTcp,                 kSameSend,  R::kAnnounced, Action::kDoPromise},
  {Event::kPromise,      S::kSecond | S::kToken, R::kAnnounced,           kSameSend,  R::kPromised},
  {Event::kAckHeard,     S::kFrozen,             R::kTcp | R::kToken,     S::kToken,  kSameReceive, Action::kWriteToken},
  {Event::kTokenRead,    S::kSecond,             R::kPromised,            kSameSend,  R::kToken, Action::kDoAnnounce},
  {Event::kTokenRead,    S::kToken,              R::kPromised,            kSameSend,  R::kToken, Action::kDoEnter},
  // ... after we gave up, or left
  {Event::kTokenRead,    bit(S::kTcp) | (S::kGaveUp | S::kReplay), R::kPromised, kSameSend, R::kToken},
  {Event::kEnter,        S::kToken,              R::kToken,               S::kChannel, kSameReceive},

  // Leaving
  {Event::kLeave,        S::kSecond | S::kFrozen, kAny,                   kSameSend,  kSameReceive, Action::kDoGiveUp},
  {Event::kLeave,        S::kToken | S::kChannel, kAny,                   kSameSend,  kSameReceive, Action::kDoReturn},
  // The peer may have written its token already, if we promised not to read past it.
  {Event::kGiveUp,       S::kSecond,             R::kTcp | R::kAnnounced, S::kTcp,    R::kTcp, Action::kForgetBoundary},
  {Event::kGiveUp,       S::kFrozen,             R::kTcp | R::kAnnounced, S::kGaveUp, R::kTcp, Action::kForgetBoundary},
  {Event::kGiveUp,       S::kSecond,             kAny,                    S::kTcp,    kSameReceive},
  {Event::kGiveUp,       S::kFrozen,             kAny,                    S::kGaveUp, kSameReceive},
  // Without our promise the peer has written no frame, and writes none.
  {Event::kReturn,       S::kToken | S::kChannel, R::kTcp | R::kAnnounced, S::kReplay, R::kResumedBare, Action::kForgetBoundary},
  {Event::kReturn,       S::kToken | S::kChannel, kAny,                   S::kReplay, kSameReceive},

  // The peer's RESUME, or that there is none
  {Event::kResumeRead,   S::kTcp | S::kGaveUp,    R::kPromised,           kSameSend,  R::kResumedBare, Action::kAnswerResume},
  {Event::kResumeRead,   S::kTcp | S::kGaveUp,    R::kToken,              kSameSend,  R::kResumed, Action::kAnswerResume},
  {Event::kResumeRead,   S::kSecond | S::kFrozen, R::kPromised,           kSameSend,  R::kResumedBare, SwitchActions(Action::kDoGiveUp) | Action::kAnswerResume},
  {Event::kResumeRead,   S::kSecond | S::kFrozen, R::kToken,              kSameSend,  R::kResumed, SwitchActions(Action::kDoGiveUp) | Action::kAnswerResume},
  {Event::kResumeRead,   S::kToken | S::kChannel, R::kPromised,           kSameSend,  R::kResumedBare, Action::kDoReturn},
  {Event::kResumeRead,   S::kToken | S::kChannel, R::kToken,              kSameSend,  R::kResumed, Action::kDoReturn},
  {Event::kResumeRead,   S::kReplay,              R::kPromised,           kSameSend,  R::kResumedBare, Action::kDoReplay},
  {Event::kResumeRead,   S::kReplay,              R::kToken,              kSameSend,  R::kResumed, Action::kDoReplay},
  {Event::kAnswered,     S::kGaveUp,              kAny,                   S::kTcp,    kSameReceive},
  {Event::kNoFrame,      S::kTcp | S::kGaveUp,    kAny,                   kSameSend,  R::kTcp, Action::kForgetBoundary},
  {Event::kNoFrame,      S::kReplay,              R::kPromised | R::kResumedBare, kSameSend, R::kResumedBare, SwitchActions(Action::kForgetBoundary) | Action::kDoReplay},
  {Event::kReplayed,     S::kReplay | S::kLeft,   R::kResumed | R::kResumedBare, S::kTcp, kSameReceive},

  // LEFT: stream_past.cc
  {Event::kSayLeft,         S::kChannel,          R::kToken,              S::kLeft,   kSameReceive},
  {Event::kSayLeftAtOnce,   S::kChannel,          R::kToken,              S::kLeft,   R::kResumed},
  {Event::kLeftHeard,       S::kChannel | S::kLeft, R::kToken,            S::kLeft,   R::kResumed},
  {Event::kLeftHeardAtOnce, S::kChannel,          R::kToken,              S::kReplay, R::kResumed},

  // The end
  {Event::kBroken,       bit(S::kTcp) | bit(S::kSecond) | (S::kGaveUp | S::kFrozen), kAny, S::kDead, kSameReceive},
  {Event::kBroken,       S::kToken | S::kChannel, kAny,                   S::kDeadCommitted, kSameReceive},
  {Event::kBroken,       S::kReplay | S::kLeft,   kAny,                   S::kDeadReturning, kSameReceive},
  {Event::kBroken,       bit(S::kDead) | (S::kDeadCommitted | S::kDeadReturning), kAny, kSameSend, kSameReceive},
};
// clang-format on

constexpr const char* const kSendNames[] = {
#define RINGROAD_NAME(id, name) name,
    RINGROAD_SEND_STATES(RINGROAD_NAME)};
constexpr const char* const kReceiveNames[] = {RINGROAD_RECEIVE_STATES(RINGROAD_NAME)};
constexpr const char* const kEventNames[] = {RINGROAD_SWITCH_EVENTS(RINGROAD_NAME)};
constexpr const char* const kActionNames[] = {RINGROAD_SWITCH_ACTIONS(RINGROAD_NAME)};
#undef RINGROAD_NAME

template <typename Id, std::size_t n>
const char* name_of(const char* const (&names)[n], Id id) noexcept {
  return static_cast<std::size_t>(id) < n ? names[static_cast<std::size_t>(id)] : "?";
}

}  // namespace

std::optional<SwitchProtocol::Transition> SwitchProtocol::next(SendState send, ReceiveState receive,
                                                               SwitchEvent event) noexcept {
  for (const Rule& rule : kTable) {  // the first that fits
    if (rule.event != event || (rule.send.bits & bit(send)) == 0 || (rule.receive.bits & bit(receive)) == 0) {
      continue;
    }
    return Transition{rule.to_send == kSameSend ? send : rule.to_send,
                      rule.to_receive == kSameReceive ? receive : rule.to_receive, rule.actions};
  }
  return std::nullopt;
}

std::optional<SwitchActions> SwitchProtocol::apply(SwitchEvent event) noexcept {
  const std::optional<Transition> to = next(send_, receive_, event);
  if (!to) return std::nullopt;
  send_ = to->send;
  receive_ = to->receive;
  return to->actions;
}

const char* send_state_name(SendState state) noexcept { return name_of(kSendNames, state); }
const char* receive_state_name(ReceiveState state) noexcept { return name_of(kReceiveNames, state); }
const char* switch_event_name(SwitchEvent event) noexcept { return name_of(kEventNames, event); }
const char* switch_action_name(SwitchAction action) noexcept { return name_of(kActionNames, action); }

}  // namespace ringroad
