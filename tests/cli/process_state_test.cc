#include "cli/process_state.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

std::uint64_t own_start_ticks() {
  const TempFolder folder;
  return make_segment(folder)->header().start_ticks;
}

TEST(ProcessRuns, ThisProcessDoes) {
  EXPECT_TRUE(process_runs(getpid(), own_start_ticks()));
  EXPECT_TRUE(process_runs(getpid(), 0));
}

TEST(ProcessRuns, AnotherOneOfTheSameNumberIsNotTheOneMeant) {
  EXPECT_FALSE(process_runs(getpid(), own_start_ticks() + 1));
  EXPECT_FALSE(process_runs(getpid(), own_start_ticks() - 1));
}

TEST(ProcessRuns, OneThatEndedDoesNot) { EXPECT_FALSE(process_runs(ended_pid(), 0)); }

TEST(ProcessRuns, AZombieDoesNot) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  ASSERT_GT(pid, 0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(process_runs(pid, 0));
  waitpid(pid, nullptr, 0);
}

TEST(ProcessRuns, NumbersThatNoProcessHasDoNot) {
  EXPECT_FALSE(process_runs(0, 0));
  EXPECT_FALSE(process_runs(-1, 0));
}

// As the first process of a container with users of its own, which has become another of them.
TEST(MayBeOf, AUserOfTheProcessAndTheRootOfItsUserNamespace) {
  constexpr uid_t kRootOutside = 100'000;
  constexpr uid_t kInside = 5;
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to map users";
  int ready[2];
  int mapped[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(mapped), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    char step = unshare(CLONE_NEWUSER) == 0 ? 'u' : '-';
    bool good = write(ready[1], &step, 1) == 1 && read(mapped[0], &step, 1) == 1;
    good = good && setresuid(kInside, kInside, kInside) == 0;
    step = good ? 'g' : '-';
    if (write(ready[1], &step, 1) == 1) pause();
    _exit(0);
  }
  char step = '-';
  ASSERT_EQ(read(ready[0], &step, 1), 1);
  if (step == 'u') {
    std::ofstream("/proc/" + std::to_string(pid) + "/uid_map") << "0 " << kRootOutside << " 65536\n";
    ASSERT_EQ(write(mapped[1], &step, 1), 1);
    ASSERT_EQ(read(ready[0], &step, 1), 1);
  }
  if (step == 'g') {
    EXPECT_TRUE(may_be_of(pid, kRootOutside));
    EXPECT_TRUE(may_be_of(pid, kRootOutside + kInside));
    EXPECT_FALSE(may_be_of(pid, kRootOutside + 1));
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  for (const int fd : {ready[0], ready[1], mapped[0], mapped[1]}) close(fd);
  if (step != 'g') GTEST_SKIP() << "no user namespace here";
}

TEST(WhyNoSegment, AProcessThatHasEndedIsNone) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t ended{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(why_no_segment(pid, "/x"), "there is no process " + std::to_string(pid));
  waitpid(pid, nullptr, 0);
}

TEST(WhyNoSegment, OfAKernelThreadRootIsNotToldToAskAsRoot) {
  std::string comm;
  std::getline(std::ifstream("/proc/2/comm"), comm);
  if (geteuid() != 0 || comm != "kthreadd") GTEST_SKIP() << "not root, or no kernel thread in sight";
  EXPECT_EQ(why_no_segment(2, "/x"),
            "process 2 has no segment here, and not even root may see whether it is preloaded: it is the "
            "kernel's own, or protected: there is no /x");
}

}  // namespace
}  // namespace ringroad::cli
