// What is noted of a connection that has hardly been used, and what its Stream makes of that.
#include <gtest/gtest.h>

#include "rsocket-core/stream/deferred_selector.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

using Left = DeferredSelector::Left;
constexpr unsigned kLimit = DeferredUse::kMostCalls + 1;

TEST(DeferredSelector, KeepsWhatItsCallsTransferredInOrder) {
  DeferredSelector use;
  use.begin();
  for (const auto& [sent, bytes] : {std::pair{true, 1U}, {false, 65535U}, {true, 4096U}}) {
    ASSERT_TRUE(use.enter());
    ASSERT_EQ(use.leave(sent, bytes, kLimit), Left::kNoted);
  }
  EXPECT_EQ(use.made(), 3U);
  DeferredUse early;
  ASSERT_TRUE(use.settle(early));
  EXPECT_EQ(early.count, 3U);
  EXPECT_EQ(early.in_flight_calls, 0U);
  EXPECT_TRUE(early.calls[0].sent);
  EXPECT_EQ(early.calls[0].bytes, 1U);
  EXPECT_FALSE(early.calls[1].sent);
  EXPECT_EQ(early.calls[1].bytes, 65535U);
  EXPECT_TRUE(early.calls[2].sent);
  EXPECT_EQ(early.calls[2].bytes, 4096U);
}

TEST(DeferredSelector, ACallThatTransfersNothingIsNoUse) {
  DeferredSelector use;
  use.begin();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(use.enter());
    ASSERT_EQ(use.leave(false, 0, 2), Left::kNoted);
  }
  EXPECT_EQ(use.made(), 0U);
}

TEST(DeferredSelector, TheUseThatMayPromoteItIsLeftToItsStream) {
  DeferredSelector use;
  use.begin();
  ASSERT_TRUE(use.enter());
  ASSERT_EQ(use.leave(true, 8, 2), Left::kNoted);
  ASSERT_TRUE(use.enter());
  EXPECT_EQ(use.leave(false, 8, 2), Left::kFull);
  DeferredUse early;
  ASSERT_TRUE(use.settle(early));
  EXPECT_EQ(early.count, 1U);
  EXPECT_EQ(early.in_flight_calls, 1U) << "the call is inside until it has told the stream";
  EXPECT_EQ(use.leave(false, 8, 2), Left::kSettled);
}

TEST(DeferredSelector, IsSettledOnceAndLetsNobodyInThen) {
  DeferredSelector use;
  use.begin();
  DeferredUse early;
  EXPECT_FALSE(use.settled());
  EXPECT_TRUE(use.settle(early));
  EXPECT_TRUE(use.settled());
  EXPECT_FALSE(use.settle(early));
  EXPECT_FALSE(use.enter());
}

TEST(DeferredSelector, LetsInAsManyAsItCanCount) {
  DeferredSelector use;
  use.begin();
  unsigned entered = 0;
  while (entered < 1000 && use.enter()) ++entered;
  EXPECT_EQ(entered, 31U);
  DeferredUse early;
  ASSERT_TRUE(use.settle(early));
  EXPECT_EQ(early.in_flight_calls, entered);
  EXPECT_EQ(early.count, 0U);
}

// A connection that was used by libc's calls before there was a Stream.
struct Early {
  explicit Early(const DeferredUse& early) {
    StreamConfig config;
    config.via_shm = true;
    config.promote_messages = 3;
    std::tie(fd, peer) = tcp_pair();
    FourTuple tuple;
    Endpoint::local_of(fd, tuple.local);
    Endpoint::peer_of(fd, tuple.remote);
    for (unsigned i = 0; i < early.count; ++i) {
      const std::string bytes(early.calls[i].bytes, 'x');
      const int from = early.calls[i].sent ? fd : peer;
      const int to = early.calls[i].sent ? peer : fd;
      std::string taken(bytes.size(), 0);
      EXPECT_EQ(::send(from, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
      EXPECT_EQ(::recv(to, taken.data(), taken.size(), MSG_WAITALL),
                static_cast<ssize_t>(bytes.size()));
    }
    stream = std::make_shared<AgentStream>(&host, nullptr, 1, fd, Role::kConnect, tuple, config,
                                      false, early);
  }
  ~Early() {
    stream.reset();
    close(fd);
    close(peer);
  }
  void take_from_kernel(std::size_t n) {
    std::string bytes(n, 0);
    EXPECT_EQ(::send(peer, bytes.data(), n, 0), static_cast<ssize_t>(n));
    EXPECT_EQ(::recv(fd, bytes.data(), n, MSG_WAITALL), static_cast<ssize_t>(n));
  }

  class Host final : public StreamHost {
   public:
    void attend(Stream&) noexcept override { ++attended; }
    void start_promotion(Stream&) noexcept override { ++asked; }
    void unwatch(Stream&, int) noexcept override {}
    int attended = 0;
    int asked = 0;
  };
  Host host;
  int fd = -1;
  int peer = -1;
  AgentStreamPtr stream;
};

DeferredUse two_calls(unsigned in_flight_calls) {
  DeferredUse early;
  early.calls[0] = {true, 100};
  early.calls[1] = {false, 3000};
  early.count = 2;
  early.in_flight_calls = in_flight_calls;
  return early;
}

TEST(DeferredUse, IsTheStreamsOwn) {
  Early p(two_calls(0));
  EXPECT_EQ(p.stream->may_promote(), Reason::kNone) << "it knows all that the kernel has counted";
  p.stream->note_use(0, 0);
  EXPECT_EQ(p.host.asked, 0);
  p.stream->note_use(1, 8);
  EXPECT_EQ(p.host.asked, 1) << "the third use";
}

TEST(DeferredUse, WhatWasNotNotedIsFoundOut) {
  DeferredUse early = two_calls(0);
  Early p(early);
  p.take_from_kernel(1);
  EXPECT_EQ(p.stream->may_promote(), Reason::kUntrackedIo);
}

TEST(DeferredUse, NothingIsPromotedWhileACallIsInsideOfTheKernel) {
  Early p(two_calls(1));
  EXPECT_EQ(p.stream->may_promote(), Reason::kBusy);
  EXPECT_FALSE(p.stream->all_read()) << "it may be about to read";
  p.stream->note_use(5, 0);
  EXPECT_EQ(p.host.asked, 0);
  p.take_from_kernel(20);
  p.stream->on_deferred_call_returned(false, 20);
  EXPECT_EQ(p.host.asked, 1);
  EXPECT_EQ(p.host.attended, 1) << "the caller that has asked in vain is told";
  EXPECT_TRUE(p.stream->read_since_asked());
  EXPECT_TRUE(p.stream->all_read());
  EXPECT_EQ(p.stream->may_promote(), Reason::kNone);
}

TEST(DeferredUse, TheLastCallThatLeavesStartsThePromotion) {
  Early p(two_calls(2));
  p.take_from_kernel(20);
  p.stream->on_deferred_call_returned(false, 20);
  EXPECT_EQ(p.host.asked, 0);
  p.stream->on_deferred_call_returned(true, 0);
  EXPECT_EQ(p.host.asked, 1);
}

}  // namespace
}  // namespace ringroad::test
