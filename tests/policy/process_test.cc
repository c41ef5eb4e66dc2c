// What a rule asks of the process: comm, unit, cgroup and label.

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "tests/policy/support.h"

namespace ringroad::policy {
namespace {

Process process(std::string_view comm, std::string_view cgroup, std::string_view labels = {}) {
  Process result("/usr/sbin/mariadbd");
  result.comm = comm;
  result.cgroup = cgroup;
  result.labels = labels;
  return result;
}

// "yes", or what explain() says of the only rule; match(), reach() and explain_process() must agree.
std::string answer(const std::string& lines, const Process& asked) {
  const auto policy = must_load(one_rule(lines));
  const Endpoint here = endpoint("10.9.0.1:1");
  const Endpoint there = endpoint("10.9.1.1:2");
  const bool found = policy->match(Role::kConnect, asked, here, there) != nullptr;
  const Explanation explanation = policy->explain(Role::kConnect, asked, here, there);
  const std::vector<Consideration> of_process = policy->explain_process(asked);
  EXPECT_EQ(explanation.decision != nullptr, found);
  EXPECT_EQ(policy->reach(Role::kConnect, asked, 2).shm, found);
  EXPECT_EQ(of_process.at(0).matches(), found);
  if (found) return "yes";
  const Mismatch& mismatch = explanation.considered.at(0).mismatches.at(0);
  EXPECT_EQ(of_process.at(0).mismatches.at(0).reason, mismatch.reason);
  return std::string(to_string(mismatch.criterion)) + ": " + mismatch.reason;
}

constexpr std::string_view kService = "/system.slice/mariadb.service";
constexpr std::string_view kPod =
    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-ab.scope";

TEST(ProcessRule, AsksForTheCommWithPatterns) {
  EXPECT_EQ(answer("comm = \"mariadbd\"", process("mariadbd", kService)), "yes");
  EXPECT_EQ(answer("comm = [\"mysqld\", \"maria*\"]", process("mariadbd", "")), "yes");
  EXPECT_EQ(answer("comm = \"mysqld\"", process("mariadbd", kService)),
            "comm: comm \"mariadbd\" is not like \"mysqld\"");
  EXPECT_EQ(answer("comm = \"*\"", process("", kService)), "comm: the comm is not known");
}

TEST(ProcessRule, AsksForAUnitAnywhereInThePathOfTheCgroup) {
  EXPECT_EQ(answer("unit = \"mariadb.service\"", process("", kService)), "yes");
  EXPECT_EQ(answer("unit = \"system.slice\"", process("", kService)), "yes");
  EXPECT_EQ(answer("unit = \"mysql@*.service\"",
                   process("", "/system.slice/system-mysql.slice/mysql@bootstrap.service/main")),
            "yes");
  EXPECT_EQ(answer("unit = \"cri-containerd-*.scope\"", process("", kPod)), "yes");
  EXPECT_EQ(answer("unit = \"mysql*\"", process("", kService)),
            "unit: cgroup /system.slice/mariadb.service is in no unit like \"mysql*\"");
  EXPECT_EQ(answer("unit = \"*.service\"", process("", "/")),
            "unit: cgroup / is in no unit like \"*.service\"");
  EXPECT_EQ(answer("unit = \"*\"", process("mariadbd", "")), "unit: the cgroup is not known");
}

TEST(ProcessRule, TakesABackslashOfAUnitsNameForItself) {
  EXPECT_EQ(answer(R"(unit = 'db\x2d1.service')", process("", R"(/system.slice/db\x2d1.service)")), "yes");
  EXPECT_EQ(answer(R"(cgroup = '/system.slice/db\x2d1.service')",
                   process("", R"(/system.slice/db\x2d1.service)")),
            "yes");
}

TEST(ProcessRule, AsksForACgroupOrOneAboveIt) {
  EXPECT_EQ(answer("cgroup = \"/system.slice/mariadb.service\"", process("", kService)), "yes");
  EXPECT_EQ(answer("cgroup = \"/system.slice\"", process("", kService)), "yes");
  EXPECT_EQ(answer("cgroup = \"/kubepods.slice/*/*-pod12.slice\"", process("", kPod)), "yes");
  EXPECT_EQ(answer("cgroup = \"/system\"", process("", kService)),
            "cgroup: cgroup /system.slice/mariadb.service is not in \"/system\"");
  // A pattern does not reach over a slash, and what is above the pattern is not in it.
  EXPECT_NE(answer("cgroup = \"/*mariadb.service\"", process("", kService)), "yes");
  EXPECT_NE(answer("cgroup = \"/system.slice/mariadb.service/a\"", process("", kService)), "yes");
  EXPECT_NE(answer("cgroup = \"/system.slice\"", process("", "/")), "yes");
  EXPECT_EQ(answer("cgroup = \"/*\"", process("", "")), "cgroup: the cgroup is not known");
}

TEST(ProcessRule, AsksForACgroupOfAnyDepth) {
  std::string deep = "/docker";
  for (int i = 0; i < 30; ++i) deep += "/" + std::string(100, 'x');
  EXPECT_EQ(answer("cgroup = \"/docker\"", process("", deep)), "yes");
  EXPECT_EQ(answer("unit = \"last.scope\"", process("", deep + "/last.scope")), "yes");
}

TEST(ProcessRule, AsksForAnyOfTheLabels) {
  for (const char* labels : {"app=mysql", "tier=db,app=mysql", "tier=db, app=mysql ", "\tapp=mysql\n"}) {
    EXPECT_EQ(answer("label = [\"app=redis\", \"app=my*\"]", process("", "", labels)), "yes") << labels;
  }
  EXPECT_EQ(answer("label = \"app=mysql\"", process("", "", "app=mysql-router,tier=db")),
            "label: none of the labels \"app=mysql-router,tier=db\" is like \"app=mysql\"");
  EXPECT_EQ(answer("label = \"*\"", process("", "", " , ")),
            "label: none of the labels \" , \" is like \"*\"");
  EXPECT_EQ(answer("label = \"*\"", process("", "")), "label: there are no labels");
}

TEST(ProcessRule, AsksForAllThatItNames) {
  const std::string rule =
      "program = \"mariadbd\"\ncomm = \"mariadbd\"\nunit = \"mariadb.service\"\nlabel = \"a\"";
  EXPECT_EQ(answer(rule, process("mariadbd", kService, "a")), "yes");
  EXPECT_NE(answer(rule, process("mariadbd", kService, "b")), "yes");
  EXPECT_NE(answer(rule, process("other", kService, "a")), "yes");
  EXPECT_NE(answer(rule, process("mariadbd", "/", "a")), "yes");
}

TEST(ProcessRule, LeavesErrnoAloneAndTellsWhetherItNeedsProc) {
  const auto policy = must_load(one_rule("comm = \"a*\"\nunit = \"b*\""));
  errno = 77;
  policy->match(Role::kConnect, process("\xff\xfe", "/\xff\xfe"), endpoint("10.0.0.1:1"),
                endpoint("10.0.0.2:1"));
  EXPECT_EQ(errno, 77);
  EXPECT_TRUE(policy->asks_for_facts());
  EXPECT_TRUE(must_load(one_rule("cgroup = \"/a\""))->asks_for_facts());
  EXPECT_FALSE(must_load(one_rule("label = \"a\"\nprogram = \"b\""))->asks_for_facts());
}

TEST(Cgroup, IsThatOfVersionTwo) {
  EXPECT_EQ(cgroup_of("0::/system.slice/mariadb.service\n"), "/system.slice/mariadb.service");
  EXPECT_EQ(cgroup_of("0::/\n"), "/");
  EXPECT_EQ(cgroup_of("0::/a:b:/c\n"), "/a:b:/c");
  EXPECT_EQ(cgroup_of("12:cpu,cpuacct:/x\n1:name=systemd:/y\n0::/system.slice/z.service\n"),
            "/system.slice/z.service");
}

TEST(Cgroup, IsSystemdsWhereVersionTwoSaysNothing) {
  EXPECT_EQ(cgroup_of("12:cpu,cpuacct:/x\n1:name=systemd:/system.slice/y.service\n"),
            "/system.slice/y.service");
  EXPECT_EQ(cgroup_of("1:name=systemd:/docker/ab\n0::/\n"), "/docker/ab");
  EXPECT_EQ(cgroup_of("1:name=systemd:/\n0::/\n"), "/");
}

TEST(Cgroup, IsNotKnownWhereNoWholeLineNamesOne) {
  for (const char* text : {"", "\n", "0::", "0::\n", "0::/cut/sho", "4:memory:/x\n", "nonsense\n", ":::\n"}) {
    EXPECT_EQ(cgroup_of(text), "") << text;
  }
}

std::string warnings_of(const std::string& first, const std::string& second) {
  const std::string subnet = "[[rule]]\nsubnet = \"10.0.0.0/8\"\n";
  return all_of(must_load("version = 1\n" + subnet + first + "\n" + subnet + second + "\n")->warnings(),
                "warning");
}

TEST(ProcessRule, CoversALaterRuleOnlyWhereItAsksForNoMore) {
  for (const auto& [first, second] : std::vector<std::pair<const char*, const char*>>{
           {"", "unit = \"a.service\""},
           {"comm = \"a*\"", "comm = [\"ab\", \"ac\"]"},
           {"cgroup = \"/a\"", "cgroup = \"/a/b\""},
           {"label = [\"a\", \"b\"]", "label = \"b\"\ncomm = \"c\""}}) {
    EXPECT_NE(warnings_of(first, second), "") << first << " and then " << second;
  }
  for (const auto& [first, second] : std::vector<std::pair<const char*, const char*>>{
           {"unit = \"a.service\"", ""},
           {"comm = \"*\"", ""},
           {"comm = \"ab\"", "comm = \"a*\""},
           {"cgroup = \"/a/b\"", "cgroup = \"/a\""},
           {"label = \"b\"", "label = [\"a\", \"b\"]"},
           {"label = \"a\"", "comm = \"a\""}}) {
    EXPECT_EQ(warnings_of(first, second), "") << first << " and then " << second;
  }
}

}  // namespace
}  // namespace ringroad::policy
