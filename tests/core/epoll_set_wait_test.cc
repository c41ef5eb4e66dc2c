// A wait on an epoll instance's streams: when it sleeps, for how long it polls, and what wakes it.
#include "rsocket-core/stream/epoll_set.h"

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/core/epoll_instance.h"
#include "tests/core/stream_pair.h"
#include "tests/core/wake_ups.h"

namespace ringroad::test {
namespace {
// A wait that ends with its time tells what there is, but nobody was woken for it.
constexpr std::int64_t kTooLong = 5'000'000'000;

TEST(EpollSet, WakesItsSleeperAndNobodyForNothing) {
  StreamPair p;
  p.promote();
  Instance instance;
  ASSERT_EQ(instance.set->add(p.b, p.b_fd, event_of(EPOLLIN, 3), false), 0);
  const std::int64_t began = sys::now_ns();
  EXPECT_EQ(instance.ready(16, began + 100'000'000), Ready());
  EXPECT_GE(sys::now_ns() - began, 100'000'000);
  std::thread sender([&] {
    while (p.b->waiters().empty()) std::this_thread::yield();
    EXPECT_EQ(1, send_text(*p.a, "x"));
  });
  EXPECT_EQ(instance.ready(16, kForever), Ready({{3, EPOLLIN}}));
  sender.join();
}

TEST(EpollSet, TwoInstancesThatWaitForOneStreamDoNotKeepWakingEachOther) {
  StreamPair p;
  p.promote();
  Instance one;
  Instance other;
  std::atomic<int> sleeps{0};
  for (Instance* instance : {&one, &other}) {
    ASSERT_EQ(instance->set->add(p.b, p.b_fd, event_of(EPOLLIN, 3), false), 0);
  }
  before_sleep = [&] { ++sleeps; };
  const std::int64_t deadline = sys::now_ns() + 300'000'000;
  std::thread waits([&] { EXPECT_EQ(one.ready(16, deadline), Ready()); });
  std::thread waits_too([&] { EXPECT_EQ(other.ready(16, deadline), Ready()); });
  while (sleeps < 2) std::this_thread::yield();
  EXPECT_EQ(one.set->modify(*p.b, p.b_fd, event_of(EPOLLIN | EPOLLRDHUP, 3)), 0);
  waits.join();
  waits_too.join();
  before_sleep = nullptr;
  EXPECT_LT(sleeps, 20);
}

TEST(EpollSet, APeerWakesNobodyWhileTheProgramIsAtWork) {
  for (const std::uint32_t mode : {std::uint32_t{0}, std::uint32_t{EPOLLET}}) {
    StreamPair p;
    p.promote();
    Instance instance;
    ASSERT_EQ(instance.set->add(p.b, p.b_fd, event_of(EPOLLIN | EPOLLOUT | mode, 3), false), 0);
    instance.ready();
    instance.ready();  // an edge is over
    EXPECT_EQ(1, send_text(*p.a, "x"));
    EXPECT_EQ(instance.ready(), Ready({{3, EPOLLIN | EPOLLOUT}}));
    EXPECT_EQ("x", recv_text(*p.b, 10));
    WakeUps wake_ups(p.b->channel_fd(), p.b->channel_events());
    EXPECT_EQ(1, send_text(*p.a, "y"));
    EXPECT_FALSE(wake_ups.told()) << mode;
    EXPECT_EQ(instance.ready(16, kForever), Ready({{3, EPOLLIN | EPOLLOUT}})) << mode;
    EXPECT_EQ("y", recv_text(*p.b, 10));
  }
}

TEST(EpollSet, WhatIsNewWhenAThreadFallsAsleepWakesIt) {
  for (const std::uint32_t mode : {std::uint32_t{0}, std::uint32_t{EPOLLET}}) {
    for (const bool fresh : {true, false}) {
      StreamPair p;
      p.promote();
      Instance instance;
      ASSERT_EQ(instance.set->add(p.b, p.b_fd, event_of(EPOLLIN | mode, 3), false), 0);
      if (!fresh) {
        EXPECT_EQ(1, send_text(*p.a, "x"));
        EXPECT_EQ(instance.ready(), Ready({{3, EPOLLIN}}));
        EXPECT_EQ("x", recv_text(*p.b, 10));
      }
      before_sleep = [&] { send_text(*p.a, "y"); };
      const std::int64_t deadline = sys::now_ns() + kTooLong;
      EXPECT_EQ(instance.ready(16, deadline), Ready({{3, EPOLLIN}})) << mode << " " << fresh;
      before_sleep = nullptr;
      EXPECT_LT(sys::now_ns(), deadline) << mode << " " << fresh;
    }
  }
}

TEST(EpollSet, AnotherThreadThatSleepsHearsOfWhatComesWhileTheFirstIsAtWork) {
  for (const std::uint32_t mode : {std::uint32_t{0}, std::uint32_t{EPOLLET}}) {
    StreamPair p;
    p.promote();
    Instance instance;
    ASSERT_EQ(instance.set->add(p.b, p.b_fd, event_of(EPOLLIN | mode, 3), false), 0);
    std::atomic<int> asleep{0};
    std::atomic<int> told{0};
    before_sleep = [&] { ++asleep; };
    const std::int64_t deadline = sys::now_ns() + kTooLong;
    const auto wait_once = [&] {
      if (!instance.ready(16, deadline).empty()) ++told;
    };
    std::thread first(wait_once);
    std::thread second(wait_once);
    while (asleep < 2) std::this_thread::yield();
    EXPECT_EQ(1, send_text(*p.a, "x"));
    while (told == 0) std::this_thread::yield();
    EXPECT_EQ(1, send_text(*p.a, "y"));
    first.join();
    second.join();
    before_sleep = nullptr;
    EXPECT_EQ(told, 2) << mode;
    EXPECT_LT(sys::now_ns(), deadline) << mode;
  }
}

TEST(EpollSet, AWaitThatPollsHearsOfWhatElseTheInstanceHolds) {
  StreamPair p;
  Instance instance;
  ASSERT_EQ(instance.set->add(make_b_poll(p), p.b_fd, event_of(EPOLLIN, 3), false), 0);
  EXPECT_EQ(1, send_text(*p.a, "x"));
  EXPECT_EQ(instance.ready(16, kForever), Ready({{3, EPOLLIN}}));
  EXPECT_EQ("x", recv_text(*p.b, 10));
  const int other = ::eventfd(1, EFD_CLOEXEC);
  epoll_event event = event_of(EPOLLIN, 4);
  ASSERT_EQ(::epoll_ctl(instance.fd, EPOLL_CTL_ADD, other, &event), 0);
  const std::int64_t began = sys::now_ns();
  EXPECT_EQ(instance.ready(16, kForever), Ready({{4, EPOLLIN}}));
  EXPECT_LT(sys::now_ns() - began, kLongSpin / 4);
  ::close(other);
}

TEST(EpollSet, AWaitThatPollsEndsWithItsTime) {
  StreamPair p;
  Instance instance;
  ASSERT_EQ(instance.set->add(make_b_poll(p), p.b_fd, event_of(EPOLLIN, 3), false), 0);
  EXPECT_EQ(1, send_text(*p.a, "x"));
  EXPECT_EQ(instance.ready(16, kForever), Ready({{3, EPOLLIN}}));
  EXPECT_EQ("x", recv_text(*p.b, 10));
  const std::int64_t began = sys::now_ns();
  EXPECT_EQ(instance.ready(16, began + 50'000'000), Ready());
  EXPECT_GE(sys::now_ns() - began, 50'000'000);
  EXPECT_LT(sys::now_ns() - began, kLongSpin / 4);
}

// A thread waits and most likely polls, while this one does something about it. `meanwhile` is
// called when the wait is about to begin.
Ready wait_while(Instance& instance, const std::function<void()>& meanwhile) {
  std::atomic<bool> begins{false};
  Ready found;
  const std::int64_t began = sys::now_ns();
  std::thread waiter([&] {
    begins = true;
    found = instance.ready(16, kForever);
  });
  while (!begins) std::this_thread::yield();
  // It polls for much longer than this.
  const std::int64_t soon = sys::now_ns() + 20'000'000;
  while (sys::now_ns() < soon) std::this_thread::yield();
  meanwhile();
  waiter.join();
  EXPECT_LT(sys::now_ns() - began, kLongSpin / 4);
  return found;
}

TEST(EpollSet, AWaitThatPollsHearsOfWhatIsModified) {
  StreamPair p;
  Instance instance;
  ASSERT_EQ(instance.set->add(make_b_poll(p), p.b_fd, event_of(EPOLLIN, 3), false), 0);
  EXPECT_EQ(1, send_text(*p.a, "x"));
  EXPECT_EQ(instance.ready(16, kForever), Ready({{3, EPOLLIN}}));
  EXPECT_EQ("x", recv_text(*p.b, 10));
  const Ready found = wait_while(instance, [&] {
    EXPECT_EQ(instance.set->modify(*p.b, p.b_fd, event_of(EPOLLIN | EPOLLOUT, 3)), 0);
  });
  EXPECT_EQ(found, Ready({{3, EPOLLOUT}}));
}

TEST(EpollSet, AWaitThatPollsHearsOfRoomThatAnotherThreadHadUsedUpMeanwhile) {
  StreamPair p;
  Instance instance;
  const std::uint32_t mask = EPOLLIN | EPOLLOUT | EPOLLET;
  ASSERT_EQ(instance.set->add(make_b_poll(p), p.b_fd, event_of(mask, 3), false), 0);
  EXPECT_EQ(instance.ready(), Ready({{3, EPOLLOUT}}));
  const Ready found = wait_while(instance, [&] {
    const std::string bytes(64 * 1024, 'x');
    std::size_t sent = 0;
    for (ssize_t n; (n = send_text(*p.b, bytes, MSG_DONTWAIT)) > 0;)
      sent += static_cast<std::size_t>(n);
    EXPECT_EQ(errno, EAGAIN);
    while (sent > 0) sent -= recv_text(*p.a, static_cast<std::size_t>(sent)).size();
  });
  EXPECT_EQ(found, Ready({{3, EPOLLOUT}}));
}

TEST(EpollSet, AWaitPollsForAsLongAsTheRulesOfWhatIsPolledSay) {
  StreamPair long_gone;
  StreamPair p;
  p.promote();
  ASSERT_LE(p.b->config().spin_ns, 1'000'000);
  Instance instance;
  ASSERT_EQ(instance.set->add(make_b_poll(long_gone), long_gone.b_fd, event_of(EPOLLIN, 3), false),
            0);
  ASSERT_EQ(instance.set->remove(*long_gone.b, long_gone.b_fd), 0);
  ASSERT_EQ(instance.set->add(p.b, p.b_fd, event_of(EPOLLIN, 4), false), 0);
  const auto cpu_ns = [] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
  };
  const std::int64_t before = cpu_ns();
  EXPECT_EQ(instance.ready(16, sys::now_ns() + 200'000'000), Ready());
  EXPECT_LT(cpu_ns() - before, 50'000'000);
}

// An instance with two streams and two eventfds that have nothing to tell, in the order of their data.
struct FourThings {
  StreamPair first, second;
  Instance instance;
  const int before = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const int behind = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

  explicit FourThings(std::uint32_t how = 0, ShmWakeKind kind = ShmWakeKind::kOneEvent) {
    first.promote(kind);
    second.promote(kind);
    epoll_event event = event_of(EPOLLIN | how, 1);
    EXPECT_EQ(::epoll_ctl(instance.fd, EPOLL_CTL_ADD, before, &event), 0);
    event = event_of(EPOLLIN | how, 4);
    EXPECT_EQ(::epoll_ctl(instance.fd, EPOLL_CTL_ADD, behind, &event), 0);
    EXPECT_EQ(instance.set->add(first.b, first.b_fd, event_of(EPOLLIN | how, 2), false), 0);
    EXPECT_EQ(instance.set->add(second.b, second.b_fd, event_of(EPOLLIN | how, 3), false), 0);
    EXPECT_EQ(told(), Order());
  }
  ~FourThings() {
    ::close(before);
    ::close(behind);
  }

  using Order = std::vector<std::uint64_t>;
  Order told() {
    epoll_event events[8];
    const int n = instance.set->wait(instance.fd, events, 8, 0, nullptr);
    Order order;
    for (int i = 0; i < n; ++i) {
      const std::uint64_t data = events[i].data.u64;  // a copy: the event is packed, its words not aligned
      order.push_back(data);
    }
    return order;
  }
};

// By the agent, by a thread that sleeps in another call, and by one that finds the bytes without sleep.
TEST(EpollSet, AStreamKeepsItsPlaceInTheOrderWhenAnotherThreadTakesTheChannelsWakeUp) {
  for (const std::string taker : {"nobody", "agent", "agent of another user's", "agent of an older peer's",
                                  "sleeper", "sleeper of an older peer's", "poll"}) {
    FourThings there(0, taker.ends_with("user's")   ? ShmWakeKind::kSocket
                        : taker.ends_with("peer's") ? ShmWakeKind::kEvents
                                                    : ShmWakeKind::kOneEvent);
    StreamPair& first = there.first;
    ASSERT_EQ(::eventfd_write(there.before, 1), 0);
    EXPECT_EQ(1, send_text(*first.a, "x"));
    EXPECT_EQ(1, send_text(*there.second.a, "x"));
    if (taker.starts_with("agent")) first.b->take_wake_up();
    const bool sleeper = taker == "sleeper" && first.b->take_in_by_edge();
    EXPECT_EQ(sleeper, taker == "sleeper");
    if (taker == "sleeper of an older peer's") first.b->after_sleep();
    if (taker == "poll") {
      Waiter polls;
      polls.events = POLLIN;
      const Listed listed(&first.b->waiters(), polls);
      first.b->waiters().wake_others(POLLIN, polls);
    }
    ASSERT_EQ(::eventfd_write(there.behind, 1), 0);
    EXPECT_EQ(there.told(), (FourThings::Order{1, 2, 3, 4})) << taker;
  }
}

TEST(EpollSet, AStreamHasThePlaceOfItsBytesHoweverLateTheAgentHearsOfThoseBefore) {
  for (const std::uint32_t how : {0U, std::uint32_t{EPOLLET}}) {
    for (const ShmWakeKind kind : {ShmWakeKind::kEvents, ShmWakeKind::kSocket, ShmWakeKind::kOneEvent}) {
      FourThings there(how, kind);
      StreamPair& first = there.first;
      EXPECT_EQ(1, send_text(*first.a, "x"));
      EXPECT_EQ(there.told(), (FourThings::Order{2}));
      EXPECT_EQ("x", recv_text(*first.b, 10));
      EXPECT_EQ(there.told(), FourThings::Order());
      first.b->take_wake_up();
      ASSERT_EQ(::eventfd_write(there.before, 1), 0);
      EXPECT_EQ(1, send_text(*first.a, "y"));
      EXPECT_EQ(there.told(), (FourThings::Order{1, 2})) << how << " " << static_cast<int>(kind);
    }
  }
}

TEST(EpollSet, AStreamIsToldBehindOthersOfItsInstanceThoughTheAgentHearsOfItAlone) {
  FourThings there;
  EXPECT_EQ(1, send_text(*there.second.a, "x"));
  EXPECT_EQ(1, send_text(*there.first.a, "x"));
  there.first.b->take_wake_up();
  EXPECT_EQ(there.told(), (FourThings::Order{3, 2}));
}

// Nothing else says that there is something new.
TEST(EpollSet, ASleeperHearsOfWhatAnotherThreadTakesAsItFallsAsleep) {
  StreamPair p;
  p.promote(ShmWakeKind::kSocket);
  Instance instance;
  ASSERT_EQ(instance.set->add(p.b, p.b_fd, event_of(EPOLLIN, 3), false), 0);
  ASSERT_EQ(instance.ready(), Ready());
  EXPECT_EQ(1, send_text(*p.a, "x"));
  p.b->take_wake_up();
  const std::int64_t deadline = sys::now_ns() + kTooLong;
  EXPECT_EQ(instance.ready(16, deadline), Ready({{3, EPOLLIN}}));
  EXPECT_LT(sys::now_ns(), deadline);
  EXPECT_EQ("x", recv_text(*p.b, 10));
  EXPECT_EQ(instance.ready(), Ready());
}

}  // namespace
}  // namespace ringroad::test
