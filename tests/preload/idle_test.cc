// Descriptors with nothing to tell cost nothing: an epoll_wait(2) looks at what has news.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <string>

#include "cli/segment_reader.h"
#include "tests/preload/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 60'000;
constexpr int kIdle = 1000;
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

TEST(IdleTest, AWaitCostsTheSameBesideAThousandIdleStreams) {
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
