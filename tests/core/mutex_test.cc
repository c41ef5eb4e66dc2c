#include "rsocket-core/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace ringroad::test {
namespace {

TEST(MutexTest, KeepsThreadsOutThatMeet) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20'000;
  Mutex mutex;
  int count = 0;  // not atomic: the mutex is what orders it
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        MutexLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kRounds);
}

// Each that gets the lock must wake the next.
TEST(MutexTest, WakesAllThatSleep) {
  constexpr int kSleepers = 4;
  Mutex mutex;
  std::atomic<int> started{0};
  std::atomic<int> through{0};
  std::vector<std::thread> threads;
  mutex.lock();
  for (int i = 0; i < kSleepers; ++i) {
    threads.emplace_back([&] {
      started.fetch_add(1);
      MutexLock lock(mutex);
      through.fetch_add(1);
    });
  }
  while (started.load() < kSleepers) std::this_thread::yield();
  EXPECT_EQ(through.load(), 0);
  mutex.unlock();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(through.load(), kSleepers);
}

TEST(MutexTest, IsTriedInVainWhileItIsTaken) {
  Mutex mutex;
  if (!mutex.try_lock()) FAIL() << "is free";
  std::thread([&] {
    EXPECT_FALSE(mutex.try_lock());
    EXPECT_FALSE(mutex.try_lock_within());
    EXPECT_EQ(signals::thread_state.depth, 0U);
  }).join();
  mutex.unlock();
  EXPECT_EQ(signals::thread_state.depth, 0U);
  if (!mutex.try_lock_within()) FAIL() << "is free again";
  EXPECT_EQ(signals::thread_state.depth, 0U);
  mutex.unlock_within();
}

TEST(MutexTest, IsFreeInAChildWhoeverHeldIt) {
  Mutex mutex;
  mutex.lock();
  mutex.reset_after_fork();
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
  signals::end();  // of the first lock()
}

}  // namespace
}  // namespace ringroad::test
