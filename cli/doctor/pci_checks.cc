// How the card sits on its bus.

#include "cli/doctor/check.h"

namespace ringroad::cli::doctor {

void check_iommu(Context& context, Findings& findings) {
  Host& host = context.host();
  for (const RdmaDevice& device : context.devices()) {
    if (device.software) {
      findings.ok(device.name, "a software device needs none");
      continue;
    }
    const std::string group = last_part(host.link(device.folder + "/device/iommu_group").text);
    if (group.empty()) {
      findings.ok(device.name, "no IOMMU translates its addresses");
      continue;
    }
    const std::string type = host.text("/sys/kernel/iommu_groups/" + group + "/type");
    if (type == "identity") {
      findings.ok(device.name, "IOMMU group " + group + " passes through (identity)");
    } else if (type.starts_with("DMA")) {
      findings.warn(device.name, "IOMMU group " + group + " translates (" + type + ")",
                    "each packet's addresses are translated, and registering rings takes longer: "
                    "higher latency than need be",
                    "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub; update-grub; reboot\n"
                    "(in the BIOS VT-d or AMD-Vi may stay on)");
    } else {
      findings.unknown(device.name, "IOMMU group " + group + " is of type \"" + type + "\"",
                       "whether the card's addresses are translated", "cat /proc/cmdline");
    }
  }
}

void check_pcie(Context& context, Findings& findings) {
  Host& host = context.host();
  for (const RdmaDevice& device : context.devices()) {
    if (device.pci.empty()) {
      findings.ok(device.name, "no PCI device");
      continue;
    }
    const std::string folder = device.folder + "/device/";
    const std::string speed = host.text(folder + "current_link_speed");
    const std::string width = host.text(folder + "current_link_width");
    const std::string most_speed = host.text(folder + "max_link_speed");
    const std::string most_width = host.text(folder + "max_link_width");
    if (speed.empty() || width.empty() || most_speed.empty() || most_width.empty()) {
      findings.unknown(device.name, "the kernel shows no PCIe link, as in a virtual machine",
                       "whether the slot limits the card", "lspci -vv -s " + device.pci);
    } else if (speed != most_speed || width != most_width) {
      findings.warn(device.name,
                    speed + " x" + width + ", the card can do " + most_speed + " x" + most_width,
                    "throughput ends at the slot's",
                    "put the card into a slot of its width and generation; lspci -vv -s " +
                        device.pci + " | grep -i lnksta");
    } else {
      findings.ok(device.name, speed + " x" + width);
    }
  }
}

}  // namespace ringroad::cli::doctor
