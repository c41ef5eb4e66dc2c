#include "cli/doctor/check.h"

#include <exception>

namespace ringroad::cli::doctor {
namespace {

constexpr Check kChecks[] = {
    {"policy", "policy", "the policy's errors, warnings and rules", check_policy},
    {"device", "device", "RDMA devices, and cards whose driver made none", check_device},
    {"modules", "device", "the kernel modules of verbs and of the connection manager",
     check_modules},
    {"access", "device", "whether the user may open /dev/infiniband", check_access},
    {"library", "device", "whether the verbs part of the library loads", check_library},
    {"iommu", "device", "the card's IOMMU group (VT-d, AMD-Vi)", check_iommu},
    {"pcie", "device", "speed and width of the card's PCIe link", check_pcie},
    {"port", "link", "state of each port", check_port},
    {"speed", "link", "rate of each port", check_speed},
    {"mtu", "link", "MTU of the network device and of RDMA", check_mtu},
    {"route", "link", "whether the policy's subnets are reached by an RDMA device", check_route},
    {"gid", "link", "the GID and RoCE version of the policy's subnets", check_gid},
    {"traffic-class", "fabric", "DSCP and ECN bits that the policy sets", check_traffic_class},
    {"trust", "fabric", "trust mode and the DSCP-to-priority map", check_trust},
    {"pfc", "fabric", "priority flow control of the policy's priority", check_pfc},
    {"ecn", "fabric", "congestion control (ECN, DCQCN)", check_ecn},
    {"firewall", "fabric", "nftables and iptables rules for UDP 4791", check_firewall},
    {"listener", "fabric", "whether rdma_cm listens on each RDMA address", check_listener},
    {"memlock", "host", "lockable memory of the user, the unit and the process", check_memlock},
    {"hugepages", "host", "huge pages that are reserved and unused", check_huge_pages},
    {"fork", "host", "copy-on-fork of pinned memory", check_fork},
    {"numa", "host", "NUMA node of the card against the process's CPUs", check_numa},
    {"irq", "host", "CPUs that the card's interrupts go to", check_interrupts},
    {"governor", "host", "CPU frequency governor", check_governor},
    {"tuned", "host", "tuned profile", check_tuned},
    {"program", "program", "whether a program can be preloaded (--program)", check_program},
    {"process", "program", "whether a process is preloaded (--pid)", check_process},
    {"unit", "program", "systemd sandboxing and limits of a service (--unit)", check_unit},
    {"apparmor", "program", "the AppArmor profile of a program or process", check_apparmor},
    {"selinux", "program", "what SELinux lets the domain of a process do", check_selinux},
    {"counters", "counters", "error and congestion counters that rise (--watch)", check_counters},
};

}  // namespace

std::span<const Check> all_checks() noexcept { return kChecks; }

std::vector<Finding> run_checks(Context& context, const std::vector<std::string>& only) {
  return run_checks(context, all_checks(), only);
}

std::vector<Finding> run_checks(Context& context, std::span<const Check> checks,
                                const std::vector<std::string>& only) {
  std::vector<Finding> list;
  for (const Check& check : checks) {
    if (!only.empty() && !contains(only, check.name)) continue;
    Findings findings(check.name, check.group, list);
    try {
      check.run(context, findings);
    } catch (const std::exception& error) {
      findings.unknown("", std::string("the check failed: ") + error.what(),
                       "what it looks at is not known", "");
    }
  }
  return list;
}

}  // namespace ringroad::cli::doctor
