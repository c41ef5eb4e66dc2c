// A thread that waits for a stream: what a receive that polls sees, and what a thread that is about to
// sleep is told.
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rsocket-core/base/signal_masks.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/agent_stream.h"
#include "tests/core/fault_channel.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {
constexpr std::int64_t kTooLong = 20'000'000'000;

TEST(Stream, AReceiveThatPollsEndsWithItsTimeOut) {
  StreamPair p;
  const timeval timeout{0, 50'000};
  ASSERT_EQ(0, setsockopt(p.b_fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout));
  make_b_poll(p, false);
  const std::int64_t began = sys::now_ns();
  EXPECT_EQ("<EAGAIN>", recv_text(*p.b, 10));
  EXPECT_LT(sys::now_ns() - began, kLongSpin / 4);
}

TEST(Stream, AReceiveThatMayPollSaysAtOnceWhatNeedsNoPolling) {
  const auto quickly = [](AgentStream& stream) {
    const std::int64_t began = sys::now_ns();
    const std::string said = recv_text(stream, 10);
    EXPECT_LT(sys::now_ns() - began, kLongSpin / 4);
    return said;
  };
  {
    StreamPair p;
    make_b_poll(p, false);
    EXPECT_EQ(5, send_text(*p.a, "hello"));
    EXPECT_EQ("hello", quickly(*p.b));
    ASSERT_EQ(0, p.b->shutdown(SHUT_RD));
    EXPECT_EQ("", quickly(*p.b)) << "its own end";
  }
  {
    StreamPair p;
    make_b_poll(p, false);
    EXPECT_EQ(3, send_text(*p.a, "end"));
    ASSERT_EQ(0, p.a->shutdown(SHUT_WR));
    EXPECT_EQ("end", quickly(*p.b));
    EXPECT_EQ("", quickly(*p.b)) << "the peer's end";
  }
}

TEST(Stream, AReceiveThatPollsTakesWhatComesMeanwhileOnceAndCountsItOnce) {
  StreamPair p;
  make_b_poll(p, false);
  std::string got;
  std::thread receiver([&] {
    while (got.size() < 8) got += recv_text(*p.b, 4);
  });
  // It polls for much longer than this.
  const std::int64_t soon = sys::now_ns() + 20'000'000;
  while (sys::now_ns() < soon) std::this_thread::yield();
  EXPECT_EQ(8, send_text(*p.a, "12345678"));
  receiver.join();
  EXPECT_EQ("12345678", got);
  EXPECT_EQ(p.b->messages_on_channel(), 2U);
}

// A server that is busy answers late, or accepts late.
TEST(Stream, AConnectThatWaitsForItsChannelAsksAgainAfterARefusalThatPasses) {
  StreamPair p;
  p.a->note_use(0, 0);
  ASSERT_EQ(p.host.asked, 1);
  p.start();
  p.a->promotion_refused(Reason::kPeerRefused, Reason::kUnknownConnection);
  p.b->promotion_refused(Reason::kTimeout, Reason::kNone);
  std::atomic<bool> over{false};
  std::thread connects([&] {
    p.a->wait_promoted(kTooLong);
    over = true;
  });
  while (p.host.asked < 2 && !over) poll(nullptr, 0, 1);
  EXPECT_FALSE(over);
  p.promote();
  connects.join();
  EXPECT_EQ(State::kOnChannel, p.a->state());
  EXPECT_EQ(p.host.asked, 2);
}

TEST(Stream, AConnectThatWaitsForItsChannelReturnsAfterARefusalThatStays) {
  StreamPair p;
  p.a->note_use(0, 0);
  p.start();
  p.a->promotion_refused(Reason::kPeerRefused, Reason::kVersion);
  const std::int64_t began = sys::now_ns();
  p.a->wait_promoted(kTooLong);
  EXPECT_LT(sys::now_ns() - began, kTooLong / 2);
  EXPECT_EQ(p.host.asked, 1);
}

TEST(Stream, AConnectThatWaitsForItsChannelReturnsWhenItsTimeIsOver) {
  StreamPair p;
  p.a->note_use(0, 0);
  p.start();
  p.a->promotion_refused(Reason::kTimeout, Reason::kNone);
  const std::int64_t began = sys::now_ns();
  p.a->wait_promoted(120'000'000);
  EXPECT_GE(sys::now_ns() - began, 120'000'000);
  EXPECT_GE(p.host.asked, 2);
}

// Where a channel is not shared memory, most looks are for bytes only.
TEST(Stream, AReceiveThatPollsAQueuePairForBytesSeesWhateverElseHappens) {
  // What a receive says that polls when it does.
  const auto said_when = [](const auto& it_happens) {
    StreamPair p;
    let_b_poll(p, false);
    p.start();
    auto [ca, cb] = make_shm_pair(p.ring_bytes);
    p.a->channel_up(std::make_unique<FaultChannel>(std::move(ca), std::vector<Fault>()), p.b_nonce);
    p.b->channel_up(std::make_unique<FaultChannel>(std::move(cb), std::vector<Fault>()), p.a_nonce);
    EXPECT_TRUE(p.pump_until(
        [&] { return p.a->state() == kOnChannel && p.b->state() == kOnChannel; }));
    std::string said;
    std::atomic<bool> done{false};
    std::thread receiver([&] {
      said = recv_text(*p.b, 10);
      done = true;
    });
    // It polls for much longer than this.
    const std::int64_t soon = sys::now_ns() + 20'000'000;
    while (sys::now_ns() < soon) std::this_thread::yield();
    const std::int64_t began = sys::now_ns();
    it_happens(p);
    // Not the receiver's agent, for which it would let go and look closely.
    while (!done) {
      p.a->service();
      poll(nullptr, 0, 1);
    }
    EXPECT_LT(sys::now_ns() - began, kLongSpin / 4);
    receiver.join();
    return said;
  };
  EXPECT_EQ("hello", said_when([](StreamPair& p) { send_text(*p.a, "hello"); }));
  EXPECT_EQ("", said_when([](StreamPair& p) { p.a->shutdown(SHUT_WR); })) << "the peer's end";
  EXPECT_EQ("", said_when([](StreamPair& p) { p.b->shutdown(SHUT_RD); })) << "its own";
}

TEST(Stream, AReceiveThatPollsLearnsOfAnEndThatTheAgentHasTakenIn) {
  StreamPair p;
  make_b_poll(p);
  const Stream::PollPlan plan = p.b->plan_poll(POLLIN, Stream::Arm::kNever);
  EXPECT_EQ(plan.ready, 0);
  EXPECT_EQ(p.b->look_at_channel(plan.arrivals, false, plan.shutdowns), PollResult::kNothing);
  ASSERT_EQ(0, p.a->shutdown(SHUT_WR));
  ASSERT_TRUE(p.pump_until([&] { return p.b->plan_poll(POLLIN, Stream::Arm::kNever).ready != 0; }));
  EXPECT_EQ(p.b->look_at_channel(plan.arrivals, false, plan.shutdowns), PollResult::kReady);
  const std::int64_t began = sys::now_ns();
  const std::int64_t end = began + 2 * kLongSpin;
  EXPECT_TRUE(p.b->spin_until_ready(POLLIN, end, plan.shutdowns));
  EXPECT_TRUE(p.b->spin_until_ready(POLLIN, end));
  EXPECT_LT(sys::now_ns() - began, kLongSpin / 4);
}

TEST(Stream, AThreadThatPollsBeforeAMaskFindsWhatComesAndStopsForASignalThatTheMaskLetsIn) {
  StreamPair p;
  make_b_poll(p);
  sigset_t none;
  sigset_t one;
  sigset_t own;
  sigemptyset(&none);
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  pthread_sigmask(SIG_SETMASK, &none, &own);
  EXPECT_TRUE(signals::blocks_no_more(none));
  EXPECT_FALSE(signals::blocks_no_more(one));
  pthread_sigmask(SIG_SETMASK, &one, nullptr);
  EXPECT_TRUE(signals::blocks_no_more(one));

  const auto polls = [&](const sigset_t& mask) {
    const Stream::PollPlan plan = p.b->plan_poll(POLLIN, Stream::Arm::kNever);
    return p.b->spin_before_mask(POLLIN, sys::now_ns() + kTooLong, plan.shutdowns, mask);
  };
  pthread_kill(pthread_self(), SIGUSR1);
  EXPECT_TRUE(signals::lets_one_in(none));
  EXPECT_FALSE(signals::lets_one_in(one));
  const std::int64_t began = sys::now_ns();
  EXPECT_FALSE(polls(none));
  EXPECT_LT(sys::now_ns() - began, kLongSpin / 4);
  std::thread sender([&] { send_text(*p.a, "hello"); });
  bool found = false;
  // One that loses its processor meanwhile stops before the bytes are there.
  while (!found && sys::now_ns() - began < kTooLong) found = polls(one);
  EXPECT_TRUE(found) << "a signal that stays blocked is none";
  sender.join();

  const timespec at_once{};
  EXPECT_EQ(SIGUSR1, sigtimedwait(&one, nullptr, &at_once));
  pthread_sigmask(SIG_SETMASK, &own, nullptr);
}

// A channel of whose end something happens between the look of a thread that will sleep, and its arm().
class Overtaken final : public Channel {
 public:
  explicit Overtaken(std::unique_ptr<Channel> inner)
      : Channel(inner->ring_bytes()), inner_(std::move(inner)) {
    set_agreement(inner_->agreement());
  }
  std::function<void(Channel&)> before_arm;

  bool arm() noexcept override {
    if (const auto happens = std::exchange(before_arm, nullptr)) happens(*inner_);
    return inner_->arm();
  }
  View tx_view() noexcept override { return inner_->tx_view(); }
  void commit(std::size_t n) noexcept override { inner_->commit(n); }
  bool send_control(const ControlMessage& m) noexcept override { return inner_->send_control(m); }
  void flush() noexcept override { inner_->flush(); }
  View tx_replay(std::uint64_t offset) noexcept override { return inner_->tx_replay(offset); }
  View rx_view() noexcept override { return inner_->rx_view(); }
  void consume(std::size_t n) noexcept override { inner_->consume(n); }
  std::uint64_t tx_head() const noexcept override { return inner_->tx_head(); }
  std::uint64_t tx_posted() const noexcept override { return inner_->tx_posted(); }
  std::uint64_t tx_consumed() const noexcept override { return inner_->tx_consumed(); }
  std::uint64_t rx_head() const noexcept override { return inner_->rx_head(); }
  std::uint64_t rx_consumed() const noexcept override { return inner_->rx_consumed(); }
  void progress() noexcept override { inner_->progress(); }
  bool control_pending() const noexcept override { return inner_->control_pending(); }
  bool take_control(ControlMessage& out) noexcept override { return inner_->take_control(out); }
  int wait_fd() const noexcept override { return inner_->wait_fd(); }
  std::uint32_t wait_events() const noexcept override { return inner_->wait_events(); }
  void drain() noexcept override { inner_->drain(); }
  bool delivered() noexcept override { return inner_->delivered(); }
  bool failed() const noexcept override { return inner_->failed(); }
  Reason failure() const noexcept override { return inner_->failure(); }
  void fail(Reason reason) noexcept override { inner_->fail(reason); }
  void info(ChannelInfo& out) const noexcept override { inner_->info(out); }

 private:
  const std::unique_ptr<Channel> inner_;
};

void promote_over(StreamPair& p, Overtaken*& a) {
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  auto over = std::make_unique<Overtaken>(std::move(ca));
  a = over.get();
  p.a->channel_up(std::move(over), p.b_nonce);
  p.b->channel_up(std::move(cb), p.a_nonce);
  ASSERT_TRUE(p.pump_until([&] {
    return p.a->state() == State::kOnChannel && p.b->state() == State::kOnChannel;
  }));
}

// A sender of the same stream looks for room under its own lock, and so takes in what has come.
TEST(Stream, AThreadThatIsAboutToSleepIsToldWhatASenderHasTakenInMeanwhile) {
  StreamPair p;
  bool happened = false;
  Overtaken* channel = nullptr;
  promote_over(p, channel);
  channel->before_arm = [&](Channel& inner) {
    EXPECT_EQ(4, send_text(*p.b, "late"));
    inner.progress();
    happened = true;
  };
  const Stream::PollPlan plan = p.a->plan_poll(POLLIN, Stream::Arm::kIfIdle);
  ASSERT_TRUE(happened);
  EXPECT_EQ(POLLIN, plan.ready & POLLIN);
  EXPECT_EQ("late", recv_text(*p.a, 100));
}

// And likewise the peer's end, of which the sender tells nobody.
TEST(Stream, AThreadThatIsAboutToSleepIsToldOfAnEndThatASenderHasTakenInMeanwhile) {
  StreamPair p;
  bool happened = false;
  Overtaken* channel = nullptr;
  promote_over(p, channel);
  channel->before_arm = [&](Channel& inner) {
    EXPECT_EQ(0, p.b->shutdown(SHUT_WR));
    inner.progress();
    happened = true;
  };
  const Stream::PollPlan plan = p.a->plan_poll(POLLIN, Stream::Arm::kIfIdle);
  ASSERT_TRUE(happened);
  EXPECT_EQ(POLLIN, plan.ready & POLLIN);
  EXPECT_EQ("", recv_text(*p.a, 100));
}

// A waiter that notes whether the channel still said so when it was told.
struct Noting : Waiter {
  int channel_fd = -1;
  int told = 0;
  bool in_time = false;

  explicit Noting(int fd) : channel_fd(fd) {
    events = POLLIN;
    woken = [](Waiter& waiter) noexcept {
      auto& self = static_cast<Noting&>(waiter);
      ++self.told;
      self.in_time = readable(self.channel_fd, 0);
    };
  }
};

TEST(Stream, OthersAreToldOfAWakeUpBeforeTheChannelIsSilent) {
  for (const bool by_agent : {true, false}) {
    StreamPair p;
    p.promote(by_agent ? ShmWakeKind::kSocket : ShmWakeKind::kEvents);
    ASSERT_EQ(0, p.b->plan_poll(POLLIN, Stream::Arm::kAlways).ready);
    Noting waiter(p.b->channel_fd());
    const Listed listed(&p.b->waiters(), waiter);
    EXPECT_EQ(1, send_text(*p.a, "x"));
    ASSERT_TRUE(readable(waiter.channel_fd, 0));
    if (by_agent) {
      p.b->take_wake_up();
    } else {
      p.b->after_sleep();
    }
    EXPECT_EQ(1, waiter.told);
    EXPECT_TRUE(waiter.in_time) << by_agent;
    EXPECT_FALSE(readable(waiter.channel_fd, 0));
  }
}

TEST(Stream, TheAgentTellsNobodyOfAWakeUpThatAThreadHasTaken) {
  StreamPair p;
  p.promote(ShmWakeKind::kSocket);
  ASSERT_EQ(0, p.b->plan_poll(POLLIN, Stream::Arm::kAlways).ready);
  EXPECT_EQ(1, send_text(*p.a, "x"));
  p.b->after_sleep();
  Noting waiter(p.b->channel_fd());
  const Listed listed(&p.b->waiters(), waiter);
  p.b->take_wake_up();
  EXPECT_EQ(0, waiter.told);
}

TEST(Stream, TheAgentLeavesAWakeUpOfWhichEachWaiterIsTold) {
  StreamPair p;
  p.promote(ShmWakeKind::kEvents);
  ASSERT_EQ(0, p.b->plan_poll(POLLIN, Stream::Arm::kAlways).ready);
  EXPECT_EQ(1, send_text(*p.a, "x"));
  Noting waiter(p.b->channel_fd());
  {
    const Listed listed(&p.b->waiters(), waiter);
    p.b->take_wake_up();
    EXPECT_EQ(0, waiter.told);
    EXPECT_TRUE(readable(waiter.channel_fd, 0));
  }
  p.b->take_wake_up();
  EXPECT_FALSE(readable(waiter.channel_fd, 0)) << "nobody else would";
}

TEST(WaitList, TheOthersAreWokenAndNotTheOneThatKnows) {
  WaitList list;
  Noting knows(-1);
  Noting other(-1);
  const Listed first(&list, knows);
  list.wake_others(POLLIN, knows);
  const Listed second(&list, other);
  list.wake_others(POLLOUT, knows);
  EXPECT_EQ(0, other.told);
  list.wake_others(POLLIN, knows);
  EXPECT_EQ(0, knows.told);
  EXPECT_EQ(1, other.told);
}

}  // namespace
}  // namespace ringroad::test
