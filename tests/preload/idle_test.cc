// Streams with nothing to tell cost nothing: who waits for them sleeps, and an epoll_wait(2) looks
// at what has news.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "cli/segment_reader.h"
#include "tests/preload/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 60'000;
constexpr int kIdle = 1000;
constexpr std::chrono::seconds kQuiet{10};
constexpr std::chrono::nanoseconds kMostUsed{5'000'000};  // time(1) says 0.0 s
constexpr int kMostWakings = 5;
constexpr int kSpare = 50;  // a promotion that comes to nothing on a busy machine is no matter here
constexpr rlim_t kDescriptorsForEach = 12;  // of the program's and the library's, both ends

std::size_t on_channels(const std::string& directory) {
  std::size_t count = 0;
  for (const cli::ProcessReport& process : cli::read_segments(directory).processes) {
    for (const cli::StreamReport& stream : process.streams) {
      if (stream.state == State::kOnChannel) ++count;
    }
  }
  return count;
}

struct Used {
  long long processor_ns = 0;
  long long wakings = 0;
};

// All threads of a process, from its start.
Used used_by(pid_t pid) {
  Used used;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    long long ns = 0;
    std::ifstream(task.path() / "schedstat") >> ns;
    used.processor_ns += ns;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      long long count = 0;
      if (std::sscanf(line.c_str(), "voluntary_ctxt_switches: %lld", &count) == 1)
        used.wakings += count;
    }
  }
  return used;
}

TEST(IdleTest, AThousandStreamsUseNoProcessorAndMakeNoWaitDearer) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max < kIdle * kDescriptorsForEach) {
    GTEST_SKIP() << "RLIMIT_NOFILE allows " << files.rlim_max << " descriptors, this takes "
                 << kIdle * kDescriptorsForEach << ": raise the hard limit";
  }
  TemporaryDirectory directory;
  const std::string policy = directory.write(
      "policy.toml", "max_channels = 4096\n" + policy_from_the_first_byte() + "ring = \"4KiB\"\n");
  const std::string segments = directory.path() + "/run";
  Program program({RINGROAD_IDLE, std::to_string(kIdle + kSpare)},
                  environment_with({"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy,
                                    "RINGROAD_RUNTIME_DIR=" + segments}));
  constexpr std::size_t kEnds = 2 * kIdle;
  ASSERT_TRUE(program.wait_for("made\n", kTimeoutMs)) << program.err();
  ASSERT_GE(on_channels(segments), kEnds);
  const Used before = used_by(program.pid());
  std::this_thread::sleep_for(kQuiet);
  const Used after = used_by(program.pid());
  ASSERT_GT(before.processor_ns, 0) << "schedstat says nothing";
  EXPECT_LT(after.processor_ns - before.processor_ns, kMostUsed.count()) << "ns of processor";
  EXPECT_LE(after.wakings - before.wakings, kMostWakings) << "sleeps that ended";
  program.write("measure\n");
  ASSERT_TRUE(program.wait_for(" end\n", kTimeoutMs)) << program.err();
  EXPECT_EQ(program.finish(kTimeoutMs), 0) << program.err();
  long long few = 0;
  long long many = 0;
  const std::size_t cost = program.out().find("cost ");
  ASSERT_NE(cost, std::string::npos);
  ASSERT_EQ(std::sscanf(program.out().c_str() + cost, "cost %lld %lld", &few, &many), 2);
  // One more look for each idle stream, of some ten nanoseconds, would be several times as much.
  EXPECT_LT(many, 2 * few) << "ns a message, with one idle stream and with " << kIdle;
}

}  // namespace
}  // namespace ringroad::test
