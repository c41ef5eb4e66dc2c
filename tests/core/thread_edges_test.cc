// A thread's epoll instance for channels that tell by edges.
#include <memory>
#include <thread>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/thread_edges.h"
#include "rsocket-core/stream/waiter.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

// Arms the stream's channel and puts it into the instance.
void sleep_by_edge(AgentStream& stream) {
  const Stream::PollPlan plan = stream.plan_poll(POLLIN, Stream::Arm::kAlways);
  ASSERT_TRUE(Stream::sleeps_by_edge(plan));
  ASSERT_EQ(stream.sleep_entry(plan).fd, thread_edges_fd());
}

thread_edges::Told take_all_edges() {
  return thread_edges::take([](std::uint64_t) { return true; });
}

TEST(ThreadEdges, AreOfAThreadThatHasAnEventfdAlone) {
  std::thread([] {
    EXPECT_EQ(thread_edges_fd(), -1);
    EXPECT_GE(thread_wake_fd(), 0);
    EXPECT_GE(thread_edges_fd(), 0);
  }).join();
}

TEST(ThreadEdges, TellOfAWakeUpOnceAndOfANewChannel) {
  StreamPair p;
  p.promote();
  ASSERT_GE(thread_wake_fd(), 0);
  sleep_by_edge(*p.b);
  EXPECT_TRUE(take_all_edges().has(p.b->id()));
  sleep_by_edge(*p.b);
  EXPECT_FALSE(readable(thread_edges_fd(), 0));
  EXPECT_EQ(1, send_text(*p.a, "x"));
  EXPECT_TRUE(take_all_edges().has(p.b->id()));
  EXPECT_FALSE(readable(thread_edges_fd(), 0));
}

TEST(ThreadEdges, OneThatWasTakenOutIsPutInAgain) {
  StreamPair p;
  p.promote();
  ASSERT_GE(thread_wake_fd(), 0);
  sleep_by_edge(*p.b);
  EXPECT_EQ(thread_edges::take([](std::uint64_t) { return false; }).count, 0u);
  sleep_by_edge(*p.b);
  EXPECT_TRUE(take_all_edges().has(p.b->id()));
  sleep_by_edge(*p.b);
  EXPECT_EQ(1, send_text(*p.a, "x"));
  EXPECT_TRUE(take_all_edges().has(p.b->id()));
}

TEST(ThreadEdges, TwoThreadsThatTakeTurnsAreBothTold) {
  StreamPair p;
  p.promote();
  ASSERT_GE(thread_wake_fd(), 0);
  for (int i = 0; i < 3; ++i) {
    sleep_by_edge(*p.b);
    std::thread([&] {
      ASSERT_GE(thread_wake_fd(), 0);
      sleep_by_edge(*p.b);
      EXPECT_TRUE(take_all_edges().has(p.b->id())) << "it is new there";
    }).join();
    sleep_by_edge(*p.b);
    take_all_edges();
    sleep_by_edge(*p.b);
    EXPECT_EQ(1, send_text(*p.a, "x"));
    EXPECT_TRUE(take_all_edges().has(p.b->id()));
    EXPECT_EQ("x", recv_text(*p.b, 1));
  }
}

TEST(ThreadEdges, TellOfMoreStreamsThanHaveAPlaceInTheAnswer) {
  constexpr unsigned kStreams = 40;
  std::vector<std::unique_ptr<StreamPair>> pairs;
  for (unsigned i = 0; i < kStreams; ++i) {
    pairs.push_back(std::make_unique<StreamPair>());
    pairs.back()->promote();
  }
  ASSERT_GE(thread_wake_fd(), 0);
  for (const auto& pair : pairs) sleep_by_edge(*pair->b);
  const thread_edges::Told told = take_all_edges();
  for (const auto& pair : pairs) EXPECT_TRUE(told.has(pair->b->id()));
  EXPECT_FALSE(readable(thread_edges_fd(), 0));
}

// Between its look and its sleep.
TEST(ThreadEdges, ACallThatAHandlerInterruptsIsWokenOfWhatTheHandlerTakes) {
  StreamPair p;
  p.promote();
  ASSERT_GE(thread_wake_fd(), 0);
  sleep_by_edge(*p.b);
  take_all_edges();
  sleep_by_edge(*p.b);
  handler_has_ended(handler_begins());
  EXPECT_FALSE(readable(thread_wake_fd(), 0));
  const bool begun = handler_begins();
  EXPECT_EQ(1, send_text(*p.a, "x"));
  sys::drain_eventfd(thread_wake_fd());
  take_all_edges();
  handler_has_ended(begun);
  EXPECT_TRUE(readable(thread_wake_fd(), 0));
  sys::drain_eventfd(thread_wake_fd());
}

}  // namespace
}  // namespace ringroad::test
