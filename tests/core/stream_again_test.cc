// Streams that come back to TCP, or are kept there: whether and when they ask for a channel again.
#include <algorithm>
#include <string>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/promotion_retry.h"
#include "tests/core/stream_both_ends.h"

namespace ringroad::test {
namespace {
constexpr State kOnTcp = State::kOnTcp;

TEST(StreamAgain, AReturnedStreamComesToAChannelAsOftenAsItIsAsked) {
  StreamPair p;
  for (int i = 0; i < 20; ++i) {
    talk(p, "tcp" + std::to_string(i));
    p.promote();
    talk(p, "channel" + std::to_string(i));
    // Left with bytes in the ring that nobody has read yet: they come again.
    EXPECT_EQ(6, send_text(*p.a, "unread"));
    come_back(p, i % 2 == 0 ? *p.a : *p.b, Reason::kQpError);
    std::string got;
    ASSERT_TRUE(p.pump_until([&] {
      got = recv_text(*p.b, 100);
      return got == "unread";
    })) << got;
  }
}

TEST(StreamAgain, OneThatWasIdleAsksWhenItIsWorthAChannelAgain) {
  StreamConfig config;
  config.promote_messages = 4;
  StreamPair p(config);
  for (AgentStream* const leaver : {p.a.get(), p.b.get()}) {
    p.promote();
    const int asked = p.host.asked;
    come_back(p, *leaver, Reason::kIdle);
    for (int i = 0; i < 3; ++i) p.a->note_use(1, 1);
    EXPECT_EQ(asked, p.host.asked);
    p.a->note_use(1, 1);
    EXPECT_EQ(asked + 1, p.host.asked) << "without a pause";
  }
}

TEST(StreamAgain, OneThatFoundNoRoomAsksAsOftenAsItTakes) {
  for (const bool here : {true, false}) {
    StreamPair p;
    for (int round = 0; round < 6; ++round) {
      const int asked = p.host.asked;
      const std::int64_t refused_ns = sys::now_ns();
      p.start();
      p.a->promotion_refused(here ? Reason::kMaxChannels : Reason::kPeerRefused,
                             here ? Reason::kNone : Reason::kMaxChannels);
      p.b->promotion_refused(Reason::kMaxChannels, Reason::kNone);
      while (p.host.asked == asked) {
        ASSERT_LT(sys::now_ns() - refused_ns, 5'000'000'000);
        poll(nullptr, 0, 1);
        p.a->note_use(1, 1);
      }
      const std::int64_t pause = sys::now_ns() - refused_ns;
      EXPECT_GE(pause, 10'000'000 << round);
    }
    p.promote();
    EXPECT_TRUE(both(p, State::kOnChannel));
  }
}

// Whose program did not wait for the end of a switch; the other end says nothing for too long.
TEST(StreamAgain, OneThatWasInAHurryAsksSoonAndHasMorePatienceEachTime) {
  StreamPair p;
  for (unsigned times = 0; times <= PromotionRetry::kPatienceDoublings + 1; ++times) {
    auto theirs = p.a_channel_up();
    const int asked = p.host.asked;
    const std::int64_t began = sys::now_ns();
    EXPECT_TRUE(p.a->outlast_switch(sys::now_ns()));
    EXPECT_GE(sys::now_ns() - began,
              Stream::kSwitchPatienceNs << std::min(times, PromotionRetry::kPatienceDoublings));
    ASSERT_EQ(kOnTcp, p.a->state());
    p.b->promotion_refused(Reason::kTimeout, Reason::kNone);
    for (int uses = 0; uses < 64 && p.host.asked == asked; ++uses) p.a->note_use(1, 1);
    EXPECT_EQ(p.host.asked, times < PromotionRetry::kMostImpatiences ? asked + 1 : asked) << times;
  }
  p.promote();
  talk(p, "at last");
  // Which is forgotten where it was in time once.
  come_back(p, *p.a, Reason::kQpError);
  auto theirs = p.a_channel_up();
  const int asked = p.host.asked;
  EXPECT_TRUE(p.a->outlast_switch(sys::now_ns()));
  for (int uses = 0; uses < 16 && p.host.asked == asked; ++uses) p.a->note_use(1, 1);
  EXPECT_EQ(p.host.asked, asked + 1);
}

TEST(StreamAgain, AfterAHurryAPeerThatIsStillBusyIsAskedAgainSoon) {
  StreamPair p;
  auto theirs = p.a_channel_up();
  EXPECT_TRUE(p.a->outlast_switch(sys::now_ns()));
  p.b->promotion_refused(Reason::kTimeout, Reason::kNone);
  for (int times = 0; times < 6; ++times) {
    p.start();
    p.a->promotion_refused(Reason::kPeerRefused, Reason::kBusy);
    p.b->promotion_refused(Reason::kBusy, Reason::kNone);
    const int asked = p.host.asked;
    for (int uses = 0; uses < 16 && p.host.asked == asked; ++uses) p.a->note_use(1, 1);
    EXPECT_EQ(p.host.asked, asked + 1) << times;
  }
}

// The listener's program finds no room when the connector has written its token: that has to
// return.
TEST(StreamAgain, APeerInAHurryIsAskedSoon) {
  for (const bool bytes_come_first : {false, true}) {
    StreamPair p;
    for (unsigned times = 0; times < PromotionRetry::kMostImpatiences; ++times) {
      p.start();
      p.channels_up();
      for (AgentStream* const stream : {p.b.get(), p.a.get(), p.b.get()}) stream->service();
      ASSERT_TRUE(p.b->tx_is_held());
      EXPECT_TRUE(p.b->outlast_switch(sys::now_ns()));
      if (bytes_come_first) {
        EXPECT_EQ(1, send_text(*p.b, "x"));
        EXPECT_EQ("x", recv_text(*p.a, 10));
      }
      ASSERT_TRUE(p.pump_until([&] { return both(p, kOnTcp); }));
      const int asked = p.host.asked;
      for (int uses = 0; uses < 16 && p.host.asked == asked; ++uses) p.a->note_use(1, 1);
      EXPECT_EQ(p.host.asked, asked + 1) << times << " " << bytes_come_first;
    }
  }
}

// Refusals that may pass, of a stream that has never been on a channel.
class StreamRefused : public testing::TestWithParam<std::pair<Reason, int>> {};

TEST_P(StreamRefused, AsksForAsLongAsItLivesButMoreSeldom) {
  const auto [reason, soon] = GetParam();
  StreamPair p;
  const auto refuse = [&, cause = reason] {
    p.start();
    p.a->promotion_refused(Reason::kPeerRefused, cause);
    p.b->promotion_refused(cause, Reason::kNone);
  };
  refuse();
  for (int times = 1; times <= soon; ++times) {
    const int asked = p.host.asked;
    for (int uses = 0; uses < 64 << times && p.host.asked == asked; ++uses) p.a->note_use(1, 1);
    ASSERT_EQ(asked + 1, p.host.asked) << "with use alone, time " << times;
    refuse();
  }
  const int asked = p.host.asked;
  const std::int64_t began = sys::now_ns();
  while (p.host.asked == asked) {
    p.a->note_use(1, 1);
    ASSERT_LT(sys::now_ns() - began, 10'000'000'000);
    poll(nullptr, 0, 1);
  }
  EXPECT_GT(sys::now_ns() - began, 900'000'000) << "after a pause";
  p.promote();
  EXPECT_TRUE(both(p, State::kOnChannel));
}

INSTANTIATE_TEST_SUITE_P(StreamAgain, StreamRefused,
                         testing::Values(std::pair(Reason::kBusy, 6),
                                         std::pair(Reason::kNoRdmaDevice, 0),
                                         std::pair(Reason::kMemlock, 0)));

TEST(StreamAgain, OneThatWasAnsweredOnceAsksAgainWhereNobodyAnswers) {
  for (const bool answered : {false, true}) {
    StreamPair p;
    const auto refuse = [&](Reason here, Reason there) {
      p.start();
      p.a->promotion_refused(here, there);
      p.b->promotion_refused(there, Reason::kNone);
    };
    refuse(Reason::kPeerHasNoRingroad, Reason::kNone);
    EXPECT_FALSE(p.a->on_kernel_for_good()) << "a server may be about to answer";
    if (answered) refuse(Reason::kPeerRefused, Reason::kBusy);
    refuse(Reason::kPeerHasNoRingroad, Reason::kNone);
    EXPECT_EQ(p.a->on_kernel_for_good(), !answered);
  }
}

TEST(StreamAgain, OneThatCameBackAsksAfterAPauseThatGrows) {
  StreamPair p;
  std::int64_t last = 0;
  for (int round = 0; round < 2; ++round) {
    p.promote();
    const int asked = p.host.asked;
    come_back(p, *p.a, Reason::kQpError);
    const std::int64_t began = sys::now_ns();
    while (p.host.asked == asked) {
      p.a->note_use(1, 1);
      ASSERT_LT(sys::now_ns() - began, 10'000'000'000);
      poll(nullptr, 0, 1);
    }
    const std::int64_t pause = sys::now_ns() - began;
    EXPECT_GT(pause, 900'000'000);
    EXPECT_GT(pause, last + last / 2);
    last = pause;
  }
}

TEST(StreamAgain, TheOneThatWasConnectedToNeverAsks) {
  StreamPair p;
  p.promote();
  come_back(p, *p.b, Reason::kQpError);
  const std::int64_t until = sys::now_ns() + 1'200'000'000;
  while (sys::now_ns() < until) {
    p.b->note_use(1, 1);
    poll(nullptr, 0, 10);
  }
  EXPECT_EQ(0, p.host.asked);
  p.a->note_use(1, 1);
  EXPECT_EQ(1, p.host.asked) << "the other one does";
}

TEST(StreamAgain, OneThatLeftForGoodStaysAndSoDoesItsPeer) {
  for (const bool connector : {true, false}) {
    StreamPair p;
    p.promote();
    AgentStream& leaver = connector ? *p.a : *p.b;
    AgentStream& other = connector ? *p.b : *p.a;
    come_back(p, leaver, Reason::kDescriptorUse);
    EXPECT_TRUE(leaver.on_kernel_for_good());
    EXPECT_TRUE(other.on_kernel_for_good());
  }
}

TEST(StreamAgain, AKeptStreamNeitherAsksNorAnswers) {
  StreamPair p;
  p.promote();
  p.a->keep_on_tcp(Reason::kOperator);
  ASSERT_TRUE(p.pump_until([&] { return both(p, kOnTcp); }));
  EXPECT_EQ(Reason::kOperator, p.a->reason());
  EXPECT_EQ(Reason::kPeerLeft, p.b->reason());
  for (int i = 0; i < 1000; ++i) p.a->note_use(1, 1000);
  EXPECT_EQ(0, p.host.asked);
  EXPECT_EQ(Reason::kOperator, p.a->promotion_started(p.a_nonce));
  p.b->keep_on_tcp(Reason::kPolicy);
  EXPECT_EQ(Reason::kPolicy, p.b->promotion_started(p.b_nonce));
}

TEST(StreamAgain, LetOffItAsksWithItsNextUseOrAtOnce) {
  StreamPair p;
  p.a->keep_on_tcp(Reason::kOperator);
  EXPECT_FALSE(p.a->let_off_tcp(false));
  EXPECT_EQ(Reason::kPending, p.a->reason());
  EXPECT_EQ(0, p.host.asked);
  p.a->note_use(1, 1);
  EXPECT_EQ(1, p.host.asked);

  StreamPair idle;
  idle.a->keep_on_tcp(Reason::kOperator);
  EXPECT_TRUE(idle.a->let_off_tcp(true)) << "for the agent to start";
  idle.a->note_use(1, 1);
  EXPECT_EQ(0, idle.host.asked) << "which is asked once";
  EXPECT_FALSE(idle.b->let_off_tcp(true)) << "the accepting end never starts";
  idle.promote();
}

TEST(StreamAgain, OneThatIsOnItsWayToAChannelIsNotAskedForAgain) {
  StreamPair p;
  p.a->note_use(1, 1);
  ASSERT_EQ(1, p.host.asked);
  ASSERT_EQ(Reason::kNone, p.a->promotion_started(p.a_nonce));
  for (const bool at_once : {true, false}) {
    EXPECT_FALSE(p.a->let_off_tcp(at_once));
    p.a->note_use(1000, 1000);
    EXPECT_EQ(1, p.host.asked) << at_once;
  }
}

TEST(StreamAgain, OneThatIsLetOffWhileItLeavesStartsWhenItIsBack) {
  StreamPair p;
  p.promote();
  p.a->keep_on_tcp(Reason::kOperator);
  ASSERT_EQ(State::kResuming, p.a->state());
  EXPECT_FALSE(p.a->let_off_tcp(true));
  EXPECT_EQ(0, p.host.asked);
  ASSERT_TRUE(p.pump_until([&] { return both(p, kOnTcp); }));
  EXPECT_EQ(1, p.host.asked);
  p.promote();
}

TEST(StreamAgain, OneThatThePeerKeepsIsLeftToTheAgent) {
  StreamPair p;
  p.promote();
  p.b->keep_on_tcp(Reason::kOperator);
  ASSERT_TRUE(p.pump_until([&] { return both(p, kOnTcp); }));
  EXPECT_TRUE(p.a->take_peer_keeps());
  EXPECT_FALSE(p.a->take_peer_keeps()) << "once";
  for (int i = 0; i < 1000; ++i) p.a->note_use(1, 1000);
  EXPECT_EQ(0, p.host.asked);
  // So is one whose request was refused for that.
  ASSERT_TRUE(p.a->let_off_tcp(true));
  ASSERT_EQ(Reason::kNone, p.a->promotion_started(p.a_nonce));
  p.a->promotion_refused(Reason::kPeerRefused, Reason::kOperator);
  EXPECT_TRUE(p.a->take_peer_keeps());
  EXPECT_FALSE(p.a->on_kernel_for_good());
}

TEST(StreamAgain, KeepingEndsAPromotionAtAnyStep) {
  StreamPair p;
  p.start();
  p.a->keep_on_tcp(Reason::kOperator);
  p.channels_up();
  ASSERT_TRUE(p.pump_until([&] { return both(p, kOnTcp); }));
  talk(p, "one");
  for (int steps = 0; steps < 8; ++steps) {
    StreamPair q;
    q.start();
    q.channels_up();
    for (int i = 0; i < steps; ++i) (i % 2 == 0 ? q.a : q.b)->service();
    q.b->keep_on_tcp(Reason::kOperator);
    ASSERT_TRUE(q.pump_until([&] { return both(q, kOnTcp); })) << steps;
    talk(q, "two");
  }
}

TEST(StreamAgain, BusyPeersAreAskedAgainSoonWhereThereWasAChannelBefore) {
  StreamPair p;
  p.promote();
  come_back(p, *p.a, Reason::kQpError);
  ASSERT_TRUE(p.a->let_off_tcp(true));
  ASSERT_EQ(Reason::kNone, p.a->promotion_started(p.a_nonce));
  p.a->promotion_refused(Reason::kPeerRefused, Reason::kBusy);
  const std::int64_t began = sys::now_ns();
  while (p.host.asked == 0 && sys::now_ns() - began < 5'000'000'000) {
    p.a->note_use(1, 1);
    poll(nullptr, 0, 1);
  }
  EXPECT_LT(sys::now_ns() - began, 500'000'000);
}

}  // namespace
}  // namespace ringroad::test
