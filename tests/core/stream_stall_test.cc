// A ring that stays full, since the peer's program reads nothing.
#include "rsocket-core/base/sys.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

class StreamStall : public testing::Test {
 protected:
  void fill() {
    p.promote();
    const std::string piece(10'000, 'x');
    while (send_text(*p.a, piece) > 0) continue;
    EXPECT_EQ(EAGAIN, errno);
  }

  // What the agent does at the deadline that the stall has set. False: there is none.
  bool let_it_pass() {
    const std::int64_t at = p.a->interest().deadline_ns;
    if (at == std::numeric_limits<std::int64_t>::max()) return false;
    while (sys::now_ns() < at) poll(nullptr, 0, 1);
    p.a->deadline_passed();
    return true;
  }

  std::size_t read_all() {
    std::size_t n = 0;
    for (std::string got; (got = recv_text(*p.b, 20'000))[0] == 'x';) n += got.size();
    return n;
  }

  StreamPair p;
};

TEST_F(StreamStall, WhatAProgramDoesNotReadGoesToTheSocketThatHoldsMore) {
  fill();
  ASSERT_TRUE(let_it_pass());
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == State::kOnTcp && p.b->state() == State::kOnTcp; }));
  EXPECT_EQ(Reason::kStalled, p.a->reason());
  const ssize_t more = send_text(*p.a, std::string(100'000, 'x'));
  EXPECT_GT(more, 0);
  std::size_t all = 0;
  ASSERT_TRUE(p.pump_until([&] {
    all += read_all();
    return all >= StreamPair::kRing + static_cast<std::size_t>(more);
  }));
  EXPECT_EQ(StreamPair::kRing + static_cast<std::size_t>(more), all);
  const int asked = p.host.asked;
  const std::int64_t until = sys::now_ns() + 5'000'000'000;
  while (p.host.asked == asked && sys::now_ns() < until) p.a->note_use(1, 1);
  EXPECT_EQ(asked + 1, p.host.asked) << "it is worth another attempt";
  p.promote();
}

TEST_F(StreamStall, AProgramThatReadsSlowlyKeepsTheChannel) {
  fill();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ("x", recv_text(*p.b, 1));
    ASSERT_TRUE(let_it_pass());
    EXPECT_EQ(State::kOnChannel, p.a->state());
  }
  ASSERT_TRUE(let_it_pass()) << "it has begun to pause";
  EXPECT_NE(State::kOnChannel, p.a->state());
}

TEST_F(StreamStall, ASenderThatDoesNotComeBackForTheRoomKeepsIt) {
  fill();
  EXPECT_EQ(StreamPair::kRing, read_all());
  ASSERT_TRUE(let_it_pass());
  EXPECT_EQ(State::kOnChannel, p.a->state());
  EXPECT_FALSE(let_it_pass()) << "nothing is left to look for";
}

TEST(StreamStallOfALargeRing, StaysWhereASocketHoldsNoMore) {
  StreamPair p(4 << 20);
  p.promote();
  const std::string piece(100'000, 'x');
  while (send_text(*p.a, piece) > 0) continue;
  const std::int64_t at = p.a->interest().deadline_ns;
  while (sys::now_ns() < at) poll(nullptr, 0, 1);
  p.a->deadline_passed();
  EXPECT_EQ(State::kOnChannel, p.a->state());
}

TEST_F(StreamStall, AUserTimeoutEndsTheConnectionWhereNothingWasRead) {
  const unsigned ms = 20;
  ASSERT_EQ(0, setsockopt(p.a_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
  p.a->set_options_changed();
  fill();
  ASSERT_TRUE(let_it_pass());
  EXPECT_EQ(State::kReset, p.a->state());
  EXPECT_EQ("<ETIMEDOUT>", recv_text(*p.a, 1));
}

TEST_F(StreamStall, AUserTimeoutEndsNoConnectionThatHasRoom) {
  const unsigned ms = 20;
  ASSERT_EQ(0, setsockopt(p.a_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
  p.a->set_options_changed();
  fill();
  EXPECT_EQ(StreamPair::kRing, read_all());
  for (int i = 0; i < 3 && let_it_pass(); ++i) continue;
  EXPECT_EQ(State::kOnChannel, p.a->state());
}

}  // namespace
}  // namespace ringroad::test
