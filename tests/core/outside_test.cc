// Who waited in the kernel before there was the first set of the process. Each test is a process of its own.
#include "rsocket-core/outside.h"

#include <gtest/gtest.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "rsocket-core/threads.h"

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
      outside::take_seat();
      outside::seat->sit();
      sits_ = true;
      sits_.notify_all();
      goes_on_.wait(false);
      if (!rises) return;
      outside::seat->rise();
      outside::leave_seat();
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
    outside::enter();
    outside::forget_after_fork();  // as a handler's child
    const bool inside = outside::anybody();
    outside::leave();
    const bool after = outside::anybody();
    outside::enter();
    return inside && !after && outside::anybody();
  });
}

TEST_F(OutsideTest, AJumpOutOfWaitsTakesBackWhatTheyHaveCounted) {
  IN_A_PROCESS([] {
    outside::take_seat();
    outside::enter();
    const outside::Waits one = outside::waits_of_thread();
    outside::enter();
    outside::seat->sit();
    outside::count_seated();
    const bool all = outside::count == 3;
    outside::go_back_to(one);
    const bool back = outside::count == 1 && outside::seat->waits == 0;
    outside::go_back_to({});
    return all && back && !outside::anybody();
  });
}

TEST_F(OutsideTest, WhoWaitsAtTheFirstSetIsCountedUntilItDoesNot) {
  IN_A_PROCESS([] {
    Sitting one;
    Sitting other;
    const bool before = outside::anybody();
    outside::count_seated();
    const bool both = outside::count == 2;
    one.go_on();
    one.wait_until_left();
    const bool still = outside::anybody();
    other.go_on();
    other.wait_until_left();
    const bool after = outside::anybody();
    one.join();
    other.join();
    return !before && both && still && !after;
  });
}

TEST_F(OutsideTest, WhoHasASeatAndDoesNotWaitIsNotCounted) {
  IN_A_PROCESS([] {
    Sitting one;
    one.go_on();
    one.wait_until_left();
    outside::count_seated();
    const bool counted = outside::anybody();
    one.join();
    return !counted;
  });
}

TEST_F(OutsideTest, AThreadThatEndsInItsWaitIsCountedNoMore) {
  IN_A_PROCESS([] {
    Sitting one(false);
    outside::count_seated();
    const bool counted = outside::anybody();
    one.go_on();
    one.join();
    return counted && !outside::anybody();
  });
}

TEST_F(OutsideTest, AHandlersWaitInsideOneLeavesItCounted) {
  IN_A_PROCESS([] {
    outside::take_seat();
    outside::seat->sit();
    outside::count_seated();
    outside::seat->sit();
    outside::seat->rise();
    outside::leave_seat();
    const bool inside = outside::anybody();
    outside::seat->rise();
    outside::leave_seat();
    return inside && !outside::anybody();
  });
}

TEST_F(OutsideTest, SeatsAreGivenToThreadsThatComeLater) {
  IN_A_PROCESS([] {
    for (int i = 0; i < 1000; ++i) {
      bool has_one = false;
      std::thread([&] {
        outside::take_seat();
        has_one = outside::seat != nullptr;
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
    outside::prepare();
    return is_ready_for_barriers();
  });
}

TEST_F(OutsideTest, AProcessWithThreadsIsNotHeldUpToGetReadyForBarriers) {
  IN_A_PROCESS([] {
    Sitting other;
    outside::prepare();
    const bool held_up = is_ready_for_barriers();
    other.go_on();
    other.join();
    return !held_up;
  });
}

}  // namespace
}  // namespace ringroad
