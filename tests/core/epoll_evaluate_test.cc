// What an epoll instance tells of one stream, line by line of the tables in epoll_evaluate.h.
#include "rsocket-core/stream/epoll_evaluate.h"

#include <gtest/gtest.h>

namespace ringroad::epoll {
namespace {

constexpr std::uint32_t kBytes = EPOLLIN;
constexpr std::uint32_t kRoom = EPOLLOUT;
constexpr std::uint32_t kEdges = EPOLLIN | EPOLLOUT | EPOLLET;

EpollItem item_of(std::uint32_t mask) {
  EpollItem item;
  item.mask = mask;
  return item;
}

Stream::PollPlan plan_of(short ready) {
  Stream::PollPlan plan;
  plan.ready = ready;
  plan.on_channel = true;
  return plan;
}

TEST(EpollEvaluateTest, ALevelIsAllThatHoldsOnEitherCarrier) {
  const EpollItem item = item_of(EPOLLIN | EPOLLOUT);
  EXPECT_EQ(evaluate(item, plan_of(0), 0), 0U);
  EXPECT_EQ(evaluate(item, plan_of(POLLOUT), 0), EPOLLOUT);
  EXPECT_EQ(evaluate(item, plan_of(0), EPOLLIN), EPOLLIN);
  EXPECT_EQ(evaluate(item, plan_of(POLLOUT), EPOLLIN), EPOLLIN | EPOLLOUT);
}

TEST(EpollEvaluateTest, ALevelIsNotTheRoomThatIsToCome) {
  Stream::PollPlan plan = plan_of(POLLIN);
  plan.frozen = true;
  EXPECT_EQ(evaluate(item_of(EPOLLIN | EPOLLOUT), plan, 0), EPOLLIN);
}

TEST(EpollEvaluateTest, AnEdgeTellsAllThatHoldsAndWithoutOneNothingIsTold) {
  struct Line {
    bool edge;
    bool fresh;
    std::uint32_t kernel_bits;
    std::uint32_t told;
  };
  constexpr std::uint32_t kReady = EPOLLIN | EPOLLOUT;
  for (const Line& line : {Line{false, false, 0, 0}, Line{false, false, EPOLLPRI, kReady | EPOLLPRI},
                           Line{false, true, 0, kReady}, Line{false, true, EPOLLPRI, kReady | EPOLLPRI},
                           Line{true, false, 0, kReady}, Line{true, false, EPOLLPRI, kReady | EPOLLPRI},
                           Line{true, true, 0, kReady}, Line{true, true, EPOLLPRI, kReady | EPOLLPRI}}) {
    EpollItem item = item_of(kEdges);
    item.fresh = line.fresh;
    Stream::PollPlan plan = plan_of(POLLIN | POLLOUT);
    plan.arrivals = line.edge ? 1 : 0;
    EXPECT_EQ(has_edge(item, plan), line.edge);
    EXPECT_EQ(evaluate(item, plan, line.kernel_bits), line.told)
        << line.edge << line.fresh << line.kernel_bits;
  }
}

TEST(EpollEvaluateTest, RoomIsToldWhileTheCarrierChangesAsTheTableSays) {
  struct Line {
    bool told_otherwise;
    bool owes_room;
    bool fresh;
    bool kernel_pending;
    bool room;
  };
  for (const Line& line :
       {Line{true, false, false, false, true}, Line{true, false, true, true, true},
        Line{false, true, false, false, true}, Line{false, true, true, true, true},
        Line{false, false, true, false, true}, Line{false, false, true, true, false},
        Line{false, false, false, false, false}, Line{false, false, false, true, false}}) {
    EpollItem item = item_of(kEdges);
    item.owes_room = line.owes_room;
    item.fresh = line.fresh;
    item.kernel_pending = line.kernel_pending;
    Stream::PollPlan plan = plan_of(0);
    plan.frozen = true;
    const std::uint32_t kernel_bits = line.told_otherwise ? kBytes : 0U;
    EXPECT_EQ(evaluate(item, plan, kernel_bits) & kOutput, line.room ? kRoom : 0U)
        << line.told_otherwise << line.owes_room << line.fresh << line.kernel_pending;
    item.mask = EPOLLIN | EPOLLET;
    EXPECT_EQ(evaluate(item, plan, kernel_bits) & kOutput, 0U) << "nobody has asked for it";
  }
}

// What is an edge, each by itself.
TEST(EpollEvaluateTest, AnEdgeIsADifferenceFromTheLastLook) {
  const EpollItem item = item_of(kEdges);
  Stream::PollPlan plan = plan_of(POLLIN | POLLOUT);
  EXPECT_FALSE(has_edge(item, plan));
  plan.arrivals = 1;
  EXPECT_TRUE(has_edge(item, plan));
  EXPECT_FALSE(has_edge(item_of(EPOLLOUT | EPOLLET), plan)) << "nobody has asked for bytes";
  plan = plan_of(POLLIN | POLLOUT);
  plan.shutdowns = 1;
  EXPECT_TRUE(has_edge(item, plan));
  plan = plan_of(POLLIN);
  plan.blocked = 1;
  EXPECT_FALSE(has_edge(item, plan)) << "a send has found no room, and there is none yet";
  plan.ready |= POLLOUT;
  EXPECT_TRUE(has_edge(item, plan));
  for (const int end : {POLLHUP, POLLERR, POLLRDHUP}) {
    EXPECT_TRUE(has_edge(item, plan_of(static_cast<short>(end))));
  }
  plan = plan_of(0);
  plan.ended = true;
  EXPECT_TRUE(has_edge(item, plan)) << "an end that is known before it is reached";
}

TEST(EpollEvaluateTest, WhatWasSeenIsNoEdgeAnyMore) {
  EpollItem item = item_of(kEdges);
  Stream::PollPlan plan = plan_of(POLLIN | POLLOUT | POLLRDHUP);
  plan.arrivals = plan.blocked = plan.shutdowns = 7;
  EXPECT_TRUE(has_edge(item, plan));
  note_seen(item, plan);
  EXPECT_FALSE(has_edge(item, plan));
  EXPECT_EQ(evaluate(item, plan, 0), 0U);
  EXPECT_EQ(evaluate(item, plan, EPOLLPRI), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI);
}

TEST(EpollEvaluateTest, ALookThatFoundNoRoomKeepsTheEdgeThatIsToTellOfIt) {
  EpollItem item = item_of(kEdges);
  Stream::PollPlan plan = plan_of(0);
  plan.blocked = 1;
  note_seen(item, plan);
  plan.ready = POLLOUT;
  EXPECT_TRUE(has_edge(item, plan));
}

TEST(EpollEvaluateTest, AnArrivalThatTheKernelWasNotAskedOfInTimeIsAnEdge) {
  EpollItem item = item_of(kEdges);
  item.arrived = true;
  EXPECT_EQ(evaluate(item, plan_of(POLLOUT), 0), EPOLLOUT);
}

TEST(EpollEvaluateTest, RoomThatIsOwedIsAnEdgeWhenTheCarrierHasChanged) {
  EpollItem item = item_of(kEdges);
  item.owes_room = true;
  Stream::PollPlan plan = plan_of(0);
  plan.frozen = true;
  EXPECT_FALSE(has_edge(item, plan));
  plan.frozen = false;
  plan.ready = POLLOUT;
  EXPECT_TRUE(has_edge(item, plan));
}

TEST(EpollEvaluateTest, AsksTheKernelForAllThatHoldsWhereThereIsSomethingToTell) {
  EXPECT_TRUE(tells(item_of(EPOLLIN), plan_of(POLLIN)));
  EXPECT_FALSE(tells(item_of(EPOLLIN), plan_of(0)));
  EXPECT_FALSE(tells(item_of(kEdges), plan_of(POLLIN))) << "no edge";
  EpollItem fresh = item_of(kEdges);
  fresh.fresh = true;
  EXPECT_TRUE(tells(fresh, plan_of(POLLIN)));
  EXPECT_FALSE(tells(fresh, plan_of(0))) << "the inner instance tells of it";
}

}  // namespace
}  // namespace ringroad::epoll
