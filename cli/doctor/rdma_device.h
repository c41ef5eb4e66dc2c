// The RDMA devices of a host, as /sys/class/infiniband shows them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/host.h"
#include "rsocket-core/net/address.h"

namespace ringroad::cli::doctor {

struct Gid {
  unsigned index = 0;
  Address address;  // an IPv4 one where the entry is ::ffff:a.b.c.d
  std::string type;         // "RoCE v2", "IB/RoCE v1"
  std::string netdev;

  bool is_v2() const { return type == "RoCE v2"; }
};

struct RdmaPort {
  std::string number;
  std::string state;       // "ACTIVE"
  std::string phys_state;  // "LinkUp"
  std::string rate;        // "100 Gb/sec (4X EDR)"
  std::string link_layer;  // "Ethernet", "InfiniBand"
  std::string folder;      // its own below /sys
  std::vector<Gid> gids;   // those in use

  bool active() const { return state == "ACTIVE"; }
};

struct RdmaDevice {
  std::string name;
  std::string folder;     // /sys/class/infiniband/NAME
  std::string pci;        // "0000:3b:00.0"; empty: it is no PCI device
  bool software = false;  // rxe, siw
  std::vector<RdmaPort> ports;
  std::vector<std::string> netdevs;      // those that its GIDs name, also VLANs and bonds
  std::vector<std::string> own_netdevs;  // the card's own, without VLANs and bonds
  // All of these are in other network namespaces, so no program of this one finds an address of the device's.
  bool elsewhere = false;
};

std::vector<RdmaDevice> find_rdma_devices(Host& host);

// The device that has this network device; null: none.
const RdmaDevice* device_of(const std::vector<RdmaDevice>& devices, const std::string& netdev);

// "ACTIVE" of "4: ACTIVE".
std::string after_colon(const std::string& text);

// The RDMA MTU that the kernel makes of a network device's: the largest of 256 .. 4096 that leaves
// room for the 96 bytes of headers (include/rdma/ib_addr.h, iboe_get_mtu); 0: too small.
unsigned rdma_mtu_of(unsigned netdev_mtu) noexcept;

std::optional<unsigned long long> to_number(const std::string& text);

}  // namespace ringroad::cli::doctor
