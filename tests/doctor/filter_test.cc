// Packet filters, and rdma_cm's listener.

#include "cli/doctor/firewall.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;
using Kind = Verdict::Kind;

constexpr const char* kNft = "nft -j list ruleset";

std::string nft(const std::string& policy, const std::vector<std::string>& rules,
                const std::string& more = "") {
  std::string text =
      R"({"nftables":[{"chain":{"family":"inet","table":"t","name":"in","type":"filter",)"
      R"("hook":"input","policy":")" +
      policy + "\"}}";
  for (const std::string& rule : rules) {
    text += R"(,{"rule":{"family":"inet","table":"t","chain":"in","expr":[)" + rule + "]}}";
  }
  return text + more + "]}";
}

const std::string kMatchPort =
    R"({"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":4791}},)";
const std::string kPorts =
    R"({"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},)"
    R"("right":{"set":[53,{"range":[4000,5000]}]}}},)";
const std::string kOtherPort =
    R"({"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":53}},)";
const std::string kFrom =
    R"({"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":"10.0.0.0"}},)";
const std::string kAccept = R"({"accept":null})";
const std::string kDrop = R"({"drop":null})";

Kind judge(const std::string& text) {
  std::vector<Verdict> verdicts;
  EXPECT_TRUE(judge_nft(text, true, true, verdicts)) << text;
  EXPECT_EQ(verdicts.size(), 1U);
  return verdicts.empty() ? Kind::kOpen : verdicts.front().kind;
}

TEST(Nft, APolicyOfAcceptIsOpenUnlessARuleDropsThePort) {
  EXPECT_EQ(judge(nft("accept", {})), Kind::kOpen);
  EXPECT_EQ(judge(nft("accept", {kMatchPort + kDrop})), Kind::kFiltered);
  EXPECT_EQ(judge(nft("accept", {kPorts + R"({"reject":{"type":"icmp"}})"})), Kind::kFiltered);
  EXPECT_EQ(judge(nft("accept", {kOtherPort + kDrop})), Kind::kOpen);
}

TEST(Nft, APolicyOfDropIsOpenOnlyIfARuleAcceptsThePort) {
  EXPECT_EQ(judge(nft("drop", {})), Kind::kFiltered);
  EXPECT_EQ(judge(nft("drop", {kMatchPort + kAccept})), Kind::kOpen);
  EXPECT_EQ(judge(nft("drop", {kPorts + kAccept})), Kind::kOpen);
  EXPECT_EQ(judge(nft("drop", {kOtherPort + kAccept})), Kind::kFiltered);
  EXPECT_EQ(judge(nft("drop", {kAccept})), Kind::kOpen);
}

TEST(Nft, TheFirstOfAcceptAndDropDecides) {
  EXPECT_EQ(judge(nft("drop", {kMatchPort + kDrop, kMatchPort + kAccept})), Kind::kFiltered);
  EXPECT_EQ(judge(nft("accept", {kMatchPort + kAccept, kDrop})), Kind::kOpen);
}

TEST(Nft, AnAcceptBySomethingElseLeavesItUnknown) {
  EXPECT_EQ(judge(nft("drop", {kFrom + kAccept})), Kind::kMaybe);
}

TEST(Nft, AnAcceptThatNoNewPacketOfAnotherHostMeetsDoesNotCount) {
  for (
      const char* match :
      {R"({"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["established","related"]}},)",
       R"({"match":{"op":"==","left":{"meta":{"key":"iif"}},"right":"lo"}},)",
       R"({"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":22}},)",
       R"({"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"tcp"}},)",
       R"({"match":{"op":"==","left":{"payload":{"protocol":"icmp","field":"type"}},"right":8}},)"}) {
    EXPECT_EQ(judge(nft("drop", {match + kAccept})), Kind::kFiltered) << match;
  }
}

TEST(Nft, OnlyTheFamiliesThatAreAskedForCount) {
  const auto count = [](const std::string& family, bool ipv4, bool ipv6) {
    std::vector<Verdict> verdicts;
    std::string text = nft("drop", {});
    text.replace(text.find("inet"), 4, family);
    EXPECT_TRUE(judge_nft(text, ipv4, ipv6, verdicts));
    return verdicts.size();
  };
  EXPECT_EQ(count("ip", true, false), 1U);
  EXPECT_EQ(count("ip6", true, false), 0U);
  EXPECT_EQ(count("ip6", false, true), 1U);
  EXPECT_EQ(count("ip", false, true), 0U);
  EXPECT_EQ(count("arp", true, true), 0U);
}

TEST(Nft, ChainsThatAreJumpedToCount) {
  const std::string jump = R"({"jump":{"target":"roce"}})";
  const std::string chain =
      R"(,{"chain":{"family":"inet","table":"t","name":"roce"}},)"
      R"({"rule":{"family":"inet","table":"t","chain":"roce","expr":[)";
  EXPECT_EQ(judge(nft("drop", {jump}, chain + kMatchPort + kAccept + "]}}")), Kind::kOpen);
  EXPECT_EQ(judge(nft("accept", {jump}, chain + kMatchPort + kDrop + "]}}")), Kind::kFiltered);
  // In a circle.
  EXPECT_EQ(judge(nft("drop", {jump}, chain + R"({"jump":{"target":"in"}})" + "]}}")),
            Kind::kFiltered);
}

const std::string kFromDocker =
    R"({"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"docker0"}},)";
const std::string kJump = R"({"jump":{"target":"x"}})";
const std::string kGoto = R"({"goto":{"target":"x"}})";
const std::string kReturn = R"({"return":null})";

// The chain x, which has no hook.
std::string chain_x(const std::vector<std::string>& rules) {
  std::string text = R"(,{"chain":{"family":"inet","table":"t","name":"x"}})";
  for (const std::string& rule : rules) {
    text += R"(,{"rule":{"family":"inet","table":"t","chain":"x","expr":[)" + rule + "]}}";
  }
  return text;
}

TEST(Nft, WhatAJumpAsksForIsAskedOfItsChainToo) {
  for (const std::string& jump : {kJump, kGoto}) {
    EXPECT_EQ(judge(nft("drop", {kFromDocker + jump}, chain_x({kAccept}))), Kind::kMaybe);
    EXPECT_EQ(judge(nft("drop", {kFromDocker + jump}, chain_x({kMatchPort + kAccept}))), Kind::kMaybe);
    EXPECT_EQ(judge(nft("accept", {kFromDocker + jump}, chain_x({kMatchPort + kDrop}))), Kind::kMaybe);
    EXPECT_EQ(judge(nft("accept", {kFromDocker + jump}, chain_x({kDrop}))), Kind::kMaybe);
    EXPECT_EQ(judge(nft("drop", {kMatchPort + jump}, chain_x({kAccept}))), Kind::kOpen);
    EXPECT_EQ(judge(nft("accept", {kMatchPort + jump}, chain_x({kDrop}))), Kind::kFiltered);
    EXPECT_EQ(judge(nft("drop", {kOtherPort + jump}, chain_x({kAccept}))), Kind::kFiltered);
    EXPECT_EQ(judge(nft("drop", {kFromDocker + jump, kMatchPort + kAccept}, chain_x({kAccept}))),
              Kind::kOpen);
  }
}

TEST(Nft, ADropBeforeAJumpDecides) {
  EXPECT_EQ(judge(nft("accept", {kDrop, kJump}, chain_x({kAccept}))), Kind::kFiltered);
  EXPECT_EQ(judge(nft("drop", {kMatchPort + kDrop, kJump}, chain_x({kMatchPort + kAccept}))),
            Kind::kFiltered);
  EXPECT_EQ(judge(nft("drop", {kJump, kDrop}, chain_x({kMatchPort + kAccept}))), Kind::kOpen);
  EXPECT_EQ(judge(nft("drop", {kJump, kMatchPort + kAccept}, chain_x({kDrop}))), Kind::kFiltered);
}

TEST(Nft, AGotoDoesNotComeBackAndAReturnEndsAChain) {
  EXPECT_EQ(judge(nft("drop", {kGoto, kMatchPort + kAccept}, chain_x({kOtherPort + kAccept}))),
            Kind::kFiltered);
  EXPECT_EQ(judge(nft("drop", {kFromDocker + kGoto, kMatchPort + kAccept}, chain_x({}))), Kind::kMaybe);
  EXPECT_EQ(judge(nft("drop", {kJump, kMatchPort + kAccept}, chain_x({kOtherPort + kAccept}))),
            Kind::kOpen);
  EXPECT_EQ(judge(nft("accept", {kJump}, chain_x({kMatchPort + kReturn, kDrop}))), Kind::kOpen);
  EXPECT_EQ(judge(nft("drop", {kReturn, kMatchPort + kAccept})), Kind::kFiltered);
  EXPECT_EQ(judge(nft("accept", {kJump}, chain_x({kFromDocker + kReturn, kDrop}))), Kind::kMaybe);
  EXPECT_EQ(judge(nft("drop", {kJump}, chain_x({kFromDocker + kReturn, kMatchPort + kAccept}))),
            Kind::kMaybe);
}

std::string vmap(const std::string& key, const std::string& data) {
  return R"({"vmap":{"key":)" + key + R"(,"data":)" + data + "}}";
}

TEST(Nft, VerdictMapsAreFollowed) {
  const std::string interface = R"({"meta":{"key":"iifname"}})";
  const std::string jump = R"({"set":[["docker0",{"jump":{"target":"x"}}]]})";
  EXPECT_EQ(judge(nft("drop", {vmap(interface, jump)}, chain_x({kAccept}))), Kind::kMaybe);
  EXPECT_EQ(judge(nft("accept", {vmap(interface, jump)}, chain_x({kDrop}))), Kind::kMaybe);
  EXPECT_EQ(judge(nft("accept", {vmap(interface, R"({"set":[["eth5",{"drop":null}]]})")})),
            Kind::kMaybe);
  EXPECT_EQ(judge(nft("accept", {vmap(interface, R"("@zones")")})), Kind::kMaybe);
  EXPECT_EQ(judge(nft("drop", {vmap(interface, R"("@zones")")})), Kind::kMaybe);
  const std::string port = R"({"payload":{"protocol":"udp","field":"dport"}})";
  EXPECT_EQ(judge(nft("drop", {vmap(port, R"({"set":[[4791,{"accept":null}]]})")})), Kind::kOpen);
  EXPECT_EQ(judge(nft("accept", {vmap(port, R"({"set":[[4791,{"drop":null}]]})")})),
            Kind::kFiltered);
  EXPECT_EQ(judge(nft("drop", {vmap(port, R"({"set":[[53,{"accept":null}]]})")})), Kind::kFiltered);
}

TEST(Nft, VerdictMapsThatNoNewPacketOfAnotherHostMeetsDoNotCount) {
  // As in the examples that come with nftables.
  const std::string states = vmap(
      R"({"ct":{"key":"state"}})",
      R"({"set":[["established",{"accept":null}],["related",{"accept":null}],["invalid",{"drop":null}]]})");
  EXPECT_EQ(judge(nft("accept", {states})), Kind::kOpen);
  EXPECT_EQ(judge(nft("drop", {states})), Kind::kFiltered);
  EXPECT_EQ(judge(nft("drop", {states, kMatchPort + kAccept})), Kind::kOpen);
  const std::string tcp = R"({"payload":{"protocol":"tcp","field":"dport"}})";
  EXPECT_EQ(judge(nft("drop", {vmap(tcp, R"("@services")")})), Kind::kFiltered);
  const std::string protocols =
      vmap(R"({"meta":{"key":"l4proto"}})",
           R"({"set":[["tcp",{"drop":null}],["udp",{"jump":{"target":"x"}}]]})");
  EXPECT_EQ(judge(nft("drop", {protocols}, chain_x({kMatchPort + kAccept}))), Kind::kOpen);
}

TEST(Nft, ChainsThatBranchAtEveryRuleComeToAnEnd) {
  std::string more;
  const auto name = [](int i) { return i == 0 ? std::string("x") : "x" + std::to_string(i); };
  for (int i = 0; i < 40; ++i) {
    const std::string head = R"("family":"inet","table":"t",)";
    more += R"(,{"chain":{)" + head + R"("name":")" + name(i) + R"("}})";
    for (int twice = 0; twice < 2; ++twice) {
      more += R"(,{"rule":{)" + head + R"("chain":")" + name(i) +
              R"(","expr":[{"jump":{"target":")" + name(i + 1) + R"("}}]}})";
    }
  }
  EXPECT_EQ(judge(nft("accept", {kJump}, more)), Kind::kMaybe);
}

Kind kind(const std::string& rules) {
  std::vector<Verdict> verdicts;
  judge_iptables("*nat\n:INPUT DROP [0:0]\nCOMMIT\n*filter\n" + rules + "COMMIT\n", verdicts);
  EXPECT_EQ(verdicts.size(), 1U);
  return verdicts.empty() ? Kind::kOpen : verdicts.front().kind;
}

TEST(Iptables, JumpsAndTheirOrderAreJudgedLikewise) {
  const std::string drop = ":INPUT DROP [0:0]\n:X - [0:0]\n";
  const std::string accept = ":INPUT ACCEPT [0:0]\n:X - [0:0]\n";
  EXPECT_EQ(kind(drop + "-A INPUT -i docker0 -g X\n-A X -j ACCEPT\n"), Kind::kMaybe);
  EXPECT_EQ(kind(drop + "-A INPUT -i docker0 -j X\n-A X -p udp --dport 4791 -j ACCEPT\n"),
            Kind::kMaybe);
  EXPECT_EQ(kind(drop + "-A INPUT -p udp -m udp --dport 4791 -j X\n-A X -j ACCEPT\n"), Kind::kOpen);
  EXPECT_EQ(kind(accept + "-A INPUT -i docker0 -j X\n-A X -j DROP\n"), Kind::kMaybe);
  EXPECT_EQ(kind(accept + "-A INPUT -j DROP\n-A INPUT -j X\n-A X -p udp --dport 4791 -j ACCEPT\n"),
            Kind::kFiltered);
  EXPECT_EQ(kind(drop + "-A INPUT -g X\n-A INPUT -j ACCEPT\n"), Kind::kFiltered);
  EXPECT_EQ(kind(accept + "-A INPUT -j X\n-A X -j RETURN\n-A X -j DROP\n"), Kind::kOpen);
}

TEST(Iptables, ANegationIsRead) {
  const std::string drop = ":INPUT DROP [0:0]\n";
  EXPECT_EQ(kind(drop + "-A INPUT ! -i lo -j ACCEPT\n"), Kind::kOpen);
  EXPECT_EQ(kind(drop + "-A INPUT ! -p udp -j ACCEPT\n"), Kind::kFiltered);
  EXPECT_EQ(kind(":INPUT ACCEPT [0:0]\n-A INPUT ! -p tcp -j DROP\n"), Kind::kFiltered);
  EXPECT_EQ(kind(":INPUT ACCEPT [0:0]\n-A INPUT -p udp -m udp ! --dport 53 -j DROP\n"),
            Kind::kFiltered);
  EXPECT_EQ(kind(drop + "-A INPUT -p udp -m udp ! --dport 4791 -j ACCEPT\n"), Kind::kFiltered);
}

// As ufw lays its chains out: what is not for this host is dropped before the port is opened.
TEST(Iptables, APortThatUfwOpensIsOpen) {
  EXPECT_EQ(kind(":INPUT DROP [0:0]\n:ufw-before-input - [0:0]\n:ufw-not-local - [0:0]\n"
                 ":ufw-user-input - [0:0]\n-A INPUT -j ufw-before-input\n"
                 "-A ufw-before-input -m conntrack --ctstate INVALID -j DROP\n"
                 "-A ufw-before-input -j ufw-not-local\n-A ufw-before-input -j ufw-user-input\n"
                 "-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN\n"
                 "-A ufw-not-local -m addrtype --dst-type BROADCAST -j RETURN\n"
                 "-A ufw-not-local -j DROP\n"
                 "-A ufw-user-input -p udp -m udp --dport 4791 -j ACCEPT\n"),
            Kind::kOpen);
}

TEST(Iptables, IsJudgedLikewise) {
  const std::string drop = ":INPUT DROP [0:0]\n";
  EXPECT_EQ(kind(":INPUT ACCEPT [0:0]\n"), Kind::kOpen);
  EXPECT_EQ(kind(drop), Kind::kFiltered);
  EXPECT_EQ(kind(drop + "-A INPUT -p udp -m udp --dport 4791 -j ACCEPT\n"), Kind::kOpen);
  EXPECT_EQ(kind(drop + "-A INPUT -p udp -m multiport --dports 53,4790:4792 -j ACCEPT\n"),
            Kind::kOpen);
  EXPECT_EQ(kind(drop + "-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n"), Kind::kFiltered);
  EXPECT_EQ(kind(drop + "-A INPUT -i lo -j ACCEPT\n"), Kind::kFiltered);
  EXPECT_EQ(kind(drop + "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"),
            Kind::kFiltered);
  EXPECT_EQ(kind(drop + "-A INPUT -s 10.0.0.0/8 -j ACCEPT\n"), Kind::kMaybe);
  EXPECT_EQ(kind(":INPUT ACCEPT [0:0]\n-A INPUT -j REJECT --reject-with icmp-port-unreachable\n"),
            Kind::kFiltered);
  EXPECT_EQ(kind(drop + ":ROCE - [0:0]\n-A INPUT -j ROCE\n-A ROCE -p udp --dport 4791 -j ACCEPT\n"),
            Kind::kOpen);
}

TEST(Firewall, FiltersSoftRoceForGoodButACardOnlyPerhaps) {
  Tree soft("softroce");
  soft.says(kNft, nft("drop", {}));
  EXPECT_THAT(soft.check("firewall"), Worst(Level::kFail, "has the policy drop"));
  Tree card;
  card.says(kNft, nft("drop", {}));
  const auto findings = card.check("firewall");
  EXPECT_THAT(findings, Worst(Level::kWarn, "has the policy drop"));
  EXPECT_THAT(texts(findings), HasSubstr("nft insert rule inet t in udp dport 4791 accept"));
}

TEST(Firewall, WhatOrdinaryUsersMayNotReadIsUnknown) {
  Tree tree;
  tree.fails(kNft, "1\nOperation not permitted (you must be root)");
  const auto findings = tree.check("firewall");
  EXPECT_THAT(findings, Worst(Level::kUnknown, "you must be root"));
  EXPECT_THAT(texts(findings), HasSubstr("run this as root"));
}

TEST(Firewall, AKernelWithoutAPacketFilterIsOpen) {
  Tree tree;
  tree.fails(kNft, "missing").remove("/sys/module/nf_tables");
  EXPECT_THAT(tree.check("firewall"), Worst(Level::kOk, "no packet filter loaded"));
}

TEST(Firewall, BothToolsAreAsked) {
  Tree tree;
  tree.says("iptables-save", "*filter\n:INPUT DROP [0:0]\nCOMMIT\n");
  const auto findings = tree.check("firewall");
  EXPECT_THAT(findings, Worst(Level::kWarn, "iptables chain INPUT has the policy drop"));
  EXPECT_THAT(texts(findings), HasSubstr("iptables -I INPUT"));
}

TEST(Firewall, OfIpv6IsNoMatterToAPolicyWithoutIt) {
  Tree tree("softroce");
  tree.says("ip6tables-save", "*filter\n:INPUT DROP [0:0]\nCOMMIT\n");
  EXPECT_EQ(worst(tree.check("firewall")), Level::kOk);
  tree.write("/policy/10.toml", "version = 1\n[[rule]]\nsubnet = \"fd00::/64\"\nvia = \"rdma\"\n");
  EXPECT_EQ(worst(tree.check("firewall")), Level::kFail);
}

TEST(Listener, IsTriedOnEachRdmaAddressAndNoOther) {
  const auto findings = Tree("softroce").check("listener");
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(worst(findings), Level::kOk);
}

TEST(Listener, AProbeThatHangsIsAFailure) {
  Tree tree;
  tree.fails("ringroad doctor --probe-listen 10.20.0.11", "timeout");
  EXPECT_THAT(tree.check("listener"), Worst(Level::kFail, "no answer in time"));
}

TEST(Listener, ADeviceWithoutAnAddressIsAFailure) {
  Tree tree;
  tree.says("ip -json address show", "[]");
  EXPECT_THAT(tree.check("listener"), Worst(Level::kFail, "has an address"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
