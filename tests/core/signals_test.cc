#include "rsocket-core/base/signals.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "rsocket-core/base/mutex.h"

namespace ringroad::test {
namespace {

volatile sig_atomic_t runs = 0;
volatile sig_atomic_t last_value = 0;
volatile sig_atomic_t depth_inside = -1;

void handler(int signo, siginfo_t* info, void* context) {
  if (signals::put_off(signo, info, context)) return;
  depth_inside = static_cast<sig_atomic_t>(signals::thread_state.depth);
  last_value = info->si_value.sival_int;
  runs = runs + 1;
}

bool blocked(int signo) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signo) == 1;
}

class SignalsTest : public testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP()
        << "the thread sanitizer runs handlers when it sees fit, and with a context of its own";
#endif
    runs = 0;
    struct sigaction action {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO;
    for (const int signo : {SIGUSR1, SIGRTMIN}) ASSERT_EQ(0, sigaction(signo, &action, &before_));
  }
  void TearDown() override {
    for (const int signo : {SIGUSR1, SIGRTMIN}) signal(signo, SIG_DFL);
  }
  struct sigaction before_ {};
};

TEST_F(SignalsTest, AHandlerRunsAtOnceOutsideOfTheLibrary) {
  raise(SIGUSR1);
  EXPECT_EQ(runs, 1);
}

TEST_F(SignalsTest, AHandlerIsPutOffToTheEndOfTheOutermostStretch) {
  {
    const signals::DeferHandlers outer;
    {
      const signals::DeferHandlers inner;
      raise(SIGUSR1);
      EXPECT_TRUE(blocked(SIGUSR1));
    }
    EXPECT_EQ(runs, 0);
  }
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(depth_inside, 0);
  EXPECT_FALSE(blocked(SIGUSR1));
}

TEST_F(SignalsTest, ALockIsSuchAStretch) {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    raise(SIGUSR1);
    EXPECT_EQ(runs, 0);
  }
  EXPECT_EQ(runs, 1);
}

TEST_F(SignalsTest, ALockThatWasNotHadIsNone) {
  Mutex mutex;
  mutex.lock();
  pthread_t thread;
  pthread_create(
      &thread, nullptr,
      [](void* taken) -> void* {
        auto* m = static_cast<Mutex*>(taken);
        if (m->try_lock()) m->unlock();
        raise(SIGUSR1);
        return nullptr;
      },
      &mutex);
  pthread_join(thread, nullptr);
  EXPECT_EQ(runs, 1);
  mutex.unlock();
}

TEST_F(SignalsTest, QueuedSignalsKeepTheirValuesAndTheirNumber) {
  {
    const signals::DeferHandlers later;
    for (int i = 1; i <= 3; ++i) pthread_sigqueue(pthread_self(), SIGRTMIN, sigval{i});
    EXPECT_EQ(runs, 0);
  }
  EXPECT_EQ(runs, 3);
  EXPECT_GE(last_value, 1);
  EXPECT_LE(last_value, 3);
}

TEST_F(SignalsTest, WhatCameBeforeASleepRunsBeforeIt) {
  const signals::DeferHandlers later;
  raise(SIGUSR1);
  {
    const signals::RunHandlers now;
    EXPECT_EQ(runs, 1);
    raise(SIGUSR1);
    EXPECT_EQ(runs, 2);
  }
  raise(SIGUSR1);
  EXPECT_EQ(runs, 2);
}

TEST_F(SignalsTest, DeliveryKeepsErrno) {
  errno = ENOTBLK;
  {
    const signals::DeferHandlers later;
    raise(SIGUSR1);
  }
  EXPECT_EQ(errno, ENOTBLK);
}

TEST_F(SignalsTest, TheChildOfAForkIsOutsideOfItsParentsStretches) {
  const signals::DeferHandlers later;
  raise(SIGUSR1);
  const pid_t child = fork();
  if (child == 0) {
    signals::forget_after_fork();
    const bool fresh = runs == 0 && !blocked(SIGUSR1);
    raise(SIGUSR1);
    _exit(fresh && runs == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ringroad::test
