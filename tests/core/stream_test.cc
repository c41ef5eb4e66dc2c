// The stream's promises, one behaviour a test, over a real TCP connection and the shm channel.
#include "rsocket-core/stream.h"

#include <sys/ioctl.h>

#include <cstring>
#include <random>
#include <thread>

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

TEST(Stream, DeliversBytesSentBeforeTheSwitchFirst) {
  StreamPair p;
  EXPECT_EQ(6, send_text(*p.a, "before"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  p.promote();  // the token stands behind six bytes that the program has not read
  EXPECT_EQ(5, send_text(*p.a, "after"));
  EXPECT_EQ("bef", recv_text(*p.b, 3));
  EXPECT_EQ("ore", recv_text(*p.b, 100));
  EXPECT_EQ("after", recv_text(*p.b, 100));
}

TEST(Stream, BlocksSendersWhileTheSwitchIsUnderWay) {
  StreamPair p;
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);
  EXPECT_EQ(State::kSwitching, p.a->state());
  EXPECT_EQ(-1, send_text(*p.a, "x"));
  EXPECT_EQ(EAGAIN, errno);
  EXPECT_EQ(0, p.a->plan_poll(POLLOUT, false).ready & POLLOUT);
  p.b->channel_up(std::move(cb), p.a_nonce);
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnChannel; }));
  EXPECT_EQ(1, send_text(*p.a, "x"));
}

TEST(Stream, GivesUpAfterTheTimeoutAndGoesOnWhereItFroze) {
  StreamPair p;
  EXPECT_EQ(3, send_text(*p.a, "one"));
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);  // the peer never comes
  const std::int64_t deadline = p.a->interest().deadline_ns;
  ASSERT_LT(deadline, sys::now_ns() + 2 * Stream::kSwitchTimeoutNs);
  while (sys::now_ns() < deadline) poll(nullptr, 0, 10);
  p.a->deadline_passed();
  EXPECT_EQ(kOnTcp, p.a->state());
  EXPECT_EQ(Reason::kTimeout, p.a->reason());
  EXPECT_EQ(3, send_text(*p.a, "two"));
  p.b->promotion_refused(Reason::kTimeout, Reason::kNone);
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("onetwo", recv_text(*p.b, 100));
}

TEST(Stream, RefusesToStartWhenSomethingElseHasWrittenTheSocket) {
  StreamPair p;
  ASSERT_EQ(1, ::send(p.a_fd, "?", 1, 0));
  Nonce nonce;
  ASSERT_TRUE(make_nonce(nonce));
  EXPECT_EQ(Reason::kUntrackedIo, p.a->promotion_started(nonce));
}

TEST(Stream, RefusesToStartWhenSomethingElseHasReadTheSocket) {
  StreamPair p;
  EXPECT_EQ(2, send_text(*p.a, "ab"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  char c;
  ASSERT_EQ(1, ::recv(p.b_fd, &c, 1, 0));
  Nonce nonce;
  ASSERT_TRUE(make_nonce(nonce));
  EXPECT_EQ(Reason::kUntrackedIo, p.b->promotion_started(nonce));
}

TEST(Stream, NoticesUntrackedBytesBetweenRequestAndSwitch) {
  StreamPair p;
  p.start();
  ASSERT_EQ(1, ::send(p.a_fd, "?", 1, 0));
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);
  EXPECT_EQ(kOnTcp, p.a->state());
  EXPECT_EQ(Reason::kUntrackedIo, p.a->reason());
  EXPECT_TRUE(p.a->on_kernel_for_good());
}

// Right connection, right channel, wrong process: one end's stream, and a forger who holds the other
// end of the channel but not of the TCP connection.
struct Forged : StreamPair {
  // The forger stands where the other end of `victim` should.
  explicit Forged(StreamRole victim) {
    start();
    auto [mine, theirs] = make_shm_pair(ring_bytes);
    forger = std::move(theirs);
    const bool connector = victim == StreamRole::kConnect;
    (connector ? b : a)->promotion_refused(Reason::kPolicy, Reason::kNone);  // knows nothing of it
    (connector ? a : b)->channel_up(std::move(mine), connector ? b_nonce : a_nonce);
  }
  void say(ControlType type, std::uint64_t value) {
    ControlMessage m;
    m.type = static_cast<std::uint8_t>(type);
    m.value = value;
    ASSERT_TRUE(forger->send_control(m));
  }
  bool hears(ControlType type) {
    ControlMessage m;
    return pump_until([&] {
      forger->progress();
      return forger->take_control(m) && m.type == static_cast<std::uint8_t>(type);
    });
  }
  std::unique_ptr<Channel> forger;
};

TEST(ForgedStream, TheAskedEndNeitherFreezesNorWritesForOneThatHasNotProvedItself) {
  Forged p(StreamRole::kAccept);
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  p.say(ControlType::kSwitchAck, 0);  // of nothing
  EXPECT_EQ(5, send_text(*p.b, "reply"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  EXPECT_EQ("reply", recv_text(*p.a, 100));
  EXPECT_EQ(7, send_text(*p.a, "request"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 100) == "request"; }));
  EXPECT_EQ(kOnTcp, p.b->state());
  EXPECT_EQ("<EAGAIN>", recv_text(*p.a, 100));
}

TEST(ForgedStream, TheRingIsNeverReadBeforeTheTokenIsSeen) {
  Forged p(StreamRole::kAccept);
  p.say(ControlType::kSwitch, 0);
  const Channel::View view = p.forger->tx_view();
  std::memcpy(view.data, "evil", 4);
  p.forger->commit(4);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  EXPECT_EQ("<EAGAIN>", recv_text(*p.b, 100));
  EXPECT_EQ(0, p.b->unread_bytes());
  EXPECT_EQ(State::kSwitching, p.b->state());
}

TEST(ForgedStream, TheConnectorsTokenComesFirst) {
  Forged p(StreamRole::kConnect);
  ASSERT_TRUE(p.hears(ControlType::kSwitch));
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnTcp; }));
  EXPECT_EQ(Reason::kBadRequest, p.a->reason());
  EXPECT_EQ(5, send_text(*p.a, "hello"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("hello", recv_text(*p.b, 100));
}

TEST(ForgedStream, CloseDoesNotWaitForIt) {
  Forged p(StreamRole::kAccept);
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  EXPECT_EQ(3, send_text(*p.b, "end"));
  p.b->close_by_program(false);
  ::close(std::exchange(p.b_fd, -1));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  EXPECT_EQ("end", recv_text(*p.a, 100));
  ASSERT_TRUE(readable(p.a_fd, 1000)) << "the end of the stream never came";
  EXPECT_EQ("", recv_text(*p.a, 100));
}

TEST(ForgedStream, ShutdownDoesNotWaitForIt) {
  Forged p(StreamRole::kAccept);
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  EXPECT_EQ(0, p.b->shutdown(SHUT_WR));
  ASSERT_TRUE(readable(p.a_fd, 1000)) << "the end of the stream never came";
  EXPECT_EQ("", recv_text(*p.a, 100));
  EXPECT_EQ(4, send_text(*p.a, "more"));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 100) == "more"; }));
}

// The connector has written its token, the other end gives up before its own: nothing of the exchange
// reaches either program, and the stream goes on where it was.
TEST(Stream, AConnectorThatCommittedReturnsWhenTheOtherEndGivesUp) {
  for (const bool channel_lives : {true, false}) {
    StreamPair p;
    EXPECT_EQ(6, send_text(*p.a, "before"));
    p.start();
    auto [ca, cb] = make_shm_pair(p.ring_bytes);
    p.a->channel_up(std::move(ca), p.b_nonce);
    p.b->channel_up(std::move(cb), p.a_nonce);  // answers
    p.a->service();                             // writes its token
    ASSERT_EQ(State::kSwitching, p.b->state());
    EXPECT_EQ(2, send_text(*p.b, "hi"));  // the end that was asked has not frozen
    if (channel_lives) {
      p.b->leave_channel(Reason::kEpoll);
    } else {
      p.b->pin(Reason::kEpoll, 0);
    }
    EXPECT_EQ(kOnTcp, p.b->state());
    ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnTcp; }));
    EXPECT_EQ(4, send_text(*p.a, "more"));
    EXPECT_EQ(3, send_text(*p.b, "you"));
    std::string got;
    ASSERT_TRUE(p.pump_until([&] {
      const std::string piece = recv_text(*p.b, 100);
      if (piece[0] != '<') got += piece;
      return got.size() >= 10;
    })) << got;
    EXPECT_EQ("beforemore", got);
    ASSERT_TRUE(readable(p.a_fd, 1000));
    EXPECT_EQ("hiyou", recv_text(*p.a, 100));
    EXPECT_EQ("<EAGAIN>", recv_text(*p.a, 100));
    EXPECT_TRUE(p.pump_until([&] { return !p.b->interest().tcp_in; }));
  }
}

// As above, up to where the connector has written its token and the other end has not seen it.
struct HalfSwitched : StreamPair {
  HalfSwitched() {
    start();
    auto [ca, cb] = make_shm_pair(ring_bytes);
    a->channel_up(std::move(ca), b_nonce);
    b->channel_up(std::move(cb), a_nonce);  // answers
    a->service();                           // writes its token
  }
};

TEST(Stream, CloseByTheAskedEndMidwayIsAnOrderlyEnd) {
  HalfSwitched p;
  EXPECT_EQ(3, send_text(*p.b, "end"));
  p.b->close_by_program(false);
  ::close(std::exchange(p.b_fd, -1));
  std::string got;
  ASSERT_TRUE(p.pump_until([&] {
    const std::string piece = recv_text(*p.a, 100);
    if (piece != "<EAGAIN>") got += piece.empty() ? "." : piece;
    return p.b->interest().done && got.size() >= 4;
  })) << got;
  EXPECT_EQ("end.", got.substr(0, 4));
  EXPECT_EQ("", recv_text(*p.a, 100));
}

TEST(Stream, ShutdownByTheAskedEndMidwayEndsItsDirectionOnly) {
  HalfSwitched p;
  EXPECT_EQ(0, p.b->shutdown(SHUT_WR));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.a, 100) == ""; }));
  ASSERT_TRUE(p.pump_until([&] { return send_text(*p.a, "more") == 4; }));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 100) == "more"; }));
}

TEST(Stream, TheAskedEndNoticesUntrackedBytesBeforeItCommits) {
  StreamPair p;
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);
  p.b->channel_up(std::move(cb), p.a_nonce);
  ASSERT_EQ(1, ::send(p.b_fd, "?", 1, 0));
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnTcp && p.b->state() == kOnTcp; }));
  EXPECT_EQ(Reason::kUntrackedIo, p.b->reason());
  EXPECT_EQ("?", recv_text(*p.a, 100));
}

TEST(Stream, ResetsWhenBytesFollowTheTokenThatAreNoFrame) {
  StreamPair p;
  p.promote();
  ASSERT_EQ(32, ::send(p.b_fd, "behind the library's back, 32 byt", 32, 0));
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == State::kReset; }));
  EXPECT_EQ(Reason::kForged, p.a->reason());
  EXPECT_EQ("<ECONNRESET>", recv_text(*p.a, 10));
  EXPECT_EQ("", recv_text(*p.a, 10));
  EXPECT_EQ(-1, send_text(*p.a, "x"));
  EXPECT_EQ(EPIPE, errno);
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
  EXPECT_EQ(4, send_text(*p.a, "old."));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  p.promote();
  EXPECT_EQ(4, send_text(*p.a, "ring"));
  p.b->leave_channel(Reason::kOperator);
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnTcp && p.b->state() == kOnTcp; }));
  EXPECT_EQ(4, send_text(*p.a, ".new"));
  std::string got;
  while (got.size() < 12) {
    ASSERT_TRUE(readable(p.b_fd, 1000));
    const std::string piece = recv_text(*p.b, 100);
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
  EXPECT_EQ(POLLIN | POLLRDHUP, p.b->plan_poll(POLLIN | POLLRDHUP, false).ready);
  EXPECT_EQ("last", recv_text(*p.b, 100));
  EXPECT_EQ("", recv_text(*p.b, 100));
  EXPECT_EQ(3, send_text(*p.b, "ack"));  // the other direction lives on
  EXPECT_EQ("ack", recv_text(*p.a, 100));
}

TEST(Stream, ShutdownBeforeTheSwitchIsCompleteStillEndsTheInput) {
  StreamPair p;
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);
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
  ASSERT_TRUE(p.pump_until([&] { return p.a->interest().done; }));
  p.a = std::make_shared<Stream>(&p.host, nullptr, 3, -1, StreamRole::kConnect, FourTuple{},
                                 StreamConfig{}, true);  // the old one ends here
  EXPECT_EQ("goodbye", recv_text(*p.b, 100));
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
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);
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
    return (p.b->plan_poll(POLLIN | POLLRDHUP, false).ready & POLLRDHUP) != 0;
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
  EXPECT_EQ(3, send_text(*p.a, "tcp"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  p.promote();
  EXPECT_EQ(4, send_text(*p.a, "ring"));
  EXPECT_EQ(7, p.b->unread_bytes());
  EXPECT_EQ("tcp", recv_text(*p.b, 100));
  EXPECT_EQ(4, p.b->unread_bytes());
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

}  // namespace
}  // namespace ringroad::test
