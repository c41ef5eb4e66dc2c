// CPUs: where they are, what interrupts them, how fast they run.

#include <algorithm>
#include <map>

#include "cli/doctor/check.h"
#include "cli/doctor/cpu_set.h"

namespace ringroad::cli::doctor {

std::set<unsigned> parse_cpus(const std::string& text) {
  constexpr unsigned long long kMost = 8192;
  std::set<unsigned> cpus;
  for (const std::string& part : split(text, ", \t\n")) {
    const std::size_t dash = part.find('-');
    const auto first = to_number(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : to_number(part.substr(dash + 1));
    if (!first || !last || *last >= kMost) continue;
    for (unsigned long long cpu = *first; cpu <= *last; ++cpu) {
      cpus.insert(static_cast<unsigned>(cpu));
    }
  }
  return cpus;
}

std::size_t common_cpus(const std::set<unsigned>& some, const std::set<unsigned>& all) {
  std::size_t count = 0;
  for (const unsigned cpu : some) count += all.count(cpu);
  return count;
}

namespace {

std::string cpus_of_process(Host& host, pid_t pid) {
  const std::string who = pid != 0 ? std::to_string(pid) : "self";
  const std::string status = host.text("/proc/" + who + "/status");
  constexpr const char* kName = "Cpus_allowed_list:";
  const std::size_t at = status.find(kName);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + std::string(kName).size();
  return trimmed(status.substr(begin, status.find('\n', begin) - begin));
}

}  // namespace

void check_numa(Context& context, Findings& findings) {
  Host& host = context.host();
  const std::size_t nodes = split(host.text("/sys/devices/system/node/online"), ",-").size();
  for (const RdmaDevice& device : context.devices()) {
    if (device.pci.empty()) {
      findings.ok(device.name, "no PCI device: it is near every CPU");
      continue;
    }
    const std::string node = host.text(device.folder + "/device/numa_node");
    const std::string near = host.text(device.folder + "/device/local_cpulist");
    if (nodes <= 1) {
      findings.ok(device.name, "the host has one NUMA node");
      continue;
    }
    if (node.empty() || node == "-1" || near.empty()) {
      findings.unknown(device.name, "the BIOS names no NUMA node of the card",
                       "which CPUs are near it", "update the BIOS; lspci -vv -s " + device.pci);
      continue;
    }
    const std::string where = "node " + node + " (CPUs " + near + ")";
    if (context.about().pid == 0) {
      findings.ok(device.name, where + "; with --pid, a process is held against it");
      continue;
    }
    const std::string allowed = cpus_of_process(host, context.about().pid);
    const std::set<unsigned> cpus = parse_cpus(allowed);
    const std::string subject = device.name + ", process " + std::to_string(context.about().pid);
    const std::size_t common = common_cpus(cpus, parse_cpus(near));
    const std::string mend = "numactl --cpunodebind=" + node + " --membind=" + node +
                             " PROGRAM; in a unit: NUMAPolicy=bind, NUMAMask=" + node +
                             ", CPUAffinity=numa";
    if (cpus.empty()) {
      findings.unknown(subject, "/proc/PID/status names no CPUs: no such process?",
                       "whether it runs near the card",
                       "ps -p " + std::to_string(context.about().pid));
    } else if (common == 0) {
      findings.warn(subject, where + "; the process may run on CPUs " + allowed,
                    "every access of card and process to the rings crosses the sockets", mend);
    } else if (common < cpus.size()) {
      findings.warn(subject,
                    where + "; the process may run on CPUs " + allowed + ", also on other nodes",
                    "latency depends on where the scheduler puts a thread", mend);
    } else {
      findings.ok(subject, where + "; the process runs on CPUs " + allowed);
    }
  }
}

void check_interrupts(Context& context, Findings& findings) {
  Host& host = context.host();
  for (const RdmaDevice& device : context.devices()) {
    if (device.pci.empty()) {
      findings.ok(device.name, "no PCI device: no interrupts of its own");
      continue;
    }
    const FolderNames interrupts = host.list(device.folder + "/device/msi_irqs");
    const std::set<unsigned> near = parse_cpus(host.text(device.folder + "/device/local_cpulist"));
    std::size_t known = 0;
    std::size_t far = 0;
    std::set<unsigned> used;
    for (const std::string& number : interrupts.names) {
      std::string list = host.text("/proc/irq/" + number + "/effective_affinity_list");
      if (list.empty()) list = host.text("/proc/irq/" + number + "/smp_affinity_list");
      const std::set<unsigned> cpus = parse_cpus(list);
      if (cpus.empty()) continue;
      ++known;
      if (common_cpus(cpus, near) == 0) ++far;
      used.insert(cpus.begin(), cpus.end());
    }
    if (known == 0 || near.empty()) {
      findings.unknown(device.name, "no interrupts below " + device.folder + "/device/msi_irqs",
                       "which CPUs serve the card", "grep " + device.pci + " /proc/interrupts");
      continue;
    }
    const std::string evidence = std::to_string(known) + " interrupts on " +
                                 std::to_string(used.size()) + " CPUs, " + std::to_string(far) +
                                 " of them away from the card's node";
    if (far != 0) {
      findings.warn(device.name, evidence,
                    "completions wake a CPU on the other socket: higher and uneven latency",
                    "systemctl stop irqbalance; set_irq_affinity_cpulist.sh " +
                        host.text(device.folder + "/device/local_cpulist") + " " +
                        joined(device.own_netdevs, " "));
    } else if (used.size() == 1 && known > 1) {
      findings.warn(
          device.name, evidence, "one CPU serves every stream's completions",
          "systemctl start irqbalance, or set_irq_affinity.sh " + joined(device.own_netdevs, " "));
    } else {
      findings.ok(device.name, evidence);
    }
  }
}

void check_governor(Context& context, Findings& findings) {
  Host& host = context.host();
  const std::string root = "/sys/devices/system/cpu";
  std::map<std::string, unsigned> governors;
  for (const std::string& name : host.list(root).names) {
    if (!name.starts_with("cpu") || !to_number(name.substr(3))) continue;
    const std::string governor = host.text(root + "/" + name + "/cpufreq/scaling_governor");
    if (!governor.empty()) ++governors[governor];
  }
  if (governors.empty()) {
    findings.unknown("", "the kernel controls no CPU frequency, as in a virtual machine",
                     "whether CPUs run at their full speed", "look at the hypervisor's host");
    return;
  }
  std::string evidence;
  for (const auto& [governor, count] : governors) {
    evidence +=
        (evidence.empty() ? "" : ", ") + governor + " on " + std::to_string(count) + " CPUs";
  }
  if (governors.size() == 1 && governors.contains("performance")) {
    findings.ok("", evidence);
  } else {
    findings.warn("", evidence,
                  "a CPU that sleeps between messages answers late: small messages may be slower "
                  "than they could be, and runs differ",
                  "cpupower frequency-set -g performance, or: tuned-adm profile network-latency");
  }
}

void check_tuned(Context& context, Findings& findings) {
  const CommandResult result = context.host().run({"tuned-adm", "active"});
  const std::string said = trimmed(result.out);
  constexpr const char* kActive = "Current active profile: ";
  if (!result || !said.starts_with(kActive)) {
    findings.unknown("", "tuned-adm active: " + (result ? said : result.problem()),
                     "nothing by itself: the check governor sees what a profile would set",
                     "apt-get install tuned; tuned-adm profile network-latency");
    return;
  }
  const std::string profile = said.substr(std::string(kActive).size());
  for (const char* saving : {"powersave", "balanced", "desktop"}) {
    if (profile.find(saving) == std::string::npos) continue;
    findings.warn("", "profile " + profile, "it saves power where latency is wanted",
                  "tuned-adm profile network-latency");
    return;
  }
  findings.ok("", "profile " + profile);
}

}  // namespace ringroad::cli::doctor
