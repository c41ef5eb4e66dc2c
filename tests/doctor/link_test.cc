// Ports, speed, MTU, routes and GIDs.

#include "cli/doctor/rdma_device.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;

constexpr const char* kPort = "/sys/class/infiniband/mlx5_0/ports/1";

std::string policy(const std::string& subnet, const std::string& more = "") {
  return "version = 1\n[[rule]]\nname = \"db\"\nsubnet = [" + subnet + "]\nvia = \"rdma\"\n" + more;
}

TEST(RdmaMtu, IsTheLargestThatLeavesRoomForTheHeaders) {
  EXPECT_EQ(rdma_mtu_of(9000), 4096U);
  EXPECT_EQ(rdma_mtu_of(4192), 4096U);
  EXPECT_EQ(rdma_mtu_of(4191), 2048U);
  EXPECT_EQ(rdma_mtu_of(1500), 1024U);
  EXPECT_EQ(rdma_mtu_of(352), 256U);
  EXPECT_EQ(rdma_mtu_of(351), 0U);
}

TEST(Mtu, WithoutIbvDevinfoIsWhatTheNetworkDeviceLeavesRoomFor) {
  Tree tree;
  tree.fails("ibv_devinfo -d mlx5_0 -i 1", "missing");
  EXPECT_THAT(tree.check("mtu"), Worst(Level::kOk, "RDMA MTU 4096 (what that leaves room for)"));
}

TEST(Mtu, AnRdmaMtuThatDidNotFollowTheNetworkDevicesIsAWarning) {
  Tree tree;
  tree.says("ibv_devinfo -d mlx5_0 -i 1", "active_mtu: 1024 (3)");
  EXPECT_THAT(tree.check("mtu"), Worst(Level::kWarn, "though there is room for 4096"));
}

TEST(Mtu, TooSmallForAnyPacketIsAFailure) {
  Tree tree;
  tree.write("/sys/class/net/ens1f0np0/mtu", "300").fails("ibv_devinfo -d mlx5_0 -i 1", "missing");
  EXPECT_THAT(tree.check("mtu"), Worst(Level::kFail, "MTU 300"));
}

TEST(Speed, ASlowLinkIsAWarningAndNoneIsUnknown) {
  Tree slow;
  slow.write(std::string(kPort) + "/rate", "10 Gb/sec (1X QDR)");
  EXPECT_THAT(slow.check("speed"), Worst(Level::kWarn, "10 Gb/sec"));
  Tree none;
  none.write(std::string(kPort) + "/rate", "");
  EXPECT_EQ(worst(none.check("speed")), Level::kUnknown);
}

TEST(Gid, OnlyRocev1IsAFailure) {
  Tree tree;
  tree.remove(std::string(kPort) + "/gids/3");
  EXPECT_THAT(tree.check("gid"), Worst(Level::kFail, "10.20.0.11 as IB/RoCE v1 only"));
}

TEST(Gid, NoneWithTheHostsAddressIsAFailure) {
  Tree tree;
  tree.remove(std::string(kPort) + "/gids/2").remove(std::string(kPort) + "/gids/3");
  EXPECT_THAT(tree.check("gid"), Worst(Level::kFail, "no GID of mlx5_0 is 10.20.0.11"));
}

TEST(Gid, OfAnotherNetworkDeviceDoesNotCount) {
  Tree tree;
  tree.write(std::string(kPort) + "/gid_attrs/ndevs/3", "ens1f0np0.7");
  EXPECT_THAT(tree.check("gid"), Worst(Level::kFail, "as IB/RoCE v1 only"));
}

TEST(Gid, AnRdmaCmThatUsesRocev1IsAFailure) {
  Tree tree;
  tree.write("/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "IB/RoCE v1");
  const auto findings = tree.check("gid");
  EXPECT_THAT(findings, Worst(Level::kFail, "rdma_cm of mlx5_0 uses IB/RoCE v1"));
  EXPECT_THAT(texts(findings), HasSubstr("cma_roce_mode -d mlx5_0 -p 1 -m 2"));
}

TEST(Route, OfAWideSubnetIsAskedForTheHostsOwnNetworksInIt) {
  Tree tree;
  tree.write("/policy/10.toml", policy("\"10.0.0.0/8\""));
  EXPECT_THAT(tree.check("route"), Worst(Level::kOk, "10.20.0.1 leaves by ens1f0np0"));
}

TEST(Route, NetworksOfASubnetThatAreReachedOtherwiseAreAWarning) {
  Tree tree;
  tree.write("/policy/10.toml", policy("\"0.0.0.0/0\""))
      .says("ip -json route get 192.0.2.1", R"([{"dst":"192.0.2.1","dev":"eno1"}])");
  const auto findings = tree.check("route");
  EXPECT_THAT(findings, Worst(Level::kWarn, "192.0.2.1 leaves by eno1"));
  EXPECT_THAT(texts(findings), HasSubstr("ok 0.0.0.0/0: 10.20.0.1 leaves by ens1f0np0"));
}

TEST(Route, OfOneAddressIsAskedForIt) {
  Tree tree;
  tree.write("/policy/10.toml", policy("\"10.20.0.77/32\""))
      .says("ip -json route get 10.20.0.77",
            R"([{"dst":"10.20.0.77","dev":"ens1f0np0","prefsrc":"10.20.0.11"}])");
  EXPECT_THAT(tree.check("route"), Worst(Level::kOk, "10.20.0.77 leaves by ens1f0np0"));
}

TEST(Route, TheHostsOwnAddressIsNeverAskedForAPeers) {
  Tree tree;
  tree.says("ip -json address show",
            R"([{"ifname":"ens1f0np0","addr_info":[{"local":"10.20.0.1","prefixlen":24}]}])")
      .says("ip -json route get 10.20.0.2",
            R"([{"dst":"10.20.0.2","dev":"ens1f0np0","prefsrc":"10.20.0.1"}])");
  EXPECT_THAT(tree.check("route"), Worst(Level::kOk, "10.20.0.2 leaves by ens1f0np0"));
}

TEST(Route, NoneIsAFailureAndNoToolIsUnknown) {
  Tree none;
  none.fails("ip -json route get 10.20.0.1", "2\nRTNETLINK answers: Network is unreachable");
  EXPECT_THAT(none.check("route"), Worst(Level::kFail, "Network is unreachable"));
  Tree tool;
  tool.fails("ip -json route get 10.20.0.1", "missing");
  EXPECT_THAT(tool.check("route"), Worst(Level::kUnknown, "not installed"));
}

TEST(Route, WithoutAnRdmaRuleIsUnknown) {
  Tree tree;
  tree.write("/policy/10.toml",
             "version = 1\n[[rule]]\nsubnet = \"10.20.0.0/24\"\nvia = \"tcp\"\n");
  EXPECT_THAT(tree.check("route"), Worst(Level::kUnknown, "no rule of the policy"));
  EXPECT_THAT(tree.check("policy"), Worst(Level::kWarn, "no rule says via"));
}

TEST(PolicyCheck, AnErrorFailsWithItsPlaceAndNoPolicyIsAWarning) {
  Tree broken;
  broken.write("/policy/10.toml", "version = 1\nfoo = 1\n");
  EXPECT_THAT(broken.check("policy"), Worst(Level::kFail, "10.toml:2:1: error:"));
  Tree none;
  none.remove("/policy");
  EXPECT_THAT(none.check("policy"), Worst(Level::kWarn, "there is no policy"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
