// Every check on a host that is set up, on one that is not, and on Soft-RoCE.

#include <map>
#include <set>

#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;

struct Expected {
  const char* check;
  Level level;
  const char* evidence;
  const char* remedy;
};

void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.check; }

constexpr Expected kBad[] = {
    {"policy", Level::kFail, "there is no device mlx5_7", "leave device out"},
    {"device", Level::kWarn, "card without an RDMA device, no driver bound", "modprobe mlx5_ib"},
    {"modules", Level::kFail, "not loaded", "modprobe rdma_ucm"},
    {"access", Level::kFail, "mode 0660, owner 0:0: user mysql may not", "chmod 0666"},
    {"library", Level::kFail, "libibverbs.so.1: cannot open", "apt-get install libibverbs1"},
    {"iommu", Level::kWarn, "group 42 translates (DMA-FQ)", "iommu=pt"},
    {"pcie", Level::kWarn, "8.0 GT/s PCIe x8, the card can do 16.0 GT/s PCIe x16", "lspci -vv"},
    {"port", Level::kFail, "state DOWN", "ip link set ens1f0np0 up"},
    {"mtu", Level::kWarn, "MTU 1500, RDMA MTU 1024 (ibv_devinfo)", "mtu 9000"},
    {"route", Level::kFail, "10.20.0.1 leaves by eno1, which has no RDMA device", "ip route add"},
    {"traffic-class", Level::kWarn, "DSCP 26, ECN 0 (not ECN-capable)", "traffic_class = 106"},
    {"trust", Level::kFail, "trust pcp", "mlnx_qos -i ens1f0np0 --trust dscp"},
    {"pfc", Level::kFail, "PFC on no priority; DSCP 26 has priority 0, which is not lossless",
     "switch"},
    {"ecn", Level::kFail, "notification point 0, reaction point 0", "echo 1 > "},
    {"firewall", Level::kWarn,
     "inet filter input has the policy drop, and no rule accepts UDP 4791",
     "nft insert rule inet filter input udp dport 4791 accept"},
    {"listener", Level::kFail, "rdma_create_event_channel: No such device", "modprobe rdma_ucm"},
    {"memlock", Level::kFail, "512 KiB; a stream locks 576 KiB", "LimitMEMLOCK=infinity"},
    {"hugepages", Level::kWarn, "1024 of 2 MiB, 1024 free", "sysctl vm.nr_hugepages=0"},
    {"fork", Level::kWarn, "copy-on-fork off", "5.12"},
    {"numa", Level::kWarn, "node 0 (CPUs 0-3); the process may run on CPUs 4-7",
     "numactl --cpunodebind=0"},
    {"irq", Level::kWarn, "3 interrupts on 3 CPUs, 3 of them away", "irqbalance"},
    {"governor", Level::kWarn, "powersave on 2 CPUs", "cpupower frequency-set -g performance"},
    {"tuned", Level::kWarn, "profile balanced", "tuned-adm profile network-latency"},
    {"program", Level::kFail, "has file capabilities", "setcap -r /usr/sbin/mariadbd"},
    {"process", Level::kFail, "libringroad.so is not mapped", "ringroad run"},
    {"unit", Level::kFail, "PrivateDevices=yes", "DeviceAllow=char-infiniband_verbs rw"},
    {"apparmor", Level::kWarn, "/usr/sbin/mariadbd (enforce)", "apparmor_parser -r"},
    {"counters", Level::kFail, "symbol_error +9", "cable"},
};

class BadHost : public testing::TestWithParam<Expected> {};

TEST_P(BadHost, IsToldWithEvidenceAndRemedy) {
  const Expected& expected = GetParam();
  const std::vector<Finding> findings = Tree("bad").check(expected.check, all_questions());
  EXPECT_EQ(worst(findings), expected.level) << texts(findings);
  bool found = false;
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.check, expected.check);
    if (finding.level != expected.level) continue;
    if (finding.evidence.find(expected.evidence) == std::string::npos) continue;
    found = true;
    EXPECT_THAT(finding.remedy, HasSubstr(expected.remedy));
    EXPECT_NE(finding.consequence, "");
  }
  EXPECT_TRUE(found) << expected.evidence << " in\n" << texts(findings);
}

INSTANTIATE_TEST_SUITE_P(Checks, BadHost, testing::ValuesIn(kBad), [](const auto& test) {
  std::string name = test.param.check;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

TEST(GoodHost, IsAllOk) {
  const std::vector<Finding> findings = Tree("good").examine(all_questions());
  std::set<std::string> checks;
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.level, Level::kOk) << texts({finding});
    EXPECT_NE(finding.evidence, "");
    checks.insert(finding.check);
  }
  for (const Check& check : all_checks()) EXPECT_TRUE(checks.contains(check.name)) << check.name;
}

TEST(GoodHost, NamesTheGidByTypeAndAddressWhereverItStands) {
  EXPECT_THAT(Tree("good").check("gid"), Worst(Level::kOk, "mlx5_0 index 3: 10.20.0.11, RoCE v2"));
}

TEST(BadHosts, CoverEveryCheckButThoseThatNeedAnActivePortAnRdmaRouteOrSelinux) {
  std::set<std::string> covered = {"speed", "gid"};  // link_test.cc
  covered.insert("selinux");                         // confinement_test.cc
  for (const Expected& expected : kBad) covered.insert(expected.check);
  for (const Check& check : all_checks()) EXPECT_TRUE(covered.contains(check.name)) << check.name;
}

TEST(SoftRoce, HasNeitherWarningNorFailure) {
  Questions questions;
  questions.user = "mysql";
  questions.program = "/usr/sbin/mariadbd";
  const std::vector<Finding> findings = Tree("softroce").examine(questions);
  std::map<std::string, Level> levels;
  for (const Finding& finding : findings) {
    EXPECT_LE(finding.level, Level::kUnknown) << texts({finding});
    levels[finding.check] = std::max(levels[finding.check], finding.level);
  }
  for (const char* check :
       {"device", "port", "mtu", "route", "gid", "listener", "access", "fork"}) {
    EXPECT_TRUE(levels.contains(check)) << check;
    EXPECT_EQ(levels[check], Level::kOk) << check;
  }
  for (const char* check : {"pfc", "trust", "ecn"}) EXPECT_EQ(levels[check], Level::kUnknown);
}

TEST(EmptyHost, IsExaminedToTheEnd) {
  const std::vector<Finding> findings = Tree("").examine(all_questions());
  EXPECT_GE(findings.size(), 10U);
  EXPECT_EQ(worst(findings), Level::kFail);
  EXPECT_THAT(texts(findings), Not(HasSubstr("the check failed")));
}

}  // namespace
}  // namespace ringroad::cli::doctor
