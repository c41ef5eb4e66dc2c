// How a stream comes from TCP to its channel: what was under way before, and a change of mind midway.
#include "rsocket-core/stream/agent_stream.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "rsocket-core/base/sys.h"
#include "tests/core/fault_channel.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

TEST(StreamSwitch, DeliversBytesSentBeforeTheSwitchFirst) {
  StreamPair p;
  EXPECT_EQ(6, send_text(*p.b, "before"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.promote();  // the token stands behind six bytes that the program has not read
  EXPECT_EQ(5, send_text(*p.b, "after"));
  EXPECT_EQ("bef", recv_text(*p.a, 3));
  EXPECT_EQ("oreafter", recv_text(*p.a, 100));  // in one call, as the kernel would
}

// No frame may stand behind bytes that a child or another program of the server's will read.
TEST(StreamSwitch, AServerAnswersOnlyWhenItHasReadAllThatCameBefore) {
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

TEST(StreamSwitch, AClientIsNotStoppedForLongByAServerThatDoesNotRead) {
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

// A peer from before bytes were given back resets the connection when it reads of some.
struct OlderPeer : StreamPair {
  void channels_up() {
    auto [ca, cb] = make_shm_pair(ring_bytes);
    ASSERT_NE(nullptr, ca);
    ca->set_agreement(Agreement{});
    cb->set_agreement(Agreement{});
    a->channel_up(std::move(ca), b_nonce);
    b->channel_up(std::move(cb), a_nonce);
  }
};

TEST(StreamSwitch, AClientWhoseServerCannotTakeBytesBackAnswersWhenItHasReadAllThatCameBefore) {
  OlderPeer p;
  EXPECT_EQ(6, send_text(*p.b, "before"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.start();
  p.channels_up();
  for (int i = 0; i < 100; ++i) {
    p.b->service();
    p.a->service();
  }
  EXPECT_EQ(State::kSwitching, p.a->state()) << "no token may stand behind what is unread";
  EXPECT_EQ("bef", recv_text(*p.a, 3));
  p.a->service();
  EXPECT_EQ(State::kSwitching, p.a->state());
  EXPECT_EQ("ore", recv_text(*p.a, 100));
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnChannel && p.b->state() == kOnChannel; }));
  EXPECT_EQ(5, send_text(*p.b, "after"));
  EXPECT_EQ("after", recv_text(*p.a, 100));
}

TEST(StreamSwitch, AClientThatDoesNotReadStaysOnTcpWhereItsServerCannotTakeBytesBack) {
  OlderPeer p;
  EXPECT_EQ(6, send_text(*p.b, "before"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.start();
  p.channels_up();
  for (int i = 0; i < 100; ++i) {
    p.b->service();
    p.a->service();
  }
  EXPECT_LE(p.a->interest().deadline_ns, sys::now_ns() + Stream::kReadTimeoutNs);
  ASSERT_TRUE(p.pump_until([&] {
    p.a->deadline_passed();
    return p.a->state() == kOnTcp && p.b->state() == kOnTcp;
  }));
  EXPECT_EQ(6, send_text(*p.b, " after"));
  EXPECT_EQ(4, send_text(*p.a, "back"));
  ASSERT_TRUE(p.pump_until([&] { return p.a->settled() && p.b->settled(); }));
  ASSERT_TRUE(p.pump_until([&] { return p.a->unread_bytes() == 12; }));
  char raw[100];
  EXPECT_EQ(12, ::recv(p.a_fd, raw, sizeof raw, 0)) << "past the library, as a child does";
  EXPECT_EQ(0, std::memcmp(raw, "before after", 12));
  EXPECT_EQ("back", recv_text(*p.b, 100));
}

// A thread with a plan for the kernel, which asks it when the carrier has changed: read(2) would find
// nothing.
TEST(StreamSwitch, AFrameThatIsInTheKernelIsNothingToRead) {
  StreamPair p;
  p.start();
  p.channels_up();
  ASSERT_TRUE(p.a->plan_poll(POLLIN, Stream::Arm::kNever).use_kernel);
  EXPECT_EQ(p.a->ask_kernel(p.a_fd, POLLIN), 0);
  // The other end's token comes when this one has promised not to read past its place.
  for (int i = 0; i < 2000 && !readable(p.a_fd, 1); ++i) {
    p.b->service();
    if (!readable(p.a_fd, 1)) p.a->service();
  }
  ASSERT_TRUE(readable(p.a_fd, 1));
  EXPECT_EQ(p.a->ask_kernel(p.a_fd, POLLIN | POLLRDHUP), 0);
  EXPECT_EQ(p.a->ask_kernel(p.a_fd, POLLIN | POLLOUT), POLLOUT);
  EXPECT_TRUE(p.pump_until([&] { return p.a->state() == State::kOnChannel; }));
}

// As before fork(2): what the kernel has left must be the program's.
TEST(StreamSwitch, LeavingInTheMiddleOfTheSwitchLeavesNoFrameInTheKernel) {
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

TEST(StreamSwitch, ACallThatDoesNotWaitIsKeptUntilTheSwitchIsOver) {
  StreamPair p;
  auto cb = p.a_channel_up();
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

TEST(StreamSwitch, ACallThatDoesNotWaitGoesOnOverTcpWhereTheOtherEndTakesLong) {
  StreamPair p;
  auto cb = p.a_channel_up();
  EXPECT_FALSE(p.b->outlast_switch(sys::now_ns())) << "which has not begun there";
  EXPECT_TRUE(p.a->outlast_switch(sys::now_ns()));
  EXPECT_EQ(kOnTcp, p.a->state());
  EXPECT_EQ(1, send_text(*p.a, "x"));
  p.b->channel_up(std::move(cb), p.a_nonce);
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == kOnTcp && p.b->unread_bytes() == 1; }));
  EXPECT_EQ("x", recv_text(*p.b, 10));
}

TEST(StreamSwitch, GivesUpAfterTheTimeoutAndGoesOnWhereItFroze) {
  StreamPair p;
  EXPECT_EQ(3, send_text(*p.a, "one"));
  auto cb = p.a_channel_up();  // the peer never comes
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

TEST(StreamSwitch, AConnectorThatGaveUpManyTimesIsNotLedToAskByUseAlone) {
  StreamPair p;
  for (int attempts = 0; attempts < 8; ++attempts) {
    auto cb = p.a_channel_up();
    p.a->leave_channel(Reason::kTimeout);
    p.b->promotion_refused(Reason::kTimeout, Reason::kNone);
  }
  EXPECT_FALSE(p.a->on_kernel_for_good());
  const int asked = p.host.asked;
  for (int i = 0; i < 10'000; ++i) p.a->note_use(1, 1);
  EXPECT_EQ(asked, p.host.asked) << "before the pause is over";
}

TEST(StreamSwitch, RefusesToStartWhenSomethingElseHasWrittenTheSocket) {
  StreamPair p;
  ASSERT_EQ(1, ::send(p.a_fd, "?", 1, 0));
  Nonce nonce;
  ASSERT_TRUE(make_nonce(nonce));
  EXPECT_EQ(Reason::kUntrackedIo, p.a->promotion_started(nonce));
}

TEST(StreamSwitch, RefusesToStartWhenSomethingElseHasReadTheSocket) {
  StreamPair p;
  EXPECT_EQ(2, send_text(*p.a, "ab"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  char c;
  ASSERT_EQ(1, ::recv(p.b_fd, &c, 1, 0));
  Nonce nonce;
  ASSERT_TRUE(make_nonce(nonce));
  EXPECT_EQ(Reason::kUntrackedIo, p.b->promotion_started(nonce));
}

TEST(StreamSwitch, NoticesUntrackedBytesBetweenRequestAndSwitch) {
  StreamPair p;
  p.start();
  ASSERT_EQ(1, ::send(p.a_fd, "?", 1, 0));
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  p.a->channel_up(std::move(ca), p.b_nonce);
  EXPECT_EQ(kOnTcp, p.a->state());
  EXPECT_EQ(Reason::kUntrackedIo, p.a->reason());
  EXPECT_TRUE(p.a->on_kernel_for_good());
}

// What the peer said before it closed may be found only then.
TEST(StreamSwitch, ThePeersGiveUpIsHeardAtTheVeryEndOfTheConnection) {
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

// The connector has written its token, the other end gives up before its own: nothing of the
// exchange reaches either program, and the stream goes on where it was.
TEST(StreamSwitch, AConnectorThatCommittedReturnsWhenTheOtherEndGivesUp) {
  for (const bool channel_lives : {true, false}) {
    StreamPair p;
    EXPECT_EQ(6, send_text(*p.a, "before"));
    auto cb = p.a_channel_up();
    p.b->channel_up(std::move(cb), p.a_nonce);  // answers
    p.a->service();                             // writes its token
    ASSERT_EQ(State::kSwitching, p.b->state());
    EXPECT_EQ(2, send_text(*p.b, "hi"));  // the end that was asked has not frozen
    if (channel_lives) {
      p.b->leave_channel(Reason::kEpoll);
    } else {
      p.b->demote_for_good(Reason::kEpoll, 0);
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

TEST(StreamSwitch, CloseByTheAskedEndMidwayIsAnOrderlyEnd) {
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

TEST(StreamSwitch, ShutdownByTheAskedEndMidwayEndsItsDirectionOnly) {
  HalfSwitched p;
  EXPECT_EQ(0, p.b->shutdown(SHUT_WR));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.a, 100) == ""; }));
  ASSERT_TRUE(p.pump_until([&] { return send_text(*p.a, "more") == 4; }));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 100) == "more"; }));
}

// The end that was asked has seen the token and frozen, and ends its output before the connector's
// answer: what comes where it froze is the end of the TCP connection, in place of bytes.
TEST(StreamSwitch, ShutdownByAnAskedEndThatFrozeAndGaveUpEndsItsDirectionOnly) {
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

TEST(StreamSwitch, CloseByAnAskedEndThatFrozeIsAnOrderlyEnd) {
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
TEST(StreamSwitch, AConnectorThatDoesNotReadIsNotKeptFromWriting) {
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
    for (AgentStream* s : {p.a.get(), p.b.get()}) {  // stands for the time-out
      if (s->state() == State::kSwitching) s->leave_channel(Reason::kTimeout);
    }
    EXPECT_TRUE(p.pump_until([&] { return send_text(*p.a, "x") == 1; }))
        << unread << " unread, " << state_name(p.a->state());
  }
}

TEST(StreamSwitch, CloseWithBytesUnreadFromBeforeAGivenUpSwitchResetsThePeer) {
  StreamPair p;
  EXPECT_EQ(4, send_text(*p.a, "lost"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  auto cb = p.a_channel_up();
  p.b->channel_up(std::move(cb), p.a_nonce);  // answers
  EXPECT_FALSE(p.a->interest().done);
  EXPECT_TRUE(p.b->close_by_program(false));
  ::close(std::exchange(p.b_fd, -1));
  std::string end = "<EAGAIN>";
  ASSERT_TRUE(p.pump_until([&] { return (end = recv_text(*p.a, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ("<ECONNRESET>", end);
}

TEST(StreamSwitch, TheAskedEndNoticesUntrackedBytesBeforeItCommits) {
  StreamPair p;
  p.start();
  p.channels_up();
  ASSERT_EQ(1, ::send(p.b_fd, "?", 1, 0));
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnTcp && p.b->state() == kOnTcp; }));
  EXPECT_EQ(Reason::kUntrackedIo, p.b->reason());
  EXPECT_EQ("?", recv_text(*p.a, 100));
}

TEST(StreamSwitch, ResetsWhenBytesFollowTheTokenThatAreNoFrame) {
  StreamPair p;
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  ca->set_agreement(Agreement{});  // as with a build that knows no other way: stream_past_test.cc
  cb->set_agreement(Agreement{});
  p.a->channel_up(std::move(ca), p.b_nonce);
  p.b->channel_up(std::move(cb), p.a_nonce);
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == State::kOnChannel; }));
  ASSERT_EQ(32, ::send(p.b_fd, "behind the library's back, 32 byt", 32, 0));
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == State::kReset; }));
  EXPECT_EQ(Reason::kForged, p.a->reason());
  EXPECT_EQ("<ECONNRESET>", recv_text(*p.a, 10));
  EXPECT_EQ("", recv_text(*p.a, 10));
  EXPECT_EQ(-1, send_text(*p.a, "x"));
  EXPECT_EQ(EPIPE, errno);
}

}  // namespace
}  // namespace ringroad::test
