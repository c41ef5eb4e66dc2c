// Ports, MTU, routes and GIDs.

#include "cli/doctor/check.h"

namespace ringroad::cli::doctor {
namespace {

constexpr unsigned kBestRdmaMtu = 4096;
constexpr unsigned kUsualNetdevMtu = 9000;

std::string port_name(const RdmaDevice& device, const RdmaPort& port) {
  return device.name + "/" + port.number;
}

// The first active MTU that ibv_devinfo names for the port, in bytes.
unsigned active_mtu(Host& host, const RdmaDevice& device, const RdmaPort& port) {
  const std::string out = host.run({"ibv_devinfo", "-d", device.name, "-i", port.number}).out;
  const std::size_t at = out.find("active_mtu:");
  if (at == std::string::npos) return 0;
  const std::vector<std::string> words = split(out.substr(at + 11, 40));
  const auto value = words.empty() ? std::nullopt : to_number(words[0]);
  return value ? static_cast<unsigned>(*value) : 0;
}

void judge_mtu(Context& context, Findings& findings, const RdmaDevice& device,
               const RdmaPort& port) {
  for (const std::string& netdev : device.netdevs) {
    const auto mtu = to_number(context.host().text("/sys/class/net/" + netdev + "/mtu"));
    if (!mtu) {
      findings.unknown(netdev, "/sys/class/net/" + netdev + "/mtu cannot be read",
                       "the packet size", "ip link show " + netdev);
      continue;
    }
    const unsigned possible = rdma_mtu_of(static_cast<unsigned>(*mtu));
    const unsigned active = active_mtu(context.host(), device, port);
    const unsigned rdma = active != 0 ? active : possible;
    const std::string evidence = "MTU " + std::to_string(*mtu) + ", RDMA MTU " +
                                 std::to_string(rdma) +
                                 (active != 0 ? " (ibv_devinfo)" : " (what that leaves room for)");
    if (rdma >= kBestRdmaMtu) {
      findings.ok(netdev, evidence);
    } else if (possible >= kBestRdmaMtu) {
      findings.warn(netdev, evidence + ", though there is room for 4096",
                    "more packets than need be for large messages",
                    "set the port down and up after the MTU: ip link set " + netdev +
                        " down; ip link set " + netdev + " up");
    } else {
      findings.add(rdma == 0 ? Level::kFail : Level::kWarn, netdev, evidence,
                   rdma == 0 ? "no RDMA packet fits"
                             : "a 64 KiB message takes " + std::to_string(65536 / rdma) +
                                   " packets instead of 16",
                   "ip link set " + netdev + " mtu " + std::to_string(kUsualNetdevMtu) +
                       "   # at both ends, and on every switch port between them");
    }
  }
}

}  // namespace

void check_port(Context& context, Findings& findings) {
  for (const RdmaDevice& device : context.devices()) {
    for (const RdmaPort& port : device.ports) {
      const std::string evidence = "state " + port.state + ", " + port.phys_state +
                                   (port.link_layer.empty() ? "" : ", " + port.link_layer);
      if (port.active()) {
        findings.ok(port_name(device, port), evidence);
      } else {
        findings.fail(
            port_name(device, port), evidence, "streams by this port stay on TCP (no_rdma_device)",
            "ip link set " + (device.netdevs.empty() ? "NETDEV" : device.netdevs.front()) +
                " up; then cable, transceiver and switch port; rdma link show");
      }
    }
    if (device.ports.empty()) {
      findings.unknown(device.name, "it has no ports", "whether it can be used", "rdma link show");
    }
  }
}

void check_speed(Context& context, Findings& findings) {
  for (const RdmaDevice& device : context.devices()) {
    for (const RdmaPort& port : device.ports) {
      if (!port.active()) continue;
      if (device.software) {
        findings.ok(port_name(device, port), "a software device says " + port.rate +
                                                 ", which means nothing: it is for trying things");
        continue;
      }
      const std::vector<std::string> words = split(port.rate);
      double rate = 0;
      if (!words.empty()) rate = std::strtod(words.front().c_str(), nullptr);
      if (rate <= 0) {
        findings.unknown(port_name(device, port), "rate \"" + port.rate + "\"", "the port's speed",
                         "ethtool " + joined(device.own_netdevs, " "));
      } else if (rate < 25) {
        findings.warn(port_name(device, port), port.rate,
                      "no RoCE card is slower than 10 Gb/s, most are 25 or more: this link was "
                      "negotiated down, or TCP has little to lose",
                      "ethtool " + joined(device.own_netdevs, " ") +
                          "; transceiver, cable and the switch port's speed");
      } else {
        findings.ok(port_name(device, port), port.rate);
      }
    }
  }
}

void check_mtu(Context& context, Findings& findings) {
  for (const RdmaDevice& device : context.devices()) {
    if (!device.ports.empty()) judge_mtu(context, findings, device, device.ports.front());
  }
}

void judge_route(Context& context, Findings& findings, const Path& path, bool partly) {
  const std::string& subject = path.subnet;
  if (path.local) {
    findings.ok(subject, path.address + " is this host's own");
  } else if (path.dev.empty()) {
    const bool missing = path.problem == "not installed";
    findings.add(
        missing ? Level::kUnknown : Level::kFail, subject,
        "ip route get " + path.address + ": " + path.problem,
        missing ? "how the peers of rule " + path.rule + " are reached"
                : "peers of rule " + path.rule + " are not reached at all",
        missing ? "apt-get install iproute2" : "ip route add " + path.subnet + " dev NETDEV");
  } else if (context.is_rdma_netdev(path.dev)) {
    findings.ok(subject, path.address + " leaves by " + path.dev +
                             (path.source.empty() ? "" : " from " + path.source));
  } else {
    findings.add(partly ? Level::kWarn : Level::kFail, subject,
                 path.address + " leaves by " + path.dev + ", which has no RDMA device",
                 std::string(partly ? "those" : "all") + " peers of rule " + path.rule +
                     " stay on TCP (no_rdma_device)",
                 partly ? "narrow the rule's subnet to the RDMA network"
                        : "give peers addresses of the RDMA network, or: ip route add " +
                              path.subnet + " dev NETDEV; rdma link show names the NETDEVs");
  }
}

void check_route(Context& context, Findings& findings) {
  if (context.paths().empty()) {
    findings.unknown("", "no rule of the policy names a subnet for RDMA",
                     "by which device the peers are reached", "ringroad policy check");
    return;
  }
  std::vector<std::string> served;
  for (const Path& path : context.paths()) {
    if (context.is_rdma_netdev(path.dev)) served.push_back(path.subnet);
  }
  for (const Path& path : context.paths()) {
    judge_route(context, findings, path, contains(served, path.subnet));
  }
}

void judge_gid(Context& context, Findings& findings, const Path& path) {
  const RdmaDevice* device = device_of(context.devices(), path.dev);
  const auto source = Address::parse(path.source);
  if (device == nullptr || !source) return;  // judge_route() speaks of it
  const Gid* v1 = nullptr;
  const Gid* v2 = nullptr;
  std::string port_number;
  for (const RdmaPort& port : device->ports) {
    for (const Gid& gid : port.gids) {
      if (gid.address != *source || (!gid.netdev.empty() && gid.netdev != path.dev)) continue;
      (gid.is_v2() ? v2 : v1) = &gid;
      port_number = port.number;
    }
  }
  const std::string set_mode = "cma_roce_mode -d " + device->name + " -p " + port_number + " -m 2";
  if (v2 != nullptr) {
    findings.ok(path.subnet, device->name + " index " + std::to_string(v2->index) + ": " +
                                 path.source + ", RoCE v2");
    const std::string mode = context.host().text("/sys/kernel/config/rdma_cm/" + device->name +
                                                 "/ports/" + port_number + "/default_roce_mode");
    if (!mode.empty() && mode != "RoCE v2") {
      findings.fail(path.subnet, "rdma_cm of " + device->name + " uses " + mode,
                    "connections are asked for in a form that no router passes on, and that a "
                    "peer of RoCE v2 does not answer",
                    set_mode);
    }
  } else if (v1 != nullptr) {
    findings.fail(path.subnet, device->name + " has " + path.source + " as " + v1->type + " only",
                  "RoCE v1 is not routed and has no DSCP: peers that use v2 are not reached",
                  "switch RoCE v2 on in the card's firmware: mlxconfig -d PCI set ROCE_CONTROL=2; "
                  "then " +
                      set_mode);
  } else {
    findings.fail(
        path.subnet,
        "no GID of " + device->name + " is " + path.source + ", this host's address on " + path.dev,
        "peers of rule " + path.rule + " stay on TCP (no_rdma_device)",
        "ip address show dev " + path.dev +
            "; show_gids or rdma link show; the address "
            "must be on the RDMA device's own network device, VLAN or bond");
  }
}

void check_gid(Context& context, Findings& findings) {
  for (const Path& path : context.paths()) judge_gid(context, findings, path);
}

}  // namespace ringroad::cli::doctor
