// What a test does with both ends of a StreamPair.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/core/stream_pair.h"

namespace ringroad::test {

inline bool both(const StreamPair& p, State state) {
  return p.a->state() == state && p.b->state() == state;
}

inline void come_back(StreamPair& p, AgentStream& leaver, Reason reason) {
  leaver.leave_channel(reason);
  ASSERT_TRUE(p.pump_until([&] { return both(p, State::kOnTcp); }));
}

// One message each way, whatever carries it.
inline void talk(StreamPair& p, const std::string& text) {
  const std::pair<AgentStream*, AgentStream*> directions[] = {{p.a.get(), p.b.get()}, {p.b.get(), p.a.get()}};
  for (const auto& direction : directions) {
    AgentStream* const from = direction.first;
    AgentStream* const to = direction.second;
    ASSERT_EQ(static_cast<ssize_t>(text.size()), send_text(*from, text));
    std::string got;
    ASSERT_TRUE(p.pump_until([&] {
      const std::string part = recv_text(*to, text.size() - got.size());
      if (!part.starts_with('<')) got += part;
      return got.size() == text.size();
    }));
    ASSERT_EQ(text, got);
  }
}

}  // namespace ringroad::test
