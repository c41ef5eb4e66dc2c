// The short way of sends and receives (stream_fastpath.h): when it is taken, and that a look from
// outside cannot tell.
#include "rsocket-core/stream/stream_fastpath.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

class StreamShortTest : public testing::Test {
 protected:
  ssize_t send(const std::string& text) { return pair_.a->send_short(text.data(), text.size()); }
  std::string recv(std::size_t most) { return recv_by(*pair_.b, most); }
  static std::string recv_by(Stream& stream, std::size_t most) {
    std::string buffer(most, '\0');
    const ssize_t n = stream.recv_short(buffer.data(), most);
    if (n < 0) return "not now";
    buffer.resize(static_cast<std::size_t>(n));
    return buffer;
  }
  StreamPair pair_;
};

TEST_F(StreamShortTest, IsNotForAStreamOnTcp) {
  EXPECT_EQ(send("x"), -1);
  ASSERT_EQ(send_text(*pair_.a, "by TCP"), 6);
  ASSERT_TRUE(readable(pair_.b_fd, 1000));
  EXPECT_EQ(recv(10), "not now");
}

// In front of the ring's bytes stand those that came over TCP.
TEST_F(StreamShortTest, DoesNotOvertakeWhatIsUnreadOnTcp) {
  ASSERT_EQ(send_text(*pair_.b, "first"), 5);
  ASSERT_TRUE(readable(pair_.a_fd, 1000));
  pair_.promote();
  ASSERT_EQ(pair_.b->send_short("second", 6), 6);
  EXPECT_EQ(recv_by(*pair_.a, 16), "not now");
  EXPECT_EQ(recv_text(*pair_.a, 5), "first");
  EXPECT_EQ(recv_text(*pair_.a, 6), "second");
}

// Of every size that copy_short() treats apart, and across the end of the ring.
TEST_F(StreamShortTest, BringsEveryLengthUnaltered) {
  pair_.promote();
  std::size_t sent = 0;
  unsigned long_ones = 0;
  for (std::size_t length = 1; length <= 400; ++length) {
    std::string text(length, '\0');
    for (std::size_t i = 0; i < length; ++i) text[i] = static_cast<char>(sent + i);
    // Now and then it is time to see what has been consumed, and that is for the long way.
    if (send(text) < 0) {
      ASSERT_EQ(send_text(*pair_.a, text), static_cast<ssize_t>(length)) << length;
      ++long_ones;
    }
    sent += length;
    ASSERT_EQ(recv(length), text) << length;
    // What both ways have counted is one.
    ASSERT_EQ(send_text(*pair_.a, text), static_cast<ssize_t>(length));
    ASSERT_EQ(recv_text(*pair_.b, length), text);
    sent += length;
  }
  EXPECT_GT(sent, 2 * std::size_t{StreamPair::kRing}) << "it never came round the ring's end";
  EXPECT_LT(long_ones, 10U);
  EXPECT_EQ(pair_.a->messages_on_channel(), 800U);
  EXPECT_EQ(pair_.b->messages_on_channel(), 800U);
}

TEST_F(StreamShortTest, GivesWhatIsThereAndKeepsTheRest) {
  pair_.promote();
  ASSERT_EQ(send("one and two"), 11);
  EXPECT_EQ(recv(3), "one");
  EXPECT_EQ(recv(100), " and two");
  EXPECT_EQ(recv(100), "not now");
}

TEST_F(StreamShortTest, LeavesAFullRingToTheLongWay) {
  pair_.promote();
  const std::string piece(4096, 'x');
  std::size_t sent = 0;
  while (send(piece) > 0) sent += piece.size();
  EXPECT_EQ(sent, pair_.kRing / 2) << "beyond that it looks what has been consumed";
  while (send_text(*pair_.a, piece, MSG_DONTWAIT) > 0) sent += piece.size();
  EXPECT_EQ(sent, pair_.kRing);
  while (recv(piece.size()) == piece) sent -= piece.size();
  EXPECT_EQ(sent, 0U);
  pair_.a->service();  // takes in that there is room
  EXPECT_EQ(send(piece), -1) << "a send has waited for room: the long way counts for how long";
  EXPECT_EQ(send_text(*pair_.a, piece), static_cast<ssize_t>(piece.size()));
  EXPECT_EQ(send(piece), static_cast<ssize_t>(piece.size()));
}

TEST_F(StreamShortTest, IsOverWithTheStreamsOwnEnd) {
  pair_.promote();
  ASSERT_EQ(send("last"), 4);
  ASSERT_EQ(pair_.a->shutdown(SHUT_WR), 0);
  EXPECT_EQ(send("more"), -1);
  EXPECT_EQ(recv(10), "last");
  EXPECT_EQ(recv(10), "not now") << "the end is told by the long way";
  pair_.b->service();
  EXPECT_EQ(recv_text(*pair_.b, 10), "");
}

TEST_F(StreamShortTest, SendsNothingWhileAControlMessageWaits) {
  pair_.promote();
  ASSERT_EQ(send("x"), 1);
  ASSERT_EQ(pair_.b->shutdown(SHUT_WR), 0);  // its FIN is on its way
  EXPECT_EQ(send("x"), -1);
  EXPECT_EQ(send_text(*pair_.a, "x"), 1) << "the long way takes it in, and it stops no send";
  EXPECT_EQ(send("x"), 1);
}

TEST_F(StreamShortTest, EndsWithTheChannel) {
  pair_.promote();
  ASSERT_EQ(send("kept"), 4);
  pair_.a->leave_channel(Reason::kOperator);
  EXPECT_EQ(send("x"), -1);
  ASSERT_TRUE(pair_.pump_until([&] {
    return pair_.a->state() == State::kOnTcp && pair_.b->state() == State::kOnTcp;
  }));
  ASSERT_TRUE(readable(pair_.b_fd, 1000));
  EXPECT_EQ(recv(10), "not now");
  EXPECT_EQ(recv_text(*pair_.b, 10), "kept");
}

TEST_F(StreamShortTest, GivesWayToTheThreadThatHoldsTheLock) {
  pair_.promote();
  ASSERT_EQ(send("x"), 1);
  const bool alone = pair_.a->between_frames([&] { return send("y") > 0; });
  EXPECT_FALSE(alone);
  EXPECT_EQ(recv(10), "x");
}

}  // namespace
}  // namespace ringroad::test
