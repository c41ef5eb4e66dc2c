// Which rule decides, by example; oracle_test.cc does it at random.

#include <gtest/gtest.h>
#include <locale.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "tests/policy/support.h"

namespace ringroad::policy {
namespace {

// The name of the rule that decides, or "" for TCP. Checks that explain() agrees.
std::string decided(const Policy& policy, Role role, std::string_view program,
                    std::string_view local, std::string_view remote) {
  const Endpoint here = endpoint(local);
  const Endpoint there = endpoint(remote);
  const Settings* settings = policy.match(role, program, here, there);
  const Explanation explanation = policy.explain(role, program, here, there);
  EXPECT_EQ(explanation.decision, settings);
  EXPECT_EQ(explanation.considered.size() + explanation.not_considered, policy.rule_count());
  return settings == nullptr ? "" : settings->name;
}

std::string connecting(const Policy& policy, std::string_view remote,
                       std::string_view program = "mariadbd") {
  return decided(policy, Role::kConnect, program, "10.9.0.1:40000", remote);
}

TEST(Match, AnEmptyPolicyLeavesEverythingOnTcp) {
  const LoadResult loaded = Policy::load({});
  ASSERT_TRUE(loaded);
  EXPECT_EQ(connecting(*loaded.policy, "10.9.1.1:3306"), "");
}

TEST(Match, TheFirstMatchingRuleWins) {
  const auto policy = must_load(R"(version = 1
[[rule]]
name = "one-host"
subnet = "10.9.1.1/32"
via = "tcp"
[[rule]]
name = "subnet"
subnet = "10.9.1.0/24"
)");
  EXPECT_EQ(connecting(*policy, "10.9.1.1:3306"), "one-host");
  EXPECT_EQ(connecting(*policy, "10.9.1.2:3306"), "subnet");
  EXPECT_EQ(connecting(*policy, "10.9.2.1:3306"), "");
}

TEST(Match, ARuleMeansTheFileOrTheNameThatTheProgramIsStartedBy) {
  const auto policy = must_load(
      "version = 1\n[[rule]]\nname = \"r\"\nsubnet = \"10.9.1.0/24\"\nprogram = \"redis-server\"\n");
  const Endpoint here = endpoint("10.9.0.1:1");
  const Endpoint there = endpoint("10.9.1.1:2");
  const auto matches = [&](const Program& program) {
    const bool found = policy->match(Role::kConnect, program, here, there) != nullptr;
    const Explanation explanation = policy->explain(Role::kConnect, program, here, there);
    EXPECT_EQ(explanation.decision != nullptr, found);
    EXPECT_EQ(policy->reach(Role::kConnect, program, 2).shm, found);
    return found ? explanation.considered.back().program
                 : explanation.considered.back().mismatches.back().reason;
  };
  EXPECT_EQ(matches({"/usr/bin/redis-check-rdb", "/usr/bin/redis-server"}),
            "its argv[0] \"redis-server\" is like \"redis-server\"");
  EXPECT_EQ(matches({"/usr/bin/redis-server", "sentinel"}),
            "its file \"redis-server\" is like \"redis-server\"");
  EXPECT_EQ(matches({"redis-check-rdb", ""}),
            "program \"redis-check-rdb\" is not like \"redis-server\"");
  EXPECT_EQ(matches({"redis-check-rdb", "sentinel"}),
            "program \"redis-check-rdb\", started as \"sentinel\", is not like \"redis-server\"");
}

TEST(Match, TheSubnetIsThatOfTheRemoteEndInBothRoles) {
  const auto policy = must_load("version = 1\n[[rule]]\nname = \"r\"\nsubnet = \"10.9.1.0/24\"\n");
  for (const Role role : {Role::kConnect, Role::kAccept}) {
    EXPECT_EQ(decided(*policy, role, "p", "10.9.0.1:1", "10.9.1.1:2"), "r");
    EXPECT_EQ(decided(*policy, role, "p", "10.9.1.1:1", "10.9.0.1:2"), "");
  }
}

TEST(Match, ThePortIsTheServicesPortInBothRoles) {
  const auto policy = must_load(one_rule("name = \"r\"\nport = [\"3306\", \"4567-4568\"]"));
  EXPECT_EQ(decided(*policy, Role::kConnect, "p", "10.0.0.1:40000", "10.0.0.2:3306"), "r");
  EXPECT_EQ(decided(*policy, Role::kConnect, "p", "10.0.0.1:3306", "10.0.0.2:40000"), "");
  EXPECT_EQ(decided(*policy, Role::kAccept, "p", "10.0.0.1:3306", "10.0.0.2:40000"), "r");
  EXPECT_EQ(decided(*policy, Role::kAccept, "p", "10.0.0.1:40000", "10.0.0.2:3306"), "");
  EXPECT_EQ(connecting(*policy, "10.0.0.2:4566"), "");
  EXPECT_EQ(connecting(*policy, "10.0.0.2:4567"), "r");
  EXPECT_EQ(connecting(*policy, "10.0.0.2:4568"), "r");
  EXPECT_EQ(connecting(*policy, "10.0.0.2:4569"), "");
}

TEST(Match, PortsMayBeSingleStringsAndIntegers) {
  for (const char* port : {"port = 3306", "port = \"3306\"", "port = [1, 3306]",
                           "port = [\"1-2\", 3306]", "port = \"3306-3306\""}) {
    const auto policy = must_load(one_rule("name = \"r\"\n" + std::string(port)));
    EXPECT_EQ(connecting(*policy, "10.0.0.2:3306"), "r") << port;
    EXPECT_EQ(connecting(*policy, "10.0.0.2:3307"), "") << port;
  }
}

TEST(Match, TheRoleIsThatOfThisEnd) {
  const auto policy = must_load(R"(version = 1
[[rule]]
name = "out"
subnet = "0.0.0.0/0"
role = "connect"
[[rule]]
name = "in"
subnet = "0.0.0.0/0"
role = "accept"
port = 1
[[rule]]
name = "either"
subnet = "0.0.0.0/0"
role = "any"
)");
  EXPECT_EQ(decided(*policy, Role::kConnect, "p", "10.0.0.1:1", "10.0.0.2:1"), "out");
  EXPECT_EQ(decided(*policy, Role::kAccept, "p", "10.0.0.1:1", "10.0.0.2:1"), "in");
  EXPECT_EQ(decided(*policy, Role::kAccept, "p", "10.0.0.1:2", "10.0.0.2:1"), "either");
}

TEST(Match, ProgramsAreGlobsOnTheBaseName) {
  const auto policy = must_load(one_rule(R"(name = "r"
program = ["mariadbd", "tikv-*", "redis-server-[0-9]"])"));
  const auto by = [&](std::string_view program) {
    return connecting(*policy, "10.0.0.2:1", program);
  };
  EXPECT_EQ(by("mariadbd"), "r");
  EXPECT_EQ(by("/usr/sbin/mariadbd"), "r");
  EXPECT_EQ(by("mariadbd2"), "");
  EXPECT_EQ(by("mariadbd/other"), "");
  EXPECT_EQ(by("tikv-server"), "r");
  EXPECT_EQ(by("tikv"), "");
  EXPECT_EQ(by("redis-server-7"), "r");
  EXPECT_EQ(by("redis-server-x"), "");
  EXPECT_EQ(by(""), "");
  EXPECT_EQ(by(std::string(10000, 'x')), "");
  EXPECT_EQ(by(std::string_view("mariadbd\0x", 10)), "");
}

TEST(Match, FamiliesDoNotMatchEachOther) {
  const auto policy = must_load(R"(version = 1
[[rule]]
name = "four"
subnet = "0.0.0.0/0"
[[rule]]
name = "six"
subnet = "::/0"
)");
  EXPECT_EQ(connecting(*policy, "10.0.0.2:1"), "four");
  EXPECT_EQ(connecting(*policy, "[fd00::2]:1"), "six");
  EXPECT_EQ(connecting(*policy, "[::]:1"), "six");
}

TEST(Match, MappedAddressesAreIpv4InTheSubnetAndInTheQuestion) {
  const auto policy = must_load(R"(version = 1
[[rule]]
name = "mapped"
subnet = "::ffff:10.9.0.0/112"
[[rule]]
name = "plain"
subnet = "10.0.0.0/8"
[[rule]]
name = "six"
subnet = "::/0"
)");
  EXPECT_EQ(connecting(*policy, "10.9.7.7:1"), "mapped");
  EXPECT_EQ(connecting(*policy, "[::ffff:10.9.7.7]:1"), "mapped");
  EXPECT_EQ(connecting(*policy, "[::ffff:10.8.7.7]:1"), "plain");
  EXPECT_EQ(connecting(*policy, "[::ffff:11.8.7.7]:1"), "");
}

TEST(Match, TheScopeOfALinkLocalAddressIsNotAskedFor) {
  const auto policy = must_load("version = 1\n[[rule]]\nname = \"r\"\nsubnet = \"fe80::/10\"\n");
  Endpoint remote = endpoint("[fe80::1]:3306");
  remote.scope = 7;
  EXPECT_NE(policy->match(Role::kConnect, "p", endpoint("[fe80::2]:1"), remote), nullptr);
}

TEST(Match, LeavesErrnoAloneForANameThatIsNotTextInTheHostsLocale) {
  const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  ASSERT_NE(utf8, nullptr);
  const locale_t before = uselocale(utf8);
  const auto policy = must_load(one_rule(R"(program = "a*")"));
  errno = 77;
  policy->match(Role::kConnect, "\xff\xfe", endpoint("10.0.0.1:1"), endpoint("10.0.0.2:1"));
  EXPECT_EQ(errno, 77);
  uselocale(before);
  freelocale(utf8);
}

TEST(Match, ManyThreadsMayAskAtOnce) {
  const auto policy = must_load(one_rule(R"(name = "r"
program = "maria*"
port = "3306")"));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const Endpoint local = *Endpoint::parse("10.0.0.1:1");
      const Endpoint remote = *Endpoint::parse(i % 2 == 0 ? "10.0.0.2:3306" : "10.0.0.2:3307");
      for (int round = 0; round < 2000; ++round) {
        const bool matched = policy->match(Role::kConnect, "mariadbd", local, remote) != nullptr;
        wrong += matched != (i % 2 == 0);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Reach, IsWhatSomeRuleForThatRolePortAndProgramCouldChoose) {
  const auto policy = must_load(R"(version = 1
[[rule]]
subnet = "10.0.0.0/8"
port = 1
via = "rdma"
[[rule]]
subnet = "127.0.0.0/8"
port = [1, 2]
via = "shm"
role = "accept"
[[rule]]
subnet = "0.0.0.0/0"
port = 3
program = "mysqld"
[[rule]]
subnet = "0.0.0.0/0"
via = "tcp"
)");
  const auto reached = [&](Role role, std::string_view program, std::uint16_t port) {
    const Reach reach = policy->reach(role, program, port);
    return std::string(reach.rdma ? "rdma " : "") + (reach.shm ? "shm" : "");
  };
  EXPECT_EQ(reached(Role::kAccept, "p", 1), "rdma shm");
  EXPECT_EQ(reached(Role::kConnect, "p", 1), "rdma ");
  EXPECT_EQ(reached(Role::kAccept, "p", 2), "shm");
  EXPECT_EQ(reached(Role::kAccept, "/usr/sbin/mysqld", 3), "rdma shm");
  EXPECT_EQ(reached(Role::kAccept, "p", 3), "");
  EXPECT_EQ(reached(Role::kAccept, "p", 4), "");
}

TEST(Explain, GivesEveryReasonOfEveryEarlierRule) {
  const auto policy = must_load(R"(version = 1
[[rule]]
name = "all-wrong"
subnet = ["192.168.0.0/16", "fd00::/8"]
port = ["3306", "4567-4568"]
program = ["mysqld", "redis-*"]
role = "accept"
[[rule]]
name = "port-wrong"
subnet = "10.0.0.0/8"
port = 1
[[rule]]
name = "right"
subnet = "10.0.0.0/8"
[[rule]]
name = "never-asked"
subnet = "10.0.0.0/8"
)");
  const Explanation explanation = policy->explain(Role::kConnect, "/usr/sbin/mariadbd",
                                                  endpoint("10.9.0.1:5"), endpoint("10.9.1.1:6"));
  ASSERT_EQ(explanation.considered.size(), 3U);
  EXPECT_EQ(explanation.not_considered, 1U);
  EXPECT_EQ(explanation.decision, &policy->rule(2));

  const auto& all_wrong = explanation.considered[0].mismatches;
  ASSERT_EQ(all_wrong.size(), 4U);
  EXPECT_EQ(all_wrong[0].criterion, Criterion::kRole);
  EXPECT_EQ(all_wrong[0].reason, "role connect is not accept");
  EXPECT_EQ(all_wrong[1].criterion, Criterion::kSubnet);
  EXPECT_EQ(all_wrong[1].reason, "remote address 10.9.1.1 is not in 192.168.0.0/16, fd00::/8");
  EXPECT_EQ(all_wrong[2].criterion, Criterion::kPort);
  EXPECT_EQ(all_wrong[2].reason, "remote port 6 is not in 3306, 4567-4568");
  EXPECT_EQ(all_wrong[3].criterion, Criterion::kProgram);
  EXPECT_EQ(all_wrong[3].reason, R"(program "mariadbd" is not like "mysqld", "redis-*")");

  const auto& port_wrong = explanation.considered[1].mismatches;
  ASSERT_EQ(port_wrong.size(), 1U);
  EXPECT_EQ(port_wrong[0].reason, "remote port 6 is not in 1");
  EXPECT_TRUE(explanation.considered[2].matches());

  const Explanation accepted =
      policy->explain(Role::kAccept, "mysqld", endpoint("10.9.0.1:5"), endpoint("192.168.1.1:6"));
  ASSERT_EQ(accepted.considered[0].mismatches.size(), 1U);
  EXPECT_EQ(accepted.considered[0].mismatches[0].reason, "local port 5 is not in 3306, 4567-4568");
}

TEST(Explain, ListsOnlyTheFirstOfManySubnets) {
  std::string subnets;
  for (int i = 0; i < 20; ++i) {
    subnets += "\"10.0." + std::to_string(i) + ".0/24\", ";
  }
  const auto policy = must_load("version = 1\n[[rule]]\nsubnet = [" + subnets + "]\n");
  const Explanation explanation =
      policy->explain(Role::kConnect, "p", endpoint("10.9.0.1:5"), endpoint("10.9.1.1:6"));
  const std::string& reason = explanation.considered.at(0).mismatches.at(0).reason;
  EXPECT_TRUE(reason.ends_with("10.0.6.0/24, 10.0.7.0/24 and 12 more")) << reason;
}

}  // namespace
}  // namespace ringroad::policy
