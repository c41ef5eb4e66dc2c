// A peer that lies is believed nothing: whatever it says, the channel or the promotion ends with
// kBadRequest, and nothing else happens.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <vector>

#include "tests/verbs/raw_peer.h"
#include "tests/verbs/verbs_test.h"

namespace ringroad::verbs_test {
namespace {

using namespace std::chrono_literals;

class VerbsHostileTest : public VerbsTest {
 protected:
  // Runs `act` on a thread while both transports are served; true when it gave true.
  bool served(const std::function<bool()>& act) {
    auto result = std::async(std::launch::async, act);
    EXPECT_TRUE(serve_until({client_.get(), server_.get()},
                            [&] { return result.wait_for(0s) == std::future_status::ready; }));
    return result.get();
  }

  // The server's channel to a peer that has connected as it should.
  void meet(RawPeer& peer) {
    ASSERT_TRUE(served([&] { return peer.connect(RawPeer::good_hello(kRing)); }));
    ASSERT_TRUE(serve_until({server_.get()},
                            [&] { return server_->outcome(server_->last_request).ended; }));
    b_ = std::move(server_->outcome(server_->last_request).channel);
    ASSERT_NE(b_, nullptr);
  }

  // What the server's channel makes of `lie`.
  Reason reaction(const std::function<void(RawPeer&)>& lie) {
    RawPeer peer;
    meet(peer);
    if (HasFatalFailure()) return Reason::kCount;
    lie(peer);
    poll_until({b_.get()}, [&] { return b_->failed(); }, 10s);
    const Reason reason = b_->failure();
    b_.reset();
    return reason;
  }
};

TEST_F(VerbsHostileTest, RequestsWithBadPrivateDataAreRefused) {
  ASSERT_NO_FATAL_FAILURE(listen());
  const auto answer_to = [&](const std::function<void(Hello&)>& spoil) {
    Hello hello = RawPeer::good_hello(kRing);
    spoil(hello);
    RawPeer peer;
    EXPECT_FALSE(served([&] { return peer.connect(hello); }));
    return peer.refusal();
  };
  EXPECT_EQ(answer_to([](Hello& h) { h.magic ^= 1; }), Reason::kBadRequest);
  EXPECT_EQ(answer_to([](Hello& h) { h.version = h.highest = 2; }), Reason::kVersion);
  EXPECT_EQ(answer_to([](Hello& h) { h.version = 2; }), Reason::kBadRequest) << "no range";
  EXPECT_EQ(answer_to([](Hello& h) { h.tcp_port = 0; }), Reason::kBadRequest);
  EXPECT_EQ(answer_to([](Hello& h) { h.ring_bytes = 5000; }), Reason::kBadRequest);
  EXPECT_EQ(answer_to([](Hello& h) { h.ring_bytes = 1U << 31; }), Reason::kBadRequest);
  EXPECT_EQ(server_->requests, 0U) << "the agent is not asked";
  EXPECT_EQ(answer_to([](Hello& h) { h.credits = 0; }), Reason::kBadRequest);
  EXPECT_EQ(answer_to([](Hello& h) { h.credits = 65535; }), Reason::kBadRequest);
  EXPECT_EQ(answer_to([](Hello& h) { h.ring_addr = std::numeric_limits<std::uint64_t>::max(); }),
            Reason::kBadRequest);
}

TEST_F(VerbsHostileTest, AnswersWithBadPrivateDataGiveNoChannel) {
  const auto outcome_of = [&](const std::function<void(Hello&)>& spoil) {
    Hello hello = RawPeer::good_hello(kRing);
    hello.tcp_port = kPort;
    spoil(hello);
    RawPeer peer;
    EXPECT_TRUE(peer.listen());
    auto accepted = std::async(std::launch::async, [&] { return peer.accept(hello); });
    const Reason reason = promote(connect_params(kRing)).reason;
    accepted.wait();
    return reason;
  };
  EXPECT_EQ(outcome_of([](Hello&) {}), Reason::kNone) << "the honest answer";
  EXPECT_EQ(outcome_of([](Hello& h) { h.magic ^= 1; }), Reason::kBadRequest);
  EXPECT_EQ(outcome_of([](Hello& h) { h.version = h.highest = 2; }), Reason::kVersion);
  EXPECT_EQ(outcome_of([](Hello& h) { h.version = 2; }), Reason::kBadRequest) << "no range";
  EXPECT_EQ(outcome_of([](Hello& h) { h.tcp_port ^= 1; }), Reason::kBadRequest);
  EXPECT_EQ(outcome_of([](Hello& h) { h.ring_bytes *= 2; }), Reason::kBadRequest);
}

TEST_F(VerbsHostileTest, AnHonestPeerIsBelieved) {
  ASSERT_NO_FATAL_FAILURE(listen());
  RawPeer peer;
  ASSERT_NO_FATAL_FAILURE(meet(peer));
  peer.write(0, 1000, 0);
  ControlMessage message;
  message.type = static_cast<std::uint8_t>(ControlType::kFin);
  message.value = 1000;
  peer.send(message);
  EXPECT_TRUE(poll_until({b_.get()}, [&] { return b_->control_pending(); }));
  EXPECT_EQ(b_->rx_head(), 1000U);
  EXPECT_FALSE(b_->failed());
}

TEST_F(VerbsHostileTest, ARingIsGoneWithItsChannel) {
  ASSERT_NO_FATAL_FAILURE(listen());
  RawPeer first, second;
  ASSERT_NO_FATAL_FAILURE(meet(first));
  std::unique_ptr<Channel> channel = std::move(b_);
  ASSERT_NO_FATAL_FAILURE(meet(second));
  EXPECT_NE(second.peer().rkey, first.peer().rkey);
  EXPECT_EQ(second.write_into(first.peer()), IBV_WC_SUCCESS)
      << "hosts are kept apart, not the streams of one";
  channel.reset();
  EXPECT_EQ(second.write_into(first.peer()), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsHostileTest, DataThatCannotBeEndTheChannel) {
  ASSERT_NO_FATAL_FAILURE(listen());
  EXPECT_EQ(reaction([](RawPeer& p) { p.write(0, 10, 1U << 16); }), Reason::kBadRequest)
      << "a receive reposted that was not used";
  EXPECT_EQ(reaction([](RawPeer& p) { p.write(0, 10, 0xffff0000U); }), Reason::kBadRequest)
      << "fewer receives than before";
  EXPECT_EQ(reaction([](RawPeer& p) { p.write(0, 10, 1); }), Reason::kBadRequest)
      << "bytes consumed that were not sent";
  EXPECT_EQ(reaction([](RawPeer& p) { p.write(0, 0, 0); }), Reason::kBadRequest) << "no bytes";
  EXPECT_EQ(reaction([](RawPeer& p) {
              p.write(0, kRing, 0);
              p.write(0, 1, 0);
            }),
            Reason::kBadRequest)
      << "more than the ring holds";
  EXPECT_EQ(reaction([](RawPeer& p) { p.write(kRing - 1, 2, 0); }), Reason::kQpError)
      << "beyond the registered memory: the device itself refuses";
}

TEST_F(VerbsHostileTest, ControlMessagesThatCannotBeEndTheChannel) {
  ASSERT_NO_FATAL_FAILURE(listen());
  const auto control = [&](const std::function<void(ControlMessage&)>& spoil, int times = 1) {
    return reaction([&](RawPeer& peer) {
      ControlMessage message;
      message.type = static_cast<std::uint8_t>(ControlType::kSwitch);
      spoil(message);
      for (int i = 0; i < times; ++i) peer.send(message);
    });
  };
  EXPECT_EQ(control([](ControlMessage& m) { m.type = 0; }), Reason::kBadRequest);
  EXPECT_EQ(control([](ControlMessage& m) { m.type = 7; }), Reason::kBadRequest);
  EXPECT_EQ(control([](ControlMessage& m) { m.reason = 200; }), Reason::kBadRequest);
  EXPECT_EQ(control([](ControlMessage& m) { m.zero16 = 1; }), Reason::kBadRequest);
  EXPECT_EQ(control([](ControlMessage& m) {
              m.type = static_cast<std::uint8_t>(ControlType::kFin);
              m.proof = 1;
            }),
            Reason::kBadRequest);
  EXPECT_EQ(control([](ControlMessage& m) { m.credits = 1; }), Reason::kBadRequest);
  EXPECT_EQ(control([](ControlMessage& m) { m.consumed = 1; }), Reason::kBadRequest);
  EXPECT_EQ(control([](ControlMessage& m) { m.consumed = ~std::uint64_t{0}; }), Reason::kBadRequest);
  EXPECT_EQ(control([](ControlMessage& m) {
              m.type = static_cast<std::uint8_t>(ControlType::kCredit);
              m.value = 1;
            }),
            Reason::kBadRequest);
  EXPECT_EQ(control([](ControlMessage&) {}, 9), Reason::kBadRequest) << "more than a stream has";
  EXPECT_EQ(reaction([](RawPeer& p) { p.send("short", 5); }), Reason::kBadRequest);
  EXPECT_EQ(reaction([](RawPeer& p) {
              ControlMessage message;
              message.type = static_cast<std::uint8_t>(ControlType::kSwitch);
              p.send(&message, sizeof message, true);
            }),
            Reason::kBadRequest);
  const std::vector<char> large(64);
  EXPECT_EQ(reaction([&](RawPeer& p) { p.send(large.data(), 64); }), Reason::kQpError)
      << "larger than a receive: the device itself refuses";
}

}  // namespace
}  // namespace ringroad::verbs_test
