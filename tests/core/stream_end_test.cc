// How a stream ends where the end meets a return to TCP, a death or a lie. Each of these orders was
// found by the model in tests/model.
#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/core/fault_channel.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

bool service_until(const AgentStreamPtr& stream, const auto& done) {
  for (int i = 0; i < 2000; ++i) {
    stream->service();
    if (done()) return true;
    if (i > 20) poll(nullptr, 0, 1);
  }
  return false;
}

void close_stream(AgentStreamPtr& stream, int& fd) {
  stream->close_by_program(false);
  ::close(std::exchange(fd, -1));
}

// What `a` sends from then on is posted once in so many looks, or never. The channel of `b`, which owns it.
Channel& promote_without_credit(StreamPair& p, std::uint32_t looks_per_post = 0) {
  p.start();
  auto [ca, cb] = make_shm_pair(p.ring_bytes);
  const std::vector<Fault> hardly_posted{{FaultKind::kLimitCredit, 1, looks_per_post, Reason::kNone}};
  p.a->channel_up(std::make_unique<FaultChannel>(std::move(ca), hardly_posted), p.b_nonce);
  auto plain = std::make_unique<FaultChannel>(std::move(cb), std::vector<Fault>{});
  Channel& channel = *plain;
  p.b->channel_up(std::move(plain), p.a_nonce);
  EXPECT_TRUE(p.pump_until([&] {
    return p.a->state() == State::kOnChannel && p.b->state() == State::kOnChannel;
  }));
  return channel;
}

// `a` closes, and the kernel is late with the end of the connection: it comes when the descriptor
// that is returned is closed.
int close_with_the_end_late(StreamPair& p) {
  p.promote();
  const int connection = dup(p.a_fd);
  const int elsewhere = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(p.a_fd, dup2(elsewhere, p.a_fd));
  ::close(elsewhere);
  close_stream(p.a, p.a_fd);
  EXPECT_TRUE(p.pump_until([&] { return p.a->state() == State::kClosed; }));
  p.a.reset();
  EXPECT_EQ("", recv_text(*p.b, 10));
  p.b->service();
  return connection;
}

// Whose program closed first keeps the connection in TIME_WAIT.
TEST(StreamEnd, TheEndThatClosesSecondWaitsForTheEndOfTheConnectionNotOfTheChannelOnly) {
  StreamPair p;
  const int connection = close_with_the_end_late(p);
  close_stream(p.b, p.b_fd);
  p.b->service();
  EXPECT_EQ(State::kOnChannel, p.b->state());
  EXPECT_TRUE(p.b->interest().tcp_in);
  ::close(connection);
  EXPECT_TRUE(service_until(p.b, [&] { return p.b->state() == State::kClosed; }));
}

TEST(StreamEnd, TheEndThatClosesSecondDoesNotWaitForLongForAnEndThatAnotherProcessHolds) {
  StreamPair p;
  const int held = close_with_the_end_late(p);
  close_stream(p.b, p.b_fd);
  const std::int64_t deadline = p.b->interest().deadline_ns;
  EXPECT_LE(deadline, sys::now_ns() + 500'000'000);
  EXPECT_TRUE(service_until(p.b, [&] {
    p.b->deadline_passed();
    return p.b->state() == State::kClosed;
  }));
  EXPECT_GE(sys::now_ns(), deadline);
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(0, getsockopt(held, SOL_SOCKET, SO_ERROR, &error, &length));
  EXPECT_EQ(0, error);  // an end, not a reset
  ::close(held);
}

// The FIN's offset says more than has arrived: what is missing was still waiting for credits.
TEST(StreamEnd, AKilledPeersFinIsNoEndBeforeAllItsBytesAreHere) {
  StreamPair p;
  promote_without_credit(p);
  EXPECT_EQ(4, send_text(*p.a, "tail"));
  EXPECT_EQ(0, p.a->shutdown(SHUT_WR));
  ::close(std::exchange(p.a_fd, -1));  // what the kernel does for a killed process
  std::string got;
  ASSERT_TRUE(service_until(p.b, [&] { return (got = recv_text(*p.b, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ("<ECONNRESET>", got);
}

// The agent of a stream that its program has closed. True: it has ended.
bool ends_within(AgentStreamPtr& stream, int looks) {
  for (int i = 0; i < looks && !stream->interest().done; ++i) stream->service();
  const bool done = stream->interest().done;
  if (done) stream.reset();
  return done;
}

enum class Cut { kByOption, kByUnreadBytes, kByOptionAtExit };
class ResetByClose : public ::testing::TestWithParam<Cut> {};

TEST_P(ResetByClose, ComesBehindWhatTheChannelStillCarries) {
  StreamPair p;
  promote_without_credit(p, 16);
  const linger cut{1, 0};
  if (GetParam() == Cut::kByUnreadBytes) {
    EXPECT_EQ(6, send_text(*p.b, "unread"));
  } else {
    setsockopt(p.a_fd, SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
  }
  EXPECT_EQ(6, send_text(*p.a, "before"));
  close_stream(p.a, p.a_fd);
  if (GetParam() == Cut::kByOptionAtExit) p.a->leave_closed(Reason::kExit);
  p.b->service();
  EXPECT_EQ("<EAGAIN>", recv_text(*p.b, 100));  // neither has come yet
  EXPECT_TRUE(ends_within(p.a, 20));
  ASSERT_TRUE(service_until(p.b, [&] { return p.b->state() == State::kReset; }));
  EXPECT_EQ("before", recv_text(*p.b, 100));
  EXPECT_EQ("<ECONNRESET>", recv_text(*p.b, 100));
}

INSTANTIATE_TEST_SUITE_P(StreamEnd, ResetByClose,
                         ::testing::Values(Cut::kByOption, Cut::kByUnreadBytes, Cut::kByOptionAtExit));

TEST(StreamEnd, AResetDoesNotWaitForLongForAPeerThatTakesNothing) {
  StreamPair p;
  promote_without_credit(p);
  const linger cut{1, 0};
  setsockopt(p.a_fd, SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
  EXPECT_EQ(6, send_text(*p.a, "before"));
  close_stream(p.a, p.a_fd);
  p.a->service();
  EXPECT_FALSE(p.a->interest().done);
  const std::int64_t deadline = p.a->interest().deadline_ns;
  EXPECT_LE(deadline, sys::now_ns() + 500'000'000);
  EXPECT_TRUE(service_until(p.a, [&] {
    p.a->deadline_passed();
    return p.a->interest().done;
  }));
  EXPECT_GE(sys::now_ns(), deadline);
  p.a.reset();
  ASSERT_TRUE(service_until(p.b, [&] { return p.b->state() == State::kReset; }));
  EXPECT_EQ("<ECONNRESET>", recv_text(*p.b, 100));
}

// As AKilledPeersFinIsNoEndBeforeAllItsBytesAreHere, but the channel's end is noticed before that of TCP.
TEST(StreamEnd, ADestroyedChannelsFinIsNoEndBeforeAllItsBytesAreHere) {
  StreamPair p;
  Channel& channel = promote_without_credit(p);
  EXPECT_EQ(4, send_text(*p.a, "tail"));
  EXPECT_EQ(0, p.a->shutdown(SHUT_WR));
  p.b->service();
  channel.fail(Reason::kPeerGone);
  p.b->service();
  EXPECT_NE("", recv_text(*p.b, 100));
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kOnTcp; }));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("tail", recv_text(*p.b, 100));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("", recv_text(*p.b, 100));
}

// It is killed while it waits for its bytes to be read, and gone when we say where they should come again.
enum class Known { kNothing, kFin, kEnd };
class LeftBehind : public ::testing::TestWithParam<Known> {};

TEST_P(LeftBehind, ByAPeerThatHadClosedStillReadsEveryByteAndItsEnd) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(7, send_text(*p.a, "goodbye"));
  EXPECT_EQ(0, p.a->shutdown(SHUT_WR));
  if (GetParam() == Known::kFin) p.b->service();
  close_stream(p.a, p.a_fd);
  p.a->service();
  p.a.reset();
  if (GetParam() == Known::kEnd) p.b->service();
  p.b->leave_channel(Reason::kOperator);
  std::string got;
  std::string last;
  ASSERT_TRUE(service_until(p.b, [&] {
    last = recv_text(*p.b, 100);
    if (last == "<EAGAIN>") return false;
    got += last;
    return last.empty() || last[0] == '<';
  }));
  EXPECT_EQ("goodbye", got);
}

INSTANTIATE_TEST_SUITE_P(StreamEnd, LeftBehind,
                         ::testing::Values(Known::kNothing, Known::kFin, Known::kEnd));

// What the reader was given by the end; the error comes last, as "<...>".
std::string all_of(StreamPair& p, const AgentStreamPtr& reader) {
  std::string got;
  for (int i = 0; i < 5000; ++i) {
    reader->service();
    const std::string part = recv_text(*reader, 100);
    if (part == "<EAGAIN>") {
      poll(nullptr, 0, 1);
      continue;
    }
    got += part;
    if (part.empty() || part[0] == '<') break;
  }
  EXPECT_TRUE(p.a == nullptr || p.b == nullptr);
  return got;
}

// The connector has bytes unread from before the switch and gives them back to a peer that is gone by then:
// its program reads the copy.
TEST(StreamEnd, WhatWasGivenBackToADeadPeerIsReadBeforeTheError) {
  StreamPair p;
  EXPECT_EQ(6, send_text(*p.b, "before"));
  p.promote();
  EXPECT_EQ(6, send_text(*p.b, "behind"));
  ASSERT_TRUE(p.pump_until([&] { return readable(p.a_fd, 0); }));
  p.a->leave_channel(Reason::kIdle);
  ASSERT_EQ(State::kResuming, p.a->state());
  ::close(std::exchange(p.b_fd, -1));  // killed
  p.b.reset();
  EXPECT_EQ("beforebehind<ECONNRESET>", all_of(p, p.a));
}

// The same of a peer that had closed: all that it sent is here, and its end.
class LeftUnread : public ::testing::TestWithParam<Known> {
 protected:
  // The connector leaves the channel with `before` unread in its kernel and `behind` in the ring.
  void leave(const std::string& behind) {
    EXPECT_EQ(6, send_text(*p.b, "before"));
    ASSERT_TRUE(readable(p.a_fd, 1000));
    p.promote();
    if (!behind.empty()) {
      EXPECT_EQ(static_cast<ssize_t>(behind.size()), send_text(*p.b, behind));
    }
    EXPECT_EQ(0, p.b->shutdown(SHUT_WR));
    if (GetParam() == Known::kFin) p.a->service();
    close_stream(p.b, p.b_fd);
    p.b->service();
    p.b.reset();
    if (GetParam() == Known::kEnd) p.a->service();
    p.a->leave_channel(Reason::kFork);
    ASSERT_TRUE(service_until(p.a, [&] { return p.a->state() == State::kReset; }));
  }
  StreamPair p;
};

TEST_P(LeftUnread, ByAPeerThatHadClosedIsReadToTheEnd) {
  leave("");
  EXPECT_EQ("before", all_of(p, p.a));
}

TEST_P(LeftUnread, ByAPeerThatHadClosedIsReadBeforeWhatIsInTheRing) {
  leave("behind");
  EXPECT_EQ(12, p.a->unread_bytes());
  EXPECT_EQ("be", recv_text(*p.a, 2));
  EXPECT_EQ("forebehind", all_of(p, p.a));
}

TEST_P(LeftUnread, ByAPeerThatHadClosedIsNotForAProcessThatReadsOnWithoutTheLibrary) {
  leave("");
  EXPECT_FALSE(p.a->kernel_can_serve());
  EXPECT_EQ("before", all_of(p, p.a));
  EXPECT_TRUE(p.a->kernel_can_serve());
}

INSTANTIATE_TEST_SUITE_P(StreamEnd, LeftUnread,
                         ::testing::Values(Known::kNothing, Known::kFin, Known::kEnd));

// A process ends whose peer has not read yet, and the peer is stopped until nobody waits for it any more.
TEST(StreamEnd, AReaderThatWasStoppedAtTheEndOfItsPeerReadsEveryByte) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(7, send_text(*p.a, "goodbye"));
  p.a->close_by_program(false);
  p.a->service();
  p.b->service();
  p.a->leave_closed(Reason::kExit);
  p.a->service();
  ASSERT_EQ(State::kResuming, p.a->state());
  p.a.reset();
  ::close(std::exchange(p.a_fd, -1));
  EXPECT_EQ("goodbye", all_of(p, p.b));
}

TEST(StreamEnd, AStreamWhosePeerHasClosedIsNotTakenFromItsChannel) {
  StreamPair p;
  p.promote();
  EXPECT_EQ(7, send_text(*p.a, "goodbye"));
  EXPECT_TRUE(p.a->leave_idle());
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == State::kOnTcp; }));
  ASSERT_EQ("goodbye", recv_text(*p.b, 100));
  p.promote();
  EXPECT_EQ(7, send_text(*p.a, "goodbye"));
  p.a->close_by_program(false);
  for (int i = 0; i < 20; ++i) {
    p.a->service();
    p.b->service();
  }
  ::close(std::exchange(p.a_fd, -1));
  p.a.reset();
  ASSERT_TRUE(service_until(p.b, [&] { return !p.b->interest().tcp_in; }));
  p.b->keep_on_tcp(Reason::kOperator);
  EXPECT_FALSE(p.b->leave_idle());
  p.b->service();
  EXPECT_EQ(State::kOnChannel, p.b->state());
  EXPECT_EQ("goodbye", all_of(p, p.b));
}

// A stream that leaves its channel cannot send until it is on TCP. If it is closed instead, because its peer
// has gone, a send that waits for that is over.
TEST(StreamEnd, ASendThatWaitsForTheReturnEndsWhenTheStreamIsClosed) {
  StreamPair p;
  p.promote();
  close_stream(p.a, p.a_fd);
  ASSERT_TRUE(service_until(p.a, [&] { return p.a->interest().done; }));
  p.a.reset();
  p.b->service();  // knows of the orderly end
  p.b->leave_channel(Reason::kOperator);
  ASSERT_EQ(State::kResuming, p.b->state());
  p.b->set_nonblocking(false);
  std::packaged_task<int()> send([stream = p.b] {
    return send_text(*stream, "too late") < 0 ? errno : 0;
  });
  std::future<int> result = send.get_future();
  std::thread sender(std::move(send));
  // It may find out by itself, before it sleeps, that nobody is left.
  const auto done = [&] { return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
  while (p.b->waiters().empty() && !done()) std::this_thread::yield();
  EXPECT_TRUE(p.b->close_by_program(true));
  const bool returned = result.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  EXPECT_TRUE(returned);
  if (!returned) return sender.detach();  // it keeps the stream
  sender.join();
  EXPECT_EQ(EPIPE, result.get());
}

TEST(StreamEnd, ASendAfterTheOneThatAClosedPeerDidNotReadFailsAlsoWhileTheStreamReturns) {
  StreamPair p;
  p.promote();
  close_stream(p.a, p.a_fd);
  ASSERT_TRUE(service_until(p.a, [&] { return p.a->interest().done; }));
  p.a.reset();
  p.b->service();
  EXPECT_EQ(1, send_text(*p.b, "x"));
  EXPECT_EQ(-1, send_text(*p.b, "y"));
  EXPECT_EQ(EPIPE, errno);
  p.b->leave_channel(Reason::kOperator);
  ASSERT_EQ(State::kResuming, p.b->state());
  EXPECT_EQ(-1, send_text(*p.b, "z"));
  EXPECT_EQ(EPIPE, errno);
}

// The kernel is not told of it while the stream may yet return to a channel.
TEST(StreamEnd, AShutdownOfReceivingDuringASwitchEndsThatThoughTheSwitchIsGivenUp) {
  StreamPair p;
  p.start();
  p.channels_up();
  ASSERT_EQ(State::kSwitching, p.a->state());
  EXPECT_EQ(0, p.a->shutdown(SHUT_RD));
  p.a->leave_channel(Reason::kOperator);
  ASSERT_EQ(State::kOnTcp, p.a->state());
  EXPECT_EQ("", recv_text(*p.a, 100));
  EXPECT_EQ(4, send_text(*p.b, "more"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  EXPECT_EQ("more", recv_text(*p.a, 100)) << "as the kernel has it";
  EXPECT_EQ("", recv_text(*p.a, 100));
}

// Bytes in a ring that has been left come again over TCP: read there, they are not unread.
TEST(StreamEnd, CloseDuringAReplayDeliversWhatWasSent) {
  constexpr std::uint32_t kLargeRing = 1 << 20;  // more than the kernel takes
  StreamPair p(kLargeRing);
  const int small = 4608;
  setsockopt(p.a_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  p.promote();
  const std::string much(kLargeRing, 'x');
  ASSERT_EQ(static_cast<ssize_t>(kLargeRing), send_text(*p.a, much));
  EXPECT_EQ(5, send_text(*p.b, "reply"));
  p.a->service();  // the reply is in its ring
  EXPECT_EQ(5, p.a->unread_bytes());
  p.b->leave_channel(Reason::kOperator);
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kOnTcp; }));
  std::string reply;
  ASSERT_TRUE(p.pump_until([&] { return (reply = recv_text(*p.a, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ("reply", reply);
  ASSERT_EQ(State::kResuming, p.a->state()) << "its replay must still be under way";
  close_stream(p.a, p.a_fd);
  std::string got;
  std::string last;
  ASSERT_TRUE(p.pump_until([&] {
    while ((last = recv_text(*p.b, 1 << 16))[0] == 'x') got += last;
    if (p.a->state() == State::kClosed) {
      p.a = std::make_shared<AgentStream>(&p.host, nullptr, 3, -1, Role::kConnect, FourTuple{},
                                     StreamConfig{}, true);  // the old one ends here
    }
    return last != "<EAGAIN>";
  }));
  EXPECT_EQ("", last);
  EXPECT_EQ(much.size(), got.size());
}

// Nobody but the peer knows how much was to come behind its RESUME.
TEST(StreamEnd, APeerThatIsKilledDuringItsReplayHasNotEndedItsOutput) {
  constexpr std::uint32_t kLargeRing = 1 << 20;
  StreamPair p(kLargeRing);
  const int small = 4608;
  setsockopt(p.a_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  p.promote();
  const std::string much(kLargeRing, 'x');
  ASSERT_EQ(static_cast<ssize_t>(kLargeRing), send_text(*p.a, much));
  p.b->leave_channel(Reason::kOperator);
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kOnTcp; }));
  ASSERT_EQ(State::kResuming, p.a->state()) << "its replay must still be under way";
  ::close(std::exchange(p.a_fd, -1));  // what the kernel does for a killed process
  std::string last;
  ASSERT_TRUE(service_until(p.b, [&] {
    while ((last = recv_text(*p.b, 1 << 16))[0] == 'x') continue;
    return last != "<EAGAIN>";
  }));
  EXPECT_EQ("<ECONNRESET>", last);
}

TEST(StreamEnd, TheProgramsLingerIsItsOwnAgainAfterTheReturn) {
  StreamPair p;
  p.promote();
  const linger chosen{1, 7};
  ASSERT_EQ(0, setsockopt(p.a_fd, SOL_SOCKET, SO_LINGER, &chosen, sizeof chosen));
  p.b->leave_channel(Reason::kOperator);
  ASSERT_TRUE(p.pump_until([&] {
    return p.a->state() == State::kOnTcp && p.b->state() == State::kOnTcp;
  }));
  linger now{};
  socklen_t length = sizeof now;
  ASSERT_EQ(0, getsockopt(p.a_fd, SOL_SOCKET, SO_LINGER, &now, &length));
  EXPECT_EQ(1, now.l_onoff);
  EXPECT_EQ(7, now.l_linger);
  ASSERT_EQ(0, getsockopt(p.b_fd, SOL_SOCKET, SO_LINGER, &now, &length));
  EXPECT_EQ(0, now.l_onoff);
}

// Only a peer that has seen our token has anything to end.
TEST(ForgedStream, AFinBeforeTheTokenEndsNothingNorDoesItLater) {
  StreamPair p;
  p.start();
  auto [mine, forger] = make_shm_pair(p.ring_bytes);
  p.a->promotion_refused(Reason::kBusy, Reason::kNone);  // knows nothing of it
  p.b->channel_up(std::move(mine), p.a_nonce);
  ControlMessage fin;
  fin.type = static_cast<std::uint8_t>(ControlType::kFin);
  ASSERT_TRUE(forger->send_control(fin));
  forger.reset();
  p.b->service();
  p.b->leave_channel(Reason::kTimeout);
  ASSERT_EQ(State::kOnTcp, p.b->state());
  p.promote();
  EXPECT_EQ("<EAGAIN>", recv_text(*p.b, 100));
  EXPECT_EQ(5, send_text(*p.a, "hello"));
  EXPECT_EQ("hello", recv_text(*p.b, 100));
  EXPECT_EQ(5, send_text(*p.b, "reply"));
  EXPECT_EQ("reply", recv_text(*p.a, 100));
}

}  // namespace
}  // namespace ringroad::test
