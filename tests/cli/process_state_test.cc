#include "cli/process_state.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

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

}  // namespace
}  // namespace ringroad::cli
