// The `ringroad` command as a process: what stands where, and the exit statuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include <nlohmann/json.hpp>

#include "rsocket-core/protocol/reason.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST(Command, HelpIsOnStdoutWithStatusZero) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--help"},
                                                {"run", "--help"},
                                                {"ss", "--help"},
                                                {"top", "--help"},
                                                {"policy", "--help"},
                                                {"version", "--help"}}) {
    const Result result = ringroad(words);
    EXPECT_EQ(result.status, 0);
    EXPECT_THAT(result.out, HasSubstr("Usage: "));
    EXPECT_EQ(result.err, "");
  }
}

TEST(Command, HelpTellsExamplesAndExitStatuses) {
  for (const char* command : {"run", "ss", "top"}) {
    const Result result = ringroad({command, "--help"});
    EXPECT_THAT(result.out, HasSubstr("Examples:\n"));
    EXPECT_THAT(result.out, HasSubstr("Exit status:\n"));
  }
}

TEST(Command, WrongArgumentsGiveTwoAndAreToldOnStderr) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{},
                                                {"nonsense"},
                                                {"--nonsense"},
                                                {"ss", "nonsense"},
                                                {"ss", "--carrier", "pigeon"},
                                                {"ss", "--pid", "x"},
                                                {"ss", "--pid", "-1"},
                                                {"ss", "--pid", "0"},
                                                {"ss", "--pid"},
                                                {"ss", "--pid", "1", "2"},
                                                {"ss", "--sort", "colour"},
                                                {"ss", "--summary", "--rules"},
                                                {"ss", "state", "nonsense"},
                                                {"top", "nonsense"},
                                                {"top", "--interval", "nan"},
                                                {"top", "--interval", "0"},
                                                {"top", "--count", "0"},
                                                {"top", "--by", "day"},
                                                {"top", "--sort", "colour"},
                                                {"version", "x"},
                                                {"set", "--wait", "nan", "all", "tcp"},
                                                {"set", "--wait", "1e99", "all", "tcp"},
                                                {"doctor", "--watch", "nan", "--list"},
                                                {"doctor", "--unit", "", "--list"},
                                                {"ss", "--directory", ""},
                                                {"policy"}}) {
    const Result result = ringroad(words);
    EXPECT_EQ(result.status, 2) << testing::PrintToString(words);
    EXPECT_EQ(result.out, "") << testing::PrintToString(words);
    EXPECT_NE(result.err, "") << testing::PrintToString(words);
  }
}

TEST(Command, AnUnknownCommandIsNamed) {
  EXPECT_THAT(ringroad({"sss"}).err, HasSubstr("no command \"sss\""));
  const Result below = ringroad({"policy", "chekc", "file"});
  EXPECT_EQ(below.status, 2);
  EXPECT_EQ(below.err, "ringroad: there is no command \"policy chekc\"; see ringroad policy --help\n");
}

TEST(Command, AWrongArgumentIsToldWithItsCommand) {
  EXPECT_EQ(ringroad({"policy", "check", "--nonsense"}).err,
            "ringroad policy check: The following argument was not expected: --nonsense; "
            "see ringroad policy check --help\n");
}

TEST(Command, ReasonsTellsMeaningAndRemedyOfThoseThatAreNamedOrOfAll) {
  const Result two = ringroad({"reasons", "memlock", "busy"});
  EXPECT_EQ(two.status, 0);
  EXPECT_THAT(two.out, testing::StartsWith("memlock\n  means  memory could not be registered"));
  EXPECT_THAT(two.out, HasSubstr("  do     `LimitMEMLOCK=` of the unit"));
  EXPECT_THAT(two.out, HasSubstr("\nbusy\n"));
  EXPECT_THAT(two.out, Not(HasSubstr("\npending\n")));
  const json all = json::parse(ringroad({"reasons", "--json"}).out);
  EXPECT_EQ(all.size(), static_cast<std::size_t>(Reason::kCount));
  EXPECT_EQ(all[0]["reason"], "none");
  const Result wrong = ringroad({"reasons", "memlokc"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_EQ(wrong.out, "");
  EXPECT_THAT(wrong.err, HasSubstr("no reason \"memlokc\""));
}

TEST(Command, VersionTellsTheLibraryThatRunPreloads) {
  const Result result = ringroad({"version"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, testing::StartsWith("ringroad "));
  EXPECT_THAT(result.out, HasSubstr("\nlibrary: "));
  EXPECT_EQ(ringroad({"--version"}).out, result.out.substr(0, result.out.find('\n') + 1));
}

TEST(Command, OutputThatCannotBeWrittenIsAFailure) {
  const std::string script = std::string(RINGROAD_COMMAND) + " version > /dev/full";
  const Result result =
      ringroad({"run", "--disable", "--library", "/proc/self/exe", "--", "sh", "-c", script});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot write the output: No space left on device"));
}

class Ss : public testing::Test {
 protected:
  Result ss(std::vector<std::string> words) {
    words.insert(words.begin(), {"ss", "--directory", folder_.path()});
    return ringroad(words);
  }
  std::size_t processes(std::vector<std::string> words) {
    words.emplace_back("--json");
    return json::parse(ss(words).out)["processes"].size();
  }

  const TempFolder folder_;
};

TEST_F(Ss, NoProcessesAreNoError) {
  const Result result = ss({});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "no preloaded processes\n");
  EXPECT_EQ(ss({"--json"}).status, 0);
  EXPECT_EQ(processes({}), 0U);
}

TEST_F(Ss, AbStartsNoLoadWhoseFiguresItCannotWrite) {
  const auto segment = make_segment(folder_, "tikv-server");
  const std::string file = folder_.file("absent/x.json");
  const Result result = ringroad(
      {"ab", "--directory", folder_.path(), std::to_string(getpid()), "--json", file, "--", "true"});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err, "ringroad ab: --json " + file + ": No such file or directory; nothing was started\n");
}

TEST_F(Ss, AStreamIsALine) {
  const auto segment = make_segment(folder_, "tikv-server");
  add_stream(*segment, 1, "fd00::1", 20160, "fd00::2", 51234);
  const Result result = ss({});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("tikv-server"));
  EXPECT_THAT(result.out, HasSubstr("[fd00::1]:20160"));
  EXPECT_THAT(result.out, HasSubstr("[fd00::2]:51234"));
}

TEST_F(Ss, TheDirectoryComesFromTheEnvironmentToo) {
  const auto segment = make_segment(folder_, "tikv-server");
  EXPECT_THAT(ringroad({"ss"}, {"RINGROAD_RUNTIME_DIR=" + folder_.path()}).out,
              HasSubstr("tikv-server"));
}

TEST_F(Ss, EndedProcessesAreShownOnlyWithAll) {
  make_segment(folder_);
  hand_over(folder_, ended_pid());
  EXPECT_EQ(processes({}), 0U);
  EXPECT_EQ(ss({}).out, "no preloaded processes\n");
  EXPECT_EQ(processes({"--all"}), 1U);
  EXPECT_THAT(ss({"--all"}).out, HasSubstr("(ended)"));
}

TEST_F(Ss, OnlyTheProcessesThatWereAskedFor) {
  const Child one;
  const Child two;
  for (const pid_t pid : {one.pid(), two.pid()}) {
    make_segment(folder_);
    hand_over(folder_, pid);
  }
  make_segment(folder_);
  const std::string first = std::to_string(one.pid());
  EXPECT_EQ(processes({}), 3U);
  EXPECT_EQ(processes({"--pid", first}), 1U);
  EXPECT_EQ(processes({"--pid", first, "--pid", std::to_string(two.pid())}), 2U);
  EXPECT_EQ(processes({"--pid", "1"}), 0U);
}

TEST_F(Ss, OnlyTheCarrierThatWasAskedFor) {
  const auto segment = make_segment(folder_);
  add_stream(*segment, 1, "10.0.0.1", 1, "10.0.0.2", 2);
  EXPECT_THAT(ss({"--carrier", "tcp"}).out, HasSubstr("10.0.0.2:2"));
  EXPECT_EQ(ss({"--carrier", "rdma"}).out, "no stream matches: carrier rdma\n");
}

TEST_F(Ss, AFileThatCannotBeReadIsNamedAndTheRestShown) {
  const auto segment = make_segment(folder_);
  write_file(folder_.file("1"), std::string(10000, 'x'));
  const Result result = ss({});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("mariadbd"));
  EXPECT_EQ(result.err, "ringroad ss: " + folder_.file("1") +
                            " is skipped: it is not a Ringroad statistics segment\n");
}

class Set : public Ss {};

TEST_F(Set, OneOfAnotherVersionIsToldWithBothVersions) {
  const auto segment = make_segment(folder_);
  const Child child;
  hand_over(folder_, child.pid(), [](stats::SegmentHeader& header) {
    header.version = stats::kSegmentVersion + 1;
    std::strcpy(header.library_version, "9.8.7");
  });
  const Result result =
      ringroad({"set", "--directory", folder_.path(), std::to_string(child.pid()), "tcp"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("it is of version " + std::to_string(stats::kSegmentVersion + 1) +
                                    ", written by ringroad 9.8.7, this command (ringroad "));
  EXPECT_THAT(result.err, Not(HasSubstr("is not preloaded")));
}

}  // namespace
}  // namespace ringroad::cli
