// The table of SwitchProtocol is the one that the model of a stream has been checked with:
// tests/model/stream.pml names its transitions in comments, each where the model makes it.
//
//   table: EVENT SENDS x RECEIVES -> SEND x RECEIVE : ACTIONS
//
// `*` stands for any state on the left, `=` for the same one on the right, `-` for no action. Where two lines
// fit, the first counts, as in the code.
#include "rsocket-core/stream/switch_protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace ringroad::test {
namespace {

// By "EVENT SEND RECEIVE": "SEND RECEIVE: ACTIONS".
using Table = std::map<std::string, std::string>;

template <typename Enum>
std::vector<std::string> names_of(const char* (*name)(Enum)) {
  std::vector<std::string> names;
  for (int i = 0; i < static_cast<int>(Enum::kCount); ++i) names.emplace_back(name(static_cast<Enum>(i)));
  return names;
}
const std::vector<std::string> kSends = names_of(+[](SendState s) { return send_state_name(s); });
const std::vector<std::string> kReceives = names_of(+[](ReceiveState s) { return receive_state_name(s); });
const std::vector<std::string> kEvents = names_of(+[](SwitchEvent e) { return switch_event_name(e); });

std::string key_of(const std::string& event, const std::string& send, const std::string& receive) {
  return event + " " + send + " x " + receive;
}
std::string value_of(const std::string& send, const std::string& receive,
                     const std::set<std::string>& actions) {
  std::string value = send + " x " + receive + ":";
  for (const std::string& action : actions) value += " " + action;
  return value;
}

Table table_of_the_code() {
  Table table;
  for (int e = 0; e < static_cast<int>(SwitchEvent::kCount); ++e) {
    for (int s = 0; s < static_cast<int>(SendState::kCount); ++s) {
      for (int r = 0; r < static_cast<int>(ReceiveState::kCount); ++r) {
        const auto to = SwitchProtocol::next(static_cast<SendState>(s), static_cast<ReceiveState>(r),
                                             static_cast<SwitchEvent>(e));
        if (!to) continue;
        std::set<std::string> actions;
        for (int a = 0; a < static_cast<int>(SwitchAction::kCount); ++a) {
          const auto action = static_cast<SwitchAction>(a);
          if (to->actions.has(action)) actions.insert(switch_action_name(action));
        }
        table[key_of(kEvents[static_cast<std::size_t>(e)], kSends[static_cast<std::size_t>(s)],
                     kReceives[static_cast<std::size_t>(r)])] =
            value_of(send_state_name(to->send), receive_state_name(to->receive), actions);
      }
    }
  }
  return table;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// What a list of states names. Each must be one of `all`.
std::vector<std::string> states(const std::string& list, const std::vector<std::string>& all) {
  if (list == "*") return all;
  std::vector<std::string> named = split(list);
  for (const std::string& name : named) {
    EXPECT_NE(std::find(all.begin(), all.end(), name), all.end()) << "no such state: " << name;
  }
  return named;
}

Table table_of_the_model() {
  std::ifstream file(RINGROAD_SOURCE_DIR "/tests/model/stream.pml");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::regex line(R"(table: (\w+) ([\w,*]+) x ([\w,*]+) -> ([\w=]+) x ([\w=]+) : ([\w,-]+))");
  Table table;
  std::size_t lines = 0;
  for (std::sregex_iterator m(text.begin(), text.end(), line), end; m != end; ++m, ++lines) {
    const std::string event = (*m)[1];
    EXPECT_NE(std::find(kEvents.begin(), kEvents.end(), event), kEvents.end()) << event;
    std::set<std::string> actions;
    if ((*m)[6] != "-") {
      for (const std::string& action : split((*m)[6])) actions.insert(action);
    }
    for (const std::string& send : states((*m)[2], kSends)) {
      for (const std::string& receive : states((*m)[3], kReceives)) {
        table.emplace(key_of(event, send, receive),
                      value_of((*m)[4] == "=" ? send : (*m)[4].str(),
                               (*m)[5] == "=" ? receive : (*m)[5].str(), actions));
      }
    }
  }
  // No line is overlooked because it is written in another way.
  std::size_t marks = 0;
  for (std::size_t at = text.find("table: "); at != std::string::npos; at = text.find("table: ", at + 1))
    ++marks;
  EXPECT_EQ(marks, lines);
  return table;
}

TEST(SwitchProtocolTest, TheModelAndTheCodeHaveTheSameTransitions) {
  const Table code = table_of_the_code();
  const Table model = table_of_the_model();
  EXPECT_GT(code.size(), 100U);
  for (const auto& [key, value] : code) {
    const auto there = model.find(key);
    if (there == model.end()) {
      ADD_FAILURE() << "the model has no " << key << " -> " << value;
    } else {
      EXPECT_EQ(value, there->second) << key;
    }
  }
  for (const auto& [key, value] : model) {
    EXPECT_TRUE(code.contains(key)) << "the code has no " << key << " -> " << value;
  }
}

SwitchActions must(SwitchProtocol& protocol, SwitchEvent event) {
  const auto actions = protocol.apply(event);
  EXPECT_TRUE(actions.has_value()) << switch_event_name(event) << " in " << send_state_name(protocol.send())
                                   << " x " << receive_state_name(protocol.receive());
  return actions.value_or(SwitchActions());
}

TEST(SwitchProtocolTest, AConnectorGoesToItsChannelAndBack) {
  SwitchProtocol p;
  using Event = SwitchEvent;
  must(p, Event::kStart);
  must(p, Event::kAnnounce);
  EXPECT_TRUE(p.holds_sends());
  EXPECT_FALSE(p.apply(Event::kSwitchHeard)) << "the listener proves itself first";
  EXPECT_TRUE(must(p, Event::kAckHeard).has(SwitchAction::kWriteToken));
  EXPECT_TRUE(must(p, Event::kSwitchHeard).has(SwitchAction::kDoPromise));
  EXPECT_FALSE(p.apply(Event::kTokenRead)) << "no frame comes before it is promised a place";
  must(p, Event::kPromise);
  EXPECT_TRUE(must(p, Event::kTokenRead).has(SwitchAction::kDoEnter));
  must(p, Event::kEnter);
  EXPECT_TRUE(p.sends_to_ring());
  EXPECT_TRUE(must(p, Event::kLeave).has(SwitchAction::kDoReturn));
  must(p, Event::kReturn);
  EXPECT_TRUE(must(p, Event::kResumeRead).has(SwitchAction::kDoReplay));
  must(p, Event::kReplayed);
  EXPECT_TRUE(p.sends_to_kernel());
  EXPECT_FALSE(p.gave_up());
  must(p, Event::kStart);
}

TEST(SwitchProtocolTest, AListenerThatGivesUpAfterItsPromiseLooksForTheToken) {
  SwitchProtocol p;
  using Event = SwitchEvent;
  must(p, Event::kStart);
  must(p, Event::kWaitForToken);
  EXPECT_TRUE(p.sends_to_kernel());
  must(p, Event::kSwitchHeard);
  must(p, Event::kPromise);
  EXPECT_TRUE(must(p, Event::kLeave).has(SwitchAction::kDoGiveUp));
  must(p, Event::kGiveUp);
  EXPECT_TRUE(p.gave_up());
  must(p, Event::kTokenRead);
  EXPECT_TRUE(p.gave_up());
  must(p, Event::kResumeRead);
  EXPECT_FALSE(p.gave_up());
}

// What a state says of itself holds wherever the table leads.
TEST(SwitchProtocolTest, EachTransitionKeepsTheInvariants) {
  for (int e = 0; e < static_cast<int>(SwitchEvent::kCount); ++e) {
    for (int s = 0; s < static_cast<int>(SendState::kCount); ++s) {
      for (int r = 0; r < static_cast<int>(ReceiveState::kCount); ++r) {
        const auto send = static_cast<SendState>(s);
        const auto event = static_cast<SwitchEvent>(e);
        const auto to = SwitchProtocol::next(send, static_cast<ReceiveState>(r), event);
        if (!to) continue;
        // A token is written after the peer's answer only, and RESUME after the token only.
        EXPECT_TRUE(to->send != SendState::kToken || send == SendState::kToken || send == SendState::kFrozen);
        EXPECT_TRUE(to->send != SendState::kChannel || send == SendState::kChannel ||
                    send == SendState::kToken);
        EXPECT_TRUE(to->send != SendState::kReplay || send == SendState::kReplay ||
                    send == SendState::kToken || send == SendState::kChannel);
        // What is broken stays so.
        EXPECT_TRUE(send < SendState::kDead || to->send == send);
        // Bytes enter the ring when both tokens crossed.
        EXPECT_TRUE(to->send != SendState::kChannel || send == SendState::kChannel ||
                    to->receive == ReceiveState::kToken);
      }
    }
  }
}

}  // namespace
}  // namespace ringroad::test
