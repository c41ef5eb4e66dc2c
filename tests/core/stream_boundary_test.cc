// Bytes that the program has not read when the carrier changes: what stands behind them is there
// too.
#include <sys/ioctl.h>

#include <algorithm>
#include <string>

#include "rsocket-core/base/sys.h"
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

// Reads without the library, as a child does, or another program: up to the end, or an error.
std::string raw(int fd, std::size_t n) {
  std::string got;
  while (got.size() < n && readable(fd, 1000)) {
    char bytes[256];
    const ssize_t more = ::recv(fd, bytes, std::min(sizeof bytes, n - got.size()), 0);
    if (more < 0) return got + "<" + strerrorname_np(errno) + ">";
    if (more == 0) return got + "<end>";
    got.append(bytes, static_cast<std::size_t>(more));
  }
  return got;
}

bool both_settled(StreamPair& p) {
  return p.a->state() == State::kOnTcp && p.b->state() == State::kOnTcp && p.a->settled() &&
         p.b->settled();
}

TEST_F(Boundary, WhatStandsBeforeTheFramesIsGivenBackSoThatTheKernelHasNothingElse) {
  ASSERT_EQ(3, send_text(*p.b, "def"));
  p.a->leave_channel(Reason::kFork);
  ASSERT_TRUE(p.pump_until([&] { return both_settled(p); }));
  EXPECT_TRUE(p.a->kernel_can_serve());
  ASSERT_EQ(3, send_text(*p.b, "ghi"));
  EXPECT_EQ("abcdefghi", raw(p.a_fd, 9));
  ASSERT_EQ(3, send_text(*p.a, "jkl"));
  EXPECT_EQ("jkl", raw(p.b_fd, 3));
}

TEST_F(Boundary, ItIsGivenBackWhereThePeerLeavesTheChannelToo) {
  ASSERT_EQ(3, send_text(*p.b, "def"));
  p.b->leave_channel(Reason::kFork);
  ASSERT_TRUE(p.pump_until([&] { return both_settled(p); }));
  EXPECT_EQ("abcdef", raw(p.a_fd, 6));
}

TEST_F(Boundary, WhatIsGivenBackIsReadInOrderByTheProgramThatHadNotReadIt) {
  EXPECT_EQ("a", recv_text(*p.a, 1));
  p.a->leave_channel(Reason::kOperator);
  std::string got;
  ASSERT_TRUE(p.pump_until([&] {
    const std::string part = recv_text(*p.a, 100);
    if (!part.starts_with('<')) got += part;
    return got.size() >= 2;
  }));
  EXPECT_EQ("bc", got);
}

TEST_F(Boundary, APeerThatGivesBackMoreThanThereCanBeIsCutOff) {
  std::uint8_t frame[kResumeBytes];
  const ResumeFrame lie{0, Reason::kFork, true, Stream::kMaxPeekBytes + 1};
  encode_resume(p.b->nonce(), lie, frame);
  ASSERT_EQ(static_cast<ssize_t>(sizeof frame), ::send(p.a_fd, frame, sizeof frame, 0));
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kReset; }));
  EXPECT_EQ(Reason::kBadRequest, p.b->reason());
}

// ---- More is unread than the kernel has been asked to hold so far

struct FullRing : public ::testing::Test {
  static constexpr std::size_t kMuch = 400'000;  // bytes; the kernel begins with room for 128 KiB

  void leave_unread() {
    p.promote();
    ASSERT_EQ(static_cast<ssize_t>(kMuch), send_text(*p.a, std::string(kMuch, 'm')));
    p.b->demote_for_good(Reason::kFdPassed, 0);
    ASSERT_TRUE(p.pump_until([&] { return p.b->settled(); }));
  }
  std::size_t in_kernel() const {
    int unread = 0;
    return ::ioctl(p.b_fd, FIONREAD, &unread) == 0 ? static_cast<std::size_t>(unread) : 0;
  }
  StreamPair p{512 * 1024};
};

TEST_F(FullRing, AllOfItIsTheKernelsBeforeAnybodyReads) {
  leave_unread();
  EXPECT_TRUE(p.pump_until([&] { return in_kernel() == kMuch; })) << in_kernel();
}

TEST_F(FullRing, NobodyWaitsForWhatTheBufferOfAFixedSizeDoesNotTake) {
  const int fixed = 32 * 1024;
  ASSERT_EQ(0, ::setsockopt(p.b_fd, SOL_SOCKET, SO_RCVBUF, &fixed, sizeof fixed));
  leave_unread();
  ASSERT_TRUE(p.pump_until([&] { return in_kernel() > 0; }));
  const std::int64_t before = sys::now_ns();
  p.b->demote_for_good(Reason::kFdPassed, 60'000'000'000);
  EXPECT_LT(sys::now_ns() - before, 30'000'000'000);
  EXPECT_LT(in_kernel(), kMuch);
}

// ---- The peer has closed

struct Closed : public ::testing::Test {
  void SetUp() override {
    p.promote();
    ASSERT_EQ(7, send_text(*p.a, "goodbye"));
    p.a->close_by_program(false);
    ::close(std::exchange(p.a_fd, -1));
    for (int i = 0; i < 50; ++i) {
      p.a->service();
      p.b->service();
    }
  }
  StreamPair p;
};

TEST_F(Closed, WhatIsUnreadComesAgainOverTcpForTheProcessThatReadsOn) {
  p.b->leave_channel(Reason::kFork);
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kOnTcp && p.b->settled(); }));
  EXPECT_EQ("goodbye<end>", raw(p.b_fd, 100));
  EXPECT_TRUE(p.pump_until([&] { return p.a->interest().done; }));
}

TEST_F(Closed, AndWhereTheProcessOfThePeerEnds) {
  p.a->leave_closed(Reason::kExit);
  ASSERT_TRUE(p.pump_until([&] { return p.a->settled(); }));
  p.a.reset();
  p.a = p.b;  // for the pump
  ASSERT_TRUE(p.pump_until([&] { return p.b->settled(); }));
  EXPECT_EQ("goodbye<end>", raw(p.b_fd, 100));
}

TEST_F(Closed, APeerThatSendsToItIsToldAsByTheKernel) {
  EXPECT_EQ(1, send_text(*p.b, "1"));
  EXPECT_EQ(-1, send_text(*p.b, "2"));
  EXPECT_EQ(EPIPE, errno);
  EXPECT_EQ("goodbye", recv_text(*p.b, 100));
  EXPECT_TRUE(p.pump_until([&] { return p.a->interest().done; }));
}

TEST_F(Closed, AKilledPeersUnreadBytesEndInAResetForTheProcessThatReadsOn) {
  p.a.reset();
  p.b->leave_channel(Reason::kExec);
  p.a = p.b;  // for the pump
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kReset; }));
  EXPECT_FALSE(p.b->kernel_can_serve());
  p.b->cut_unless_served();
  const std::string told = raw(p.b_fd, 100);
  EXPECT_TRUE(told == "<ECONNRESET>" || told == "<ENOTCONN>") << told;
  EXPECT_EQ("goodbye", recv_text(*p.b, 100)) << "the program itself still has them";
  EXPECT_TRUE(p.b->kernel_can_serve());
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
