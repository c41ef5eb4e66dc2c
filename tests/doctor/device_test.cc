// Devices, modules, access, and how the card sits on its bus.

#include <filesystem>

#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kDevice = "/sys/class/infiniband/mlx5_0";

Questions user(const std::string& name) {
  Questions questions;
  questions.user = name;
  return questions;
}

TEST(Device, ACardWithoutItsDriverFailsWhenItIsTheOnlyOne) {
  Tree tree;
  tree.remove("/sys/class/infiniband")
      .meta("link /sys/bus/pci/devices/0000:3b:00.0/driver x/mlx5_core");
  EXPECT_THAT(tree.check("device"),
              Worst(Level::kFail, "without an RDMA device, driver mlx5_core"));
}

TEST(Device, NoCardAtAllNamesTheBiosAndSoftRoce) {
  Tree tree;
  tree.remove("/sys/class/infiniband").remove("/sys/bus");
  const auto findings = tree.check("device");
  EXPECT_THAT(findings, Worst(Level::kFail, "no network card of a known RDMA vendor"));
  EXPECT_THAT(texts(findings),
              testing::AllOf(testing::HasSubstr("BIOS"), testing::HasSubstr("VT-d"),
                             testing::HasSubstr("rdma_rxe")));
}

TEST(Device, AnEthernetCardOfAVendorThatMakesBothIsNoWarningBesideAnRdmaDevice) {
  Tree tree;
  tree.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x020000")
      .write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x8086");
  EXPECT_EQ(worst(tree.check("device")), Level::kOk);
}

TEST(Device, ABondedCardHasOneDeviceForItsPorts) {
  Tree tree;
  tree.write("/sys/bus/pci/devices/0000:3b:00.1/class", "0x020000")
      .write("/sys/bus/pci/devices/0000:3b:00.1/vendor", "0x15b3");
  EXPECT_THAT(tree.check("device"), Worst(Level::kWarn, "without an RDMA device"));
  const std::string bond = "/sys/class/infiniband/mlx5_bond_0";
  std::filesystem::rename(tree.path() + kDevice, tree.path() + bond);
  tree.meta("link " + bond + "/device ../../../0000:3b:00.0")
      .write("/sys/class/net/ens1f0np0/bonding/slaves", "ens1f0np0 ens1f1np1");
  EXPECT_EQ(worst(tree.check("device")), Level::kOk);
  EXPECT_THAT(texts(tree.check("pfc")), testing::HasSubstr("ens1f1np1"));
}

TEST(Device, OfAnotherNetworkNamespaceIsNamedAndNotExamined) {
  Tree tree;
  const std::string rxe = "/sys/class/infiniband/rxe0";
  tree.meta("link " + rxe + " ../../devices/virtual/infiniband/rxe0")
      .write(rxe + "/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a09:0001")
      .write(rxe + "/ports/1/gid_attrs/ndevs/0", "v0");
  EXPECT_THAT(tree.check("device"), Worst(Level::kOk, "for another network namespace, which has v0"));
  EXPECT_THAT(texts(tree.check("mtu")), testing::Not(testing::HasSubstr("v0")));
  // The same where it is this namespace's.
  tree.write("/sys/class/net/v0/mtu", "1500");
  EXPECT_THAT(texts(tree.check("device")), testing::Not(testing::HasSubstr("another network namespace")));
  EXPECT_THAT(texts(tree.check("mtu")), testing::HasSubstr("v0"));
}

TEST(Device, ANamespaceWithNoNetworkDeviceOfAnyFails) {
  Tree tree;
  std::filesystem::rename(tree.path() + "/sys/class/net/ens1f0np0", tree.path() + "/sys/class/net/eth0");
  EXPECT_THAT(tree.check("device"), Worst(Level::kFail, "no network device of an RDMA device's"));
  EXPECT_THAT(texts(tree.check("device")), testing::HasSubstr("SR-IOV"));
}

TEST(Device, ANamespaceThatIsGivenNoneSaysThatTheyAreApart) {
  Tree tree;
  tree.remove("/sys/class/infiniband").remove("/sys/bus");
  tree.says("rdma system show", "netns exclusive copy-on-fork on\n");
  EXPECT_THAT(tree.check("device"), Worst(Level::kFail, "netns exclusive"));
}

TEST(Access, FollowsOwnerGroupAndOthersInThisOrder) {
  const auto level = [](const char* mode_and_owner) {
    Tree tree;
    tree.meta(std::string("status /dev/infiniband/uverbs0 ") + mode_and_owner);
    return worst(tree.check("access", user("mysql")));  // 110, group 115
  };
  EXPECT_EQ(level("20660 0 115"), Level::kOk);
  EXPECT_EQ(level("20660 110 0"), Level::kOk);
  EXPECT_EQ(level("20606 0 0"), Level::kOk);
  EXPECT_EQ(level("20606 0 115"), Level::kFail);  // the group is asked before the others
  EXPECT_EQ(level("20066 110 0"), Level::kFail);
  EXPECT_EQ(level("20640 0 115"), Level::kFail);  // reading is not enough
}

TEST(Access, RootMayAlways) {
  Tree tree;
  tree.meta("status /dev/infiniband/uverbs0 20600 0 0")
      .says("id -u -- root", "0")
      .says("id -G -- root", "0");
  EXPECT_EQ(worst(tree.check("access", user("root"))), Level::kOk);
}

TEST(Access, AUserWhoDoesNotExistIsUnknown) {
  Tree tree;
  tree.fails("id -u -- nobody2", "1\nid: 'nobody2': no such user");
  EXPECT_THAT(tree.check("access", user("nobody2")), Worst(Level::kUnknown, "no such user"));
}

// What `systemctl show` says of the unit mariadb.
void show_unit(Tree& tree, const std::string& text) {
  for (const auto& file : std::filesystem::directory_iterator(tree.path() + "/commands")) {
    const std::string name = file.path().filename().string();
    if (name.starts_with("systemctl_show")) tree.write("/commands/" + name, text);
  }
}

// With nodes that root alone may open, and a doctor that root runs.
Tree& of_root(Tree& tree) {
  return tree.meta("status /dev/infiniband/uverbs0 20600 0 0")
      .says("id -u", "0")
      .says("id -G", "0");
}

TEST(Access, OfAUnitIsItsUsersAndNotOfTheUserThatRunsThis) {
  Questions questions;
  questions.unit = "mariadb";
  Tree tree;
  EXPECT_THAT(of_root(tree).check("access", questions), Worst(Level::kFail, "user mysql may not"));
  Tree without_user;
  of_root(without_user).says("id -u -- root", "0").says("id -G -- root", "0");
  show_unit(without_user, "LoadState=loaded\nUser=\n");
  without_user.says("id -u", "1000");
  EXPECT_EQ(worst(without_user.check("access", questions)), Level::kOk);
  Tree dynamic;
  show_unit(of_root(dynamic), "LoadState=loaded\nUser=mariadb\nDynamicUser=yes\n");
  EXPECT_THAT(dynamic.check("access", questions), Worst(Level::kUnknown, "DynamicUser=yes"));
  Tree none;
  show_unit(of_root(none), "LoadState=not-found\n");
  EXPECT_THAT(none.check("access", questions), Worst(Level::kUnknown, "there is no such unit"));
}

TEST(Access, OfAProcessIsWhatItsStatusNames) {
  Questions questions;
  questions.pid = 4711;
  const auto level = [&](const std::string& status) {
    Tree tree;
    of_root(tree)
        .meta("status /dev/infiniband/uverbs0 20660 0 115")
        .write("/proc/4711/status", "Name:\tmariadbd\n" + status);
    return worst(tree.check("access", questions));
  };
  EXPECT_EQ(level("Uid:\t110\t110\t110\t110\nGid:\t110\t110\t110\t110\nGroups:\t110 \n"),
            Level::kFail);
  EXPECT_EQ(level("Uid:\t110\t110\t110\t110\nGid:\t110\t110\t110\t110\nGroups:\t99 115 \n"),
            Level::kOk);
  EXPECT_EQ(level("Uid:\t110\t110\t110\t110\nGid:\t115\t115\t115\t115\nGroups:\t \n"), Level::kOk);
  EXPECT_EQ(level("Uid:\t110\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t \n"), Level::kOk);
  EXPECT_EQ(level(""), Level::kUnknown);
}

TEST(Access, OfAUserWhoIsNamedIsNotOfTheUnit) {
  Questions questions = user("root");
  questions.unit = "mariadb";
  Tree tree;
  of_root(tree).says("id -u -- root", "0").says("id -G -- root", "0");
  EXPECT_EQ(worst(tree.check("access", questions)), Level::kOk);
}

TEST(Access, AMissingNodeIsAFailure) {
  Tree tree;
  tree.meta("error /dev/infiniband/rdma_cm ENOENT");
  std::string text =
      "error /dev/infiniband/rdma_cm ENOENT\n"
      "status /dev/infiniband/uverbs0 20666 0 0\n";
  tree.write("/meta", text);
  EXPECT_THAT(tree.check("access", user("mysql")),
              Worst(Level::kFail, "No such file or directory"));
}

TEST(Iommu, NoneIsOkAndAnUnknownTypeIsUnknown) {
  Tree none;
  none.write("/meta", std::string("link ") + kDevice + " x/0000:3b:00.0/infiniband/mlx5_0\n");
  EXPECT_THAT(none.check("iommu"), Worst(Level::kOk, "no IOMMU"));
  Tree odd;
  odd.write("/sys/kernel/iommu_groups/42/type", "blocked");
  EXPECT_THAT(odd.check("iommu"), Worst(Level::kUnknown, "blocked"));
}

TEST(Pcie, ALinkThatIsNotShownIsUnknown) {
  Tree tree;
  tree.remove(std::string(kDevice) + "/device/current_link_speed");
  EXPECT_THAT(tree.check("pcie"), Worst(Level::kUnknown, "no PCIe link"));
}

TEST(Modules, OneThatIsMissingIsNamed) {
  Tree tree;
  tree.remove("/sys/module/ib_uverbs");
  const auto findings = tree.check("modules");
  EXPECT_THAT(findings, Worst(Level::kFail, "not loaded"));
  EXPECT_THAT(texts(findings), testing::HasSubstr("modprobe ib_uverbs"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
