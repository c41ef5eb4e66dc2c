// Streams with nothing to tell cost nothing: a thread that waits for them sleeps, and an epoll_wait(2) looks
// at what has news.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/segment_reader.h"
#include "tests/preload/drivers/scenario_run.h"

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

constexpr int kWaitMs = 5000;
constexpr std::int64_t kLateUs = 20'000;
constexpr std::size_t kWaits = 12;  // of streams, and as many of the kernel's sockets
constexpr std::size_t kBusy = 2;    // streams
constexpr long kMostSleeps = 8;     // one for the wait itself, now and then one for a lock
constexpr std::uint64_t kAtLeastMoved = std::uint64_t{1} << 30;

struct TimedWait {
  std::string way;
  std::string whose;
  int result = -1;
  std::int64_t took_us = 0;
  long sleeps = 0;
};

// On a machine whose processors are all taken, 20 ms may be less than what the kernel itself needs
// to run a thread whose time has come. So each wait has its like on a Unix socket, in the same
// process at the same time, and only where one of those was late by more than that is so much more
// allowed. The kernel's SO_RCVTIMEO is left out of this, which counts in steps of a quarter of a
// second; ours does not.
TEST(IdleTest, AnIdleWaitEndsInTimeAndUndisturbedWhileOthersMoveBytes) {
  TemporaryDirectory directory;
  const std::string policy = directory.write("policy.toml", policy_from_the_first_byte());
  const std::string segments = directory.path() + "/run";
  Program program({RINGROAD_WAITING, std::to_string(kWaitMs)},
                  environment_with({"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy,
                                    "RINGROAD_RUNTIME_DIR=" + segments}));
  ASSERT_TRUE(program.wait_for("made\n", kTimeoutMs)) << program.err();
  ASSERT_EQ(on_channels(segments), 2 * (kWaits + kBusy));
  program.write("go\n");
  ASSERT_TRUE(program.wait_for(" end\n", kTimeoutMs)) << program.err();
  ASSERT_EQ(on_channels(segments), 2 * (kWaits + kBusy)) << "at the end";
  const cli::Snapshot snapshot = cli::read_segments(segments);
  EXPECT_EQ(program.finish(kTimeoutMs), 0) << program.err();
  std::vector<TimedWait> waits;
  std::uint64_t moved = 0;
  std::istringstream lines(program.out());
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    TimedWait wait;
    if (first == "moved") words >> moved;
    if (first == "wait" &&
        words >> wait.way >> wait.whose >> wait.result >> wait.took_us >> wait.sleeps) {
      waits.push_back(wait);
    }
  }
  ASSERT_EQ(waits.size(), 2 * kWaits);
  EXPECT_GT(moved, kAtLeastMoved) << "the others were to be busy";
  for (const cli::ProcessReport& process : snapshot.processes) {
    EXPECT_GE(process.totals().channel.rx_bytes, moved);
    EXPECT_EQ(process.totals().tcp.rx_bytes, 0U);
  }
  constexpr std::int64_t kWaitUs = std::int64_t{kWaitMs} * 1000;
  std::int64_t kernels_latest = 0;
  for (const TimedWait& wait : waits) {
    if (wait.whose != "kernel" || wait.way == "recv") continue;
    kernels_latest = std::max(kernels_latest, wait.took_us - kWaitUs);
  }
  const std::int64_t allowed = kLateUs + (kernels_latest > kLateUs ? kernels_latest : 0);
  for (const TimedWait& wait : waits) {
    SCOPED_TRACE(wait.way + " of a " + wait.whose);
    EXPECT_EQ(wait.result, 0);
    EXPECT_GE(wait.took_us, kWaitUs) << "too early";
    if (wait.whose != "stream") continue;
    EXPECT_LE(wait.took_us, kWaitUs + allowed) << "the kernel's latest: " << kernels_latest;
    EXPECT_LE(wait.sleeps, kMostSleeps) << "was woken";
  }
}

}  // namespace
}  // namespace ringroad::test
