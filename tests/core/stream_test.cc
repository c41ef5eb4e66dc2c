// The stream's promises, one behaviour a test, over a real TCP connection and the shm channel.
#include "rsocket-core/stream.h"

#include <sys/ioctl.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "rsocket-core/fault_channel.h"
#include "rsocket-core/sys.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

constexpr auto kOnTcp = State::kOnTcp;
constexpr auto kOnChannel = State::kOnChannel;

TEST(Stream, CarriesBytesOnTcpBeforePromotion) {
  StreamPair p;
  EXPECT_EQ(5, send_text(*p.a, "hello"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("hello", recv_text(*p.b, 100));
  EXPECT_EQ("<EAGAIN>", recv_text(*p.b, 100));
}

TEST(Stream, CarriesBytesOnTheChannelAfterPromotionAndLeavesTcpSilent) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(5, send_text(*p.a, "hello"));
  EXPECT_EQ("hello", recv_text(*p.b, 100));
  EXPECT_EQ(3, send_text(*p.b, "you"));
  EXPECT_EQ("you", recv_text(*p.a, 100));
  EXPECT_EQ("<EAGAIN>", recv_text(*p.a, 100));
  int unread = -1;
  ASSERT_EQ(0, ioctl(p.b_fd, FIONREAD, &unread));
  EXPECT_EQ(0, unread);
}

// Whichever thread comes first: the agent waits for other things then, and says so in the log.
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
  const auto quickly = [](Stream& stream) {
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

// Where a channel is not shared memory, most looks are for bytes only.
TEST(Stream, WhoPollsAQueuePairForBytesSeesWhateverElseHappens) {
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

TEST(Stream, WhoPollsLearnsOfAnEndThatTheAgentHasTakenIn) {
  StreamPair p;
  make_b_poll(p);
  const Stream::PollPlan plan = p.b->plan_poll(POLLIN, Stream::Arm::kNever);
  EXPECT_EQ(plan.ready, 0);
  EXPECT_EQ(p.b->look_at_channel(plan.arrivals, false, plan.shutdowns), Spin::Look::kNothing);
  ASSERT_EQ(0, p.a->shutdown(SHUT_WR));
  ASSERT_TRUE(p.pump_until([&] { return p.b->plan_poll(POLLIN, Stream::Arm::kNever).ready != 0; }));
  EXPECT_EQ(p.b->look_at_channel(plan.arrivals, false, plan.shutdowns), Spin::Look::kReady);
  const std::int64_t began = sys::now_ns();
  const std::int64_t end = began + 2 * kLongSpin;
  EXPECT_TRUE(p.b->spin_until_ready(POLLIN, end, plan.shutdowns));
  EXPECT_TRUE(p.b->spin_until_ready(POLLIN, end));
  EXPECT_LT(sys::now_ns() - began, kLongSpin / 4);
}

TEST(Stream, TheAgentHearsOfEveryMoveThatAProgramsCallCompletes) {
  StreamPair p;
  // How many of the two ends got there in a call that told the agent.
  const auto heard_of = [&p](State to) {
    int heard = 0;
    for (int i = 0; i < 2000 && (p.a->state() != to || p.b->state() != to); ++i) {
      for (Stream* stream : {p.a.get(), p.b.get()}) {
        const State before = stream->state();
        const int attended = p.host.attended;
        stream->service();
        if (stream->state() == to && before != to && p.host.attended > attended) ++heard;
      }
      if (i > 20) poll(nullptr, 0, 1);
    }
    return heard;
  };
  p.start();
  p.channels_up();
  EXPECT_EQ(2, heard_of(State::kOnChannel));
  p.a->leave_channel(Reason::kOperator);
  EXPECT_EQ(2, heard_of(State::kOnTcp));
}

TEST(Stream, ReturnsToTcpWithoutLosingOrRepeatingAByte) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(10, send_text(*p.a, "0123456789"));
  EXPECT_EQ(3, send_text(*p.b, "abc"));
  EXPECT_EQ("0123", recv_text(*p.b, 4));  // six bytes stay in the ring
  p.a->leave_channel(Reason::kOperator);
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnTcp && p.b->state() == kOnTcp; }));
  EXPECT_EQ(Reason::kOperator, p.a->reason());
  EXPECT_EQ(Reason::kPeerLeft, p.b->reason());
  EXPECT_EQ(3, send_text(*p.a, "XYZ"));
  std::string got;
  while (got.size() < 9) {
    ASSERT_TRUE(readable(p.b_fd, 1000));
    const std::string piece = recv_text(*p.b, 100);
    ASSERT_NE('<', piece[0]) << piece << " after " << got;
    got += piece;
  }
  EXPECT_EQ("456789XYZ", got);
  EXPECT_EQ("abc", recv_text(*p.a, 100));
}

TEST(Stream, ReturnsToTcpWhenBothEndsAskAtOnce) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(4, send_text(*p.a, "ping"));
  EXPECT_EQ(4, send_text(*p.b, "pong"));
  p.a->leave_channel(Reason::kOperator);
  p.b->leave_channel(Reason::kFork);
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnTcp && p.b->state() == kOnTcp; }));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("ping", recv_text(*p.b, 100));
  EXPECT_EQ("pong", recv_text(*p.a, 100));
}

TEST(Stream, ReturnsToTcpWithBytesFromBeforeTheSwitchStillUnread) {
  StreamPair p;
  EXPECT_EQ(4, send_text(*p.b, "old."));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.promote();
  EXPECT_EQ(4, send_text(*p.b, "ring"));
  p.a->leave_channel(Reason::kOperator);
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == kOnTcp && p.a->state() == kOnTcp; }));
  EXPECT_EQ(4, send_text(*p.b, ".new"));
  std::string got;
  while (got.size() < 12) {
    ASSERT_TRUE(readable(p.a_fd, 1000));
    const std::string piece = recv_text(*p.a, 100);
    if (piece[0] != '<') got += piece;
  }
  EXPECT_EQ("old.ring.new", got);
}

TEST(Stream, SurvivesAFailedChannelWithFullRings) {
  StreamPair p(4096);
  p.promote();
  std::string sent;
  for (int i = 0;; ++i) {
    const std::string piece = std::to_string(i) + ",";
    const ssize_t n = send_text(*p.a, piece);
    if (n < 0) break;
    sent += piece.substr(0, static_cast<std::size_t>(n));
  }
  EXPECT_EQ(4096U, sent.size());
  std::string got = recv_text(*p.b, 1000);
  p.b->leave_channel(Reason::kQpError);
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnTcp && p.b->state() == kOnTcp; }));
  while (got.size() < sent.size()) {
    ASSERT_TRUE(readable(p.b_fd, 1000));
    const std::string piece = recv_text(*p.b, 1 << 16);
    ASSERT_NE('<', piece[0]) << piece;
    got += piece;
  }
  EXPECT_EQ(sent, got);
}

TEST(Stream, ShutdownForWritingEndsThePeersInputAfterTheLastByteOnly) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(4, send_text(*p.a, "last"));
  EXPECT_EQ(0, p.a->shutdown(SHUT_WR));
  EXPECT_EQ(-1, send_text(*p.a, "x"));
  EXPECT_EQ(EPIPE, errno);
  p.b->service();
  EXPECT_EQ(POLLIN | POLLRDHUP, p.b->plan_poll(POLLIN | POLLRDHUP, Stream::Arm::kNever).ready);
  EXPECT_EQ("last", recv_text(*p.b, 100));
  EXPECT_EQ("", recv_text(*p.b, 100));
  EXPECT_EQ(3, send_text(*p.b, "ack"));  // the other direction lives on
  EXPECT_EQ("ack", recv_text(*p.a, 100));
}

TEST(Stream, ShutdownBeforeTheSwitchIsCompleteStillEndsTheInput) {
  StreamPair p;
  auto cb = p.a_channel_up();
  EXPECT_EQ(0, p.a->shutdown(SHUT_WR));
  p.b->channel_up(std::move(cb), p.a_nonce);
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == kOnChannel; }));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 10) == ""; }));
}

// Closing as the preload layer does it: the stream first, then the program's number.
void close_stream(StreamPtr& stream, int& fd) {
  stream->close_by_program(false);
  ::close(fd);
  fd = -1;
}

TEST(Stream, CloseDeliversWhatWasSentThenEndOfFile) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(7, send_text(*p.a, "goodbye"));
  close_stream(p.a, p.a_fd);
  for (int i = 0; i < 50; ++i) {
    p.a->service();
    p.b->service();
  }
  EXPECT_FALSE(p.a->interest().done) << "what nobody has read may have to come again over TCP";
  EXPECT_EQ("goodbye", recv_text(*p.b, 100));
  ASSERT_TRUE(p.pump_until([&] { return p.a->interest().done; }));
  p.a = std::make_shared<Stream>(&p.host, nullptr, 3, -1, StreamRole::kConnect, FourTuple{},
                                 StreamConfig{}, true);  // the old one ends here
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 10) == ""; }));
  EXPECT_EQ(1, send_text(*p.b, "1"));  // as with TCP: the first send is taken
  EXPECT_EQ(-1, send_text(*p.b, "2"));
  EXPECT_EQ(EPIPE, errno);
}

TEST(Stream, CloseWithUnreadBytesResetsThePeer) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(4, send_text(*p.b, "lost"));
  close_stream(p.a, p.a_fd);
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kReset; }));
  EXPECT_EQ("<ECONNRESET>", recv_text(*p.b, 10));
}

// A queue pair cannot say that everything had arrived; FaultChannel does not claim it either.
TEST(Stream, EndOfTheTcpConnectionWithoutAFinIsAResetAfterWhatArrived) {
  StreamPair p;
  auto cb = p.a_channel_up();
  p.b->channel_up(std::make_unique<FaultChannel>(std::move(cb), std::vector<Fault>{}), p.a_nonce);
  ASSERT_TRUE(p.pump_until(
      [&] { return p.a->state() == kOnChannel && p.b->state() == kOnChannel; }));
  EXPECT_EQ(4, send_text(*p.a, "tail"));
  // What the kernel does for a killed process.
  ::close(p.a_fd);
  p.a_fd = -1;
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kReset; }));
  EXPECT_EQ("tail", recv_text(*p.b, 100));
  EXPECT_EQ("<ECONNRESET>", recv_text(*p.b, 100));
  EXPECT_EQ("", recv_text(*p.b, 100));
}

TEST(Stream, KilledPeerOverSharedMemoryEndsTheInputAfterItsLastByte) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(4, send_text(*p.a, "tail"));
  ::close(p.a_fd);
  p.a_fd = -1;
  ASSERT_TRUE(p.pump_until([&] {
    return (p.b->plan_poll(POLLIN | POLLRDHUP, Stream::Arm::kNever).ready & POLLRDHUP) != 0;
  }));
  EXPECT_EQ("tail", recv_text(*p.b, 100));
  EXPECT_EQ("", recv_text(*p.b, 100));
}

TEST(Stream, PeekLeavesTheBytesAndWaitallFillsTheBuffer) {
  StreamPair p;
  p.promote();
  p.b->set_nonblocking(false);
  EXPECT_EQ(4, send_text(*p.a, "half"));
  EXPECT_EQ("ha", recv_text(*p.b, 2, MSG_PEEK));
  EXPECT_EQ("half", recv_text(*p.b, 100, MSG_PEEK));
  std::thread writer([&] { EXPECT_EQ(4, send_text(*p.a, "full")); });
  EXPECT_EQ("halffull", recv_text(*p.b, 8, MSG_WAITALL));
  writer.join();
}

TEST(Stream, CountsUnreadBytesOverBothCarriers) {
  StreamPair p;
  EXPECT_EQ(3, send_text(*p.b, "tcp"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.promote();
  EXPECT_EQ(4, send_text(*p.b, "ring"));
  EXPECT_EQ(7, p.a->unread_bytes());
  EXPECT_EQ("tcp", recv_text(*p.a, 3));
  EXPECT_EQ(4, p.a->unread_bytes());
}

TEST(Stream, AsksForPromotionOnceTheThresholdIsPassed) {
  StreamPair p;
  EXPECT_EQ(0, p.host.asked);
  p.a->note_use(0, 0);  // promote_after = { messages = 0 }
  p.a->note_use(1, 5);
  p.b->note_use(1, 5);  // the accepting end never starts
  EXPECT_EQ(1, p.host.asked);
}

TEST(Stream, PinKeepsItOnTheKernelForGood) {
  StreamPair p;
  EXPECT_TRUE(p.a->pin(Reason::kEpoll, 0));
  EXPECT_TRUE(p.a->on_kernel_for_good());
  Nonce nonce;
  ASSERT_TRUE(make_nonce(nonce));
  EXPECT_EQ(Reason::kEpoll, p.a->promotion_started(nonce));
}

// Both directions at once, random sizes, promotion in the middle and a return to TCP later: two
// threads a stream, and the agent's work in another.
TEST(Stream, KeepsEveryByteInOrderWhileTheCarrierChangesUnderLoad) {
  StreamPair p(16 * 1024);
  p.a->set_nonblocking(false);
  p.b->set_nonblocking(false);
  std::atomic<bool> over{false};
  std::thread agent([&] {
    while (!over) {
      p.a->service();
      p.b->service();
      poll(nullptr, 0, 1);
    }
  });
  constexpr std::size_t kTotal = 8 << 20;
  const auto byte_at = [](std::size_t i) {
    return static_cast<unsigned char>((i * 2654435761U) >> 13);
  };
  const auto write_all = [&](Stream& s, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<unsigned char> buffer;
    for (std::size_t at = 0; at < kTotal;) {
      buffer.resize(std::min<std::size_t>(1 + random() % 40000, kTotal - at));
      for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = byte_at(at + i);
      iovec iov{buffer.data(), buffer.size()};
      ASSERT_EQ(static_cast<ssize_t>(buffer.size()), s.send(&iov, 1, MSG_NOSIGNAL));
      at += buffer.size();
    }
  };
  const auto read_all = [&](Stream& s, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<unsigned char> buffer(40000);
    for (std::size_t at = 0; at < kTotal;) {
      iovec iov{buffer.data(), 1 + random() % buffer.size()};
      const ssize_t n = s.recv(&iov, 1, 0);
      ASSERT_GT(n, 0);
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        ASSERT_EQ(byte_at(at + i), buffer[i]) << "at " << at + i;
      }
      at += static_cast<std::size_t>(n);
    }
  };
  std::thread w1(write_all, std::ref(*p.a), 1);
  std::thread w2(write_all, std::ref(*p.b), 2);
  std::thread r1(read_all, std::ref(*p.a), 3);
  std::thread r2(read_all, std::ref(*p.b), 4);
  poll(nullptr, 0, 5);  // some bytes on TCP first
  p.start();
  p.channels_up();
  const auto both = [&](State state) {
    for (int i = 0; i < 5000; ++i) {
      if (p.a->state() == state && p.b->state() == state) return true;
      poll(nullptr, 0, 1);
    }
    return false;
  };
  EXPECT_TRUE(both(kOnChannel));
  p.a->leave_channel(Reason::kOperator);
  EXPECT_TRUE(both(kOnTcp));
  for (std::thread* t : {&w1, &w2, &r1, &r2}) t->join();
  over = true;
  agent.join();
}

// A channel of whose end something happens between the look of who is about to sleep, and its arm().
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
TEST(Stream, WhoIsAboutToSleepIsToldWhatASenderHasTakenInMeanwhile) {
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
TEST(Stream, WhoIsAboutToSleepIsToldOfAnEndThatASenderHasTakenInMeanwhile) {
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

}  // namespace
}  // namespace ringroad::test
