// What the result of a peer's probe means.

#include <cstdio>

#include "cli/doctor/answerer.h"
#include "cli/doctor/peer.h"

namespace ringroad::cli::doctor {
namespace {


std::string number(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string micros(double value) { return number(value, value < 100 ? 1 : 0) + " us"; }

std::string describe(const Pings& one) {
  return "p50 " + micros(one.p50_us) + ", min " + micros(one.min_us) + " (" +
         std::to_string(one.count) + ")";
}

std::string size_text(std::uint32_t bytes) {
  return bytes >= 1024 ? std::to_string(bytes / 1024) + " KiB" : std::to_string(bytes) + " B";
}

const Pings* of_size(const std::vector<Pings>& list, std::uint32_t bytes) {
  for (const Pings& one : list) {
    if (one.bytes == bytes && one.count != 0) return &one;
  }
  return nullptr;
}

bool has_peer_reason(const ProbeResult& result) {
  return !result.peer_reason.empty() && result.peer_reason != "none";
}

std::string reasons(const ProbeResult& result) {
  const std::string text = result.reason.empty() ? "no reason" : result.reason;
  return has_peer_reason(result) ? text + ", at the peer " + result.peer_reason : text;
}

// What tells an operator about them.
std::string reasons_command(const ProbeResult& result) {
  return "ringroad reasons" + (result.reason.empty() ? "" : " " + result.reason) +
         (has_peer_reason(result) ? " " + result.peer_reason : "");
}

void judge_cm(const ProbeResult& result, const std::string& name, Findings& findings) {
  constexpr const char* kFar = "whether the peer's connection manager is reached";
  if (result.state == "ON_CHANNEL" || result.reason == "peer_refused" ||
      result.reason == "peer_left" || result.reason == "peer_gave_up" ||
      result.reason == "wrong_key") {
    findings.ok(name, "the peer's connection manager answers");
  } else if (result.reason == "peer_has_no_ringroad") {
    findings.ok(name, "the peer's connection manager answers: nobody listens on this port");
  } else if (result.reason == "timeout") {
    findings.fail(name, "no answer to the connection request (RDMA_CM_EVENT_UNREACHABLE)",
                  "streams to this peer stay on TCP (timeout)",
                  "rping -s -v on the peer, rping -c -v -a " + name +
                      " here; ringroad doctor there; firewalls on UDP 4791 between the hosts; the "
                      "same RoCE version and VLAN at both ends");
  } else if (result.reason == "no_rdma_device") {
    findings.fail(name, "no RDMA device of this host reaches it, or it has none",
                  "streams to this peer stay on TCP (no_rdma_device)",
                  "ringroad doctor here and there; ip route get " + name);
  } else {
    findings.unknown(name, "it was not asked: " + reasons(result), kFar, "ringroad doctor");
  }
}

void judge_promotion(const ProbeResult& result, const Peer& peer, Findings& findings) {
  const std::string name = peer.host + ":" + std::to_string(peer.port);
  if (result.state == "ON_CHANNEL") {
    findings.ok(name, "on " + result.carrier +
                          (result.device.empty() ? "" : ", device " + result.device) + ", after " +
                          number(result.promotion_ms, 0) + " ms");
    return;
  }
  const bool silent = result.reason == "peer_has_no_ringroad";
  findings.add(silent && !result.answers ? Level::kWarn : Level::kFail, name,
               "state " + result.state + ", reason " + reasons(result),
               "streams with this peer stay on TCP",
               silent ? "start the server preloaded, with a rule for this port (ringroad run); or "
                        "probe with ringroad doctor --answer on the peer"
                      : reasons_command(result));
}

void judge_pings(const ProbeResult& result, const std::string& name, Findings& findings) {
  for (const std::uint32_t bytes : {64U, 65536U}) {
    const Pings* tcp = of_size(result.tcp, bytes);
    const Pings* rdma = of_size(result.rdma, bytes);
    if (tcp == nullptr && rdma == nullptr) continue;
    const std::string subject = name + ", " + size_text(bytes);
    const std::string evidence = "TCP " + (tcp != nullptr ? describe(*tcp) : "none") + "; RDMA " +
                                 (rdma != nullptr ? describe(*rdma) : "none");
    if (tcp == nullptr || rdma == nullptr) {
      findings.unknown(subject, evidence, "how RDMA compares with TCP",
                       "the finding peer-promotion comes first");
    } else if (rdma->p50_us > tcp->p50_us) {
      findings.warn(
          subject, evidence,
          "RDMA is " + number(rdma->p50_us / tcp->p50_us, 2) + " times as slow as TCP here",
          "the checks mtu, governor, numa, irq and counters at both ends; Soft-RoCE is "
          "slower than TCP by its nature");
    } else {
      findings.ok(subject, evidence);
    }
  }
}

}  // namespace

void judge_probe(const ProbeResult& result, const Peer& peer, const std::string& rule,
                 std::vector<Finding>& list) {
  const std::string name = peer.host + ":" + std::to_string(peer.port);
  Findings tcp("peer-tcp", kPeerGroup, list);
  if (!result.connected) {
    tcp.fail(
        name, "connect: " + result.error,
        peer.default_port ? "nothing can be measured" : "neither TCP nor RDMA reaches this service",
        "on the peer: ringroad doctor --answer" +
            (peer.default_port ? std::string() : " " + std::to_string(peer.port)) +
            "; firewalls on this TCP port");
    return;
  }
  tcp.ok(name, "connected from " + result.local + " in " + micros(result.connect_us));
  if (!result.error.empty()) {
    tcp.fail(name, "ping: " + result.error, "messages do not come back", "ringroad doctor there");
  }
  if (!result.answers) {
    Findings("peer-ping", kPeerGroup, list)
        .unknown(name, "no ringroad doctor --answer listens there", "how long messages take",
                 "on the peer: ringroad doctor --answer");
  }
  if (rule.empty() || !result.preloaded) return;
  if (!result.asked.empty() || result.state.empty()) {
    Findings("peer-promotion", kPeerGroup, list)
        .unknown(name,
                 result.asked.empty() ? "the library tells of no such stream"
                                      : "the library cannot be asked: " + result.asked,
                 "whether the peer is reached over RDMA",
                 "is " + std::string("/dev/shm/ringroad") +
                     " writable? RINGROAD_LOG=stderr "
                     "ringroad doctor --peer " +
                     peer.host);
    return;
  }
  Findings cm("peer-cm", kPeerGroup, list);
  judge_cm(result, peer.host, cm);
  Findings promotion("peer-promotion", kPeerGroup, list);
  judge_promotion(result, peer, promotion);
  Findings pings("peer-ping", kPeerGroup, list);
  judge_pings(result, name, pings);
}

}  // namespace ringroad::cli::doctor
