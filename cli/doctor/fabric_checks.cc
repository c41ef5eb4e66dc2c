// What keeps RoCEv2 packets from being dropped: classes, priorities, flow and congestion control.

#include <set>

#include "cli/doctor/check.h"
#include "cli/doctor/qos.h"

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kDrops =
    "a full switch queue drops packets; a queue pair then waits for its time-out (the rule's "
    "detect), and a stream that loses too many goes back to TCP (qp_error)";
constexpr unsigned kUsualClass = 106;

// What packets of this device carry where a rule says nothing.
std::optional<unsigned> default_class(Host& host, const RdmaDevice& device) {
  for (const std::string& path :
       {"/sys/kernel/config/rdma_cm/" + device.name + "/ports/1/default_roce_tos",
        device.folder + "/tc/1/traffic_class"}) {
    const std::string text = host.text(path);
    const auto value = to_number(text.substr(text.find_last_of("= ") + 1));
    if (value && *value < 256) return static_cast<unsigned>(*value);
  }
  return std::nullopt;
}

bool uses(Context& context, const policy::Rule& rule, const RdmaDevice& device) {
  if (!rule.settings.device.empty()) return rule.settings.device == device.name;
  for (const Path& path : context.paths()) {
    if (path.rule == rule.settings.name && device_of(context.devices(), path.dev) == &device) {
      return true;
    }
  }
  return false;
}

// DSCPs that the policy's streams have on this device, or would have if their routes led there; 0
// where neither rule nor device says one.
std::set<unsigned> dscps(Context& context, const RdmaDevice& device) {
  std::set<unsigned> result;
  bool used = false;
  for (const policy::Rule* rule : context.rdma_rules()) {
    used = used || uses(context, *rule, device);
  }
  for (const policy::Rule* rule : context.rdma_rules()) {
    if (used ? !uses(context, *rule, device) : !rule->settings.device.empty()) continue;
    const auto& own = rule->settings.traffic_class;
    const unsigned value = own ? *own : default_class(context.host(), device).value_or(0);
    result.insert(value >> 2U);
  }
  return result;
}

std::string no_tool(const RdmaDevice& device) {
  const std::string netdev =
      device.own_netdevs.empty() ? std::string("NETDEV") : device.own_netdevs.front();
  return device.software ? "Soft-RoCE's packets are ordinary UDP: look at the card below " + netdev
                         : "install mlnx-tools (mlnx_qos) or iproute2 5.10 or later (dcb), and run "
                           "this as root: dcb pfc show dev " +
                               netdev;
}

template <typename Judge>
void each_port(Context& context, Judge judge) {
  for (const RdmaDevice& device : context.devices()) {
    for (const std::string& netdev : device.own_netdevs) judge(device, netdev);
  }
}

}  // namespace

void check_traffic_class(Context& context, Findings& findings) {
  for (const policy::Rule* rule : context.rdma_rules()) {
    const std::string subject = "rule " + rule->settings.name;
    const std::string mend =
        "in " + rule->settings.file + ":" + std::to_string(rule->settings.line) +
        ": traffic_class = " + std::to_string(kUsualClass) + "   # DSCP 26, ECN-capable";
    if (!rule->settings.traffic_class) {
      bool set = false;
      for (const RdmaDevice& device : context.devices()) {
        const auto value = default_class(context.host(), device);
        if (!value || !uses(context, *rule, device)) continue;
        set = true;
        findings.ok(subject, "no traffic_class; " + device.name + "'s default is " +
                                 std::to_string(*value) + " (DSCP " + std::to_string(*value >> 2U) +
                                 ")");
      }
      if (set) continue;
      findings.warn(
          subject, "no traffic_class, and no default of the device's",
          "its packets have DSCP 0 and share priority 0 with everything: " + std::string(kDrops),
          mend);
      continue;
    }
    const unsigned value = *rule->settings.traffic_class;
    const std::string evidence = "traffic_class " + std::to_string(value) + ": DSCP " +
                                 std::to_string(value >> 2U) + ", ECN " +
                                 std::to_string(value & 3U);
    switch (value & 3U) {
      case 0:
        findings.warn(subject, evidence + " (not ECN-capable)",
                      "switches cannot mark its packets, so nobody slows down before they are "
                      "dropped or paused",
                      "add 2 to it: traffic_class = " + std::to_string(value | 2U));
        break;
      case 3:
        findings.warn(subject, evidence + " (congestion experienced)",
                      "every packet says that there is congestion: the sender is slowed down for "
                      "nothing",
                      "traffic_class = " + std::to_string((value & ~3U) | 2U));
        break;
      default:
        findings.ok(subject, evidence);
    }
  }
}

void check_trust(Context& context, Findings& findings) {
  each_port(context, [&](const RdmaDevice& device, const std::string& netdev) {
    const Qos qos = read_qos(context.host(), netdev);
    if (qos.trust.empty()) {
      findings.unknown(netdev,
                       qos.source.empty() ? qos.problem : qos.source + " names no trust mode",
                       "whether the card sorts packets by their DSCP", no_tool(device));
      return;
    }
    if (qos.trust != "dscp") {
      findings.fail(
          netdev, qos.source + ": trust " + qos.trust,
          "the policy's traffic_class has no effect without VLAN tags: " + std::string(kDrops),
          "mlnx_qos -i " + netdev + " --trust dscp");
      return;
    }
    std::string map;
    for (const unsigned dscp : dscps(context, device)) {
      map += ", DSCP " + std::to_string(dscp) + " to priority " +
             std::to_string(qos.priority(dscp).value_or(0));
    }
    findings.ok(netdev, qos.source + ": trust dscp" + map);
  });
}

void check_pfc(Context& context, Findings& findings) {
  each_port(context, [&](const RdmaDevice& device, const std::string& netdev) {
    const Qos qos = read_qos(context.host(), netdev);
    if (qos.pfc.empty()) {
      findings.unknown(netdev,
                       qos.source.empty() ? qos.problem : qos.source + " names no PFC state",
                       "whether the policy's priority is lossless", no_tool(device));
      return;
    }
    std::vector<std::string> on;
    for (std::size_t i = 0; i < qos.pfc.size(); ++i) {
      if (qos.pfc[i]) on.push_back(std::to_string(i));
    }
    const std::string state = qos.source + ": PFC on " +
                              (on.empty() ? std::string("no priority") : "priority " + joined(on));
    const std::set<unsigned> classes = dscps(context, device);
    if (classes.empty()) {
      findings.unknown(netdev, state + "; no rule of the policy uses this device",
                       "which priority should be lossless", "ringroad policy check");
    }
    for (const unsigned dscp : classes) {
      const unsigned priority = qos.priority(dscp).value_or(0);
      const std::string evidence =
          state + "; DSCP " + std::to_string(dscp) + " has priority " + std::to_string(priority);
      if (priority >= qos.pfc.size() || !qos.pfc[priority]) {
        std::string mask;
        for (unsigned i = 0; i < 8; ++i)
          mask += std::string(i != 0 ? "," : "") + (i == priority ? "1" : "0");
        const bool usable = priority != 0;
        findings.fail(netdev, evidence + ", which is not lossless", kDrops,
                      usable ? "mlnx_qos -i " + netdev + " --pfc " + mask +
                                   "   # or: dcb pfc set dev " + netdev + " prio-pfc all:off " +
                                   std::to_string(priority) + ":on; the same priority on the switch"
                             : "give the policy a traffic_class of its own (106: DSCP 26, priority "
                               "3), then PFC on that priority here and on the switch");
      } else if (on.size() > 1) {
        findings.warn(netdev, evidence,
                      "a paused port stops every lossless priority's neighbours, and several need "
                      "more buffer than most switches have",
                      "PFC on one priority only: dcb pfc set dev " + netdev + " prio-pfc all:off " +
                          std::to_string(priority) + ":on");
      } else {
        findings.ok(netdev, evidence);
      }
    }
  });
}

void check_ecn(Context& context, Findings& findings) {
  constexpr const char* kPauses =
      "congestion is not answered by slowing down: PFC pauses spread through the fabric, or "
      "packets "
      "are dropped";
  each_port(context, [&](const RdmaDevice& device, const std::string& netdev) {
    Host& host = context.host();
    if (device.software) {
      findings.unknown(netdev, "a software device has no congestion control",
                       "how it behaves on a congested link", "");
      return;
    }
    const Qos qos = read_qos(host, netdev);
    const std::string folder = "/sys/class/net/" + netdev + "/ecn/";
    bool known = false;
    for (const unsigned dscp : dscps(context, device)) {
      const unsigned priority = qos.priority(dscp).value_or(0);
      const std::string number = std::to_string(priority);
      const FileText notifies = host.read(folder + "roce_np/enable/" + number);
      const FileText reacts = host.read(folder + "roce_rp/enable/" + number);
      if (!notifies || !reacts) continue;
      known = true;
      const std::string evidence = "DCQCN of priority " + number + ": notification point " +
                                   notifies.text + ", reaction point " + reacts.text;
      if (notifies.text == "1" && reacts.text == "1") {
        findings.ok(netdev, evidence);
      } else {
        findings.fail(netdev, evidence, kPauses,
                      "echo 1 > " + folder + "roce_np/enable/" + number + "; echo 1 > " + folder +
                          "roce_rp/enable/" + number + "; and ECN marking on the switch");
      }
    }
    if (known) return;
    const bool shown = host.list(folder + "roce_np/enable").error == 0;
    findings.unknown(netdev,
                     shown ? "no RDMA rule of the policy uses this device"
                           : "no " + folder + "roce_np: this driver shows no DCQCN state",
                     "whether congestion slows senders down",
                     "the vendor's tool, such as mlxconfig -d " +
                         (device.pci.empty() ? "PCI" : device.pci) +
                         " query | grep ROCE_CC, or MLNX_OFED's driver");
  });
}

}  // namespace ringroad::cli::doctor
