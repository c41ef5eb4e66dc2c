// RDMA devices, their modules and the users that may use them.

#include <sys/stat.h>

#include <cstring>

#include "cli/doctor/check.h"

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kStaysOnTcp = "every RDMA rule's streams stay on TCP (no_rdma_device)";
constexpr const char* kPci = "/sys/bus/pci/devices";

struct Vendor {
  const char* id;
  const char* name;
  const char* modules;  // what makes the RDMA device, space-separated
};

// Vendors of cards with RDMA drivers in the kernel (drivers/infiniband/hw).
constexpr Vendor kVendors[] = {
    {"0x15b3", "NVIDIA (Mellanox)", "mlx5_ib"},
    {"0x14e4", "Broadcom", "bnxt_re"},
    {"0x8086", "Intel", "irdma"},
    {"0x1425", "Chelsio", "iw_cxgb4"},
    {"0x1077", "Marvell (QLogic)", "qedr"},
    {"0x1dd8", "AMD Pensando", "ionic_rdma"},
};

struct Card {
  std::string address;
  const Vendor* vendor;
  std::string driver;  // empty: none
};

// Network cards of those vendors. Intel and Broadcom also make many without RDMA.
std::vector<Card> find_cards(Host& host) {
  std::vector<Card> cards;
  for (const std::string& address : host.list(kPci).names) {
    const std::string folder = std::string(kPci) + "/" + address;
    const std::string device_class = host.text(folder + "/class");
    if (!device_class.starts_with("0x0200") && !device_class.starts_with("0x0207")) continue;
    const std::string id = host.text(folder + "/vendor");
    for (const Vendor& vendor : kVendors) {
      if (id != vendor.id) continue;
      cards.push_back({address, &vendor, last_part(host.link(folder + "/driver").text)});
    }
  }
  return cards;
}

bool certainly_rdma(const Card& card) { return std::strcmp(card.vendor->id, "0x15b3") == 0; }

// The ports of a bonded card are functions of one slot, and have one RDMA device.
bool serves(const RdmaDevice& device, const Card& card) {
  const std::string slot = card.address.substr(0, card.address.rfind('.') + 1);
  return device.pci == card.address ||
         (device.name.find("bond") != std::string::npos && device.pci.starts_with(slot));
}

// "netns exclusive copy-on-fork on": each network namespace sees the devices that were moved into it.
bool are_devices_apart(Host& host) {
  const std::vector<std::string> words = split(host.run({"rdma", "system", "show"}).out);
  return words.size() > 1 && words[0] == "netns" && words[1] == "exclusive";
}

bool may(const User& user, const FileStatus& status, unsigned wanted) {
  if (user.uid == 0) return true;
  unsigned granted = status.mode & 7U;
  for (const gid_t group : user.groups) {
    if (group == status.group) granted = (status.mode >> 3U) & 7U;
  }
  if (user.uid == status.owner) granted = (status.mode >> 6U) & 7U;
  return (granted & wanted) == wanted;
}

void check_node(Context& context, Findings& findings, const User& user, const std::string& path,
                const std::string& module) {
  const FileStatus status = context.host().status(path);
  if (!status) {
    findings.fail(path, strerrordesc_np(status.error), kStaysOnTcp,
                  "modprobe " + module + "   # in a container: pass /dev/infiniband through");
  } else if (!may(user, status, 6)) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", status.mode & 07777U);
    findings.fail(path,
                  "mode " + std::string(mode) + ", owner " + std::to_string(status.owner) + ":" +
                      std::to_string(status.group) + ": user " + user.name +
                      " may not read and write it",
                  kStaysOnTcp,
                  "chmod 0666 " + path +
                      "   # and for good, in /etc/udev/rules.d/90-ringroad.rules:\n"
                      "KERNEL==\"uverbs*\", MODE=\"0666\"\nKERNEL==\"rdma_cm\", MODE=\"0666\"");
  } else {
    findings.ok(path, "user " + user.name + " may read and write it");
  }
}

}  // namespace

void check_device(Context& context, Findings& findings) {
  for (const RdmaDevice& device : context.devices()) {
    const std::string driver =
        last_part(context.host().link(device.folder + "/device/driver").text);
    findings.ok(device.name, (device.software  ? "software device (Soft-RoCE or like it)"
                              : driver.empty() ? "RDMA device"
                                               : "driver " + driver) +
                                 (device.pci.empty() ? "" : ", PCI " + device.pci) +
                                 ", network device " +
                                 (device.netdevs.empty() ? "none" : joined(device.netdevs)));
  }
  for (const RdmaDevice& device : context.devices_elsewhere()) {
    findings.ok(device.name, "for another network namespace, which has " + joined(device.netdevs));
  }
  const bool none = context.devices().empty();
  if (none && !context.devices_elsewhere().empty()) {
    findings.fail("", "this network namespace has no network device of an RDMA device's", kStaysOnTcp,
                  "give it one: a virtual function (SR-IOV) or a macvlan interface of the card's; "
                  "or the host's network (a pod's hostNetwork)");
    return;
  }
  const std::vector<Card> cards = find_cards(context.host());
  for (const Card& card : cards) {
    bool served = false;
    for (const RdmaDevice& device : context.devices()) served = served || serves(device, card);
    for (const RdmaDevice& device : context.devices_elsewhere()) served = served || serves(device, card);
    if (served || (!none && !certainly_rdma(card))) continue;
    const std::string evidence =
        std::string(card.vendor->name) + " card without an RDMA device, " +
        (card.driver.empty() ? "no driver bound" : "driver " + card.driver);
    findings.add(
        none ? Level::kFail : Level::kWarn, card.address, evidence,
        none ? kStaysOnTcp : "its addresses stay on TCP (no_rdma_device)",
        "modprobe " + std::string(card.vendor->modules) + "; dmesg | grep " + card.address);
  }
  if (none && are_devices_apart(context.host())) {
    findings.fail(
        "", "rdma system show: netns exclusive: a device is in one network namespace, and this has none",
        kStaysOnTcp, "on the host: rdma dev set DEVICE netns NAME   # not for Soft-RoCE");
    return;
  }
  if (!none || !cards.empty()) return;
  findings.fail(
      "",
      "/sys/class/infiniband is empty, and no network card of a known RDMA vendor is "
      "on the PCI bus",
      kStaysOnTcp,
      "look for the card: lspci -nn; in the BIOS: the slot, SR-IOV and Above 4G Decoding "
      "on; in a virtual machine: pass the card through (VT-d or AMD-Vi on)\n"
      "to try without a card: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0");
}

void check_modules(Context& context, Findings& findings) {
  struct Module {
    const char* name;
    const char* without;
  };
  constexpr Module kModules[] = {
      {"ib_uverbs", "no program can use a device"},
      {"rdma_ucm", "no connection can be asked for or answered"},
  };
  for (const Module& module : kModules) {
    // Also there when it is part of the kernel.
    const FolderNames folder = context.host().list(std::string("/sys/module/") + module.name);
    if (folder) {
      findings.ok(module.name, "loaded");
    } else {
      findings.fail(module.name, std::string("not loaded: ") + module.without, kStaysOnTcp,
                    "modprobe " + std::string(module.name) + "; echo " + module.name +
                        " > /etc/modules-load.d/" + module.name + ".conf");
    }
  }
}

void check_access(Context& context, Findings& findings) {
  std::string why;
  const std::optional<User> user = context.user(why);
  if (!user) {
    findings.unknown(context.about_whom(), why, "whether the user may open the devices", "");
    return;
  }
  check_node(context, findings, *user, "/dev/infiniband/rdma_cm", "rdma_ucm");
  bool any = false;
  for (const RdmaDevice& device : context.devices()) {
    for (const std::string& name :
         context.host().list(device.folder + "/device/infiniband_verbs").names) {
      any = true;
      check_node(context, findings, *user, "/dev/infiniband/" + name, "ib_uverbs");
    }
  }
  // A software device has no folder of its own for them.
  if (any) return;
  for (const std::string& name : context.host().list("/sys/class/infiniband_verbs").names) {
    if (name.starts_with("uverbs")) {
      check_node(context, findings, *user, "/dev/infiniband/" + name, "ib_uverbs");
    }
  }
}

void check_library(Context& context, Findings& findings) {
  std::vector<std::string> words = {"ringroad", "doctor", "--probe-library"};
  if (!context.about().library.empty()) words.push_back(context.about().library);
  const CommandResult result = context.host().run(words);
  if (result) {
    findings.ok("", trimmed(result.out));
  } else {
    findings.fail("", result.problem(), "every RDMA rule's streams stay on TCP (no_verbs_library)",
                  "apt-get install libibverbs1 librdmacm1 ibverbs-providers; keep libringroad.so "
                  "and libringroad-verbs.so in one folder");
  }
}

}  // namespace ringroad::cli::doctor
