// Rules that can never match, checked against asking every connection of a small world.

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/policy/support.h"

namespace ringroad::policy {
namespace {

std::string warnings_of(std::string_view text) {
  return all_of(must_load(text)->warnings(), "warning");
}

TEST(Coverage, WarnsOfARuleThatAnEarlierOneCovers) {
  EXPECT_EQ(warnings_of(R"(version = 1
[[rule]]
name = "wide"
subnet = "10.0.0.0/8"
[[rule]]
name = "narrow"
subnet = "10.1.0.0/16"
port = 3306
)"),
            "policy.toml:5:1: warning: rule \"narrow\" can never match: \"wide\" (policy.toml:2) "
            "matches everything that it does (move it up, or remove it)\n");
}

TEST(Coverage, WarnsOfARuleThatSeveralEarlierOnesCoverTogether) {
  EXPECT_EQ(warnings_of(R"(version = 1
[[rule]]
name = "low"
subnet = "10.0.0.0/9"
[[rule]]
name = "elsewhere"
subnet = "172.16.0.0/12"
[[rule]]
name = "high-connect"
subnet = "10.128.0.0/9"
role = "connect"
[[rule]]
name = "high-accept"
subnet = "10.128.0.0/9"
role = "accept"
port = "1-65535"
[[rule]]
name = "whole"
subnet = "10.0.0.0/8"
)"),
            "policy.toml:17:1: warning: rule \"whole\" can never match: \"low\" (policy.toml:2), "
            "\"high-connect\" (policy.toml:8), \"high-accept\" (policy.toml:12) together match "
            "everything that it does (move it up, or remove it)\n");
}

TEST(Coverage, DoesNotWarnOfRulesThatOnlyOverlap) {
  EXPECT_EQ(warnings_of(R"(version = 1
[[rule]]
subnet = "10.1.0.0/16"
[[rule]]
subnet = "10.0.0.0/8"
port = "4567-4568"
program = "mysqld"
[[rule]]
subnet = "10.0.0.0/8"
port = "4568-4569"
program = "mysqld"
[[rule]]
subnet = "10.0.0.0/8"
port = "4568"
)"),
            "");
}

TEST(Coverage, KnowsThatAGlobCoversTheNamesItMatches) {
  const auto warned = [](std::string_view earlier, std::string_view later) {
    const std::string rule = "[[rule]]\n" + std::string(kEverything) + "\n";
    return !warnings_of("version = 1\n" + rule + std::string(earlier) + "\n" + rule +
                        std::string(later) + "\n")
                .empty();
  };
  EXPECT_TRUE(warned(R"(program = "my*")", R"(program = "mysqld")"));
  EXPECT_TRUE(warned(R"(program = "my*")", R"(program = "my*")"));
  EXPECT_TRUE(warned(R"(program = ["a", "my*"])", R"(program = ["mysqld", "a"])"));
  EXPECT_TRUE(warned(R"(program = "*")", ""));
  EXPECT_FALSE(warned(R"(program = "my*")", R"(program = ["mysqld", "a"])"));
  EXPECT_FALSE(warned(R"(program = "mysqld")", R"(program = "my*")"));
  EXPECT_FALSE(warned(R"(program = "my?")", R"(program = "my*")"));
  EXPECT_FALSE(warned(R"(program = "my*")", ""));
}

TEST(Coverage, WorksAcrossTheEdgesOfTheAddressSpaces) {
  EXPECT_EQ(warnings_of("version = 1\n[[rule]]\nsubnet = \"0.0.0.0/0\"\n"
                        "[[rule]]\nsubnet = \"::/0\"\n"),
            "");
  EXPECT_NE(warnings_of("version = 1\n[[rule]]\nsubnet = [\"::/1\", \"8000::/1\"]\n"
                        "[[rule]]\nsubnet = \"::/0\"\n"),
            "");
  EXPECT_EQ(warnings_of("version = 1\n[[rule]]\nsubnet = \"::1/128\"\n"
                        "[[rule]]\nsubnet = \"::/0\"\n"),
            "");
}

TEST(Coverage, NoIPv6AddressIsLeftWhereTheMappedOnesAre) {
  const std::string around = R"(version = 1
[[rule]]
name = "beside"
subnet = "::fffe:0:0/96"
[[rule]]
name = "both"
subnet = "::fffe:0:0/95"
)";
  EXPECT_NE(warnings_of(around).find("rule \"both\" can never match"), std::string::npos);
  EXPECT_EQ(warnings_of(around + "[[rule]]\nname = \"v4\"\nsubnet = \"0.0.0.0/0\"\n").find("\"v4\""),
            std::string::npos);
}

TEST(Coverage, WarnsOfExactlyTheRulesThatNoConnectionReaches) {
  static constexpr const char* kSubnets[] = {
      "10.0.0.0/29", "10.0.0.0/30", "10.0.0.4/30", "10.0.0.0/31", "10.0.0.2/31", "10.0.0.5/32",
      "10.0.0.3/32", "0.0.0.0/0",   "::/0",        "fd00::/127",  "fd00::1/128", "0.0.0.0/1"};
  static constexpr const char* kRemotes[] = {
      "10.0.0.0:1", "10.0.0.1:1",  "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1",
      "10.0.0.5:1", "10.0.0.6:1",  "10.0.0.7:1", "10.0.0.8:1", "200.0.0.1:1",
      "[fd00::]:1", "[fd00::1]:1", "[fd00::2]:1"};
  static constexpr const char* kRoles[] = {"any", "any", "connect", "accept"};
  static constexpr const char* kPorts[] = {"1-65535", "1-3", "4-65535", "2", "3-4", "5-65535"};
  static constexpr std::uint16_t kPortsAsked[] = {1, 2, 3, 4, 5, 65535};
  static constexpr const char* kGlobs[] = {"a", "ab", "a*", "*", "c"};
  static constexpr const char* kPrograms[] = {"a", "ab", "azz", "c", "other"};

  Random random(test_seed());
  int warned_rules = 0;
  int silent_rules = 0;
  for (int round = 0; round < 400; ++round) {
    std::string text = "version = 1\n";
    const std::size_t rules = 2 + random.below(6);
    for (std::size_t i = 0; i < rules; ++i) {
      text += "[[rule]]\nrole = \"" + std::string(random.pick(kRoles)) + "\"\nsubnet = [";
      for (std::size_t n = 1 + random.below(3); n > 0; --n) {
        text += "\"" + std::string(random.pick(kSubnets)) + "\", ";
      }
      text += "]\n";
      if (random.one_in(2)) {
        text += "port = [";
        for (std::size_t n = 1 + random.below(3); n > 0; --n) {
          text += "\"" + std::string(random.pick(kPorts)) + "\", ";
        }
        text += "]\n";
      }
      if (random.one_in(3)) {
        text += "program = [\"" + std::string(random.pick(kGlobs)) + "\", \"" +
                random.pick(kGlobs) + "\"]\n";
      }
    }
    const auto policy = must_load(text);

    std::set<std::uint32_t> reached;
    for (const Role role : {Role::kConnect, Role::kAccept}) {
      for (const char* remote_text : kRemotes) {
        for (const std::uint16_t port : kPortsAsked) {
          for (const char* program : kPrograms) {
            Endpoint local = endpoint("10.9.9.9:1");
            Endpoint remote = endpoint(remote_text);
            local.port = remote.port = port;
            const Settings* settings = policy->match(role, program, local, remote);
            if (settings != nullptr) {
              reached.insert(settings->line);
            }
          }
        }
      }
    }
    std::set<std::uint32_t> warned;
    for (const Error& warning : policy->warnings()) {
      warned.insert(warning.line);
    }
    for (std::size_t i = 0; i < policy->rule_count(); ++i) {
      const std::uint32_t line = policy->rule(i).line;
      ASSERT_NE(reached.count(line), warned.count(line)) << "rule at line " << line << " of\n"
                                                         << text;
    }
    warned_rules += static_cast<int>(warned.size());
    silent_rules += static_cast<int>(reached.size());
  }
  EXPECT_GT(warned_rules, 100);
  EXPECT_GT(silent_rules, 100);
}

TEST(Coverage, GivesUpQuietlyWhenTheRemaindersGrowPastReason) {
  // Each address cut out of ::/0 leaves up to 128 more pieces.
  std::string text = "version = 1\n[[rule]]\nsubnet = [";
  for (int i = 0; i < 400; ++i) {
    char address[64];
    std::snprintf(address, sizeof(address), "\"%x:%x::%x:1/128\",\n", 0x2000 + i * 37, i * 91, i);
    text += address;
  }
  text += "]\n[[rule]]\nsubnet = \"::/0\"\n[[rule]]\nsubnet = \"::/0\"\n";
  const std::string warnings = warnings_of(text);
  EXPECT_EQ(warnings, "");
}

}  // namespace
}  // namespace ringroad::policy
