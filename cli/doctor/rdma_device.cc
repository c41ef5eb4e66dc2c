#include "cli/doctor/rdma_device.h"

#include <algorithm>
#include <charconv>

#include "cli/doctor/words.h"

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kClass = "/sys/class/infiniband";
constexpr const char* kNoGid = "0000:0000:0000:0000:0000:0000:0000:0000";
constexpr unsigned kRoceHeaderBytes = 96;

void add_once(std::vector<std::string>& list, const std::string& name) {
  if (!name.empty() && std::find(list.begin(), list.end(), name) == list.end()) {
    list.push_back(name);
  }
}

std::vector<Gid> read_gids(Host& host, const std::string& port) {
  std::vector<Gid> gids;
  for (const std::string& index : host.list(port + "/gids").names) {
    const std::string value = host.text(port + "/gids/" + index);
    const auto address = Address::parse(value);
    const auto number = to_number(index);
    if (!address || !number || value == kNoGid) continue;
    gids.push_back({static_cast<unsigned>(*number), *address,
                    host.text(port + "/gid_attrs/types/" + index),
                    host.text(port + "/gid_attrs/ndevs/" + index)});
  }
  return gids;
}

RdmaPort read_port(Host& host, const std::string& folder, const std::string& number) {
  RdmaPort port;
  port.number = number;
  port.folder = folder;
  port.state = after_colon(host.text(folder + "/state"));
  port.phys_state = after_colon(host.text(folder + "/phys_state"));
  port.rate = host.text(folder + "/rate");
  port.link_layer = host.text(folder + "/link_layer");
  port.gids = read_gids(host, folder);
  return port;
}

RdmaDevice read_device(Host& host, const std::string& name) {
  RdmaDevice device;
  device.name = name;
  device.folder = std::string(kClass) + "/" + name;
  const std::string where = host.link(device.folder).text;
  device.software = where.find("/virtual/") != std::string::npos;
  const std::string parent = device.folder + "/device";
  if (!device.software && host.read(parent + "/vendor")) {
    device.pci = last_part(host.link(parent).text);
  }
  for (const std::string& port : host.list(device.folder + "/ports").names) {
    device.ports.push_back(read_port(host, device.folder + "/ports/" + port, port));
    for (const Gid& gid : device.ports.back().gids) add_once(device.netdevs, gid.netdev);
  }
  device.own_netdevs = host.list(parent + "/net").names;
  add_once(device.own_netdevs, host.text(device.folder + "/parent"));
  for (const std::string& netdev : device.netdevs) {
    for (const std::string& slave :
         split(host.text("/sys/class/net/" + netdev + "/bonding/slaves"))) {
      add_once(device.own_netdevs, slave);
    }
  }
  if (device.own_netdevs.empty()) device.own_netdevs = device.netdevs;
  if (device.netdevs.empty()) device.netdevs = device.own_netdevs;
  return device;
}

}  // namespace

std::vector<RdmaDevice> find_rdma_devices(Host& host) {
  const std::vector<std::string> here = host.list("/sys/class/net").names;
  const auto is_here = [&](const std::string& netdev) {
    return here.empty() || std::find(here.begin(), here.end(), netdev) != here.end();
  };
  std::vector<RdmaDevice> devices;
  for (const std::string& name : host.list(kClass).names) {
    RdmaDevice& device = devices.emplace_back(read_device(host, name));
    device.elsewhere = !device.netdevs.empty() &&
                       std::none_of(device.netdevs.begin(), device.netdevs.end(), is_here);
  }
  return devices;
}

const RdmaDevice* device_of(const std::vector<RdmaDevice>& devices, const std::string& netdev) {
  for (const RdmaDevice& device : devices) {
    if (std::find(device.netdevs.begin(), device.netdevs.end(), netdev) != device.netdevs.end()) {
      return &device;
    }
  }
  return nullptr;
}

std::string after_colon(const std::string& text) {
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

unsigned rdma_mtu_of(unsigned netdev_mtu) noexcept {
  for (unsigned mtu = 4096; mtu >= 256; mtu /= 2) {
    if (netdev_mtu >= mtu + kRoceHeaderBytes) return mtu;
  }
  return 0;
}

std::optional<unsigned long long> to_number(const std::string& text) {
  unsigned long long value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace ringroad::cli::doctor
