// Operations drawn from a seed, plain and preloaded: the kernel says what is right.
//
// By hand, with any seed and as many operations as wanted:
//
//   RINGROAD_RANDOM_SEED=77 RINGROAD_RANDOM_COUNT=1000000 build/bin/preload_test
//       --gtest_filter='*RandomDifferential*'
//
// A difference is shown with its seed; the same seed draws the same operations again.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tests/preload/drivers/random_compare.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 60'000;

std::string variable(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::vector<std::uint64_t> seeds() {
  const std::string one = variable("RINGROAD_RANDOM_SEED", "");
  if (!one.empty()) return {std::strtoull(one.c_str(), nullptr, 0)};
  return {101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111};
}

long count() { return std::atol(variable("RINGROAD_RANDOM_COUNT", "2000").c_str()); }

std::string play(const RandomRun& run, cli::Snapshot& snapshot) {
  const RandomOutcome outcome = run_random(run, kTimeoutMs);
  EXPECT_TRUE(outcome.ended) << "no end in sight";
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.errors, "");
  snapshot = outcome.snapshot;
  return outcome.transcript;
}

void compare(bool from_the_first_byte, bool preloaded) {
  const char* mode = from_the_first_byte ? "exact" : "switching";
  std::uint64_t crossed = 0;
  for (const std::uint64_t seed : seeds()) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", operations " + std::to_string(count()));
    std::cout << "random_operations " << mode << " " << seed << " " << count() << std::endl;
    cli::Snapshot none;
    cli::Snapshot snapshot;
    RandomRun run{mode, seed, count(), {}, false, from_the_first_byte};
    const std::string expected = play(run, none);
    run.preloaded = preloaded;
    const std::string actual = play(run, snapshot);
    EXPECT_EQ(first_difference(expected, actual, preloaded && !from_the_first_byte), "");
    EXPECT_EQ(expected.find("does not settle"), std::string::npos);
    if (!preloaded) continue;
    std::uint64_t promoted = 0;
    std::uint64_t bytes = 0;
    for (const cli::ProcessReport& process : snapshot.processes) {
      promoted += process.streams_promoted;
      const cli::CarrierTraffic totals = process.totals();
      bytes += totals.channel.rx_bytes;
    }
    crossed += bytes;
    if (!from_the_first_byte) continue;
    EXPECT_GT(promoted, 0U) << "no stream was ever on a channel";
    EXPECT_GT(bytes, 0U) << "nothing went over a channel";
  }
  // A run may be over before its promotions are: what counts is all of them.
  if (!preloaded || seeds().size() == 1) return;
  EXPECT_GT(crossed, 0U) << "nothing went over a channel";
}

// What two plain runs do not agree on proves nothing.
TEST(RandomDifferentialTest, TwoPlainRunsAreTheSame) { compare(true, false); }
TEST(RandomDifferentialTest, FromTheFirstByteTheTranscriptIsTheKernels) { compare(true, true); }
TEST(RandomDifferentialTest, MidwayTheTranscriptIsTheKernelsButForEdgesMore) {
  compare(false, true);
}

}  // namespace
}  // namespace ringroad::test
