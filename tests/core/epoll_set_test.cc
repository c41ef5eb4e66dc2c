// An epoll instance's streams: what a wait reports, and threads that do everything at once. The kernel's
// semantics, event by event, are held against the kernel in tests/preload.
#include "rsocket-core/epoll_set.h"

#include <sys/eventfd.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "rsocket-core/sys.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

// A wait that ends with its time tells what there is, but nobody was woken for it.
constexpr std::int64_t kTooLong = 5'000'000'000;

// Called by each thread that is about to sleep.
std::function<void()> before_sleep;

EpollSet::Calls libc_calls() {
  EpollSet::Calls calls;
  calls.pwait = [](int epfd, epoll_event* events, int max, int timeout, const sigset_t* mask) {
    if (timeout != 0 && before_sleep) before_sleep();
    return ::epoll_pwait(epfd, events, max, timeout, mask);
  };
  calls.pwait2 = [](int epfd, epoll_event* events, int max, const timespec* timeout,
                    const sigset_t* mask) {
    if (before_sleep) before_sleep();
    return ::epoll_pwait2(epfd, events, max, timeout, mask);
  };
  return calls;
}

epoll_event event_of(std::uint32_t mask, std::uint64_t data) {
  epoll_event event{};
  event.events = mask;
  event.data.u64 = data;
  return event;
}

struct Instance {
  Instance() : set(EpollSet::create(fd, libc_calls())) {}
  ~Instance() {
    set.reset();
    ::close(fd);
  }
  // What is ready now: data and events.
  std::map<std::uint64_t, std::uint32_t> ready(int max = 16, std::int64_t deadline_ns = 0) {
    std::vector<epoll_event> events(static_cast<std::size_t>(max));
    const int n = set->wait(fd, events.data(), max, deadline_ns, nullptr);
    std::map<std::uint64_t, std::uint32_t> out;
    for (int i = 0; i < n; ++i) {
      const epoll_event event = events[static_cast<std::size_t>(i)];
      const std::uint64_t data = event.data.u64;  // of a packed structure: no reference to it
      out[data] = event.events;
    }
    EXPECT_EQ(out.size(), static_cast<std::size_t>(std::max(n, 0))) << "an event twice";
    return out;
  }

  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  std::shared_ptr<EpollSet> set;
};

using Ready = std::map<std::uint64_t, std::uint32_t>;

TEST(EpollSet, AnInstanceThatIsNoneIsRefusedAsByTheKernel) {
  EXPECT_EQ(EpollSet::create(5000, libc_calls()), nullptr);
  EXPECT_EQ(errno, EBADF);
  const int event = ::eventfd(0, EFD_CLOEXEC);
  EXPECT_EQ(EpollSet::create(event, libc_calls()), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ::close(event);
}

TEST(EpollSet, ReportsAStreamOnTcpAndOnItsChannelAlike) {
  StreamPair p;
  Instance instance;
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLIN, 7), false), 0);
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(2, send_text(*p.b, "ab"));
  EXPECT_EQ(instance.ready(16, kForever), Ready({{7, EPOLLIN}}));
  p.promote();
  EXPECT_EQ(instance.ready(), Ready({{7, EPOLLIN}})) << "what is left on TCP";
  EXPECT_EQ("ab", recv_text(*p.a, 10));
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(2, send_text(*p.b, "cd"));
  EXPECT_EQ(instance.ready(16, kForever), Ready({{7, EPOLLIN}}));
  EXPECT_EQ("c", recv_text(*p.a, 1));
  EXPECT_EQ(instance.ready(), Ready({{7, EPOLLIN}}));
  EXPECT_EQ("d", recv_text(*p.a, 1));
  EXPECT_EQ(instance.ready(), Ready());
}

// Of the kernel's own, what is new waits for what is ready already, each once.
TEST(EpollSet, WhoTakesOneEventAtATimeHearsOfTheKernelsWithinARoundOfTheStreams) {
  for (const std::size_t streams : {std::size_t{1}, std::size_t{4}, std::size_t{40}}) {
    std::vector<std::unique_ptr<StreamPair>> pairs;
    Instance instance;
    for (std::size_t i = 0; i < streams; ++i) {
      pairs.push_back(std::make_unique<StreamPair>());
      StreamPair& p = *pairs.back();
      p.promote();
      EXPECT_EQ(1, send_text(*p.b, "x"));
      ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLIN, i), false), 0);
    }
    for (std::size_t i = 0; i < 2 * streams; ++i) ASSERT_EQ(instance.ready(1).size(), 1U);
    const int other = ::eventfd(1, EFD_CLOEXEC);
    epoll_event event = event_of(EPOLLIN, streams);
    ASSERT_EQ(::epoll_ctl(instance.fd, EPOLL_CTL_ADD, other, &event), 0);
    std::size_t before = 0;
    while (before < 1000 && instance.ready(1).count(streams) == 0) ++before;
    EXPECT_LE(before, streams) << "and then turn about:";
    std::size_t others = 0;
    for (int i = 0; i < 100; ++i) others += instance.ready(1).count(streams);
    EXPECT_EQ(others, 50U);
    ::close(other);
  }
}

// What the kernel alone has in an instance, as a forked child does.
bool kernel_tells(const Instance& instance, std::uint64_t data) {
  epoll_event event{};
  return ::epoll_wait(instance.fd, &event, 1, 0) == 1 && event.data.u64 == data;
}

TEST(EpollSet, AStreamThatIsLentIsTheKernelsUntilItIsTakenBack) {
  using Lent = EpollSet::Lent;
  StreamPair p;
  Instance instance;
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLIN, 7), false), 0);
  instance.set->lend_all();
  EXPECT_EQ(instance.set->lent(*p.a), Lent::kReturnable);
  EXPECT_EQ(1, send_text(*p.b, "a"));
  EXPECT_TRUE(kernel_tells(instance, 7));
  EXPECT_EQ(instance.ready(), Ready({{7, EPOLLIN}}));
  EXPECT_EQ(instance.set->modify(*p.a, p.a_fd, event_of(EPOLLIN, 8)), 0);
  EXPECT_TRUE(kernel_tells(instance, 8));
  instance.set->take_back(*p.a);
  EXPECT_EQ(instance.set->lent(*p.a), Lent::kNot);
  EXPECT_EQ(instance.ready(), Ready({{8, EPOLLIN}}));
  EXPECT_EQ("a", recv_text(*p.a, 10));
  EXPECT_EQ(instance.ready(), Ready());
  p.promote();
  EXPECT_EQ(1, send_text(*p.b, "b"));
  EXPECT_EQ(instance.ready(16, kForever), Ready({{8, EPOLLIN}}));
}

TEST(EpollSet, AOneshotThatIsLentComesBackWithItsNextChange) {
  using Lent = EpollSet::Lent;
  StreamPair p;
  Instance instance;
  const std::uint32_t mask = EPOLLIN | EPOLLONESHOT;
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(mask, 1), false), 0);
  instance.set->lend_all();
  EXPECT_EQ(1, send_text(*p.b, "a"));
  EXPECT_EQ(instance.ready(), Ready({{1, EPOLLIN}}));
  EXPECT_EQ(instance.ready(), Ready()) << "it has fired in the kernel";
  EXPECT_EQ(instance.set->lent(*p.a), Lent::kUntilModified);
  EXPECT_EQ(instance.set->modify(*p.a, p.a_fd, event_of(mask, 2), true), 0);
  EXPECT_EQ(instance.set->lent(*p.a), Lent::kNot);
  EXPECT_EQ(instance.ready(), Ready({{2, EPOLLIN}}));
  EXPECT_EQ(instance.ready(), Ready());
}

TEST(EpollSet, AnEdgeIsNotLostWhileTheCarrierChanges) {
  for (int at = 0; at < 3; ++at) {
    StreamPair p;
    Instance instance;
    ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLIN | EPOLLET, 1), false), 0);
    EXPECT_EQ(1, send_text(*p.b, "a"));
    EXPECT_EQ(instance.ready(16, kForever), Ready({{1, EPOLLIN}}));
    if (at == 0) recv_text(*p.a, 10);
    p.promote();
    instance.ready();
    if (at == 1) recv_text(*p.a, 10);
    instance.ready();
    EXPECT_EQ(1, send_text(*p.b, "b"));
    EXPECT_EQ(instance.ready(16, sys::now_ns() + 2'000'000'000), Ready({{1, EPOLLIN}})) << at;
    EXPECT_EQ(instance.ready(), Ready()) << at;
  }
}

// The peer commits and goes back at once, and this end hears of both in its look.
TEST(EpollSet, FramesThatTheLookItselfReadsAreNoArrival) {
  StreamPair p;
  Instance instance;
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLIN, 1), false), 0);
  EXPECT_EQ(instance.ready(), Ready());
  p.start();
  p.channels_up();
  for (int i = 0; i < 2000 && p.b->state() != State::kOnChannel; ++i) {
    p.b->service();
    if (readable(p.a_fd, 1)) continue;
    EXPECT_EQ(instance.ready(), Ready());  // after which the answer is nobody's news
    p.a->service();
  }
  ASSERT_EQ(p.b->state(), State::kOnChannel);
  ASSERT_EQ(p.a->state(), State::kSwitching);
  p.b->keep_on_tcp(Reason::kOperator);
  ASSERT_EQ(p.b->state(), State::kResuming);
  ASSERT_TRUE(readable(p.a_fd, 1000));
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(p.a->state(), State::kOnTcp);
}

// Not by waiting for the change to be over, as there is something else to tell.
// Who asks for urgent bytes and room is told of room with every arrival, as by the kernel.
TEST(EpollSet, AnArrivalIsAnEdgeOfRoomThoughTheCarrierChangesBeforeItIsAskedFor) {
  StreamPair p;
  Instance instance;
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLPRI | EPOLLOUT | EPOLLET, 1), false), 0);
  EXPECT_EQ(instance.ready(), Ready({{1, EPOLLOUT}}));
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(1, send_text(*p.b, "x"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.start();
  p.channels_up();
  for (int i = 0; i < 2000 && !p.a->tx_is_held(); ++i) p.a->service();
  ASSERT_TRUE(p.a->tx_is_held());
  EXPECT_EQ(instance.ready(), Ready({{1, EPOLLOUT}}));
  EXPECT_TRUE(p.a->tx_is_held());
}

TEST(EpollSet, RoomIsToldToWhoComesWhileTheCarrierChanges) {
  StreamPair p;
  StreamPair other;
  EXPECT_EQ(1, send_text(*other.a, "x"));
  ASSERT_TRUE(readable(other.b_fd, 1000));
  p.start();
  p.channels_up();
  for (int i = 0; i < 2000 && !p.a->tx_is_held(); ++i) p.a->service();
  ASSERT_TRUE(p.a->tx_is_held());
  // Of the second the kernel is asked as well, and has nothing to say.
  for (const std::uint32_t mask :
       {EPOLLOUT | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLET, std::uint32_t{EPOLLOUT}}) {
    Instance instance;
    ASSERT_EQ(instance.set->add(other.b, other.b_fd, event_of(EPOLLIN, 2), false), 0);
    ASSERT_EQ(instance.ready(), Ready({{2, EPOLLIN}}));
    ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(mask, 1), false), 0);
    EXPECT_EQ(instance.ready(), Ready({{1, EPOLLOUT}, {2, EPOLLIN}})) << mask;
    EXPECT_TRUE(p.a->tx_is_held());
  }
}

// What is promised, what is there on the library's side and what is the kernel's take turns.
TEST(EpollSet, WhoTakesOneEventAtATimeHearsOfAllWhileTheCarrierChanges) {
  StreamPair changing[2];
  StreamPair other;
  const int event = ::eventfd(1, EFD_CLOEXEC);
  EXPECT_EQ(1, send_text(*other.a, "x"));
  ASSERT_TRUE(readable(other.b_fd, 1000));
  Instance instance;
  epoll_event kernels = event_of(EPOLLIN, 4);
  ASSERT_EQ(::epoll_ctl(instance.fd, EPOLL_CTL_ADD, event, &kernels), 0);
  ASSERT_EQ(instance.set->add(other.b, other.b_fd, event_of(EPOLLIN, 3), false), 0);
  for (std::size_t i = 0; i < std::size(changing); ++i) {
    StreamPair& p = changing[i];
    p.start();
    p.channels_up();
    for (int k = 0; k < 2000 && !p.a->tx_is_held(); ++k) p.a->service();
    ASSERT_TRUE(p.a->tx_is_held());
    ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLOUT, i + 1), false), 0);
  }
  std::map<std::uint64_t, int> told;
  constexpr int kWaits = 24;
  for (int i = 0; i < kWaits; ++i) {
    for (const auto& [label, events] : instance.ready(1)) ++told[label];
  }
  EXPECT_TRUE(changing[0].a->tx_is_held() && changing[1].a->tx_is_held());
  for (const std::uint64_t label : {1U, 2U, 3U, 4U}) EXPECT_GE(told[label], kWaits / 8) << label;
  ::close(event);
}

TEST(EpollSet, RoomIsAnEdgeForWhoFoundNone) {
  StreamPair p(4096);
  p.promote();
  Instance instance;
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLOUT | EPOLLET, 1), false), 0);
  EXPECT_EQ(instance.ready(), Ready({{1, EPOLLOUT}}));
  while (send_text(*p.a, std::string(1000, 'x')) > 0) {
  }
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(4096U, recv_text(*p.b, 5000).size());
  EXPECT_EQ(instance.ready(16, sys::now_ns() + 2'000'000'000), Ready({{1, EPOLLOUT}}));
  EXPECT_EQ(instance.ready(), Ready());
}

TEST(EpollSet, AStreamThatIsTheKernelsForGoodMovesToTheKernel) {
  StreamPair p;
  Instance instance;
  ASSERT_EQ(instance.set->add(p.b, p.b_fd, event_of(EPOLLIN, 3), false), 0);
  EXPECT_TRUE(p.b->pin(Reason::kFork, 0));
  instance.set->hand_back();
  EXPECT_FALSE(instance.set->has(*p.b, p.b_fd));
  EXPECT_EQ(1, send_text(*p.a, "x"));
  epoll_event event{};
  ASSERT_EQ(1, ::epoll_wait(instance.fd, &event, 1, 2000));
  EXPECT_EQ(std::uint64_t{event.data.u64}, 3U);
}

TEST(EpollSet, AStreamUnderTwoNumbersIsReportedForEachOnEveryCarrier) {
  StreamPair p;
  Instance instance;
  const int copy = ::dup(p.a_fd);
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLIN, 1), false), 0);
  ASSERT_EQ(instance.set->add(p.a, copy, event_of(EPOLLIN, 2), false), 0);
  EXPECT_EQ(instance.set->add(p.a, copy, event_of(EPOLLIN, 3), false), EEXIST);
  const Ready both{{1, EPOLLIN}, {2, EPOLLIN}};
  EXPECT_EQ(2, send_text(*p.b, "ab"));
  EXPECT_EQ(instance.ready(16, kForever), both);
  EXPECT_EQ("ab", recv_text(*p.a, 10));
  EXPECT_EQ(instance.ready(), Ready());
  p.promote();
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(2, send_text(*p.b, "cd"));
  EXPECT_EQ(instance.ready(16, kForever), both);
  EXPECT_EQ("cd", recv_text(*p.a, 10));
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(0, instance.set->remove(*p.a, p.a_fd));
  EXPECT_EQ(2, send_text(*p.b, "ef"));
  EXPECT_EQ(instance.ready(16, kForever), Ready({{2, EPOLLIN}}));
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(EPOLLIN, 1), false), 0);
  EXPECT_EQ(instance.ready(), both);
  p.a->leave_channel(Reason::kDescriptorUse);  // for good
  ASSERT_TRUE(p.pump_until([&] {
    return p.a->state() == State::kOnTcp && p.b->state() == State::kOnTcp;
  }));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  EXPECT_EQ(instance.ready(), both);
  EXPECT_FALSE(instance.set->has(*p.a, p.a_fd) || instance.set->has(*p.a, copy))
      << "both are the kernel's";
  ::close(copy);
}

TEST(EpollSet, AStreamIsForgottenWhenItIsClosed) {
  StreamPair p;
  p.promote();
  Instance instance;
  ASSERT_EQ(instance.set->add(p.b, p.b_fd, event_of(EPOLLIN, 3), false), 0);
  EXPECT_EQ(1, send_text(*p.a, "x"));
  instance.set->forget(*p.b);
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(instance.set->modify(*p.b, p.b_fd, event_of(EPOLLIN, 3)), ENOENT);
  EXPECT_TRUE(p.b->waiters().empty());
}

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
    EXPECT_FALSE(readable(p.b->channel_fd(), 0));
    EXPECT_EQ(1, send_text(*p.a, "y"));
    EXPECT_FALSE(readable(p.b->channel_fd(), 0)) << mode;
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

struct Crowd {
  std::uint32_t mode = 0;
  unsigned seed = 0;
  int waiters = 2;
  std::int64_t spin_ns = 0;
};

// Threads wait and read, one sends on every connection, one adds, modifies and removes, one does
// the agents' work: every byte arrives once, and nobody sleeps over one.
void run_crowd(const Crowd& crowd) {
  const std::uint32_t mode = crowd.mode;
  const unsigned seed = crowd.seed;
  // Of one thread alone a peer need not wake anybody else; and it hears of nothing by waiting
  // again.
  const bool alone = crowd.waiters == 1;
  const std::int64_t patience_ns = alone ? 60'000'000'000 : 50'000'000;
  constexpr std::size_t kPairs = 6;
  constexpr int kRounds = 1500;
  Instance instance;
  std::vector<std::unique_ptr<StreamPair>> pairs;
  for (std::size_t i = 0; i < kPairs; ++i) {
    pairs.push_back(std::make_unique<StreamPair>(4096));
    // An id of its own: pairs number theirs alike.
    auto& p = *pairs.back();
    StreamConfig config = p.b->config();
    config.spin_ns = crowd.spin_ns;
    p.b = std::make_shared<Stream>(&p.host, nullptr, 100 + i, p.b_fd, StreamRole::kAccept,
                                   p.b->tuple(), config, true);
    p.start();
    ASSERT_EQ(instance.set->add(p.b, p.b_fd, event_of(EPOLLIN | mode, i), false), 0);
  }
  std::atomic<bool> over{false};
  std::atomic<bool> all_read{false};
  std::vector<std::atomic<std::uint64_t>> received(kPairs);
  std::vector<std::unique_ptr<Mutex>> reading;
  for (std::size_t i = 0; i < kPairs; ++i) reading.push_back(std::make_unique<Mutex>());
  const auto waiter = [&] {
    while (!all_read) {
      epoll_event events[4];
      const int n =
          instance.set->wait(instance.fd, events, 4, sys::now_ns() + patience_ns, nullptr);
      for (int i = 0; i < n; ++i) {
        const auto which = static_cast<std::size_t>(events[i].data.u64);
        MutexLock lock(*reading[which]);
        char buffer[512];
        iovec iov{buffer, sizeof buffer};
        for (ssize_t got; (got = pairs[which]->b->recv(&iov, 1, 0)) > 0;) {
          received[which] += static_cast<std::uint64_t>(got);
        }
        if ((mode & EPOLLONESHOT) != 0) {
          instance.set->modify(*pairs[which]->b, pairs[which]->b_fd, event_of(EPOLLIN | mode, which));
        }
      }
    }
  };
  std::thread agent([&] {
    while (!over) {
      for (auto& p : pairs) {
        p->a->service();
        p->b->service();
      }
      ::poll(nullptr, 0, 1);
    }
  });
  std::vector<std::thread> waiters;
  for (int i = 0; i < crowd.waiters; ++i) waiters.emplace_back(waiter);
  std::thread meddler([&] {
    std::mt19937 random(seed);
    while (!over) {
      const std::size_t i = random() % kPairs;
      const int fd = pairs[i]->b_fd;
      switch (random() % 3) {
        case 0:
          instance.set->modify(*pairs[i]->b, fd, event_of(EPOLLIN | mode, i));
          break;
        case 1:
          if (instance.set->remove(*pairs[i]->b, fd) == 0) {
            EXPECT_EQ(instance.set->add(pairs[i]->b, fd, event_of(EPOLLIN | mode, i), false), 0);
          }
          break;
        default:
          if (!alone) instance.set->watch();
      }
      ::poll(nullptr, 0, 1);
    }
  });
  std::mt19937 random(seed + 1);
  std::vector<std::uint64_t> sent(kPairs);
  for (int round = 0; round < kRounds; ++round) {
    if (round == kRounds / 3) {
      for (auto& p : pairs) p->channels_up();
    }
    const std::size_t i = random() % kPairs;
    const ssize_t n = send_text_unless_held(*pairs[i]->a, std::string(1 + random() % 200, 'x'));
    if (n > 0) sent[i] += static_cast<std::uint64_t>(n);
    if (n < 0) std::this_thread::yield();
  }
  for (std::size_t i = 0; i < kPairs; ++i) {
    const auto done = [&] {
      return received[i] == sent[i] && pairs[i]->b->state() == State::kOnChannel;
    };
    for (int patience = 0; patience < 5000 && !done(); ++patience) ::poll(nullptr, 0, 1);
    EXPECT_EQ(received[i], sent[i]) << "connection " << i;
    EXPECT_STREQ(state_name(pairs[i]->b->state()), "ON_CHANNEL") << "connection " << i;
  }
  all_read = true;
  // Who sleeps shall see it.
  while (send_text_unless_held(*pairs[0]->a, "x") < 0) std::this_thread::yield();
  for (std::thread& thread : waiters) thread.join();
  over = true;
  meddler.join();
  agent.join();
  for (auto& p : pairs) instance.set->forget(*p->b);
}

TEST(EpollSet, LosesNoEventInACrowdLevelTriggered) { run_crowd({0, 1}); }
TEST(EpollSet, LosesNoEventInACrowdEdgeTriggered) { run_crowd({EPOLLET, 2}); }
TEST(EpollSet, LosesNoEventInACrowdOneShot) { run_crowd({EPOLLET | EPOLLONESHOT, 3}); }

TEST(EpollSet, LosesNoEventOfACrowdThatOneThreadReads) {
  for (const std::int64_t spin_ns : {0, 50'000}) {
    run_crowd({0, 4, 1, spin_ns});
    run_crowd({EPOLLET, 5, 1, spin_ns});
    run_crowd({EPOLLET | EPOLLONESHOT, 6, 1, spin_ns});
  }
}

TEST(EpollSet, LosesNoEventWhereSeveralThreadsPoll) {
  run_crowd({0, 7, 3, 20'000});
  run_crowd({EPOLLET, 8, 3, 20'000});
}

TEST(EpollSet, ClosingRacesWaiting) {
  Instance instance;
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    while (!over) {
      epoll_event events[4];
      instance.set->wait(instance.fd, events, 4, sys::now_ns() + 20'000'000, nullptr);
    }
  });
  for (int i = 0; i < 60; ++i) {
    StreamPair p;
    p.promote();
    const StreamPtr b = p.b;
    ASSERT_EQ(instance.set->add(b, p.b_fd, event_of(EPOLLIN, 1), false), 0);
    std::thread sender([&] { send_text(*p.a, "x"); });
    instance.set->forget(*b);
    b->close_by_program(true);
    ::close(std::exchange(p.b_fd, -1));
    sender.join();
  }
  over = true;
  waiter.join();
}

}  // namespace
}  // namespace ringroad::test
