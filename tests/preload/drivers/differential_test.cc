// Each scenario plain and preloaded: the kernel says what is right.
#include <gnu/libc-version.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "tests/preload/drivers/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 40'000;

enum class Mode { kFirstByte, kMidway };

struct Case {
  std::string name;
  bool stays_on_channel = false;
  bool comes_back = false;
  bool ends_itself = false;
  bool clears_away = false;
  bool polls = false;
  bool from_the_first_byte = false;
  Mode mode = Mode::kFirstByte;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  std::FILE* pipe = ::popen(RINGROAD_SCENARIOS " --list", "r");
  char line[256];
  while (pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr) {
    std::istringstream words(line);
    Case c;
    words >> c.name;
    for (std::string trait; words >> trait;) {
      c.stays_on_channel |= trait == "stays-on-channel";
      c.comes_back |= trait == "comes-back";
      c.ends_itself |= trait == "ends-itself";
      c.clears_away |= trait == "clears-away";
      c.polls |= trait == "polls";
      c.from_the_first_byte |= trait == "from-the-first-byte";
    }
    for (const Mode mode : {Mode::kFirstByte, Mode::kMidway}) {
      c.mode = mode;
      if (mode == Mode::kFirstByte || !c.from_the_first_byte) all.push_back(c);
    }
  }
  if (pipe != nullptr) ::pclose(pipe);
  return all;
}

struct Outcome {
  std::string transcript;
  cli::Snapshot snapshot;  // before the processes let go of their sockets
};

void run(const std::vector<std::string>& environment, const std::string& runtime_directory,
         const std::string& name, Outcome& outcome) {
  Program program({RINGROAD_SCENARIOS, name}, environment);
  ASSERT_TRUE(program.ok());
  EXPECT_TRUE(program.wait_for("== end\n", kTimeoutMs)) << "no end in sight";
  outcome.transcript = program.out();
  if (!runtime_directory.empty()) outcome.snapshot = cli::read_segments(runtime_directory);
  EXPECT_EQ(program.finish(kTimeoutMs), 0);
  EXPECT_EQ(program.out(), outcome.transcript) << "something was printed at the end";
  EXPECT_EQ(program.err(), "");
}

std::string reasons(const cli::Snapshot& snapshot) {
  std::string all;
  for (const cli::ProcessReport& process : snapshot.processes) {
    for (const cli::StreamReport& stream : process.streams) {
      all += std::to_string(process.pid) + ": " +
             state_name(stream.state) + ", " + reason_name(stream.reason) + ", the peer: " +
             reason_name(stream.peer_reason) + "\n";
    }
  }
  return all;
}

std::string entries_of(const std::string& directory) {
  std::string all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    all += entry.path().filename().string() + " ";
  }
  return all;
}

void expect_on_channel(const Case& c, const cli::Snapshot& snapshot) {
  EXPECT_GE(snapshot.processes.size(), 2U);
  std::uint64_t promoted = 0;
  for (const cli::ProcessReport& process : snapshot.processes) {
    const cli::CarrierTraffic totals = process.totals();
    promoted += process.streams_promoted;
    if (!c.stays_on_channel) continue;
    EXPECT_EQ(process.streams_promoted, process.streams_opened) << reasons(snapshot);
    EXPECT_EQ(totals.tcp.tx_bytes + totals.tcp.rx_bytes, 0U) << "bytes went over TCP";
  }
  EXPECT_GT(promoted, 0U) << "no stream was ever on a channel\n" << reasons(snapshot);
}

// A cancelled send() that has sent a part: glibc 2.41 and later return that, older ones end the thread, and
// so does the library (docs/compatibility.md).
bool is_of_newer_libc(const std::string& scenario) {
  unsigned major = 0;
  unsigned minor = 0;
  std::sscanf(gnu_get_libc_version(), "%u.%u", &major, &minor);
  return scenario == "cancelled_while_it_waits_for_room" && (major > 2 || minor >= 41);
}

class DifferentialTest : public testing::TestWithParam<Case> {};

TEST_P(DifferentialTest, TheTranscriptIsTheKernels) {
  const Case& c = GetParam();
  if (is_of_newer_libc(c.name)) GTEST_SKIP() << "glibc 2.41 answers otherwise: docs/compatibility.md";
  TemporaryDirectory directory;
  const bool first = c.mode == Mode::kFirstByte;
  const std::string policy = directory.write(
      "policy.toml", (first ? policy_from_the_first_byte() : policy_after_messages(3)) +
                         (c.polls ? "spin = \"1s\"\n" : ""));
  Outcome plain;
  Outcome preloaded;
  run(environment_with({}), "", c.name, plain);
  if (HasFatalFailure()) return;
  const std::string segments = directory.path() + "/run";
  run(environment_with({"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy,
                        "RINGROAD_RUNTIME_DIR=" + segments}),
      segments, c.name, preloaded);
  if (HasFatalFailure()) return;
  EXPECT_EQ(plain.transcript, preloaded.transcript)
      << difference(plain.transcript, preloaded.transcript);
  if (c.clears_away) {
    EXPECT_EQ(entries_of(segments), "") << "was left by a process that has ended";
  }
  if (first && !c.ends_itself && (c.stays_on_channel || c.comes_back)) {
    expect_on_channel(c, preloaded.snapshot);
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, DifferentialTest, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return test.param.name + (test.param.mode == Mode::kFirstByte
                                                         ? "_from_the_first_byte"
                                                         : "_midway");
                         });

}  // namespace
}  // namespace ringroad::test
