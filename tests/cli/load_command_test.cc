#include "cli/load_command.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

namespace ringroad::cli {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr const char* kLine =
    "[ 7s ] thds: 4 tps: 1234.50 qps: 24690.11 (r/w/o: 17283.08/4938.02/2469.01) lat (ms,99%): "
    "4.82 "
    "err/s: 1.50 reconn/s: 0.25";

TEST(SysbenchReport, EachNumberIsTakenFromItsPlace) {
  double last = 5;
  const auto report = parse_report(kLine, last);
  ASSERT_TRUE(report);
  EXPECT_DOUBLE_EQ(report->interval_s, 2);
  EXPECT_DOUBLE_EQ(last, 7);
  EXPECT_DOUBLE_EQ(report->tps, 1234.5);
  EXPECT_DOUBLE_EQ(report->latency_ms, 4.82);
  EXPECT_DOUBLE_EQ(report->errors_per_s, 1.5);
  EXPECT_DOUBLE_EQ(report->reconnects_per_s, 0.25);
}

TEST(SysbenchReport, OtherLinesAreNone) {
  double last = 3;
  for (const char* line :
       {"", "[ ", "[ 5s ]", "    tps: 5", "[ xs ] thds: 4 tps: 3", "Threads started!",
        "[ 5s ] thds: 4 qps: 3", "transactions: 100 (20.00 per sec.)"}) {
    EXPECT_FALSE(parse_report(line, last)) << line;
  }
  EXPECT_EQ(last, 3);
}

TEST(LoadCommand, ItsOutputIsPassedOnAndItsReportsKept) {
  LoadCommand load;
  std::string why;
  testing::internal::CaptureStdout();
  ASSERT_TRUE(load.start(
      {"sh", "-c", std::string("echo one; echo '") + kLine + "'; echo two; exit 3"}, why));
  EXPECT_FALSE(load.run_until(Clock::now() + 20s)) << "it ends";
  EXPECT_EQ(testing::internal::GetCapturedStdout(), std::string("one\n") + kLine + "\ntwo\n");
  ASSERT_EQ(load.reports().size(), 1U);
  EXPECT_DOUBLE_EQ(load.reports()[0].interval_s, 7);
  EXPECT_TRUE(WIFEXITED(load.status()));
  EXPECT_EQ(WEXITSTATUS(load.status()), 3);
}

TEST(LoadCommand, OneThatIsNotThereIsToldAtOnce) {
  LoadCommand load;
  std::string why;
  EXPECT_FALSE(load.start({"/no/such/program"}, why));
  EXPECT_EQ(why, "/no/such/program: No such file or directory");
}

TEST(LoadCommand, RunsOnUntilTheTimeIsOverAndIsStoppedGently) {
  LoadCommand load;
  std::string why;
  testing::internal::CaptureStdout();
  ASSERT_TRUE(load.start(
      {"sh", "-c", "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.01; done"}, why));
  while (testing::internal::GetCapturedStdout().empty()) {
    testing::internal::CaptureStdout();
    ASSERT_TRUE(load.run_until(Clock::now() + 50ms));
  }
  testing::internal::CaptureStdout();
  load.stop(20s);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "asked\n");
  EXPECT_TRUE(WIFEXITED(load.status()));
}

TEST(LoadCommand, OneThatDoesNotListenIsKilled) {
  LoadCommand load;
  std::string why;
  ASSERT_TRUE(load.start({"sh", "-c", "trap '' TERM; while :; do sleep 0.01; done"}, why));
  ASSERT_TRUE(load.run_until(Clock::now() + 300ms));
  load.stop(100ms);
  EXPECT_TRUE(WIFSIGNALED(load.status()));
}

}  // namespace
}  // namespace ringroad::cli
