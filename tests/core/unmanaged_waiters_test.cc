// Threads that waited in the kernel before the first set of the process. Each test is a process of its own.
#include "rsocket-core/stream/unmanaged_waiters.h"

#include <gtest/gtest.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "rsocket-core/base/threads.h"

namespace ringroad {
namespace {

class OutsideTest : public ::testing::Test {
 protected:
  OutsideTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

#define IN_A_PROCESS(...) EXPECT_EXIT(std::exit((__VA_ARGS__)() ? 0 : 1), testing::ExitedWithCode(0), "")

// A thread that waits, from before the constructor returns until go_on().
class Sitting {
 public:
  explicit Sitting(bool rises = true) {
    thread_ = std::thread([this, rises] {
      unmanaged_waiters::take_seat();
      unmanaged_waiters::seat->enter();
      sits_ = true;
      sits_.notify_all();
      goes_on_.wait(false);
      if (!rises) return;
      unmanaged_waiters::seat->leave();
      unmanaged_waiters::leave_seat();
      left_ = true;
      left_.notify_all();
      ends_.wait(false);
    });
    sits_.wait(false);
  }
  void go_on() {
    goes_on_ = true;
    goes_on_.notify_all();
  }
  void wait_until_left() { left_.wait(false); }
  void join() {
    ends_ = true;
    ends_.notify_all();
    thread_.join();
  }

 private:
  std::atomic<bool> sits_{false}, goes_on_{false}, left_{false}, ends_{false};
  std::thread thread_;
};

TEST_F(OutsideTest, AForkInsideAWaitLeavesThatWaitAlone) {
  IN_A_PROCESS([] {
    unmanaged_waiters::enter();
    unmanaged_waiters::forget_after_fork();  // as a handler's child
    const bool inside = unmanaged_waiters::anybody();
    unmanaged_waiters::leave();
    const bool after = unmanaged_waiters::anybody();
    unmanaged_waiters::enter();
    return inside && !after && unmanaged_waiters::anybody();
  });
}

TEST_F(OutsideTest, AJumpOutOfWaitsTakesBackWhatTheyHaveCounted) {
  IN_A_PROCESS([] {
    unmanaged_waiters::take_seat();
    unmanaged_waiters::enter();
    const unmanaged_waiters::Waits one = unmanaged_waiters::waits_of_thread();
    unmanaged_waiters::enter();
    unmanaged_waiters::seat->enter();
    unmanaged_waiters::count_seated();
    const bool all = unmanaged_waiters::count == 3;
    unmanaged_waiters::go_back_to(one);
    const bool back = unmanaged_waiters::count == 1 && unmanaged_waiters::seat->waits == 0;
    unmanaged_waiters::go_back_to({});
    return all && back && !unmanaged_waiters::anybody();
  });
}

TEST_F(OutsideTest, AThreadThatWaitsAtTheFirstSetIsCountedUntilItDoesNot) {
  IN_A_PROCESS([] {
    Sitting one;
    Sitting other;
    const bool before = unmanaged_waiters::anybody();
    unmanaged_waiters::count_seated();
    const bool both = unmanaged_waiters::count == 2;
    one.go_on();
    one.wait_until_left();
    const bool still = unmanaged_waiters::anybody();
    other.go_on();
    other.wait_until_left();
    const bool after = unmanaged_waiters::anybody();
    one.join();
    other.join();
    return !before && both && still && !after;
  });
}

TEST_F(OutsideTest, AThreadThatHasASeatAndDoesNotWaitIsNotCounted) {
  IN_A_PROCESS([] {
    Sitting one;
    one.go_on();
    one.wait_until_left();
    unmanaged_waiters::count_seated();
    const bool counted = unmanaged_waiters::anybody();
    one.join();
    return !counted;
  });
}

TEST_F(OutsideTest, AThreadThatEndsInItsWaitIsCountedNoMore) {
  IN_A_PROCESS([] {
    Sitting one(false);
    unmanaged_waiters::count_seated();
    const bool counted = unmanaged_waiters::anybody();
    one.go_on();
    one.join();
    return counted && !unmanaged_waiters::anybody();
  });
}

TEST_F(OutsideTest, AHandlersWaitInsideOneLeavesItCounted) {
  IN_A_PROCESS([] {
    unmanaged_waiters::take_seat();
    unmanaged_waiters::seat->enter();
    unmanaged_waiters::count_seated();
    unmanaged_waiters::seat->enter();
    unmanaged_waiters::seat->leave();
    unmanaged_waiters::leave_seat();
    const bool inside = unmanaged_waiters::anybody();
    unmanaged_waiters::seat->leave();
    unmanaged_waiters::leave_seat();
    return inside && !unmanaged_waiters::anybody();
  });
}

TEST_F(OutsideTest, SeatsAreGivenToThreadsThatComeLater) {
  IN_A_PROCESS([] {
    for (int i = 0; i < 1000; ++i) {
      bool has_one = false;
      std::thread([&] {
        unmanaged_waiters::take_seat();
        has_one = unmanaged_waiters::seat != nullptr;
      }).join();
      if (!has_one) return false;
    }
    return true;
  });
}

// EPERM until the process is registered for it.
bool is_ready_for_barriers() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

TEST_F(OutsideTest, AProcessWithOneThreadGetsReadyForBarriersAhead) {
  if (thread_count() != 1) GTEST_SKIP() << "the sanitizer has a thread of its own";
  IN_A_PROCESS([] {
    if (is_ready_for_barriers()) return false;
    unmanaged_waiters::prepare();
    return is_ready_for_barriers();
  });
}

TEST_F(OutsideTest, AProcessWithThreadsIsNotHeldUpToGetReadyForBarriers) {
  IN_A_PROCESS([] {
    Sitting other;
    unmanaged_waiters::prepare();
    const bool held_up = is_ready_for_barriers();
    other.go_on();
    other.join();
    return !held_up;
  });
}

}  // namespace
}  // namespace ringroad
