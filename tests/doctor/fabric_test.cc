// Traffic class, trust, PFC and congestion control, by either tool.

#include "cli/doctor/qos.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;

std::string policy(const std::string& more) {
  return "version = 1\n[[rule]]\nname = \"db\"\nsubnet = \"10.20.0.0/24\"\nvia = \"rdma\"\n" + more;
}

void use_dcb(Tree& tree, const std::string& pfc, const std::string& app) {
  tree.fails("mlnx_qos -i ens1f0np0", "missing")
      .says("dcb -j pfc show dev ens1f0np0", pfc)
      .says("dcb -j app show dev ens1f0np0", app);
}

TEST(Qos, DcbTellsPfcAndTheDscpMap) {
  Tree tree;
  use_dcb(tree, R"({"pfc_cap":8,"prio_pfc":[false,false,false,false,false,true,false,false]})",
          R"({"dscp_prio":[[26,5],[48,6]]})");
  EXPECT_THAT(tree.check("trust"), Worst(Level::kOk, "dcb: trust dscp, DSCP 26 to priority 5"));
  EXPECT_THAT(tree.check("pfc"), Worst(Level::kOk, "PFC on priority 5; DSCP 26 has priority 5"));
}

TEST(Qos, DcbWithoutADscpMapLeavesTheTrustUnknown) {
  Tree tree;
  use_dcb(tree, R"({"prio_pfc":[false,false,false,true]})", "{}");
  EXPECT_THAT(tree.check("trust"), Worst(Level::kUnknown, "dcb names no trust mode"));
}

TEST(Qos, NeitherToolIsUnknownWithThePackage) {
  Tree tree;
  tree.fails("mlnx_qos -i ens1f0np0", "missing");
  const auto findings = tree.check("pfc");
  EXPECT_THAT(findings, Worst(Level::kUnknown, "dcb pfc show dev ens1f0np0: not installed"));
  EXPECT_THAT(texts(findings), HasSubstr("mlnx-tools"));
}

TEST(Qos, MlnxQosReadsItsMap) {
  Qos qos;
  parse_mlnx_qos(
      "Priority trust state: dscp\ndscp2prio mapping:\n\tprio:0 dscp:07,06,\n"
      "\tprio:5 dscp:26,\nPFC configuration:\n\tpriority 0 1 2\n\tenabled  0 1 0\n",
      qos);
  EXPECT_EQ(qos.trust, "dscp");
  EXPECT_EQ(qos.priority(26), 5U);
  EXPECT_EQ(qos.priority(7), 0U);
  EXPECT_EQ(qos.priority(46), 5U);  // not in the map: its class selector
  EXPECT_EQ(qos.pfc, (std::vector<bool>{false, true, false}));
}

TEST(Pfc, OnSeveralPrioritiesIsAWarning) {
  Tree tree;
  use_dcb(tree, R"({"prio_pfc":[true,true,true,true,true,true,true,true]})",
          R"({"dscp_prio":[[26,3]]})");
  EXPECT_THAT(tree.check("pfc"), Worst(Level::kWarn, "PFC on priority 0, 1, 2, 3, 4, 5, 6, 7"));
}

TEST(Pfc, OnAnotherPriorityIsAFailureWithTheMask) {
  Tree tree;
  use_dcb(tree, R"({"prio_pfc":[false,false,false,false,true]})", R"({"dscp_prio":[[26,3]]})");
  const auto findings = tree.check("pfc");
  EXPECT_THAT(findings, Worst(Level::kFail, "DSCP 26 has priority 3, which is not lossless"));
  EXPECT_THAT(texts(findings), HasSubstr("--pfc 0,0,0,1,0,0,0,0"));
}

TEST(TrafficClass, LeftOutIsAWarningUnlessTheDeviceHasADefault) {
  Tree tree;
  tree.write("/policy/10.toml", policy(""));
  EXPECT_THAT(tree.check("traffic-class"), Worst(Level::kWarn, "no traffic_class"));
  tree.write("/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "106");
  EXPECT_THAT(tree.check("traffic-class"), Worst(Level::kOk, "mlx5_0's default is 106 (DSCP 26)"));
}

TEST(TrafficClass, CongestionExperiencedIsAWarning) {
  Tree tree;
  tree.write("/policy/10.toml", policy("traffic_class = 107\n"));
  const auto findings = tree.check("traffic-class");
  EXPECT_THAT(findings, Worst(Level::kWarn, "congestion experienced"));
  EXPECT_THAT(texts(findings), HasSubstr("traffic_class = 106"));
}

TEST(Ecn, HalfOfItIsAFailure) {
  Tree tree;
  tree.write("/sys/class/net/ens1f0np0/ecn/roce_rp/enable/3", "0");
  EXPECT_THAT(tree.check("ecn"), Worst(Level::kFail, "notification point 1, reaction point 0"));
}

TEST(Ecn, ADriverThatShowsNoneIsUnknown) {
  Tree tree;
  tree.remove("/sys/class/net/ens1f0np0/ecn");
  EXPECT_THAT(tree.check("ecn"), Worst(Level::kUnknown, "shows no DCQCN state"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
