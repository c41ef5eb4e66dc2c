#include "rsocket-core/base/mutex.h"

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

TEST(MutexTest, AThreadThatPassesByLeavesAMarkForTheHolder) {
  MarkedMutex mutex;
  if (!mutex.try_lock_or_mark()) FAIL() << "is free";
  std::thread([&] {
    EXPECT_FALSE(mutex.try_lock_or_mark());
    EXPECT_EQ(signals::thread_state.depth, 0U);
  }).join();
  EXPECT_EQ(mutex.unlock_and_tell(), Mutex::kMarked);
  EXPECT_EQ(signals::thread_state.depth, 0U);
  if (!mutex.try_lock_or_mark()) FAIL() << "is free again";
  EXPECT_EQ(mutex.unlock_and_tell(), 0U) << "a mark is told once";
}

// What a thread has done before passing by is seen by the holder of the lock, or the next one;
// also beside threads that sleep for it.
TEST(MutexTest, NothingThatAThreadDoesBeforePassingByGoesUnseen) {
  constexpr int kPassers = 3;
  constexpr int kRounds = 20'000;
  MarkedMutex mutex;
  std::atomic<int> done{0};
  int seen = 0;  // by the holder
  int slept = 0;
  const auto look = [&](std::uint32_t left) {
    while ((left & Mutex::kMarked) != 0 && mutex.try_lock_or_mark()) {
      seen = done.load(std::memory_order_relaxed);
      left = mutex.unlock_and_tell();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kPassers; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        done.fetch_add(1, std::memory_order_relaxed);
        look(Mutex::kMarked);
      }
    });
  }
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        mutex.lock();
        ++slept;
        look(mutex.unlock_and_tell());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, kPassers * kRounds);
  EXPECT_EQ(slept, 2 * kRounds);
}

TEST(MutexTest, IsFreeInAChildWhicheverThreadHeldIt) {
  Mutex mutex;
  mutex.lock();
  mutex.reset_after_fork();
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
  signals::end();  // of the first lock()
}

}  // namespace
}  // namespace ringroad::test
