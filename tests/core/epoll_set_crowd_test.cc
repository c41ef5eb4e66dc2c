// An epoll instance's streams where threads do everything at once.
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rsocket-core/base/mutex.h"
#include "rsocket-core/base/sys.h"
#include "tests/core/epoll_instance.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {
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
    p.b = std::make_shared<AgentStream>(&p.host, nullptr, 100 + i, p.b_fd, Role::kAccept,
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
  // A sleeper sees it.
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
    const AgentStreamPtr b = p.b;
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
