// Connections that have hardly been used, as others see them.
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <string>

#include "cli/segment_reader.h"
#include "tests/preload/drivers/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 10'000;
using Clock = std::chrono::steady_clock;

class FreshConnectionTest : public testing::Test {
 protected:
  std::vector<std::string> preloaded() const {
    return environment_with({"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy_,
                             "RINGROAD_RUNTIME_DIR=" + segments_});
  }
  void converse(Program& client, const std::string& line) {
    const std::string before = client.out();
    client.write(line + "\n");
    client.wait_for(before + line + "\n", kTimeoutMs);
    ASSERT_EQ(client.out(), before + line + "\n");
  }
  cli::ProcessReport report_of(const Program& program) const {
    for (const auto& process : cli::read_segments(segments_).processes) {
      if (process.pid == program.pid()) return process;
    }
    return {};
  }
  template <typename Done>
  static bool until(Done done) {
    const auto end = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
    while (!done()) {
      if (Clock::now() > end) return false;
      ::poll(nullptr, 0, 2);
    }
    return true;
  }
  static std::string port_of(const Program& program) {
    const std::string out = program.out();
    return out.substr(5, out.find('.') - 5);
  }

  TemporaryDirectory directory_;
  std::string policy_ = directory_.write("policy.toml", policy_after_messages(4));
  std::string segments_ = directory_.path() + "/run";
};

TEST_F(FreshConnectionTest, OneThatAskedOnceIsCountedWhenItIsOver) {
  Program server({RINGROAD_ECHO, "serve"}, preloaded());
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  constexpr unsigned kConnections = 3;
  for (unsigned i = 0; i < kConnections; ++i) {
    Program client({RINGROAD_ECHO, "connect", port_of(server)}, environment_with({}));
    ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
    converse(client, "seven..");
    EXPECT_EQ(client.finish(kTimeoutMs), 0);
  }
  ASSERT_TRUE(until([&] { return report_of(server).totals().tcp.rx_messages == kConnections; }));
  const cli::ProcessReport report = report_of(server);
  EXPECT_EQ(report.totals().tcp.rx_bytes, 8 * kConnections);
  EXPECT_EQ(report.totals().tcp.tx_bytes, 8 * kConnections);
  EXPECT_EQ(report.totals().tcp.tx_messages, kConnections);
  EXPECT_EQ(report.streams_opened, kConnections);
  ASSERT_EQ(report.rules.size(), 1U);
  EXPECT_EQ(report.rules[0].opened, kConnections);
  EXPECT_EQ(report.rules[0].traffic.tcp.rx_bytes, 8 * kConnections);
}

TEST_F(FreshConnectionTest, AChildThatHasTheParentsMemoryClosesACopyOnly) {
  Program program({RINGROAD_SCENARIOS, "a_vfork_child_closes_its_copy"}, preloaded());
  ASSERT_TRUE(program.wait_for("== end\n", kTimeoutMs)) << program.out() << program.err();
  const cli::Snapshot snapshot = cli::read_segments(segments_);
  ASSERT_EQ(snapshot.processes.size(), 2U);
  for (const cli::ProcessReport& process : snapshot.processes) {
    const cli::CarrierTraffic sent = process.totals();
    EXPECT_EQ(process.streams_opened, 1U);
    EXPECT_EQ(sent.tcp.tx_messages + sent.channel.tx_messages, 2U) << "or it was given up meanwhile";
  }
  EXPECT_EQ(program.finish(kTimeoutMs), 0);
}

TEST_F(FreshConnectionTest, AnIdleOneIsListedAfterAWhileWithWhatItDid) {
  Program server({RINGROAD_ECHO, "serve"}, preloaded());
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Program client({RINGROAD_ECHO, "connect", port_of(server)}, preloaded());
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  converse(client, "seven..");
  for (Program* program : {&server, &client}) {
    ASSERT_TRUE(until([&] { return report_of(*program).streams.size() == 1; }));
    const cli::StreamReport stream = report_of(*program).streams[0];
    EXPECT_EQ(stream.state, State::kOnTcp);
    EXPECT_EQ(stream.traffic.tcp.tx_bytes, 8U);
    EXPECT_EQ(stream.traffic.tcp.rx_bytes, 8U);
    EXPECT_EQ(report_of(*program).streams_opened, 1U);
  }
  // Both wait for a line, and are promoted all the same.
  for (int i = 0; i < 300 && report_of(server).streams_promoted == 0; ++i) converse(client, "more");
  EXPECT_EQ(report_of(server).streams_promoted, 1U);
  EXPECT_TRUE(until([&] { return report_of(client).streams_promoted == 1; }));
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
}

}  // namespace
}  // namespace ringroad::test
