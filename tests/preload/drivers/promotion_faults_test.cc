// Whatever goes wrong in the library's own threads while they promote a connection: the program does not
// notice, nothing is left of it, and later connections are promoted.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/preload/drivers/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 90'000;
constexpr int kNotHere = 3;   // the program's exit status
constexpr int kAtOnce = 8;    // they wait most of the time
constexpr unsigned kNone = 0;  // a step that does not come

// RINGROAD_TEST_EVERY=N, where time is short: every N-th step only.
unsigned stride() {
  const char* every = std::getenv("RINGROAD_TEST_EVERY");
  return every == nullptr ? 1 : static_cast<unsigned>(std::max(1, std::atoi(every)));
}

struct Outcome {
  int status = -1;
  unsigned steps = 0;
  std::string fault;
  unsigned promoted = 0;
  unsigned then_promoted = 0;
  unsigned descriptors = 0;
  unsigned mappings = 0;
  std::string said;
};

class PromotionFaultsTest : public testing::TestWithParam<const char*> {
 protected:
  // With the most that may be left: the program waits until no more is.
  Outcome run(const std::string& kind, unsigned step, unsigned descriptors, unsigned mappings) const {
    const TemporaryDirectory directory;
    Program program({RINGROAD_FAULTY, kind, std::to_string(step), std::to_string(descriptors),
                     std::to_string(mappings)},
                    environment_with({"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy_,
                                      "RINGROAD_RUNTIME_DIR=" + directory.path() + "/run"}));
    Outcome outcome;
    outcome.status = program.finish(kTimeoutMs);
    outcome.said = program.out() + program.err();
    for (std::size_t at = 0, end; (end = program.out().find('\n', at)) != std::string::npos; at = end + 1) {
      const std::string line = program.out().substr(at, end - at);
      char fault[32];
      if (std::sscanf(line.c_str(), "fault %31s", fault) == 1) outcome.fault = fault;
      std::sscanf(line.c_str(), "steps %u", &outcome.steps);
      std::sscanf(line.c_str(), "promoted %u", &outcome.promoted);
      std::sscanf(line.c_str(), "then promoted %u", &outcome.then_promoted);
      std::sscanf(line.c_str(), "left %u %u", &outcome.descriptors, &outcome.mappings);
    }
    return outcome;
  }

 private:
  // Written once: a file that is open for writing while another thread forks is left to that child.
  const TemporaryDirectory policies_;
  const std::string policy_ = policies_.write("policy.toml", policy_from_the_first_byte());
};

TEST_P(PromotionFaultsTest, AtNoStepAreTheyNoticedOrLeaveAnything) {
  const std::string kind = GetParam();
  const Outcome usual = run(kind, kNone, 0, 0);  // it never comes to that, and has settled
  if (usual.status == kNotHere) GTEST_SKIP() << "no seccomp_unotify(2) here: " << usual.said;
  ASSERT_EQ(usual.status, 0) << usual.said;
  ASSERT_EQ(usual.promoted, 2U) << usual.said;
  ASSERT_EQ(usual.mappings, 0U) << usual.said;
  ASSERT_GT(usual.steps, 0U);
  std::atomic<unsigned> next{1};
  std::atomic<bool> all_done{false};
  std::vector<Outcome> outcomes(2 * usual.steps + 2);
  std::vector<std::thread> workers;
  for (int i = 0; i < kAtOnce; ++i) {
    workers.emplace_back([&] {
      for (unsigned step; !all_done && (step = next.fetch_add(stride())) < outcomes.size();) {
        outcomes[step] = run(kind, step, usual.descriptors, usual.mappings);
        // The steps of two threads are not always as many.
        if (step > usual.steps && outcomes[step].fault.empty()) all_done = true;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  unsigned faults = 0;
  for (unsigned step = 1; step < outcomes.size(); ++step) {
    const Outcome& outcome = outcomes[step];
    if (outcome.said.empty()) continue;
    SCOPED_TRACE(kind + " " + std::to_string(step) + ":\n" + outcome.said);
    faults += outcome.fault.empty() ? 0U : 1U;
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.then_promoted, 2U);
    EXPECT_LE(outcome.descriptors, usual.descriptors);
    EXPECT_LE(outcome.mappings, usual.mappings);
  }
  std::printf("%s: %u of about %u steps\n", kind.c_str(), faults, usual.steps);
  EXPECT_GE(faults, usual.steps * 9 / 10 / stride());
}

INSTANTIATE_TEST_SUITE_P(Kinds, PromotionFaultsTest, testing::Values("fail", "lose", "late"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace ringroad::test
