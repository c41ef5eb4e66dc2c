// What each key of a valid policy means.

#include <gtest/gtest.h>

#include "tests/policy/support.h"

namespace ringroad::policy {
namespace {

using namespace std::chrono_literals;

// The settings of the only rule of a policy.
Settings settings_of(std::string_view lines) {
  const auto policy = must_load(one_rule(lines));
  EXPECT_EQ(policy->rule_count(), 1U);
  return policy->rule_count() == 1 ? policy->rule(0) : Settings{};
}

TEST(Keys, TakeTheirDocumentedDefaultsWhenLeftOut) {
  const Settings settings = settings_of("");
  EXPECT_EQ(settings.via, Via::kAuto);
  EXPECT_EQ(settings.device, "");
  EXPECT_EQ(settings.traffic_class, std::nullopt);
  EXPECT_EQ(settings.ring_bytes, 262144U);
  EXPECT_EQ(settings.spin, 50us);
  EXPECT_EQ(settings.promote_after.messages, 4U);
  EXPECT_EQ(settings.promote_after.bytes, std::nullopt);
  EXPECT_EQ(settings.wait, 0ns);
  EXPECT_EQ(settings.idle, 60s);
  EXPECT_EQ(settings.detect, 500ms);
  EXPECT_EQ(must_load(one_rule(""))->limits().max_channels, 1024U);
}

TEST(Keys, IdleTakesWhatADayHas) {
  EXPECT_EQ(settings_of(R"(idle = "0s")").idle, 0ns);
  EXPECT_EQ(settings_of(R"(idle = "250ms")").idle, 250ms);
  EXPECT_EQ(settings_of(R"(idle = "86400s")").idle, 24h);
}

TEST(Keys, DetectIsFromTenMillisecondsToThirtySeconds) {
  EXPECT_EQ(settings_of(R"(detect = "10ms")").detect, 10ms);
  EXPECT_EQ(settings_of(R"(detect = "30s")").detect, 30s);
}

TEST(Keys, MaxChannelsHoldsForTheWholePolicy) {
  const auto policy = must_load("version = 1\nmax_channels = 64\n[[rule]]\nsubnet = \"::/0\"\n");
  EXPECT_EQ(policy->limits().max_channels, 64U);
  EXPECT_EQ(policy->limits().max_channels_at.line, 2U);
  EXPECT_EQ(must_load("version = 1\nmax_channels = 65536\n")->limits().max_channels, 65536U);
}

TEST(Keys, TheLogIsAWordOrAPath) {
  EXPECT_EQ(must_load("version = 1\n")->limits().log, "");
  EXPECT_EQ(must_load("version = 1\n")->limits().log_level, "");
  for (const char* log : {"off", "stderr", "syslog", "journal", "/var/log/ringroad.log"}) {
    EXPECT_EQ(must_load("version = 1\nlog = \"" + std::string(log) + "\"\n")->limits().log, log);
  }
  for (const char* level : {"error", "warn", "info", "debug"}) {
    EXPECT_EQ(
        must_load("version = 1\nlog_level = \"" + std::string(level) + "\"\n")->limits().log_level,
        level);
  }
}

TEST(Keys, NameAndPlaceOfARuleAreKept) {
  const auto policy = must_load(
      "version = 1\n\n[[rule]]\nname = \"first\"\nsubnet = \"10.0.0.0/8\"\n"
      "  [[rule]]\nsubnet = \"11.0.0.0/8\"\n",
      "/etc/ringroad/10-a.toml");
  ASSERT_EQ(policy->rule_count(), 2U);
  EXPECT_EQ(policy->rule(0).name, "first");
  EXPECT_EQ(policy->rule(0).index, 0U);
  EXPECT_EQ(policy->rule(0).file, "/etc/ringroad/10-a.toml");
  EXPECT_EQ(policy->rule(0).line, 3U);
  EXPECT_EQ(policy->rule(1).name, "10-a.toml:6");
  EXPECT_EQ(policy->rule(1).index, 1U);
  EXPECT_EQ(policy->rule(1).line, 6U);
}

TEST(Keys, ViaTakesEveryWord) {
  EXPECT_EQ(settings_of(R"(via = "tcp")").via, Via::kTcp);
  EXPECT_EQ(settings_of(R"(via = "rdma")").via, Via::kRdma);
  EXPECT_EQ(settings_of(R"(via = "shm")").via, Via::kShm);
  EXPECT_EQ(settings_of(R"(via = "auto")").via, Via::kAuto);
}

TEST(Keys, DeviceIsTakenAsWritten) {
  EXPECT_EQ(settings_of(R"(device = "mlx5_0")").device, "mlx5_0");
  EXPECT_EQ(settings_of(R"(device = "rocep3s0f0")").device, "rocep3s0f0");
}

TEST(Keys, TrafficClassIsAnyByte) {
  EXPECT_EQ(settings_of("traffic_class = 0").traffic_class, 0);
  EXPECT_EQ(settings_of("traffic_class = 106").traffic_class, 106);
  EXPECT_EQ(settings_of("traffic_class = 0x6a").traffic_class, 106);
  EXPECT_EQ(settings_of("traffic_class = 255").traffic_class, 255);
}

TEST(Keys, RingTakesEveryPowerOfTwoFrom4KiBTo1GiB) {
  EXPECT_EQ(settings_of(R"(ring = "4KiB")").ring_bytes, 4096U);
  EXPECT_EQ(settings_of(R"(ring = "4096B")").ring_bytes, 4096U);
  EXPECT_EQ(settings_of(R"(ring = "2MiB")").ring_bytes, 2U << 20);
  EXPECT_EQ(settings_of(R"(ring = "2048KiB")").ring_bytes, 2U << 20);
  EXPECT_EQ(settings_of(R"(ring = "1GiB")").ring_bytes, 1U << 30);
}

TEST(Keys, SpinTakesEveryUnitOfTime) {
  EXPECT_EQ(settings_of(R"(spin = "0us")").spin, 0ns);
  EXPECT_EQ(settings_of(R"(spin = "500ns")").spin, 500ns);
  EXPECT_EQ(settings_of(R"(spin = "20us")").spin, 20us);
  EXPECT_EQ(settings_of(R"(spin = "3ms")").spin, 3ms);
  EXPECT_EQ(settings_of(R"(spin = "1s")").spin, 1s);
}

TEST(Keys, WaitTakesUpToAMinute) {
  EXPECT_EQ(settings_of(R"(wait = "0ms")").wait, 0ns);
  EXPECT_EQ(settings_of("promote_after = { messages = 0 }\nwait = \"200ms\"").wait, 200ms);
  EXPECT_EQ(settings_of("promote_after = { messages = 0 }\nwait = \"60s\"").wait, 60s);
}

TEST(Keys, PromoteAfterTakesMessagesOrBytesOrBoth) {
  const PromoteAfter messages = settings_of("promote_after = { messages = 9 }").promote_after;
  EXPECT_EQ(messages.messages, 9U);
  EXPECT_EQ(messages.bytes, std::nullopt);

  const PromoteAfter bytes = settings_of(R"(promote_after = { bytes = "64KiB" })").promote_after;
  EXPECT_EQ(bytes.messages, std::nullopt);
  EXPECT_EQ(bytes.bytes, 65536U);

  const PromoteAfter both =
      settings_of("promote_after.messages = 3\npromote_after.bytes = \"1B\"").promote_after;
  EXPECT_EQ(both.messages, 3U);
  EXPECT_EQ(both.bytes, 1U);
}

TEST(Keys, PromoteAfterIsReachedByWhicheverComesFirst) {
  const PromoteAfter both =
      settings_of(R"(promote_after = { messages = 4, bytes = "1KiB" })").promote_after;
  EXPECT_FALSE(both.reached(3, 1023));
  EXPECT_TRUE(both.reached(4, 0));
  EXPECT_TRUE(both.reached(0, 1024));
  const PromoteAfter bytes = settings_of(R"(promote_after = { bytes = "1KiB" })").promote_after;
  EXPECT_FALSE(bytes.reached(1000000, 1023));
  EXPECT_TRUE(settings_of("promote_after = { messages = 0 }").promote_after.reached(0, 0));
}

TEST(Keys, RulesMayBeWrittenAsInlineTables) {
  const auto policy = must_load(
      "version = 1\nrule = [\n  { name = \"a\", subnet = \"10.0.0.0/8\" },\n"
      "  { name = \"b\", subnet = \"::/0\", via = \"shm\" } ]\n");
  ASSERT_EQ(policy->rule_count(), 2U);
  EXPECT_EQ(policy->rule(0).line, 3U);
  EXPECT_EQ(policy->rule(1).line, 4U);
  EXPECT_EQ(policy->rule(1).via, Via::kShm);
}

TEST(Keys, APolicyMayHaveNoRules) {
  EXPECT_EQ(must_load("version = 1\n")->rule_count(), 0U);
  EXPECT_EQ(must_load("# only this\nversion = 1")->rule_count(), 0U);
}

TEST(Keys, CommentsMayHoldAnyCharacterWhateverTheStringsBeforeThem) {
  for (const char* line :
       {"program = \"a\\\"b\" # caf\u00e9", "program = 'a\\' # caf\u00e9",
        "program = ['#', \"'\"] # caf\u00e9 \"", "# \u201cquoted\u201d 'and \"not",
        "# \u00a0 \u07ff \u0800 \ud7ff \ue000 \uffee \U00010000 \U0010ffef"}) {
    EXPECT_EQ(settings_of(line).line, 2U) << line;
  }
  const auto policy = must_load(one_rule("name = \"r\"\nprogram = \"caf\\u00e9\" # \u00e9"));
  EXPECT_NE(
      policy->match(Role::kConnect, "caf\u00e9", endpoint("10.0.0.1:1"), endpoint("10.0.0.2:1")),
      nullptr);
}

TEST(Keys, WindowsLineEndsAndAByteOrderMarkAreTaken) {
  const auto policy = must_load("\xef\xbb\xbfversion = 1\r\n[[rule]]\r\nsubnet = \"::/0\"\r\n");
  ASSERT_EQ(policy->rule_count(), 1U);
  EXPECT_EQ(policy->rule(0).line, 2U);
}

}  // namespace
}  // namespace ringroad::policy
