// Whether RoCEv2's packets are let through, and whether rdma_cm answers.

#include "cli/doctor/check.h"
#include "cli/doctor/firewall.h"

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kUnheard =
    "neither connection requests nor RDMA packets arrive: streams stay on TCP (timeout)";

// `reason` begins with "nftables chain FAMILY TABLE NAME".
std::string mend(const std::string& reason) {
  const std::vector<std::string> words = split(reason);
  const std::string chain =
      words.size() < 5 ? "FAMILY TABLE CHAIN" : words[2] + " " + words[3] + " " + words[4];
  return reason.starts_with("iptables")
             ? "iptables -I INPUT -p udp --dport 4791 -j ACCEPT; the same for OUTPUT and "
               "ip6tables, "
               "and wherever the host keeps its rules"
             : "nft insert rule " + chain + " udp dport 4791 accept; and in /etc/nftables.conf";
}

}  // namespace

void check_firewall(Context& context, Findings& findings) {
  Host& host = context.host();
  std::vector<Verdict> verdicts;
  std::string source;
  std::string problem;
  bool ipv4 = context.rdma_rules().empty();
  bool ipv6 = ipv4;
  for (const policy::Rule* rule : context.rdma_rules()) {
    for (const policy::Prefix& subnet : rule->subnets) {
      (subnet.addr.is_v4() ? ipv4 : ipv6) = true;
    }
  }
  const CommandResult nft = host.run({"nft", "-j", "list", "ruleset"});
  if (nft && judge_nft(nft.out, ipv4, ipv6, verdicts)) {
    source = "nft list ruleset";
  } else {
    problem = "nft: " + (nft ? "no JSON" : nft.problem());
  }
  for (const char* tool : {"iptables-save", "ip6tables-save"}) {
    if (!(tool[2] == '6' ? ipv6 : ipv4)) continue;
    const CommandResult saved = host.run({tool});
    if (saved) {
      judge_iptables(saved.out, verdicts);
      source += (source.empty() ? "" : ", ") + std::string(tool);
    } else if (!saved.missing()) {
      problem += std::string(problem.empty() ? "" : "; ") + tool + ": " + saved.problem();
    }
  }
  bool bypassed = !context.devices().empty();
  for (const RdmaDevice& device : context.devices()) bypassed = bypassed && !device.software;
  bool filtered = false;
  for (const Verdict& verdict : verdicts) {
    if (verdict.kind == Verdict::Kind::kOpen) continue;
    filtered = true;
    const bool sure = verdict.kind == Verdict::Kind::kFiltered;
    findings.add(
        !sure      ? Level::kUnknown
        : bypassed ? Level::kWarn
                   : Level::kFail,
        "UDP 4791", verdict.reason,
        bypassed
            ? "none for a card, which takes its packets out before this filter; with Soft-RoCE, "
              "or in front of a filter like this one elsewhere: " +
                  std::string(kUnheard)
            : kUnheard,
        mend(verdict.reason));
  }
  if (filtered) return;
  if (!source.empty()) {
    findings.ok("UDP 4791", source + ": no chain of input or output drops it");
    return;
  }
  if (!host.list("/sys/module/nf_tables") && !host.list("/sys/module/ip_tables") &&
      !host.list("/sys/module/ip6_tables") && host.list("/sys/module")) {
    findings.ok("UDP 4791", "the kernel has no packet filter loaded");
    return;
  }
  findings.unknown("UDP 4791", problem, "whether this host filters RoCEv2",
                   "apt-get install nftables, and run this as root");
}

void check_listener(Context& context, Findings& findings) {
  bool any = false;
  for (const LocalAddress& own : context.addresses()) {
    const bool link_local = own.address.bytes[0] == 0xfe;
    if (!context.is_rdma_netdev(own.dev) || link_local) continue;
    any = true;
    const std::string address = own.address.to_string();
    const CommandResult result =
        context.host().run({"ringroad", "doctor", "--probe-listen", address});
    if (result) {
      findings.ok(address, "rdma_cm listens there, on " + trimmed(result.out));
    } else {
      findings.fail(address, result.problem(),
                    "servers on this address are not reached by RDMA (peer_has_no_ringroad at the "
                    "other end)",
                    "modprobe rdma_ucm; rdma link show; the checks device, access and gid");
    }
  }
  if (!any && !context.devices().empty()) {
    findings.fail(
        "", "no RDMA device's network device has an address",
        "streams stay on TCP (no_rdma_device)",
        "ip address add ADDRESS/LENGTH dev " + (context.devices().front().netdevs.empty()
                                                    ? std::string("NETDEV")
                                                    : context.devices().front().netdevs.front()));
  }
}

}  // namespace ringroad::cli::doctor
