// The stream's promises, one behaviour a test, over a real TCP connection and the shm channel.
#include "rsocket-core/stream/agent_stream.h"

#include <sys/ioctl.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "tests/core/fault_channel.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

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

// Whichever thread comes first: the agent waits for other things then, and says so in the log.
TEST(Stream, TheAgentHearsOfEveryMoveThatAProgramsCallCompletes) {
  StreamPair p;
  // How many of the two ends got there in a call that told the agent.
  const auto heard_of = [&p](State to) {
    int heard = 0;
    for (int i = 0; i < 2000 && (p.a->state() != to || p.b->state() != to); ++i) {
      for (AgentStream* stream : {p.a.get(), p.b.get()}) {
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
  auto cb = p.a_channel_up();
  EXPECT_EQ(0, p.a->shutdown(SHUT_WR));
  p.b->channel_up(std::move(cb), p.a_nonce);
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == kOnChannel; }));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 10) == ""; }));
}

// Closing as the preload layer does it: the stream first, then the program's number.
void close_stream(AgentStreamPtr& stream, int& fd) {
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
  p.a = std::make_shared<AgentStream>(&p.host, nullptr, 3, -1, Role::kConnect, FourTuple{},
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
  auto cb = p.a_channel_up();
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
  EXPECT_TRUE(p.a->demote_for_good(Reason::kEpoll, 0));
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
  const auto write_all = [&](AgentStream& s, unsigned seed) {
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
  const auto read_all = [&](AgentStream& s, unsigned seed) {
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
