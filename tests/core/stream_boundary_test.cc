// Bytes that the program has not read when the carrier changes: what stands behind them is there
// too.
#include <string>

#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

std::string peek(Stream& stream, std::size_t n) {
  return recv_text(stream, n, MSG_DONTWAIT | MSG_PEEK);
}

short ready(Stream& stream, short events) {
  return stream.plan_poll(events, Stream::Arm::kNever).ready;
}

class Boundary : public ::testing::Test {
 protected:
  // The connector's program has "abc" unread in the kernel, and is promoted.
  void SetUp() override {
    ASSERT_EQ(3, send_text(*p.b, "abc"));
    ASSERT_TRUE(readable(p.a_fd, 1000));
    p.promote();
    ASSERT_EQ(3, p.a->unread_bytes());
  }
  StreamPair p;
};

TEST_F(Boundary, WhatComesOverTheChannelIsCountedAndPeekedAtBehindWhatIsInTheKernel) {
  ASSERT_EQ(3, send_text(*p.b, "def"));
  p.a->service();
  EXPECT_EQ(6, p.a->unread_bytes());
  EXPECT_EQ("ab", peek(*p.a, 2));
  EXPECT_EQ("abcde", peek(*p.a, 5));
  EXPECT_EQ("abcdef", peek(*p.a, 100));
  EXPECT_EQ("abcdef", recv_text(*p.a, 100));
}

TEST_F(Boundary, ThePeersEndOverTheChannelIsToldWhileBytesAreUnreadInTheKernel) {
  EXPECT_EQ(0, ready(*p.a, POLLRDHUP));
  EXPECT_EQ(0, p.b->shutdown(SHUT_WR));
  p.a->service();
  EXPECT_EQ(POLLRDHUP, ready(*p.a, POLLRDHUP));
  EXPECT_EQ("abc", recv_text(*p.a, 100));
  EXPECT_EQ("", recv_text(*p.a, 100));
}

TEST_F(Boundary, OurShutdownForReadingIsToldWhileBytesAreUnreadInTheKernel) {
  EXPECT_EQ(0, p.a->shutdown(SHUT_RD));
  EXPECT_EQ(POLLIN | POLLRDHUP, ready(*p.a, POLLIN | POLLRDHUP));
}

TEST_F(Boundary, WhatStandsBehindTheFramesOfAReturnIsCountedAndPeekedAt) {
  p.b->leave_channel(Reason::kOperator);
  ASSERT_TRUE(
      p.pump_until([&] { return p.a->state() == State::kOnTcp && p.b->state() == State::kOnTcp; }));
  ASSERT_EQ(3, send_text(*p.b, "def"));
  ASSERT_TRUE(p.pump_until([&] { return p.a->unread_bytes() == 6; }));
  EXPECT_EQ("ab", peek(*p.a, 2));
  EXPECT_EQ("abcde", peek(*p.a, 5));
  EXPECT_EQ("abcdef", peek(*p.a, 100));
  char one[6];
  iovec pieces[6];
  for (int i = 0; i < 6; ++i) pieces[i] = {one + i, 1};
  EXPECT_EQ(6, p.a->recv(pieces, 6, MSG_DONTWAIT | MSG_PEEK));
  EXPECT_EQ("abcdef", std::string(one, 6));
  EXPECT_EQ("abcdef", recv_text(*p.a, 100));
  EXPECT_EQ(0, p.a->unread_bytes());
}

// The kernel tells a reset before EPIPE.
TEST(StreamReset, IsToldBeforeOurOwnShutdownForWriting) {
  StreamPair p;
  ASSERT_EQ(3, send_text(*p.a, "abc"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ(0, p.a->shutdown(SHUT_WR));
  if (p.b->close_by_program(false)) ::close(std::exchange(p.b_fd, -1));
  pollfd reset{p.a_fd, 0, 0};
  ASSERT_EQ(1, ::poll(&reset, 1, 1000));
  EXPECT_EQ(-1, send_text(*p.a, "x"));
  EXPECT_EQ(ECONNRESET, errno);
  EXPECT_EQ(-1, send_text(*p.a, "x"));
  EXPECT_EQ(EPIPE, errno);
}

}  // namespace
}  // namespace ringroad::test
