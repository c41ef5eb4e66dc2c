// Commands of the live host.

#include "cli/doctor/command_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/cli/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;
using End = CommandResult::End;
using Clock = std::chrono::steady_clock;

CommandResult sh(const std::string& script, std::chrono::milliseconds time = kCommandTime) {
  return run_command({{"sh", "-c", script}, {}, time});
}

TEST(CommandRun, KeepsOutputErrorAndStatusApart) {
  const CommandResult result = sh("echo out; echo err >&2; exit 7");
  EXPECT_EQ(result.end, End::kExited);
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
  EXPECT_EQ(result.problem(), "err");
}

TEST(CommandRun, ACommandThatIsNotThereIsMissing) {
  EXPECT_TRUE(run_command({{"no-such-tool-here"}, {}}).missing());
  EXPECT_TRUE(run_command({{"/no/such/tool"}, {}}).missing());
  EXPECT_TRUE(run_command({{}, {}}).missing());
  EXPECT_EQ(run_command({{"no-such-tool-here"}, {}}).problem(), "not installed");
}

TEST(CommandRun, AFileThatIsNoProgramIsToldWithItsReason) {
  const TempFolder folder;
  write_file(folder.file("x"), "", 0644);
  const CommandResult result = run_command({{folder.file("x")}, {}});
  EXPECT_EQ(result.end, End::kFailed);
  EXPECT_EQ(result.problem(), "Permission denied");
}

TEST(CommandRun, IsKilledWithWhatItStartedWhenItsTimeIsUp) {
  const Clock::time_point began = Clock::now();
  const CommandResult result = sh("sleep 60 & echo $!; sleep 60", std::chrono::milliseconds(300));
  EXPECT_EQ(result.end, End::kTimedOut);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
  const pid_t grandchild = std::atoi(result.out.c_str());
  ASSERT_GT(grandchild, 0);
  // Reaped by the process that adopts it; until then it is a zombie.
  for (int i = 0; i < 2000 && kill(grandchild, 0) == 0; ++i) {
    char state = '?';
    FILE* file = std::fopen(("/proc/" + std::to_string(grandchild) + "/stat").c_str(), "r");
    if (file == nullptr) break;
    const int read = std::fscanf(file, "%*d %*s %c", &state);
    std::fclose(file);
    if (read != 1 || state == 'Z') return;
  }
  EXPECT_NE(kill(grandchild, 0), 0);
}

TEST(CommandRun, ThatIgnoresTheEndOfItsOutputIsKilledToo) {
  EXPECT_EQ(sh("exec >&- 2>&-; exec sleep 60", std::chrono::milliseconds(200)).end, End::kTimedOut);
}

TEST(CommandRun, HasNothingToReadAndAnEnglishLocale) {
  const CommandResult result = sh("cat; echo $LC_ALL");
  EXPECT_EQ(result.out, "C\n");
}

TEST(CommandRun, IsNotPreloadedUnlessThatIsAskedFor) {
  setenv("LD_PRELOAD", "", 1);
  EXPECT_EQ(sh("echo ${LD_PRELOAD-none}").out, "none\n");
  unsetenv("LD_PRELOAD");
  const CommandResult asked = run_command({{"sh", "-c", "echo $A"}, {"A=b"}});
  EXPECT_EQ(asked.out, "b\n");
}

TEST(CommandRun, TakesNoToolFromTheCurrentFolder) {
  const std::string path = std::getenv("PATH");
  const TempFolder folder;
  write_file(folder.file("no-such-tool-here"), "#!/bin/sh\n", 0755);
  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  setenv("PATH", (".::" + path).c_str(), 1);
  EXPECT_TRUE(run_command({{"no-such-tool-here"}, {}}).missing());
  setenv("PATH", path.c_str(), 1);
  std::filesystem::current_path(before);
}

TEST(CommandRun, CutsEndlessOutputAndGoesOn) {
  const CommandResult result = sh("head -c 20000000 /dev/zero; exit 4");
  EXPECT_EQ(result.out.size(), kMostBytes);
  EXPECT_EQ(result.status, 4);
}

TEST(CommandRun, TellsTheSignalThatEndedIt) {
  const CommandResult result = sh("kill -SEGV $$");
  EXPECT_EQ(result.end, End::kKilled);
  EXPECT_EQ(result.problem(), "ended by signal 11");
}

}  // namespace
}  // namespace ringroad::cli::doctor
