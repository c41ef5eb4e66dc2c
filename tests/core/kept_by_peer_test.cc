// Which stream asks for those that the other end's operator keeps on TCP.
#include "rsocket-core/agent/kept_by_peer.h"

#include <deque>
#include <memory>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

class KeptByPeerTest : public testing::Test {
 protected:
  static constexpr std::uint16_t kPort = 4711;

  // One to a peer with that port.
  AgentStreamPtr stream(std::uint16_t port = kPort) {
    StreamPair& pair = pairs_.emplace_back();
    FourTuple tuple = pair.a->tuple();
    tuple.remote.port = port;
    StreamConfig config;
    config.via_shm = true;
    return streams_.emplace_back(std::make_shared<AgentStream>(&pair.host, nullptr, ++last_id_, pair.a_fd,
                                                          Role::kConnect, tuple, config, true));
  }
  // The same that the peer's operator keeps, taken in.
  AgentStreamPtr kept(std::uint16_t port = kPort) {
    const AgentStreamPtr made = stream(port);
    refuse(made, Reason::kOperator);
    table_.note(made);
    return made;
  }
  static void refuse(const AgentStreamPtr& which, Reason peer_reason) {
    Nonce nonce;
    ASSERT_TRUE(make_nonce(nonce));
    ASSERT_EQ(which->promotion_started(nonce), Reason::kNone);
    which->promotion_refused(Reason::kPeerRefused, peer_reason);
  }
  static std::int64_t later() { return sys::now_ns() + 1'000'000'000; }

  std::deque<StreamPair> pairs_;
  std::vector<AgentStreamPtr> streams_;
  std::uint64_t last_id_ = 2'000'000;
  KeptByPeer table_;
};

TEST_F(KeptByPeerTest, AStreamThatThePeerDoesNotKeepIsNotTakenIn) {
  const AgentStreamPtr one = stream();
  table_.note(one);
  refuse(one, Reason::kBusy);
  table_.note(one);
  EXPECT_TRUE(table_.due(later()).empty());
}

TEST_F(KeptByPeerTest, OneStreamOfAPeerAsksAtATime) {
  const AgentStreamPtr one = kept();
  kept();
  const AgentStreamPtr other = kept(kPort + 1);
  EXPECT_TRUE(table_.due(sys::now_ns() - 1'000'000'000).empty()) << "not at once";
  const std::int64_t when = later();
  const auto envoys = table_.due(when);
  ASSERT_EQ(envoys.size(), 2U);
  EXPECT_EQ(envoys[0], one);
  EXPECT_EQ(envoys[1], other);
  EXPECT_TRUE(table_.due(when + 1'000'000'000).empty()) << "they have been sent";
  EXPECT_GT(table_.next_deadline(), when + 1'000'000'000);
}

TEST_F(KeptByPeerTest, AnEnvoyThatThePeerKeepsAsksAgainAfterAPause) {
  const AgentStreamPtr one = kept();
  ASSERT_EQ(table_.due(sys::now_ns() + 10'000'000).size(), 1U);
  refuse(one, Reason::kOperator);
  table_.note(one);
  EXPECT_FALSE(table_.request_is_refused(one, Reason::kPeerRefused)) << "it is no envoy any more";
  EXPECT_TRUE(table_.due(sys::now_ns()).empty()) << "the peer did not let it wait";
  EXPECT_EQ(table_.due(later()).size(), 1U);
}

TEST_F(KeptByPeerTest, APeerLetsItsStreamsOffWithAnyOtherAnswer) {
  const AgentStreamPtr one = kept();
  ASSERT_EQ(table_.due(later()).size(), 1U);
  refuse(one, Reason::kBusy);
  table_.note(one);
  EXPECT_TRUE(table_.request_is_refused(one, Reason::kPeerRefused));
}

TEST_F(KeptByPeerTest, ARefusalForWantOfAChannelSaysNothingOfThePeer) {
  const AgentStreamPtr one = kept();
  ASSERT_EQ(table_.due(later()).size(), 1U);
  EXPECT_FALSE(table_.request_is_refused(one, Reason::kMaxChannels));
  EXPECT_EQ(table_.due(later()).size(), 1U) << "it is taken in again";
}

TEST_F(KeptByPeerTest, StreamsThatAreLetOffAskAndAreForgotten) {
  const AgentStreamPtr one = kept();
  int started = 0;
  table_.let_off(stream(kPort + 1)->tuple().remote, [&](const AgentStreamPtr&) { ++started; });
  EXPECT_EQ(started, 0) << "another peer's";
  table_.let_off(one->tuple().remote, [&](const AgentStreamPtr& which) {
    EXPECT_EQ(which, one);
    ++started;
  });
  EXPECT_EQ(started, 1);
  EXPECT_TRUE(table_.due(later()).empty());
}

TEST_F(KeptByPeerTest, WhatItsOwnOperatorKeepsDoesNotAsk) {
  const AgentStreamPtr one = kept();
  one->keep_on_tcp(Reason::kOperator);
  EXPECT_TRUE(table_.due(later()).empty());
}

TEST_F(KeptByPeerTest, AfterAnEnvoyWhoseRequestIsDroppedTheNextOneAsksAtOnce) {
  const AgentStreamPtr one = kept();
  ASSERT_EQ(table_.due(later()).size(), 1U);
  EXPECT_GT(table_.next_deadline(), later());
  table_.request_is_dropped(*one);
  EXPECT_LE(table_.next_deadline(), sys::now_ns());
}

TEST_F(KeptByPeerTest, AStreamThatHasEndedDoesNotAsk) {
  kept();
  streams_.clear();
  EXPECT_TRUE(table_.due(later()).empty());
}

}  // namespace
}  // namespace ringroad::test
