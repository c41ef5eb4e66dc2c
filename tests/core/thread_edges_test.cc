// Channels that tell by edges, in the instance that a thread sleeps on.
#include <memory>
#include <thread>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/thread_edges.h"
#include "rsocket-core/stream/waiter.h"
#include "tests/core/open_descriptors.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

// Arms the stream's channel and puts it into the instance.
void sleep_by_edge(AgentStream& stream) {
  const Stream::PollPlan plan = stream.plan_poll(POLLIN, Stream::Arm::kAlways);
  ASSERT_TRUE(Stream::sleeps_by_edge(plan));
  ASSERT_TRUE(stream.watch_by_edge(plan, thread_wake_fd()));
}

thread_edges::Told take_all_edges() {
  return thread_edges::take(thread_wake_fd(), [](std::uint64_t) { return true; });
}

TEST(ThreadWake, TellsTheThreadThatIsWokenAndNoOther) {
  const int here = thread_wake_fd();
  ASSERT_GE(here, 0);
  EXPECT_FALSE(readable(here, 0));
  std::thread([here] {
    const int there = thread_wake_fd();
    ASSERT_GE(there, 0);
    wake_thread(here);
    EXPECT_FALSE(readable(there, 0));
    wake_thread(there);
    EXPECT_TRUE(readable(there, 0));
    clear_wake(there);
    EXPECT_FALSE(readable(there, 0));
  }).join();
  EXPECT_TRUE(readable(here, 0));
  EXPECT_EQ(thread_edges::take(here, [](std::uint64_t) { return true; }).count, 0u) << "no stream did";
  EXPECT_FALSE(readable(here, 0));
}

TEST(ThreadWake, IsOneDescriptorAThreadAndOneAProcess) {
  ASSERT_GE(thread_wake_fd(), 0);
  const int before = open_descriptors();
  std::thread([before] {
    ASSERT_GE(thread_wake_fd(), 0);
    EXPECT_EQ(open_descriptors(), before + 1);
  }).join();
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ThreadEdges, TellOfAWakeUpOnceAndOfANewChannel) {
  StreamPair p;
  p.promote();
  ASSERT_GE(thread_wake_fd(), 0);
  sleep_by_edge(*p.b);
  EXPECT_TRUE(take_all_edges().has(p.b->id()));
  sleep_by_edge(*p.b);
  EXPECT_FALSE(readable(thread_wake_fd(), 0));
  EXPECT_EQ(1, send_text(*p.a, "x"));
  EXPECT_TRUE(take_all_edges().has(p.b->id()));
  EXPECT_FALSE(readable(thread_wake_fd(), 0));
}

TEST(ThreadEdges, OneThatWasTakenOutIsPutInAgain) {
  StreamPair p;
  p.promote();
  ASSERT_GE(thread_wake_fd(), 0);
  sleep_by_edge(*p.b);
  EXPECT_EQ(thread_edges::take(thread_wake_fd(), [](std::uint64_t) { return false; }).count, 0u);
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
  EXPECT_FALSE(readable(thread_wake_fd(), 0));
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
  take_all_edges();
  handler_has_ended(begun);
  EXPECT_TRUE(readable(thread_wake_fd(), 0));
  clear_wake(thread_wake_fd());
}

}  // namespace
}  // namespace ringroad::test
