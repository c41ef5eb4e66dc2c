// The stream's promises, one behaviour a test, over a real TCP connection and the shm channel.
#include "rsocket-core/stream.h"

#include <sys/ioctl.h>

#include <atomic>
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
  EXPECT_EQ(6, send_text(*p.b, "before"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.promote();  // the token stands behind six bytes that the program has not read
  EXPECT_EQ(5, send_text(*p.b, "after"));
  EXPECT_EQ("bef", recv_text(*p.a, 3));
  EXPECT_EQ("oreafter", recv_text(*p.a, 100));  // in one call, as the kernel would
}

// Whichever thread comes first: the agent waits for other things then, and says so in the log.
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

// No frame may stand behind bytes that a child or another program of the server's will read.
TEST(Stream, AServerAnswersOnlyWhenItHasReadAllThatCameBefore) {
  StreamPair p;
  EXPECT_EQ(6, send_text(*p.a, "before"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_FALSE(p.b->all_read());
  p.start();
  p.channels_up();
  p.b->service();
  p.a->service();
  EXPECT_FALSE(p.b->settled());
  EXPECT_EQ("before", recv_text(*p.b, 100));
  EXPECT_TRUE(p.b->all_read());
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnChannel && p.b->state() == kOnChannel; }));
}

TEST(Stream, AClientIsNotStoppedForLongByAServerThatDoesNotRead) {
  StreamPair p;
  EXPECT_EQ(6, send_text(*p.a, "before"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  p.start();
  p.channels_up();
  p.b->service();
  EXPECT_LE(p.b->interest().deadline_ns, sys::now_ns() + Stream::kReadTimeoutNs);
  ASSERT_TRUE(p.pump_until([&] {
    p.b->deadline_passed();
    return p.a->state() == kOnTcp && p.b->state() == kOnTcp;
  }));
  EXPECT_EQ(6, send_text(*p.a, " after"));
  EXPECT_TRUE(p.b->settled());
  ASSERT_TRUE(p.pump_until([&] { return p.b->unread_bytes() == 12; }));
  EXPECT_EQ("before after", recv_text(*p.b, 100));
}

// As before fork(2): what the kernel has left must be the program's.
TEST(Stream, LeavingInTheMiddleOfTheSwitchLeavesNoFrameInTheKernel) {
  for (int services = 0; services < 8; ++services) {
    StreamPair p;
    p.start();
    p.channels_up();
    for (int i = 0; i < services; ++i) (i % 2 == 0 ? p.b : p.a)->service();
    p.b->leave_channel(Reason::kFork);
    ASSERT_TRUE(p.pump_until([&] { return p.b->settled() && p.a->settled(); })) << services;
    EXPECT_EQ(5, send_text(*p.a, "bytes")) << services;
    ASSERT_TRUE(readable(p.b_fd, 1000));
    char raw[100];
    EXPECT_EQ(5, ::recv(p.b_fd, raw, sizeof raw, 0)) << "past the library, as a child does";
    EXPECT_EQ(0, std::memcmp(raw, "bytes", 5));
  }
}

TEST(Stream, WhoeverDoesNotWaitIsKeptUntilTheSwitchIsOver) {
  StreamPair p;
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);
  EXPECT_EQ(State::kSwitching, p.a->state());
  EXPECT_EQ(0, p.a->plan_poll(POLLOUT, Stream::Arm::kNever).ready & POLLOUT);
  p.b->channel_up(std::move(cb), p.a_nonce);
  p.b->service();
  p.a->service();  // its token is on its way: there is no giving up any more
  std::atomic<bool> sent{false};
  std::thread agent([&] {
    while (!sent) {
      p.b->service();
      p.a->service();
    }
  });
  EXPECT_EQ(1, send_text(*p.a, "x"));
  sent = true;
  agent.join();
  EXPECT_EQ(kOnChannel, p.a->state());
}

TEST(Stream, WhoeverDoesNotWaitGoesOnOverTcpWhereTheOtherEndTakesLong) {
  StreamPair p;
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);
  EXPECT_FALSE(p.b->outlast_switch()) << "which has not begun there";
  EXPECT_TRUE(p.a->outlast_switch());
  EXPECT_EQ(kOnTcp, p.a->state());
  EXPECT_EQ(1, send_text(*p.a, "x"));
  p.b->channel_up(std::move(cb), p.a_nonce);
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == kOnTcp && p.b->unread_bytes() == 1; }));
  EXPECT_EQ("x", recv_text(*p.b, 10));
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

TEST(Stream, AConnectorThatGaveUpManyTimesIsNotLedToAskByUseAlone) {
  StreamPair p;
  for (int attempts = 0; attempts < 8; ++attempts) {
    p.start();
    auto [ca, cb] = make_shm_pair(p.ring_bytes);
    p.a->channel_up(std::move(ca), p.b_nonce);
    p.a->leave_channel(Reason::kTimeout);
    p.b->promotion_refused(Reason::kTimeout, Reason::kNone);
  }
  EXPECT_FALSE(p.a->on_kernel_for_good());
  const int asked = p.host.asked;
  for (int i = 0; i < 10'000; ++i) p.a->note_use(1, 1);
  EXPECT_EQ(asked, p.host.asked) << "before the pause is over";
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

TEST(ForgedStream, AResetBehindItIsStillReported) {
  Forged p(StreamRole::kAccept);
  EXPECT_EQ(4, send_text(*p.a, "last"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("last", recv_text(*p.b, 100));
  p.say(ControlType::kSwitch, 4);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  p.b->pin(Reason::kFork, 0);
  const linger cut{1, 0};
  ASSERT_EQ(0, setsockopt(p.a_fd, SOL_SOCKET, SO_LINGER, &cut, sizeof cut));
  ::close(std::exchange(p.a_fd, -1));
  ASSERT_TRUE(p.pump_until([&] { return !p.b->interest().tcp_in; }));
  EXPECT_FALSE(p.b->on_kernel_for_good()) << "the kernel reports an error once, and it was taken";
  EXPECT_EQ("<ECONNRESET>", recv_text(*p.b, 100));
  EXPECT_EQ("", recv_text(*p.b, 100));
  EXPECT_TRUE(p.b->settled());
}

// What the peer said before it closed may be found only then.
TEST(Stream, ThePeersGiveUpIsHeardAtTheVeryEndOfTheConnection) {
  for (std::uint64_t step = 1; step < 20; ++step) {
    StreamPair p;
    p.start();
    auto [mine, theirs] = make_shm_pair(p.ring_bytes);
    p.a->promotion_refused(Reason::kPolicy, Reason::kNone);
    const Fault late{FaultKind::kDelay, step, 1, Reason::kNone};
    p.b->channel_up(std::make_unique<FaultChannel>(std::move(mine), std::vector<Fault>{late}),
                    p.a_nonce);
    ControlMessage m;
    m.type = static_cast<std::uint8_t>(ControlType::kSwitch);
    ASSERT_TRUE(theirs->send_control(m));
    Channel& peer = *theirs;
    ASSERT_TRUE(p.pump_until([&] { return peer.progress(), peer.take_control(m); }));
    m.type = static_cast<std::uint8_t>(ControlType::kGiveUp);
    ASSERT_TRUE(theirs->send_control(m));
    ::close(std::exchange(p.a_fd, -1));
    ASSERT_TRUE(readable(p.b_fd, 1000));
    ASSERT_TRUE(p.pump_until([&] { return p.b->settled(); })) << step;
    EXPECT_EQ("", recv_text(*p.b, 100)) << step;
  }
}

TEST(ForgedStream, LastBytesThatBeginAsAFrameDoesAreDelivered) {
  Forged p(StreamRole::kAccept);
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  const std::string first(1, static_cast<char>(p.b->nonce()[0]));
  EXPECT_EQ(1, send_text(*p.a, first));
  EXPECT_EQ(0, p.a->shutdown(SHUT_WR));
  std::string got = "<EAGAIN>";
  ASSERT_TRUE(p.pump_until([&] { return (got = recv_text(*p.b, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ(first, got);
  EXPECT_EQ("", recv_text(*p.b, 100));
}

// A peer that holds both the channel and the connection, and asks for an answer when the kernel
// has no room for it.
TEST(Stream, NothingOvertakesTheAnswerToAResume) {
  Forged p(StreamRole::kAccept);
  for (const int fd : {p.a_fd, p.b_fd}) {
    const int small = 4608;
    ASSERT_EQ(0, setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
    ASSERT_EQ(0, setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small));
  }
  std::string sent;
  int refused = 0;
  const auto fill = [&] {
    return p.pump_until([&] {
      ssize_t n = send_text(*p.b, std::string(1000, '.'));
      if (n < 0) n = send_text(*p.b, ".");
      if (n > 0) sent.append(static_cast<std::size_t>(n), '.');
      refused = n > 0 ? 0 : refused + 1;
      return refused > 50;
    });
  };
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  ASSERT_TRUE(fill());
  std::uint8_t token[kTokenBytes];
  encode_token(p.b->nonce(), token);
  ASSERT_EQ(ssize_t{sizeof token}, ::send(p.a_fd, token, sizeof token, 0));
  ASSERT_TRUE(p.hears(ControlType::kSwitch));
  p.b->leave_channel(Reason::kTimeout);
  std::uint8_t resume[kResumeBytes];
  encode_resume(p.b->nonce(), ResumeFrame{0, Reason::kTimeout, true}, resume);
  ASSERT_EQ(ssize_t{sizeof resume}, ::send(p.a_fd, resume, sizeof resume, 0));
  ASSERT_TRUE(p.pump_until([&] { return !p.b->interest().tcp_in; }));
  ASSERT_TRUE(p.b->interest().tcp_out) << "the kernel had room after all";
  std::string got;
  ASSERT_TRUE(p.pump_until([&] {
    char piece[512];
    const ssize_t n = ::recv(p.a_fd, piece, sizeof piece, MSG_DONTWAIT);
    if (n > 0) got.append(piece, static_cast<std::size_t>(n));
    if (sent.back() != '!' && send_text(*p.b, "!") == 1) sent += "!";
    return sent.back() == '!' && got.size() >= sent.size() + kResumeBytes;
  })) << got.size() << " of " << sent.size();
  const std::size_t frozen_at = sent.find('!');
  EXPECT_EQ(sent.substr(0, frozen_at), got.substr(0, frozen_at));
  EXPECT_EQ(sent.substr(frozen_at), got.substr(frozen_at + kResumeBytes));
}

// The connector has written its token, the other end gives up before its own: nothing of the
// exchange reaches either program, and the stream goes on where it was.
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

// The end that was asked has seen the token and frozen, and ends its output before the connector's
// answer: what comes where it froze is the end of the TCP connection, in place of bytes.
TEST(Stream, ShutdownByAnAskedEndThatFrozeAndGaveUpEndsItsDirectionOnly) {
  for (const bool shutdown_first : {true, false}) {
    HalfSwitched p;
    ASSERT_TRUE(readable(p.b_fd, 1000));
    p.b->service();  // freezes
    EXPECT_EQ("<EAGAIN>", recv_text(*p.b, 1));
    if (shutdown_first) {
      ASSERT_EQ(0, p.b->shutdown(SHUT_WR));
    }
    p.b->leave_channel(Reason::kTimeout);
    if (!shutdown_first) {
      ASSERT_EQ(0, p.b->shutdown(SHUT_WR));
    }
    EXPECT_EQ(kOnTcp, p.b->state());
    std::string end = "<EAGAIN>";
    ASSERT_TRUE(p.pump_until([&] { return (end = recv_text(*p.a, 100)) != "<EAGAIN>"; }));
    EXPECT_EQ("", end);
    ASSERT_TRUE(p.pump_until([&] { return send_text(*p.a, "more") == 4; }));
    ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 100) == "more"; }));
  }
}

TEST(Stream, CloseByAnAskedEndThatFrozeIsAnOrderlyEnd) {
  HalfSwitched p;
  ASSERT_TRUE(readable(p.b_fd, 1000));
  p.b->service();  // freezes
  p.b->close_by_program(false);
  ::close(std::exchange(p.b_fd, -1));
  std::string end = "<EAGAIN>";
  ASSERT_TRUE(p.pump_until([&] { return (end = recv_text(*p.a, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ("", end);
  EXPECT_TRUE(p.pump_until([&] { return p.b->interest().done; }));
}

// As a client does that sends all of a long request before it reads any of the reply.
TEST(Stream, AConnectorThatDoesNotReadIsNotKeptFromWriting) {
  for (const std::size_t unread : {30'000U, 150'000U, 400'000U}) {
    StreamPair p;
    std::size_t written = 0;
    for (const std::string piece(10'000, 'r'); written < unread; written += piece.size()) {
      if (send_text(*p.b, piece) != static_cast<ssize_t>(piece.size())) break;
    }
    p.start();
    p.channels_up();
    for (int i = 0; i < 50; ++i) {
      p.a->service();
      p.b->service();
      poll(nullptr, 0, 1);
    }
    for (Stream* s : {p.a.get(), p.b.get()}) {  // stands for the time-out
      if (s->state() == State::kSwitching) s->leave_channel(Reason::kTimeout);
    }
    EXPECT_TRUE(p.pump_until([&] { return send_text(*p.a, "x") == 1; }))
        << unread << " unread, " << state_name(p.a->state());
  }
}

TEST(Stream, CloseWithBytesUnreadFromBeforeAGivenUpSwitchResetsThePeer) {
  StreamPair p;
  EXPECT_EQ(4, send_text(*p.a, "lost"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);
  p.b->channel_up(std::move(cb), p.a_nonce);  // answers
  EXPECT_FALSE(p.a->interest().done);
  EXPECT_TRUE(p.b->close_by_program(false));
  ::close(std::exchange(p.b_fd, -1));
  std::string end = "<EAGAIN>";
  ASSERT_TRUE(p.pump_until([&] { return (end = recv_text(*p.a, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ("<ECONNRESET>", end);
}

TEST(Stream, TheAskedEndNoticesUntrackedBytesBeforeItCommits) {
  StreamPair p;
  p.start();
  p.channels_up();
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

}  // namespace
}  // namespace ringroad::test
