// What was told readable stays readable while its stream returns to TCP, though it comes again there.
#include <algorithm>
#include <string>
#include <utility>

#include "tests/core/stream_both_ends.h"

namespace ringroad::test {
namespace {
short ready_now(Stream& s) {
  return s.plan_poll(POLLIN | POLLRDHUP, Stream::Arm::kNever).ready;
}

TEST(StreamReturn, WhatIsUnreadIsReadAtOnceAndOnce) {
  for (const bool leaves_itself : {true, false}) {
    for (std::size_t first : {std::size_t{0}, std::size_t{2}, std::size_t{6}}) {
      StreamPair p;
      p.promote();
      ASSERT_EQ(6, send_text(*p.a, "unread"));
      ASSERT_EQ(POLLIN, ready_now(*p.b));
      if (leaves_itself) {
        p.b->leave_channel(Reason::kOperator);
      } else {
        p.a->leave_channel(Reason::kOperator);
        ASSERT_TRUE(p.pump_until([&] { return p.b->state() != State::kOnChannel; }));
      }
      EXPECT_EQ(POLLIN, ready_now(*p.b));
      EXPECT_EQ(6, p.b->unread_bytes());
      EXPECT_EQ("unread", recv_text(*p.b, 100, MSG_PEEK));
      std::string got;
      while (got.size() < first) got += recv_text(*p.b, first - got.size());
      EXPECT_EQ(std::string("unread").substr(0, first), got);
      ASSERT_TRUE(p.pump_until([&] { return both(p, kOnTcp); }));
      EXPECT_EQ(static_cast<int>(6 - first), p.b->unread_bytes());
      ASSERT_EQ(4, send_text(*p.a, "more"));
      ASSERT_TRUE(p.pump_until([&] {
        const std::string part = recv_text(*p.b, 100);
        if (!part.starts_with('<')) got += part;
        return got.size() >= 10;
      })) << got;
      EXPECT_EQ("unreadmore", got);
      EXPECT_EQ(0, p.b->unread_bytes());
      EXPECT_EQ(0, ready_now(*p.b) & POLLRDHUP);
      talk(p, "and on");
      p.promote();
      talk(p, "again");
    }
  }
}

TEST(StreamReturn, BytesFromBeforeTheSwitchStayReadableInFrontOfTheRings) {
  StreamPair p;
  ASSERT_EQ(4, send_text(*p.b, "tcp,"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.promote();
  ASSERT_EQ(4, send_text(*p.b, "ring"));
  p.a->leave_channel(Reason::kOperator);
  EXPECT_EQ(8, p.a->unread_bytes());
  EXPECT_EQ("tcp,ri", recv_text(*p.a, 6));
  ASSERT_TRUE(p.pump_until([&] { return both(p, kOnTcp); }));
  EXPECT_EQ("ng", recv_text(*p.a, 6));
  talk(p, "and on");
}

TEST(StreamReturn, AnEndThatWasToldStaysTold) {
  StreamPair p;
  p.promote();
  ASSERT_EQ(4, send_text(*p.a, "last"));
  ASSERT_EQ(0, p.a->shutdown(SHUT_WR));
  ASSERT_TRUE(p.pump_until([&] { return (ready_now(*p.b) & POLLRDHUP) != 0; }));
  p.b->leave_channel(Reason::kOperator);
  EXPECT_EQ(POLLIN | POLLRDHUP, ready_now(*p.b));
  EXPECT_EQ("last", recv_text(*p.b, 100));
  EXPECT_EQ("", recv_text(*p.b, 100));
  ASSERT_TRUE(p.pump_until([&] { return both(p, kOnTcp); }));
  EXPECT_EQ("", recv_text(*p.b, 100));
  // The other direction goes on.
  ASSERT_EQ(6, send_text(*p.b, "answer"));
  std::string got;
  ASSERT_TRUE(p.pump_until([&] {
    got = recv_text(*p.a, 100);
    return got == "answer";
  })) << got;
}

TEST(StreamReturn, ABrokenConnectionGivesWhatHadComeBeforeItsError) {
  for (std::size_t first : {std::size_t{0}, std::size_t{3}}) {
    StreamPair p;
    p.promote();
    ASSERT_EQ(6, send_text(*p.a, "unread"));
    p.b->leave_channel(Reason::kQpError);
    EXPECT_EQ(std::string("unread").substr(0, first), recv_text(*p.b, first));
    const linger cut{1, 0};
    ASSERT_EQ(0, setsockopt(p.a_fd, SOL_SOCKET, SO_LINGER, &cut, sizeof cut));
    close(std::exchange(p.a_fd, -1));
    ASSERT_TRUE(readable(p.b_fd, 1000));
    p.b->service();
    EXPECT_EQ(State::kReset, p.b->state());
    EXPECT_EQ(std::string("unread").substr(first), recv_text(*p.b, 100));
    EXPECT_EQ("<ECONNRESET>", recv_text(*p.b, 100));
    EXPECT_EQ("", recv_text(*p.b, 100));
  }
}

// Nobody but this process has the copy: another one gets the bytes from the kernel, and none twice.
TEST(StreamReturn, AnotherProcessGetsWhatIsUnreadAndNothingThatIsRead) {
  for (std::size_t first : {std::size_t{0}, std::size_t{2}}) {
    StreamPair p;
    p.promote();
    ASSERT_EQ(6, send_text(*p.a, "unread"));
    p.b->leave_channel(Reason::kFork);
    EXPECT_EQ(std::string("unread").substr(0, first), recv_text(*p.b, first));
    EXPECT_FALSE(p.b->can_be_shared());
    ASSERT_TRUE(p.pump_until([&] { return p.b->settled() && both(p, kOnTcp); }));
    EXPECT_TRUE(p.b->kernel_can_serve());
    ASSERT_TRUE(p.b->can_be_shared());
    ASSERT_TRUE(p.b->become_shared());
    ASSERT_TRUE(readable(p.b_fd, 1000));
    char bytes[100];
    const ssize_t n = recv(p.b_fd, bytes, sizeof bytes, 0);
    EXPECT_EQ(std::string("unread").substr(first),
              std::string(bytes, static_cast<std::size_t>(std::max<ssize_t>(n, 0))));
    EXPECT_EQ("<EAGAIN>", recv_text(*p.b, 100, MSG_DONTWAIT));
  }
}

// The kernel would reset a connection that is closed with bytes unread.
// Where a fork meets a switch: the peer's token is on its way, behind bytes that a child will read.
TEST(StreamReturn, AnotherProcessGetsWhatIsUnreadWhereASwitchIsGivenUpBetweenTheTokens) {
  for (const std::string leaves : {"for a fork", "for good", "for an operator"}) {
    StreamPair p;
    const std::string unread(5000, 'u');
    ASSERT_EQ(5000, send_text(*p.b, unread));
    ASSERT_TRUE(readable(p.a_fd, 1000));
    ASSERT_EQ(std::string(1000, 'u'), recv_text(*p.a, 1000));
    p.start();
    p.channels_up();
    p.a->service();  // the connector writes its token
    ASSERT_TRUE(readable(p.b_fd, 1000));
    p.b->service();  // the listener reads it, and says where its own will stand
    p.a->service();  // the connector promises not to read past that
    ASSERT_EQ(State::kSwitching, p.a->state());
    if (leaves == "for a fork") p.a->leave_channel(Reason::kFork);
    if (leaves == "for good") p.a->demote_for_good(Reason::kFdPassed, 0);
    if (leaves == "for an operator") p.a->keep_on_tcp(Reason::kOperator);
    ASSERT_TRUE(p.pump_until([&] { return p.a->settled() && p.b->settled(); })) << leaves;
    EXPECT_TRUE(both(p, kOnTcp)) << leaves;
    std::string got(8192, ' ');
    got.resize(static_cast<std::size_t>(::recv(p.a_fd, got.data(), got.size(), MSG_DONTWAIT)));
    EXPECT_EQ(std::string(4000, 'u'), got) << leaves;
  }
}

TEST(StreamReturn, WhatWasReadBeforeItCameAgainIsNotUnreadAtTheClose) {
  StreamPair p;
  p.promote();
  ASSERT_EQ(6, send_text(*p.a, "unread"));
  p.b->leave_channel(Reason::kOperator);
  EXPECT_EQ("unread", recv_text(*p.b, 100));
  EXPECT_FALSE(p.b->close_by_program(false));
  close(std::exchange(p.b_fd, -1));
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kClosed; }));
  std::string got = "<EAGAIN>";
  ASSERT_TRUE(p.pump_until([&] {
    got = recv_text(*p.a, 100);
    return got != "<EAGAIN>";
  }));
  EXPECT_EQ("", got);
}

}  // namespace
}  // namespace ringroad::test
