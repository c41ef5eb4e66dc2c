// Operations drawn from a seed, plain and preloaded: the kernel says what is right.
//
// By hand, with any seed and as many operations as wanted:
//
//   RINGROAD_RANDOM_SEED=77 RINGROAD_RANDOM_COUNT=1000000 build/bin/preload_test
//       --gtest_filter='*RandomDifferential*'
//
// A difference is shown with its seed; the same seed draws the same operations again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "tests/preload/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 60'000;
constexpr std::size_t kLinesAround = 25;

struct Play {
  const char* mode;  // of random_operations
  bool from_the_first_byte;
  bool preloaded;
  std::uint64_t seed;
};

std::string variable(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::vector<std::uint64_t> seeds() {
  const std::string one = variable("RINGROAD_RANDOM_SEED", "");
  if (!one.empty()) return {std::strtoull(one.c_str(), nullptr, 0)};
  return {101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111};
}

std::string count() { return variable("RINGROAD_RANDOM_COUNT", "2000"); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Every word of the kernel's edges, in braces, is told; the rest of the line is the same. More edges,
// or more in one, may be told while a stream changes carrier.
bool no_edge_less(const std::string& plain, const std::string& preloaded) {
  const auto split = [](const std::string& line, std::vector<std::string>& edges) {
    std::string rest;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.size() > 2 && word.front() == '{' && word.back() == '}') {
        edges.push_back("|" + word.substr(1, word.size() - 2) + "|");
      } else {
        rest += " " + word;
      }
    }
    return rest;
  };
  std::vector<std::string> expected;
  std::vector<std::string> told;
  if (split(plain, expected) != split(preloaded, told)) return false;
  return std::all_of(expected.begin(), expected.end(), [&](const std::string& edge) {
    const std::string label = edge.substr(0, edge.find('=') + 1);
    const auto found = std::find_if(told.begin(), told.end(), [&](const std::string& other) {
      return other.compare(0, label.size(), label) == 0;
    });
    if (found == told.end()) return false;
    std::istringstream bits(edge.substr(label.size()));
    for (std::string bit; std::getline(bits, bit, '|');) {
      if (!bit.empty() && ("|" + found->substr(label.size())).find("|" + bit + "|") == std::string::npos) {
        return false;
      }
    }
    return true;
  });
}

std::string first_difference(const std::string& plain, const std::string& preloaded, bool switching) {
  const std::vector<std::string> a = lines_of(plain);
  const std::vector<std::string> b = lines_of(preloaded);
  std::size_t at = 0;
  while (at < std::min(a.size(), b.size()) &&
         (a[at] == b[at] || (switching && no_edge_less(a[at], b[at])))) {
    ++at;
  }
  if (at == a.size() && at == b.size()) return "";
  std::string out = "\n";
  for (std::size_t i = at < kLinesAround ? 0 : at - kLinesAround; i < at; ++i) out += "    " + a[i] + "\n";
  out += "  - " + (at < a.size() ? a[at] : "(its end)") + "\n";
  out += "  + " + (at < b.size() ? b[at] : "(its end)") + "\n";
  for (std::size_t i = at + 1; i < std::min(a.size(), at + 4); ++i) out += "    " + a[i] + "\n";
  return out;
}

std::string play(const Play& p, cli::Snapshot& snapshot) {
  TemporaryDirectory directory;
  const std::string policy = directory.write(
      "policy.toml", p.from_the_first_byte ? policy_from_the_first_byte() : policy_after_messages(3));
  const std::string segments = directory.path() + "/run";
  std::vector<std::string> changes;
  if (p.preloaded) {
    changes = {"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy,
               "RINGROAD_RUNTIME_DIR=" + segments};
  }
  Program program({RINGROAD_RANDOM_OPERATIONS, p.mode, std::to_string(p.seed), count()},
                  environment_with(changes));
  EXPECT_TRUE(program.wait_for("== end\n", kTimeoutMs)) << "no end in sight";
  snapshot = cli::read_segments(segments);
  EXPECT_EQ(program.finish(kTimeoutMs), 0);
  EXPECT_EQ(program.err(), "");
  return program.out();
}

void compare(bool from_the_first_byte, bool preloaded) {
  const char* mode = from_the_first_byte ? "exact" : "switching";
  std::uint64_t crossed = 0;
  for (const std::uint64_t seed : seeds()) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", operations " + count());
    std::cout << "random_operations " << mode << " " << seed << " " << count() << std::endl;
    cli::Snapshot none;
    cli::Snapshot snapshot;
    const std::string expected = play({mode, from_the_first_byte, false, seed}, none);
    const std::string actual = play({mode, from_the_first_byte, preloaded, seed}, snapshot);
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
