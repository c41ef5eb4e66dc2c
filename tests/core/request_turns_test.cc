// How many streams ask one peer for a channel at a time.
#include "rsocket-core/agent/request_turns.h"

#include <deque>
#include <memory>
#include <vector>

#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

class RequestTurnsTest : public testing::Test {
 protected:
  static constexpr std::uint16_t kPort = 4711;

  // One to a peer with that port.
  AgentStreamPtr stream(std::uint16_t port = kPort) {
    StreamPair& pair = pairs_.emplace_back();
    FourTuple tuple = pair.a->tuple();
    tuple.remote.port = port;
    return std::make_shared<AgentStream>(&pair.host, nullptr, ++last_id_, pair.a_fd, Role::kConnect, tuple,
                                         StreamConfig{}, true);
  }
  // As many ask the peer as may.
  Endpoint fill() {
    const Endpoint peer = stream()->tuple().remote;
    for (std::size_t i = 0; i < RequestTurns::kMostAtOnce; ++i) {
      EXPECT_FALSE(turns_.waits(stream()));
      turns_.begins(peer);
    }
    return peer;
  }

  std::deque<StreamPair> pairs_;
  std::uint64_t last_id_ = 3'000'000;
  RequestTurns turns_;
};

TEST_F(RequestTurnsTest, TheNextOnesAskInTheirOrderAsOthersHaveTheirAnswers) {
  const Endpoint peer = fill();
  const std::vector<AgentStreamPtr> later{stream(), stream()};
  for (const AgentStreamPtr& one : later) EXPECT_TRUE(turns_.waits(one));
  EXPECT_FALSE(turns_.has_next());
  for (const AgentStreamPtr& one : later) {
    turns_.ends(peer);
    ASSERT_TRUE(turns_.has_next());
    EXPECT_EQ(turns_.next(), one);
    turns_.begins(peer);
    EXPECT_FALSE(turns_.has_next());
  }
}

TEST_F(RequestTurnsTest, AnotherPeerIsAskedMeanwhile) {
  fill();
  EXPECT_TRUE(turns_.waits(stream()));
  EXPECT_FALSE(turns_.waits(stream(kPort + 1)));
}

TEST_F(RequestTurnsTest, OneThatHasEndedLosesItsTurn) {
  const Endpoint peer = fill();
  turns_.waits(stream());
  turns_.ends(peer);
  ASSERT_TRUE(turns_.has_next());
  EXPECT_EQ(turns_.next(), nullptr);
  EXPECT_FALSE(turns_.has_next());
}

TEST_F(RequestTurnsTest, NobodyWaitsOnceItIsCleared) {
  const Endpoint peer = fill();
  const AgentStreamPtr one = stream();
  EXPECT_TRUE(turns_.waits(one));
  turns_.clear();
  turns_.ends(peer);
  EXPECT_FALSE(turns_.has_next());
  EXPECT_FALSE(turns_.waits(one));
}

}  // namespace
}  // namespace ringroad::test
