// What reaches the kernel past the library: bytes that a program moves on the TCP socket itself, and waits
// that no call of the library's has seen.
#include "rsocket-core/base/sys.h"
#include "tests/core/fault_channel.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

std::string raw_recv(int fd, std::size_t n) {
  std::string buffer(n, '\0');
  const ssize_t got = ::recv(fd, buffer.data(), n, MSG_DONTWAIT);
  if (got < 0) return "<" + std::string(strerrorname_np(errno)) + ">";
  buffer.resize(static_cast<std::size_t>(got));
  return buffer;
}

void raw_send(int fd, const std::string& bytes) {
  ASSERT_EQ(static_cast<ssize_t>(bytes.size()), ::send(fd, bytes.data(), bytes.size(), 0));
}

bool both_on_tcp(const StreamPair& p) {
  return p.a->state() == State::kOnTcp && p.b->state() == State::kOnTcp;
}

// As the agent, with its deadlines.
template <typename Done>
bool pump_with_deadlines(StreamPair& p, Done done) {
  return p.pump_until([&] {
    const std::int64_t now = sys::now_ns();
    for (AgentStream* const s : {p.a.get(), p.b.get()}) {
      if (s->interest().deadline_ns <= now) s->deadline_passed();
    }
    return done();
  });
}

class StreamPast : public testing::TestWithParam<bool> {
 protected:
  StreamPast() : past(GetParam() ? p.a : p.b), other(GetParam() ? p.b : p.a) { p.promote(); }
  int past_fd() const { return GetParam() ? p.a_fd : p.b_fd; }

  StreamPair p;
  AgentStreamPtr& past;   // whose program goes past its library
  AgentStreamPtr& other;
};

TEST_P(StreamPast, BytesThatAreWrittenOnTcpArriveAndSoDoesTheAnswerThere) {
  raw_send(past_fd(), "written on TCP");
  std::string got;
  ASSERT_TRUE(p.pump_until([&] { return (got = recv_text(*other, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ("written on TCP", got);
  EXPECT_EQ(6, send_text(*other, "answer"));
  ASSERT_TRUE(readable(past_fd(), 1000));
  EXPECT_EQ("answer", raw_recv(past_fd(), 100)) << "and nothing else: no frame";
  ASSERT_TRUE(p.pump_until([&] { return both_on_tcp(p); }));
  EXPECT_EQ(Reason::kUntrackedIo, past->reason());
  EXPECT_EQ(Reason::kUntrackedIo, other->reason());
  EXPECT_EQ(5, send_text(*past, "later"));
  ASSERT_TRUE(readable(other->fd(), 1000));
  EXPECT_EQ("later", recv_text(*other, 100));
}

TEST_P(StreamPast, BytesThatAreWrittenOnTcpComeBehindThoseOfTheRing) {
  EXPECT_EQ(6, send_text(*past, "first "));
  raw_send(past_fd(), "second ");
  for (int i = 0; i < 30; ++i) {
    other->service();
    poll(nullptr, 0, 1);
  }
  EXPECT_EQ(State::kOnChannel, other->state()) << "until its program has read what is there";
  EXPECT_EQ("first ", recv_text(*other, 100));
  ASSERT_TRUE(p.pump_until([&] { return other->state() == State::kOnTcp; }));
  // It does not know yet, and writes to the ring.
  EXPECT_EQ(5, send_text(*past, "third"));
  std::string got;
  ASSERT_TRUE(p.pump_until([&] {
    const std::string more = recv_text(*other, 100);
    if (more != "<EAGAIN>") got += more;
    return got.size() >= 12;
  }));
  EXPECT_EQ("second third", got);
}

TEST_P(StreamPast, AByteThatBeginsAsAFrameDoesArrives) {
  const char first = static_cast<char>((GetParam() ? p.b_nonce : p.a_nonce)[0]);
  raw_send(past_fd(), std::string(1, first));
  std::string got;
  ASSERT_TRUE(p.pump_until([&] { return (got = recv_text(*other, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ(std::string(1, first), got);
}

TEST_P(StreamPast, AnEndBehindThemIsTheEnd) {
  raw_send(past_fd(), "the last");
  ASSERT_EQ(0, past->shutdown(SHUT_WR));
  std::string got;
  ASSERT_TRUE(p.pump_until([&] {
    const std::string more = recv_text(*other, 100);
    if (more != "<EAGAIN>") got += more;
    return more.empty();
  }));
  EXPECT_EQ("the last", got);
}

TEST_P(StreamPast, AnEndComesAlsoWhereTheOtherProgramHasTakenThemPastItsLibrary) {
  raw_send(past_fd(), "the last");
  ASSERT_TRUE(readable(other->fd(), 1000));
  EXPECT_EQ("the last", raw_recv(other->fd(), 100));
  ASSERT_EQ(0, past->shutdown(SHUT_WR));
  std::string got;
  EXPECT_TRUE(pump_with_deadlines(p, [&] { return (got = recv_text(*other, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ("", got) << "the end";
}

TEST_P(StreamPast, WhatItsProgramNeverReadsOfTheRingComesOverTcp) {
  EXPECT_EQ(6, send_text(*other, "pushed"));
  raw_send(past_fd(), "request");
  std::string got;
  ASSERT_TRUE(p.pump_until([&] { return (got = recv_text(*other, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ("request", got);
  ASSERT_TRUE(readable(past_fd(), 1000));
  EXPECT_EQ("pushed", raw_recv(past_fd(), 100));
}

TEST_P(StreamPast, BothEndsMayFindSuchBytesAtOnce) {
  raw_send(p.a_fd, "from a");
  raw_send(p.b_fd, "from b");
  ASSERT_TRUE(p.pump_until([&] { return both_on_tcp(p); }));
  EXPECT_EQ("from b", recv_text(*p.a, 100));
  EXPECT_EQ("from a", recv_text(*p.b, 100));
}

INSTANTIATE_TEST_SUITE_P(Ends, StreamPast, testing::Bool(), [](const testing::TestParamInfo<bool>& test) {
  return test.param ? "Connector" : "Listener";
});

// As over RDMA: what the program of the other end has read is known by its own word alone.
class StreamFar : public testing::TestWithParam<bool> {
 protected:
  StreamFar() : past(GetParam() ? p.a : p.b), other(GetParam() ? p.b : p.a) { Stream::note_goes_past(false); }
  ~StreamFar() override { Stream::note_goes_past(false); }

  // `script`: what goes wrong at the other end.
  void promote(std::vector<Fault> script = {}) {
    p.start();
    auto [ca, cb] = make_shm_pair(p.ring_bytes);
    p.a->channel_up(far(std::move(ca), GetParam() ? std::vector<Fault>{} : script), p.b_nonce);
    p.b->channel_up(far(std::move(cb), GetParam() ? script : std::vector<Fault>{}), p.a_nonce);
    ASSERT_TRUE(p.pump_until(
        [&] { return p.a->state() == State::kOnChannel && p.b->state() == State::kOnChannel; }));
  }
  int past_fd() const { return GetParam() ? p.a_fd : p.b_fd; }
  // What the other end's program reads until it has so much, or there is no more.
  std::string read_by_other(std::size_t n) {
    std::string got;
    p.pump_until([&] {
      const std::string more = recv_text(*other, n);
      if (more[0] != '<') got += more;
      return got.size() >= n || more.empty() || more == "<ECONNRESET>";
    });
    return got;
  }

  StreamPair p;
  AgentStreamPtr& past;   // whose program goes past its library
  AgentStreamPtr& other;

 private:
  static std::unique_ptr<Channel> far(std::unique_ptr<Channel> inner, std::vector<Fault> script) {
    auto channel = std::make_unique<FaultChannel>(std::move(inner), std::move(script));
    channel->set_agreement(agreement_with(Hello{}));
    return channel;
  }
};

TEST_P(StreamFar, BytesThatAreWrittenOnTcpArriveAndSoDoesTheAnswerThere) {
  promote();
  raw_send(past_fd(), "written on TCP");
  EXPECT_EQ("written on TCP", read_by_other(14));
  ASSERT_TRUE(p.pump_until([&] { return both_on_tcp(p); }));
  EXPECT_EQ(Reason::kUntrackedIo, past->reason());
  EXPECT_EQ(Reason::kUntrackedIo, other->reason());
  EXPECT_EQ(6, send_text(*other, "answer"));
  ASSERT_TRUE(readable(past_fd(), 1000));
  EXPECT_EQ("answer", raw_recv(past_fd(), 100)) << "and nothing else: no frame";
}

TEST_P(StreamFar, BytesThatAreWrittenOnTcpComeBehindThoseOfTheRingAndInFrontOfTheEnd) {
  promote();
  EXPECT_EQ(6, send_text(*past, "first "));
  raw_send(past_fd(), "second");
  ASSERT_EQ(0, past->shutdown(SHUT_WR));
  EXPECT_EQ("first second", read_by_other(100));
}

TEST_P(StreamFar, AProgramThatClosesBehindThemIsNotGoneBeforeTheyAreFound) {
  promote();
  EXPECT_EQ(6, send_text(*past, "first "));
  raw_send(past_fd(), "second");
  int& fd = GetParam() ? p.a_fd : p.b_fd;
  past->close_by_program(false);
  ::close(std::exchange(fd, -1));
  EXPECT_EQ("first second", read_by_other(100));
}

TEST_P(StreamFar, WhatItsProgramNeverReadsOfTheRingComesOverTcp) {
  promote();
  EXPECT_EQ(6, send_text(*other, "pushed"));
  raw_send(past_fd(), "request");
  EXPECT_EQ("request", read_by_other(7));
  ASSERT_TRUE(p.pump_until([&] { return both_on_tcp(p); }));
  ASSERT_TRUE(readable(past_fd(), 1000));
  EXPECT_EQ("pushed", raw_recv(past_fd(), 100));
}

TEST_P(StreamFar, BothEndsMayFindSuchBytesAtOnce) {
  promote();
  raw_send(p.a_fd, "from a");
  raw_send(p.b_fd, "from b");
  ASSERT_TRUE(p.pump_until([&] { return both_on_tcp(p); }));
  EXPECT_EQ("from b", recv_text(*p.a, 100));
  EXPECT_EQ("from a", recv_text(*p.b, 100));
}

TEST_P(StreamFar, BytesThatMayHaveOvertakenThoseOfTheRingAreNotGuessed) {
  constexpr std::uint32_t kForLong = 1'000'000;
  constexpr std::uint64_t kStepsOfAPromotion = 200;
  promote({{FaultKind::kDelay, kStepsOfAPromotion, kForLong}});
  for (std::uint64_t i = 0; i < kStepsOfAPromotion; ++i) other->service();
  EXPECT_EQ(6, send_text(*past, "first "));
  raw_send(past_fd(), "second");
  EXPECT_EQ("first ", read_by_other(12)) << "and then a reset, not the wrong order";
  EXPECT_EQ(State::kReset, past->state());
  EXPECT_EQ(State::kReset, other->state());
}

TEST_P(StreamFar, WhatAThreadSurelyWaitsForPastTheLibraryComesOverTcp) {
  p.host.sees = true;
  p.a->note_awaited();
  p.b->note_awaited();
  promote();
  EXPECT_EQ(6, send_text(*past, "unread"));
  EXPECT_EQ(5, send_text(*other, "hello"));
  p.host.waits = true;
  ASSERT_TRUE(pump_with_deadlines(p, [&] { return both_on_tcp(p); }));
  ASSERT_TRUE(readable(past_fd(), 1000));
  EXPECT_EQ("hello", raw_recv(past_fd(), 100)) << "no frame";
  EXPECT_EQ("unread", read_by_other(6));
}

INSTANTIATE_TEST_SUITE_P(Ends, StreamFar, testing::Bool(), [](const testing::TestParamInfo<bool>& test) {
  return test.param ? "Connector" : "Listener";
});

class StreamUnseen : public testing::Test {
 protected:
  StreamUnseen() { Stream::note_goes_past(false); }
  ~StreamUnseen() override { Stream::note_goes_past(false); }
};

TEST_F(StreamUnseen, BytesThatNobodyWasSeenToWaitForComeOverTcp) {
  StreamPair p;
  p.host.sees = true;
  p.promote();
  p.b->note_awaited();
  p.host.waits = true;
  EXPECT_EQ(5, send_text(*p.b, "hello"));
  ASSERT_TRUE(pump_with_deadlines(p, [&] { return both_on_tcp(p); }));
  EXPECT_EQ(Reason::kUnseenWait, p.a->reason());
  ASSERT_TRUE(readable(p.a_fd, 1000));
  EXPECT_EQ("hello", raw_recv(p.a_fd, 100)) << "no frame, for any reader";
  // And not again before such a call was seen.
  EXPECT_EQ(Reason::kUntrackedIo, p.a->may_promote());
}

TEST_F(StreamUnseen, AStreamThatIsWaitedForOtherwiseIsNotPromotedBeforeACallIsSeen) {
  StreamPair p;
  p.host.sees = p.host.waits = true;
  Nonce nonce{};
  EXPECT_EQ(Reason::kUnseenWait, p.a->promotion_started(nonce));
  p.host.waits = false;
  EXPECT_EQ(Reason::kUnseenWait, p.b->promotion_started(nonce)) << "which the process may do with each";
  p.a->note_awaited();
  p.b->note_awaited();
  p.promote();
}

TEST_F(StreamUnseen, ACallThatBeginsDuringTheLookIsTheOneThatIsFound) {
  StreamPair p;
  p.host.sees = p.host.waits = true;
  p.host.meanwhile = [&] { p.a->note_awaited(); };
  Nonce nonce{};
  EXPECT_EQ(Reason::kNone, p.a->promotion_started(nonce));
  p.host.waits = false;
  EXPECT_EQ(Reason::kNone, p.b->promotion_started(nonce)) << "and nothing is held against the process";
}

TEST_F(StreamUnseen, OneWhoseProgramIsMerelyLateStaysOnItsChannel) {
  StreamPair p;
  p.host.sees = true;
  p.promote();
  p.b->note_awaited();
  EXPECT_EQ(5, send_text(*p.b, "hello"));
  const std::int64_t until = sys::now_ns() + 3 * Stream::kUnseenNs;
  pump_with_deadlines(p, [&] { return sys::now_ns() >= until; });
  EXPECT_EQ(State::kOnChannel, p.a->state());
  EXPECT_EQ("hello", recv_text(*p.a, 100));
}

// Calls that wait have been seen at both ends, and now a thread merely receives past the library.
class StreamSeen : public StreamUnseen {
 protected:
  StreamSeen() {
    p.host.sees = true;
    p.a->note_awaited();
    p.b->note_awaited();
    p.promote();
  }
  void pump_for(std::int64_t ns) {
    const std::int64_t until = sys::now_ns() + ns;
    while (sys::now_ns() < until) pump_with_deadlines(p, [&] { return sys::now_ns() >= until; });
  }
  StreamPair p;
};

TEST_F(StreamSeen, WhatAThreadSurelyWaitsForPastTheLibraryComesOverTcpForGood) {
  p.host.waits = true;
  EXPECT_EQ(6, send_text(*p.a, "unread"));
  EXPECT_EQ(5, send_text(*p.b, "hello"));
  ASSERT_TRUE(pump_with_deadlines(p, [&] { return both_on_tcp(p); }));
  EXPECT_EQ(Reason::kUnseenWait, p.a->reason());
  ASSERT_TRUE(readable(p.a_fd, 1000));
  EXPECT_EQ("hello", raw_recv(p.a_fd, 100)) << "no frame";
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("unread", raw_recv(p.b_fd, 100)) << "nor one here, where as much was unread";
  p.a->note_awaited();
  EXPECT_EQ(Reason::kUnseenWait, p.a->may_promote());
}

TEST_F(StreamSeen, OneThatIsReadStaysAndSoDoesOneWhoseProgramIsLate) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(5, send_text(*p.b, "hello"));
    pump_for(3 * Stream::kUnseenNs);
    EXPECT_EQ("hello", recv_text(*p.a, 100));
    p.host.waits = true;  // of which nobody asks where all is read
    pump_for(Stream::kSeenPauseNs);
    p.host.waits = false;
  }
  EXPECT_EQ(State::kOnChannel, p.a->state());
  EXPECT_EQ(State::kOnChannel, p.b->state());
}

TEST_F(StreamSeen, WhatIsReadOnInTheRingMeanwhileDoesNotComeTwice) {
  p.host.waits = true;
  EXPECT_EQ(10, send_text(*p.a, "0123456789"));
  EXPECT_EQ(5, send_text(*p.b, "hello"));
  for (int i = 0; i < 2000 && p.a->state() == State::kOnChannel; ++i) {
    p.a->service();
    if (p.a->interest().deadline_ns <= sys::now_ns()) p.a->deadline_passed();
    poll(nullptr, 0, 1);
  }
  EXPECT_EQ("0123", recv_text(*p.b, 4)) << "before it hears of it";
  p.host.waits = false;
  ASSERT_TRUE(p.pump_until([&] { return both_on_tcp(p); }));
  EXPECT_EQ("456789", recv_text(*p.b, 100));
  EXPECT_EQ(5, send_text(*p.a, "after"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("after", recv_text(*p.b, 100));
}

}  // namespace
}  // namespace ringroad::test
