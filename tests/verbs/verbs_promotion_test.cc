// How a channel over real verbs comes about, or does not. Needs two RDMA addresses, as
// integration/softroce/run gives them; integration/verbs/test_verbs.py starts it there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/verbs/verbs_test.h"

namespace ringroad::verbs_test {
namespace {

using namespace std::chrono_literals;

TEST_F(VerbsTest, BothEndsGetAChannelAndKnowEachOther) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  EXPECT_EQ(server_->request.tuple, connect_params(kRing).tuple.reversed());
  EXPECT_EQ(server_->request.ring_bytes, kRing);
  EXPECT_EQ(server_->request.peer_nonce, nonce_of(1));
  EXPECT_EQ(client_->outcome(id_).peer_nonce, nonce_of(100));
  EXPECT_EQ(server_->outcome(server_->last_request).peer_nonce, nonce_of(1));
  ChannelInfo a, b;
  a_->info(a);
  b_->info(b);
  EXPECT_EQ(a.carrier, Carrier::kRdma);
  EXPECT_EQ(a.device, client_device());
  EXPECT_EQ(b.device, server_device());
  EXPECT_EQ(a.qpn, b.peer_qpn);
  EXPECT_EQ(b.qpn, a.peer_qpn);
  EXPECT_EQ(std::string(a.gid), "::ffff:" + client_address());
  EXPECT_GE(a.path_mtu, 256U);
  EXPECT_LE(a.pinned_bytes, 2 * kRing + 64 * 1024);
}

TEST_F(VerbsTest, TheTrafficClassIsThePolicys) {
  ConnectParams params = connect_params(kRing);
  params.has_traffic_class = true;
  params.traffic_class = 106;
  ASSERT_NO_FATAL_FAILURE(listen());
  Side::Outcome& outcome = promote(params);
  ASSERT_NE(outcome.channel, nullptr) << reason_name(outcome.reason);
  ChannelInfo info;
  outcome.channel->info(info);
  EXPECT_EQ(info.traffic_class, 106);
}

TEST_F(VerbsTest, ARefusalArrivesWithItsReason) {
  ASSERT_NO_FATAL_FAILURE(listen());
  server_->answer = Side::Answer::kRefuse;
  server_->refusal = Reason::kUntrackedIo;
  const Side::Outcome& outcome = promote(connect_params(kRing));
  EXPECT_EQ(outcome.reason, Reason::kPeerRefused);
  EXPECT_EQ(outcome.peer_reason, Reason::kUntrackedIo);
}

TEST_F(VerbsTest, APeerThatHasTheSameKeyGetsAChannelAndAProofForTheSwitch) {
  ASSERT_NO_FATAL_FAILURE(listen());
  ConnectParams params = connect_params(kRing);
  params.key = server_->accept_params.key = SharedKey::of("one secret, long enough", 23);
  Side::Outcome& outcome = promote(params);
  ASSERT_EQ(outcome.reason, Reason::kNone) << reason_name(outcome.reason);
  ASSERT_TRUE(serve_until({client_.get(), server_.get()},
                          [&] { return server_->outcome(server_->last_request).ended; }));
  const std::unique_ptr<Channel>& theirs = server_->outcome(server_->last_request).channel;
  ASSERT_NE(theirs, nullptr);
  EXPECT_NE(outcome.channel->switch_proof(), 0U);
  EXPECT_EQ(outcome.channel->switch_proof(), theirs->switch_proof());
  EXPECT_TRUE(outcome.channel->agreement().has(Feature::kGivenBack));
  EXPECT_TRUE(theirs->agreement().has(Feature::kGivenBack));
}

TEST_F(VerbsTest, AnotherKeyOrNoneIsRefusedWithItsReasonAtBothEnds) {
  ASSERT_NO_FATAL_FAILURE(listen());
  const SharedKey one = SharedKey::of("one secret, long enough", 23);
  const SharedKey other = SharedKey::of("other secret, long enough", 25);
  for (const auto& [ours, theirs] :
       {std::pair{one, other}, std::pair{one, SharedKey{}}, std::pair{SharedKey{}, one}}) {
    ConnectParams params = connect_params(kRing);
    params.key = ours;
    server_->accept_params.key = theirs;
    const Side::Outcome& outcome = promote(params);
    EXPECT_EQ(outcome.reason, Reason::kPeerRefused) << reason_name(outcome.reason);
    EXPECT_EQ(outcome.peer_reason, Reason::kWrongKey) << reason_name(outcome.peer_reason);
    EXPECT_EQ(server_->outcome(server_->last_request).reason, Reason::kWrongKey);
  }
}

TEST_F(VerbsTest, AHostWithoutAListenerIsFoundOutAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(promote(connect_params(kRing)).reason, Reason::kPeerHasNoRingroad);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1s);
}

TEST_F(VerbsTest, AnUnansweredRequestTimesOutAtBothEnds) {
  ASSERT_NO_FATAL_FAILURE(listen());
  server_->answer = Side::Answer::kNone;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(promote(connect_params(kRing)).reason, Reason::kTimeout);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 8s);
  EXPECT_EQ(server_->requests, 1U);
  EXPECT_TRUE(serve_until({server_.get()},
                          [&] { return server_->outcome(server_->last_request).ended; }));
  EXPECT_EQ(server_->outcome(server_->last_request).reason, Reason::kPeerGone);
  server_->transport().accept(server_->last_request, {});  // too late: nothing happens
}

// Together they take longer than a promotion may.
TEST_F(VerbsTest, ManyAtOnceGetTheirChannelsFromASlowPeer) {
  ASSERT_NO_FATAL_FAILURE(listen());
  server_->takes = 150ms;
  std::atomic<bool> over{false};
  std::thread server([&] { serve_until({server_.get()}, [&] { return over.load(); }, 60s); });
  std::vector<PromotionId> ids;
  for (int i = 0; i < 50; ++i) ids.push_back(client_->connect(connect_params(kRing)));
  const auto ended = [&](PromotionId id) { return client_->outcome(id).ended; };
  EXPECT_TRUE(serve_until({client_.get()}, [&] { return std::all_of(ids.begin(), ids.end(), ended); }, 50s));
  over = true;
  server.join();
  const auto without = std::count_if(ids.begin(), ids.end(), [&](PromotionId id) {
    return client_->outcome(id).reason != Reason::kNone;
  });
  EXPECT_EQ(without, 0);
  EXPECT_EQ(server_->requests, ids.size());
}

TEST_F(VerbsTest, WhatWaitsForAPeerThatDoesNotAnswerIsRefusedWithThoseThatAskedIt) {
  ASSERT_NO_FATAL_FAILURE(listen());
  server_->answer = Side::Answer::kNone;
  std::vector<PromotionId> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(client_->connect(connect_params(kRing)));
  client_->transport().cancel(ids.back());  // of which nothing is told
  const PromotionId cancelled = ids.back();
  ids.pop_back();
  const auto ended = [&](PromotionId id) { return client_->outcome(id).ended; };
  ASSERT_TRUE(serve_until({client_.get(), server_.get()},
                          [&] { return std::all_of(ids.begin(), ids.end(), ended); }, 30s));
  for (const PromotionId id : ids) EXPECT_EQ(client_->outcome(id).reason, Reason::kTimeout);
  EXPECT_FALSE(client_->outcome(cancelled).ended);
  EXPECT_LT(server_->requests, ids.size());
  server_->answer = Side::Answer::kAccept;
  EXPECT_EQ(promote(connect_params(kRing)).reason, Reason::kNone);
}

TEST_F(VerbsTest, ACancelledPromotionReportsNothing) {
  ASSERT_NO_FATAL_FAILURE(listen());
  server_->answer = Side::Answer::kNone;
  id_ = client_->connect(connect_params(kRing));
  ASSERT_TRUE(serve_until({client_.get(), server_.get()}, [&] { return server_->requests == 1; }));
  client_->transport().cancel(id_);
  server_->transport().accept(server_->last_request, server_->accept_params);
  ASSERT_TRUE(serve_until({client_.get(), server_.get()},
                          [&] { return server_->outcome(server_->last_request).ended; }));
  EXPECT_EQ(server_->outcome(server_->last_request).reason, Reason::kPeerGone);
  EXPECT_FALSE(client_->outcome(id_).ended);
}

TEST_F(VerbsTest, AnAddressWithoutADeviceIsNoRdmaDevice) {
  ConnectParams params = connect_params(kRing);
  params.tuple.local = endpoint("127.0.0.1", kClientTcpPort);
  params.tuple.remote = endpoint("127.0.0.1", kPort);
  EXPECT_EQ(promote(params).reason, Reason::kNoRdmaDevice);
  EXPECT_EQ(server_->transport().listen(endpoint("192.0.2.1", kPort)), Reason::kNoRdmaDevice);
}

TEST_F(VerbsTest, AnotherDeviceThanThePolicysIsRefusedAtEitherEnd) {
  ASSERT_NO_FATAL_FAILURE(listen());
  ConnectParams params = connect_params(kRing);
  std::strcpy(params.device, "elsewhere0");
  EXPECT_EQ(promote(params).reason, Reason::kNoRdmaDevice);
  std::strcpy(server_->accept_params.device, "elsewhere0");
  const Side::Outcome& outcome = promote(connect_params(kRing));
  EXPECT_EQ(outcome.reason, Reason::kPeerRefused);
  EXPECT_EQ(outcome.peer_reason, Reason::kNoRdmaDevice);
}

TEST_F(VerbsTest, WildcardListenersTakeRequestsToEveryAddress) {
  for (const char* any : {"0.0.0.0", "::"}) {
    const Endpoint everywhere = endpoint(any, kPort);
    ASSERT_EQ(server_->transport().listen(everywhere), Reason::kNone) << any;
    EXPECT_EQ(promote(connect_params(kRing)).reason, Reason::kNone) << any;
    EXPECT_EQ(server_->request.tuple.local, endpoint(server_address(), kPort)) << any;
    server_->transport().unlisten(everywhere);
  }
}

TEST_F(VerbsTest, ListeningTwiceIsCounted) {
  const Endpoint local = endpoint(server_address(), kPort);
  ASSERT_EQ(server_->transport().listen(local), Reason::kNone);
  ASSERT_EQ(server_->transport().listen(local), Reason::kNone);
  server_->transport().unlisten(local);
  EXPECT_EQ(promote(connect_params(kRing)).reason, Reason::kNone);
  server_->transport().unlisten(local);
  EXPECT_EQ(promote(connect_params(kRing)).reason, Reason::kPeerHasNoRingroad);
}

}  // namespace
}  // namespace ringroad::verbs_test
