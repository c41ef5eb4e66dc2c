// Error and congestion counters, read twice.

#include <map>

#include "cli/doctor/check.h"

namespace ringroad::cli::doctor {
namespace {

enum class Kind : unsigned char { kError, kLoss, kCongestion };

struct Known {
  const char* name;
  Kind kind;
};

// Documentation/ABI/stable/sysfs-class-infiniband for counters/, the drivers' own lists for
// hw_counters/ (mlx5: drivers/infiniband/hw/mlx5/counters.c, rxe: rxe_hw_counters.c).
constexpr Known kKnown[] = {
    {"symbol_error", Kind::kError},
    {"link_error_recovery", Kind::kError},
    {"link_downed", Kind::kError},
    {"port_rcv_errors", Kind::kError},
    {"local_link_integrity_errors", Kind::kError},
    {"local_ack_timeout_err", Kind::kError},
    {"rx_icrc_encapsulated", Kind::kError},
    {"req_transport_retries_exceeded", Kind::kError},
    {"req_cqe_error", Kind::kError},
    {"resp_cqe_error", Kind::kError},
    {"retry_exceeded_err", Kind::kError},
    {"retry_rnr_exceeded_err", Kind::kError},
    {"completer_retry_err", Kind::kError},
    {"send_err", Kind::kError},
    {"rx_crc_errors", Kind::kError},
    {"rx_errors", Kind::kError},
    {"tx_errors", Kind::kError},
    {"out_of_sequence", Kind::kLoss},
    {"packet_seq_err", Kind::kLoss},
    {"implied_nak_seq_err", Kind::kLoss},
    {"duplicate_request", Kind::kLoss},
    {"out_of_seq_request", Kind::kLoss},
    {"rcvd_seq_err", Kind::kLoss},
    {"out_of_buffer", Kind::kLoss},
    {"rnr_nak_retry_err", Kind::kLoss},
    {"rcvd_rnr_err", Kind::kLoss},
    {"send_rnr_err", Kind::kLoss},
    {"port_xmit_discards", Kind::kLoss},
    {"rx_dropped", Kind::kLoss},
    {"tx_dropped", Kind::kLoss},
    {"port_xmit_wait", Kind::kCongestion},
    {"np_cnp_sent", Kind::kCongestion},
    {"rp_cnp_handled", Kind::kCongestion},
    {"np_ecn_marked_roce_packets", Kind::kCongestion},
};

const Known* known(const std::string& name) {
  for (const Known& entry : kKnown) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

using Reading = std::map<std::string, unsigned long long>;  // by counter

struct Place {
  std::string subject;
  std::string folder;
};

std::vector<Place> places(Context& context) {
  std::vector<Place> result;
  for (const RdmaDevice& device : context.devices()) {
    for (const RdmaPort& port : device.ports) {
      for (const char* folder : {"/counters", "/hw_counters"}) {
        result.push_back({device.name + "/" + port.number, port.folder + folder});
      }
    }
    for (const std::string& netdev : device.own_netdevs) {
      result.push_back({netdev, "/sys/class/net/" + netdev + "/statistics"});
    }
  }
  return result;
}

Reading read_counters(Host& host, const Place& place) {
  Reading reading;
  for (const std::string& name : host.list(place.folder).names) {
    if (known(name) == nullptr) continue;
    const auto value = to_number(host.text(place.folder + "/" + name));
    if (value) reading[name] = *value;
  }
  return reading;
}

void judge(Findings& findings, const std::string& subject, const Reading& before,
           const Reading& after, const std::string& time) {
  std::map<Kind, std::string> rising;
  std::string since;
  for (const auto& [name, value] : after) {
    const auto earlier = before.find(name);
    const Kind kind = known(name)->kind;
    if (earlier != before.end() && value > earlier->second) {
      std::string& text = rising[kind];
      text += (text.empty() ? "" : ", ") + name + " +" + std::to_string(value - earlier->second);
    } else if (value != 0 && kind != Kind::kCongestion) {
      since += (since.empty() ? "" : ", ") + name + " " + std::to_string(value);
    }
  }
  const std::string within = " within " + time;
  if (rising.contains(Kind::kError)) {
    findings.fail(
        subject, rising[Kind::kError] + within,
        "packets are damaged or time out: streams fall back to TCP (qp_error)",
        "cable and transceiver: ethtool -m NETDEV; the peer's and the switch port's error "
        "counters; dmesg");
  }
  if (rising.contains(Kind::kLoss)) {
    findings.warn(subject, rising[Kind::kLoss] + within,
                  "packets are lost or come too early and are sent again: latency of milliseconds",
                  "the checks pfc, trust and ecn at both ends, and the same on the switch");
  }
  if (rising.contains(Kind::kCongestion)) {
    findings.warn(subject, rising[Kind::kCongestion] + within,
                  "the fabric is congested, and senders are held back",
                  "which hosts send to this one at the same time? Switch queues, ECN thresholds");
  }
  if (rising.empty()) {
    findings.ok(subject,
                "none rose" + within + (since.empty() ? "" : "; since they began: " + since));
  }
}

}  // namespace

void check_counters(Context& context, Findings& findings) {
  const std::vector<Place> where = places(context);
  if (where.empty()) return;
  std::vector<Reading> before;
  for (const Place& place : where) before.push_back(read_counters(context.host(), place));
  context.host().pass(context.about().watch);
  const auto ms = context.about().watch.count();
  const std::string time =
      ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
  std::map<std::string, std::pair<Reading, Reading>> by_subject;
  for (std::size_t i = 0; i < where.size(); ++i) {
    auto& [earlier, later] = by_subject[where[i].subject];
    const Reading now = read_counters(context.host(), where[i]);
    earlier.insert(before[i].begin(), before[i].end());
    later.insert(now.begin(), now.end());
  }
  for (const auto& [subject, readings] : by_subject) {
    if (readings.second.empty()) {
      findings.unknown(subject, "it has no counters that are known", "whether packets are lost",
                       "rdma statistic show; ethtool -S NETDEV");
    } else {
      judge(findings, subject, readings.first, readings.second, time);
    }
  }
}

}  // namespace ringroad::cli::doctor
