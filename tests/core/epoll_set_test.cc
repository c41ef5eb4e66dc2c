// An epoll instance's streams: what a wait reports, on every carrier and while it changes. The kernel's
// semantics, event by event, are held against the kernel in tests/preload.
#include "rsocket-core/stream/epoll_set.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/core/epoll_instance.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {
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
TEST(EpollSet, ACallerThatTakesOneEventAtATimeHearsOfTheKernelsWithinARoundOfTheStreams) {
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

TEST(EpollSet, ANewcomerIsToldOfBothCarriersAtOnceAndOnce) {
  StreamPair p;
  EXPECT_EQ(2, send_text(*p.b, "ab"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.promote();
  Instance instance;
  const std::uint32_t mask = EPOLLIN | EPOLLOUT | EPOLLET;
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(mask, 1), false), 0);
  EXPECT_EQ(instance.ready(), Ready({{1, EPOLLIN | EPOLLOUT}})) << "bytes of the kernel's, and room";
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ("ab", recv_text(*p.a, 10));
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(1, send_text(*p.b, "c"));
  EXPECT_EQ(instance.ready(16, kForever), Ready({{1, EPOLLIN | EPOLLOUT}}));
}

// Neither when the change begins, which is before it is known where the program's bytes end on TCP, nor when
// it is given up, as the second wait has it.
TEST(EpollSet, AnEdgeIsToldOnceThoughTheKernelIsAskedForSomethingElseSinceTheCarrierChanges) {
  StreamPair p;
  Instance instance;
  const std::uint32_t mask = EPOLLIN | EPOLLOUT | EPOLLET;
  ASSERT_EQ(instance.set->add(p.a, p.a_fd, event_of(mask, 1), false), 0);
  EXPECT_EQ(instance.ready(), Ready({{1, EPOLLOUT}}));
  EXPECT_EQ(1, send_text(*p.b, "x"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  p.start();
  p.channels_up();
  for (int i = 0; i < 2000 && !p.a->tx_is_held(); ++i) p.a->service();
  ASSERT_TRUE(p.a->tx_is_held());
  EXPECT_EQ(instance.ready(), Ready({{1, EPOLLIN | EPOLLOUT}}));
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_FALSE(p.a->tx_is_held());
  EXPECT_EQ(instance.ready(), Ready());
  EXPECT_EQ(1, send_text(*p.b, "y"));
  EXPECT_EQ(instance.ready(16, kForever), Ready({{1, EPOLLIN | EPOLLOUT}}));
  EXPECT_EQ(instance.ready(), Ready());
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
// An entry that asks for urgent bytes and room is told of room with every arrival, as by the kernel.
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

TEST(EpollSet, RoomIsToldToACallerThatComesWhileTheCarrierChanges) {
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
TEST(EpollSet, ACallerThatTakesOneEventAtATimeHearsOfAllWhileTheCarrierChanges) {
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

TEST(EpollSet, RoomIsAnEdgeForASenderThatFoundNone) {
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
  EXPECT_TRUE(p.b->demote_for_good(Reason::kFork, 0));
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

}  // namespace
}  // namespace ringroad::test
