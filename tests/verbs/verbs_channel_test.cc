// What Channel and Transport promise, over real verbs. Needs two RDMA addresses, as
// integration/softroce/run gives them; integration/verbs/run_verbs_tests starts it there.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "tests/verbs/verbs_test.h"

namespace ringroad::verbs_test {
namespace {

using namespace std::chrono_literals;

// A wake-up that does not come would not come later either; an emulated machine can be slow.
constexpr auto kWake = 10s;

std::uint64_t hardware_counter(const std::string& device, const char* name) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/" + name);
  std::uint64_t value = 0;
  EXPECT_TRUE(file >> value) << device << "/" << name;
  return value;
}

// ---- promotion

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

TEST_F(VerbsTest, WhoHasTheSameKeyGetsAChannelAndAProofForTheSwitch) {
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

// ---- data

TEST_F(VerbsTest, BytesOfRandomSizesArriveInOrderBothWays) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  constexpr std::uint64_t kTotal = 6 * 1024 * 1024;
  std::mt19937 dice(7);
  std::uint64_t sent[2] = {0, 0};
  std::uint64_t received[2] = {0, 0};
  Channel* ends[2] = {a_.get(), b_.get()};
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] {
    for (int i : {0, 1}) {
      const std::size_t wanted = dice() % 4 == 0 ? dice() % 30'000 : dice() % 300;
      const std::uint64_t from = i == 0 ? sent[0] : sent[1] + 12345;
      sent[i] += write_some(*ends[i], pattern(from, std::min<std::uint64_t>(wanted, kTotal - sent[i])));
      if (dice() % 3 != 0) continue;
      const std::string got = read_all(*ends[1 - i]);
      EXPECT_EQ(got, pattern(i == 0 ? received[0] : received[1] + 12345, got.size()));
      received[i] += got.size();
    }
    return testing::Test::HasFailure() || (received[0] == kTotal && received[1] == kTotal);
  }, 120s));
  EXPECT_FALSE(a_->failed()) << reason_name(a_->failure());
  EXPECT_FALSE(b_->failed()) << reason_name(b_->failure());
}

TEST_F(VerbsTest, WritesThatMeetTheRingsEndArriveWhole) {
  ASSERT_NO_FATAL_FAILURE(make_channels(4096));
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] {
    sent += write_some(*a_, pattern(sent, 1021));
    const std::string got = read_all(*b_);
    EXPECT_EQ(got, pattern(received, got.size()));
    received += got.size();
    return testing::Test::HasFailure() || received > 400'000;
  }));
}

TEST_F(VerbsTest, SmallMessagesThatFindNoCreditAreSentTogetherLater) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  const char* const rnr[] = {"rcvd_rnr_err", "send_rnr_err"};
  const bool soft = server_device().starts_with("rxe");
  std::uint64_t before = 0;
  for (const char* name : rnr) {
    if (soft) before += hardware_counter(client_device(), name) + hardware_counter(server_device(), name);
  }
  constexpr std::uint64_t kCount = 20'000;
  std::uint64_t sent = 0;
  // The peer looks at nothing meanwhile.
  for (; sent < kCount; ++sent) ASSERT_EQ(write_some(*a_, pattern(sent, 1)), 1U);
  EXPECT_LT(a_->tx_posted(), 100U) << "one receive a byte would not have been enough";
  EXPECT_EQ(a_->tx_head(), kCount);
  std::string got;
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] {
    got += read_all(*b_);
    return got.size() == kCount;
  }));
  EXPECT_EQ(got, pattern(0, kCount));
  EXPECT_EQ(a_->tx_posted(), kCount);
  std::uint64_t after = 0;
  for (const char* name : rnr) {
    if (soft) after += hardware_counter(client_device(), name) + hardware_counter(server_device(), name);
  }
  EXPECT_EQ(after, before) << "a message met no receive";
}

TEST_F(VerbsTest, BothRingsFullAtOnceDrainAgain) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent[2] = {0, 0};
  Channel* ends[2] = {a_.get(), b_.get()};
  for (int round = 0; round < 20; ++round) {
    // Odd sizes, until neither takes a byte more.
    ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] {
      std::size_t n = 0;
      for (int i : {0, 1}) {
        const std::size_t took = write_some(*ends[i], pattern(sent[i], 777));
        sent[i] += took;
        n += took;
      }
      return n == 0 && a_->tx_posted() == a_->tx_head() && b_->tx_posted() == b_->tx_head() &&
             a_->rx_head() == b_->tx_head() && b_->rx_head() == a_->tx_head();
    }));
    for (int i : {0, 1}) {
      const std::uint64_t from = ends[1 - i]->rx_consumed();
      const std::string got = read_all(*ends[1 - i]);
      ASSERT_EQ(got.size(), kRing);
      ASSERT_EQ(got, pattern(from, got.size()));
    }
  }
  EXPECT_FALSE(a_->failed() || b_->failed());
}

TEST_F(VerbsTest, ControlMessagesArriveInOrderBesideFullRings) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  for (std::uint64_t sent = 0; sent < kRing;) sent += write_some(*a_, pattern(sent, 61));
  for (const ControlType type : {ControlType::kSwitch, ControlType::kSwitchAck, ControlType::kFin}) {
    ControlMessage message;
    message.type = static_cast<std::uint8_t>(type);
    message.value = 1000 + static_cast<std::uint64_t>(type);
    ASSERT_TRUE(a_->send_control(message));
  }
  for (const ControlType type : {ControlType::kSwitch, ControlType::kSwitchAck, ControlType::kFin}) {
    ControlMessage message;
    ASSERT_TRUE(poll_until({b_.get()}, [&] { return b_->take_control(message); }));
    EXPECT_EQ(message.type, static_cast<std::uint8_t>(type));
    EXPECT_EQ(message.value, 1000 + static_cast<std::uint64_t>(type));
  }
  EXPECT_FALSE(b_->control_pending());
}

TEST_F(VerbsTest, ReplayGivesTheBytesThatThePeerHasNotConsumed) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent = 0;
  while (sent < kRing / 2) sent += write_some(*a_, pattern(sent, 1000));
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->rx_head() == sent; }));
  b_->consume(kRing / 4 + 8);
  ASSERT_TRUE(poll_until({a_.get()}, [&] { return a_->tx_consumed() == kRing / 4 + 8; }));
  a_->fail(Reason::kOperator);
  EXPECT_EQ(a_->failure(), Reason::kOperator);
  const Channel::View view = a_->tx_replay(kRing / 4 + 8);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(view.data), view.size),
            pattern(kRing / 4 + 8, sent - kRing / 4 - 8));
}

// ---- waiting

bool readable(const Channel& channel, std::chrono::milliseconds limit) {
  pollfd fd{channel.wait_fd(), POLLIN, 0};
  return poll(&fd, 1, static_cast<int>(limit.count())) == 1;
}

TEST_F(VerbsTest, ArmedSleepersWakeForDataControlAndCredit) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  b_->progress();
  ASSERT_TRUE(b_->arm());
  EXPECT_FALSE(readable(*b_, 0ms));
  write_some(*a_, "x");
  EXPECT_TRUE(readable(*b_, kWake)) << "data";
  b_->drain();
  b_->progress();
  EXPECT_EQ(read_all(*b_), "x");

  ASSERT_TRUE(b_->arm());
  ControlMessage message;
  message.type = static_cast<std::uint8_t>(ControlType::kGiveUp);
  ASSERT_TRUE(a_->send_control(message));
  EXPECT_TRUE(readable(*b_, kWake)) << "control";
  b_->drain();
  b_->progress();
  EXPECT_TRUE(b_->take_control(message));

  std::uint64_t sent = 1;
  while (const std::size_t n = write_some(*a_, pattern(sent, 30'000))) sent += n;
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->rx_head() == sent; }));
  while (!a_->arm()) a_->progress();
  EXPECT_FALSE(readable(*a_, 0ms));
  read_all(*b_);
  EXPECT_TRUE(readable(*a_, kWake)) << "credit";
}

TEST_F(VerbsTest, ArmingAfterAnArrivalSaysSo) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  b_->progress();
  write_some(*a_, "x");
  ASSERT_TRUE(poll_until({a_.get()}, [&] { return a_->delivered(); }));
  EXPECT_FALSE(b_->arm()) << "what has arrived would never wake it";
  EXPECT_EQ(read_all(*b_), "x");
}

TEST_F(VerbsTest, AnArmedSleeperWakesForDelivery) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent = 0;
  while (sent < kRing) sent += write_some(*a_, pattern(sent, 4000));
  bool done = a_->delivered();
  while (!done) {
    if (a_->arm()) {
      ASSERT_TRUE(readable(*a_, kWake)) << "nothing told of the last completion";
    }
    a_->drain();
    a_->progress();
    done = a_->delivered();
  }
}

TEST_F(VerbsTest, AFailureWakesSleepersAtBothEnds) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  a_->progress();
  b_->progress();
  ASSERT_TRUE(a_->arm());
  ASSERT_TRUE(b_->arm());
  a_->fail(Reason::kOperator);
  EXPECT_TRUE(readable(*a_, kWake));
  a_.reset();
  ASSERT_TRUE(serve_until({server_.get()}, [&] { return b_->failed(); }));
  EXPECT_EQ(b_->failure(), Reason::kPeerGone);
  EXPECT_EQ(server_->outcome(server_->last_request).channel_events, 1U);
  EXPECT_TRUE(readable(*b_, kWake));
}

// Calls of read(2) that this thread has made so far, those of this function included.
std::uint64_t calls_of_read() {
  std::ifstream file("/proc/thread-self/io");
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value && name != "syscr:") continue;
  return value;
}

TEST_F(VerbsTest, AWakeUpCostsOneReadOfTheEventChannel) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  b_->progress();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(b_->arm());
    write_some(*a_, "x");
    ASSERT_TRUE(readable(*b_, kWake));
    const std::uint64_t before = calls_of_read();
    const std::uint64_t looking = calls_of_read() - before;
    b_->drain();
    EXPECT_EQ(calls_of_read() - before, 2 * looking + 1);
    EXPECT_FALSE(readable(*b_, 0ms)) << "the event was read";
    b_->progress();
    EXPECT_EQ(read_all(*b_), "x");
  }
}

// Each end has a thread that writes and one that reads, all of which sleep when there is nothing
// to do, and two that only call progress().
TEST_F(VerbsTest, ThreadsThatSleepAndThreadsThatPollShareAChannel) {
  ASSERT_NO_FATAL_FAILURE(make_channels(16 * 1024));
  constexpr std::uint64_t kTotal = 1024 * 1024;
  std::atomic<bool> stop{false};
  std::atomic<int> running{4};
  std::atomic<bool> wrong{false};
  const auto until = std::chrono::steady_clock::now() + 120s;
  const auto sleep = [&](Channel& channel) {
    // Another thread may take the wake-up, as it may in a stream, which then wakes the others: the
    // bound stands for that.
    if (channel.arm()) readable(channel, 2ms);
    channel.drain();
    channel.progress();
    if (std::chrono::steady_clock::now() > until || channel.failed()) wrong = true;
  };
  const auto write = [&](Channel& channel) {
    std::mt19937 dice(3);
    for (std::uint64_t sent = 0; sent < kTotal && !wrong;) {
      const std::uint64_t n = std::min<std::uint64_t>(1 + dice() % 5000, kTotal - sent);
      const std::size_t took = write_some(channel, pattern(sent, n));
      sent += took;
      if (took == 0) sleep(channel);
    }
    while (channel.tx_posted() != channel.tx_head() && !wrong) {
      channel.flush();
      sleep(channel);
    }
    --running;
  };
  const auto read = [&](Channel& channel) {
    for (std::uint64_t received = 0; received < kTotal && !wrong;) {
      const std::string got = read_all(channel);
      if (got != pattern(received, got.size())) wrong = true;
      received += got.size();
      if (got.empty()) sleep(channel);
    }
    --running;
  };
  std::vector<std::thread> threads;
  for (Channel* channel : {a_.get(), b_.get()}) {
    threads.emplace_back(write, std::ref(*channel));
    threads.emplace_back(read, std::ref(*channel));
    threads.emplace_back([&stop, channel] {
      while (!stop) {
        channel->progress();
        std::this_thread::yield();
      }
    });
  }
  for (std::size_t i : {0U, 1U, 3U, 4U}) threads[i].join();
  stop = true;
  for (std::size_t i : {2U, 5U}) threads[i].join();
  EXPECT_FALSE(wrong);
  EXPECT_EQ(a_->rx_consumed(), kTotal);
  EXPECT_EQ(b_->rx_consumed(), kTotal);
}

// ---- the end

TEST_F(VerbsTest, WhatArrivedBeforeThePeerClosedCanStillBeRead) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent = 0;
  while (sent < 50'000) sent += write_some(*a_, pattern(sent, 999));
  ASSERT_TRUE(poll_until({a_.get()}, [&] {
    b_->progress();
    return a_->delivered();
  }));
  a_.reset();
  ASSERT_TRUE(serve_until({server_.get()}, [&] { return b_->failed(); }));
  EXPECT_EQ(b_->failure(), Reason::kPeerGone);
  EXPECT_EQ(read_all(*b_), pattern(0, sent));
}

TEST_F(VerbsTest, DeliveredMeansInThePeersMemoryWithoutThePeerLooking) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent = 0;
  while (sent < 40'000) sent += write_some(*a_, pattern(sent, 5000));
  EXPECT_TRUE(poll_until({}, [&] { return a_->delivered(); }));
  b_->progress();
  EXPECT_EQ(b_->rx_head(), sent);
}

TEST_F(VerbsTest, WhoHasEndedItsOutputHearsThatAllOfItWasConsumed) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  const auto send_fin = [](Channel& channel) {
    ControlMessage fin;
    fin.type = static_cast<std::uint8_t>(ControlType::kFin);
    fin.value = channel.tx_head();
    ASSERT_TRUE(channel.send_control(fin));
  };
  // Before it was read.
  write_some(*a_, "a few bytes");
  ASSERT_NO_FATAL_FAILURE(send_fin(*a_));
  ControlMessage taken;
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->take_control(taken); }));
  b_->consume(6);
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return a_->delivered(); }));
  EXPECT_FALSE(a_->all_consumed());
  EXPECT_EQ(read_all(*b_), "bytes");
  EXPECT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return a_->all_consumed(); }));
  // After that.
  write_some(*b_, "more of them");
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return a_->rx_head() == 12; }));
  EXPECT_EQ(read_all(*a_), "more of them");
  EXPECT_FALSE(b_->all_consumed());
  ASSERT_NO_FATAL_FAILURE(send_fin(*b_));
  EXPECT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->all_consumed(); }));
}

TEST_F(VerbsTest, ChannelsOutliveTheirTransport) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  client_.reset();
  write_some(*a_, "still here");
  std::string got;
  EXPECT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return (got += read_all(*b_)).size() == 10; }));
  a_.reset();
}

}  // namespace
}  // namespace ringroad::verbs_test
