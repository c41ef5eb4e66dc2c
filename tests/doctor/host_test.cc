// Lockable memory, huge pages, fork, CPUs.

#include "cli/doctor/cpu_set.h"
#include "cli/doctor/memlock.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;

TEST(Memlock, ReadsTheKernelsAndSystemdsForms) {
  const std::string limits =
      "Limit  Soft  Hard  Units\nMax locked memory         8388608     1    bytes\n";
  EXPECT_EQ(memlock_of_limits(limits), 8388608U);
  EXPECT_EQ(memlock_of_limits("Max locked memory unlimited unlimited bytes"), kUnlimited);
  EXPECT_EQ(memlock_of_limits("Max open files 1 1 files"), std::nullopt);
  EXPECT_EQ(memlock_of_unit("infinity"), kUnlimited);
  EXPECT_EQ(memlock_of_unit(""), std::nullopt);
  EXPECT_TRUE(may_lock_everything("Name:\tx\nCapEff:\t0000000000004000\n"));
  EXPECT_FALSE(may_lock_everything("Name:\tx\nCapEff:\t0000000000003fff\n"));
}

TEST(Memlock, OfThisUserIsJudgedWhenNobodyElseIsNamed) {
  EXPECT_THAT(Tree("bad").check("memlock"), Worst(Level::kFail, "64 KiB; a stream locks 576 KiB"));
}

TEST(Memlock, CapIpcLockLiftsTheLimit) {
  Tree tree("bad");
  tree.write("/proc/self/status", "CapEff:\t000001ffffffffff\n");
  EXPECT_THAT(tree.check("memlock"), Worst(Level::kOk, "CAP_IPC_LOCK"));
}

TEST(Memlock, CountsTheLargestRingOfThePolicy) {
  Tree tree;
  tree.write("/policy/10.toml",
             "version = 1\n[[rule]]\nsubnet = \"10.20.0.0/24\"\nvia = \"rdma\"\nring = \"1MiB\"\n"
             "[[rule]]\nsubnet = \"10.21.0.0/24\"\nvia = \"rdma\"\n")
      .write("/proc/self/limits", "Max locked memory 1073741824 1073741824 bytes");
  EXPECT_THAT(tree.check("memlock"),
              Worst(Level::kOk, "1 GiB; a stream locks 2112 KiB, so 496 fit"));
}

TEST(Memlock, OfAUserThatCannotBeAskedForIsUnknown) {
  Tree tree;
  tree.fails("runuser -u mysql -- cat /proc/self/limits",
             "1\nrunuser: may not be used by non-root users");
  Questions questions;
  questions.user = "mysql";
  EXPECT_THAT(tree.check("memlock", questions),
              Worst(Level::kUnknown, "may not be used by non-root"));
}

TEST(HugePages, ThatAreUsedOrReservedByAProcessAreOk) {
  Tree tree("bad");
  tree.write("/proc/meminfo",
             "HugePages_Total: 8\nHugePages_Free: 8\nHugePages_Rsvd: 3\nHugepagesize: 2048 kB\n");
  EXPECT_THAT(tree.check("hugepages"), Worst(Level::kOk, "8 of 2 MiB, 8 free"));
}

TEST(Fork, AnOlderKernelOrToolIsUnknown) {
  Tree tree;
  tree.says("rdma system show", "netns shared");
  EXPECT_THAT(tree.check("fork"), Worst(Level::kUnknown, "names no copy-on-fork"));
  tree.fails("rdma system show", "missing");
  EXPECT_THAT(tree.check("fork"), Worst(Level::kUnknown, "not installed"));
}

TEST(CpuLists, AreRead) {
  EXPECT_EQ(parse_cpus("0-2,8"), (std::set<unsigned>{0, 1, 2, 8}));
  EXPECT_TRUE(parse_cpus("5-3,x,-,4000000000").empty());
  EXPECT_EQ(common_cpus({0, 1, 9}, {1, 9, 10}), 2U);
}

TEST(Numa, AProcessOnBothNodesIsAWarning) {
  Tree tree;
  tree.write("/proc/4711/status", "Cpus_allowed_list:\t0-7\n");
  EXPECT_THAT(tree.check("numa", all_questions()), Worst(Level::kWarn, "also on other nodes"));
}

TEST(Numa, AProcessOnTheOtherNodeIsToldApart) {
  EXPECT_THAT(texts(Tree("bad").check("numa", all_questions())),
              testing::AllOf(HasSubstr("crosses the sockets"),
                             testing::Not(HasSubstr("also on other nodes"))));
}

TEST(Numa, OneNodeIsOkAndAnUnknownOneUnknown) {
  Tree one("bad");
  one.write("/sys/devices/system/node/online", "0");
  EXPECT_THAT(one.check("numa", all_questions()), Worst(Level::kOk, "one NUMA node"));
  Tree none;
  none.write("/sys/class/infiniband/mlx5_0/device/numa_node", "-1");
  EXPECT_THAT(none.check("numa", all_questions()),
              Worst(Level::kUnknown, "the BIOS names no NUMA"));
}

TEST(Numa, AProcessThatIsGoneIsUnknown) {
  Questions questions;
  questions.pid = 99;
  EXPECT_THAT(Tree().check("numa", questions), Worst(Level::kUnknown, "no such process"));
}

TEST(Interrupts, AllOnOneCpuAreAWarning) {
  Tree tree;
  for (const char* irq : {"120", "121", "122"}) {
    tree.write(std::string("/proc/irq/") + irq + "/effective_affinity_list", "2");
  }
  EXPECT_THAT(tree.check("irq"), Worst(Level::kWarn, "3 interrupts on 1 CPUs"));
}

TEST(Interrupts, WithoutAnEffectiveListTheAllowedOneCounts) {
  Tree tree;
  for (const char* irq : {"120", "121", "122"}) {
    const std::string folder = std::string("/proc/irq/") + irq;
    tree.remove(folder + "/effective_affinity_list").write(folder + "/smp_affinity_list", "4-7");
  }
  EXPECT_THAT(tree.check("irq"), Worst(Level::kWarn, "3 of them away"));
}

TEST(Governor, MixedOnesAreAWarningAndNoneUnknown) {
  Tree mixed;
  mixed.write("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "schedutil");
  EXPECT_THAT(mixed.check("governor"),
              Worst(Level::kWarn, "performance on 1 CPUs, schedutil on 1 CPUs"));
  EXPECT_THAT(Tree("softroce").check("governor"), Worst(Level::kUnknown, "no CPU frequency"));
}

TEST(Tuned, NotInstalledIsUnknownWithThePackage) {
  Tree tree;
  tree.fails("tuned-adm active", "missing");
  const auto findings = tree.check("tuned");
  EXPECT_THAT(findings, Worst(Level::kUnknown, "not installed"));
  EXPECT_THAT(texts(findings), HasSubstr("apt-get install tuned"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
