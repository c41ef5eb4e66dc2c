// What a peer's probe is asked for, and what its result means.

#include "cli/doctor/peer.h"

#include "cli/doctor/answerer.h"
#include "cli/doctor/probe_policy.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;

ProbeResult promoted() {
  ProbeResult result;
  result.connected = result.answers = result.preloaded = true;
  result.local = "10.20.0.11:40000";
  result.state = "ON_CHANNEL";
  result.carrier = "rdma";
  result.reason = result.peer_reason = "none";
  result.device = "mlx5_0";
  result.promotion_ms = 3;
  result.tcp = {{64, 1000, 20, 25.04}, {65536, 200, 90, 110}};
  result.rdma = {{64, 1000, 4, 5.26}, {65536, 200, 20, 22}};
  return result;
}

std::vector<Finding> judge(const ProbeResult& result, const std::string& rule = "db") {
  std::vector<Finding> list;
  judge_probe(result, {"10.20.0.1", 4790, true}, rule, list);
  return list;
}

std::vector<Finding> of_check(const std::vector<Finding>& list, const std::string& check) {
  std::vector<Finding> result;
  for (const Finding& finding : list) {
    if (finding.check == check) result.push_back(finding);
  }
  return result;
}

TEST(PeerName, IsAHostWithOrWithoutAPort) {
  std::string why;
  const auto is = [&](const char* text, const char* host, unsigned port) {
    const auto peer = parse_peer(text, why);
    return peer && peer->host == host && peer->port == port;
  };
  EXPECT_TRUE(is("10.9.1.1", "10.9.1.1", 4790));
  EXPECT_TRUE(is("10.9.1.1:3306", "10.9.1.1", 3306));
  EXPECT_TRUE(is("db1:3306", "db1", 3306));
  EXPECT_TRUE(is("fd00::1", "fd00::1", 4790));
  EXPECT_TRUE(is("[fd00::1]:3306", "fd00::1", 3306));
  EXPECT_TRUE(is("[fd00::1]", "fd00::1", 4790));
  for (const char* wrong : {"", ":3306", "db1:", "db1:0", "db1:65536", "db1:x", "[fd00::1", "[]:1",
                            "[fd00::1]x", "[fd00::1]:", "-v", "a b", "a/b"}) {
    EXPECT_FALSE(parse_peer(wrong, why)) << wrong;
    EXPECT_THAT(why, HasSubstr("--peer"));
  }
}

TEST(PeerProbe, ResultsSurviveBeingWrittenDown) {
  ProbeResult back;
  ASSERT_TRUE(probe_result_from_text(to_text(promoted()), back));
  EXPECT_EQ(to_text(back), to_text(promoted()));
  EXPECT_FALSE(probe_result_from_text("", back));
  EXPECT_FALSE(probe_result_from_text("[1]", back));
  EXPECT_FALSE(probe_result_from_text("{\"tcp\":[7]}", back));
}

TEST(PeerProbe, SummarisesRoundTrips) {
  const Pings pings = summary(64, {5, 1, 3, 2, 4});
  EXPECT_EQ(pings.min_us, 1);
  EXPECT_EQ(pings.p50_us, 3);
  EXPECT_EQ(pings.count, 5U);
  EXPECT_EQ(summary(64, {}).count, 0U);
}

TEST(PeerFindings, OfAPromotedConnectionAreOkWithBothLatencies) {
  const auto list = judge(promoted());
  EXPECT_EQ(worst(list), Level::kOk) << texts(list);
  EXPECT_THAT(texts(list), HasSubstr("64 B: TCP p50 25.0 us, min 20.0 us (1000); RDMA p50 5.3 us"));
  EXPECT_THAT(texts(list), HasSubstr("64 KiB: TCP p50 110 us"));
  EXPECT_THAT(texts(list), HasSubstr("on rdma, device mlx5_0, after 3 ms"));
}

TEST(PeerFindings, RdmaThatIsSlowerThanTcpIsAWarning) {
  ProbeResult result = promoted();
  result.rdma[0].p50_us = 50.08;
  EXPECT_THAT(of_check(judge(result), "peer-ping"), Worst(Level::kWarn, "RDMA p50 50.1 us"));
  EXPECT_THAT(texts(judge(result)), HasSubstr("2.00 times as slow"));
}

TEST(PeerFindings, NoConnectionIsAFailureThatNamesAnswer) {
  ProbeResult result;
  result.error = "Connection refused";
  const auto list = judge(result);
  EXPECT_THAT(list, Worst(Level::kFail, "connect: Connection refused"));
  EXPECT_THAT(texts(list), HasSubstr("ringroad doctor --answer"));
  EXPECT_EQ(list.size(), 1U);
}

TEST(PeerFindings, AnUnreachableConnectionManagerIsAFailure) {
  ProbeResult result = promoted();
  result.state = "ON_TCP";
  result.reason = "timeout";
  result.rdma.clear();
  const auto list = judge(result);
  EXPECT_THAT(of_check(list, "peer-cm"), Worst(Level::kFail, "RDMA_CM_EVENT_UNREACHABLE"));
  EXPECT_THAT(texts(of_check(list, "peer-cm")), HasSubstr("UDP 4791"));
  EXPECT_THAT(of_check(list, "peer-promotion"), Worst(Level::kFail, "ON_TCP, reason timeout"));
  EXPECT_THAT(of_check(list, "peer-ping"), Worst(Level::kUnknown, "RDMA none"));
}

TEST(PeerFindings, ARefusalProvesTheConnectionManagerAndNamesThePeersReason) {
  ProbeResult result = promoted();
  result.state = "ON_TCP";
  result.reason = "peer_refused";
  result.peer_reason = "memlock";
  const auto list = judge(result);
  EXPECT_EQ(worst(of_check(list, "peer-cm")), Level::kOk);
  EXPECT_THAT(of_check(list, "peer-promotion"),
              Worst(Level::kFail, "reason peer_refused, at the peer memlock"));
}

TEST(PeerFindings, AnotherServerIsOnlyConnectedTo) {
  ProbeResult result;
  result.connected = result.preloaded = true;
  result.state = "ON_TCP";
  result.reason = "peer_has_no_ringroad";
  const auto list = judge(result);
  EXPECT_EQ(worst(of_check(list, "peer-cm")), Level::kOk);
  EXPECT_EQ(worst(of_check(list, "peer-promotion")), Level::kWarn);
  EXPECT_THAT(of_check(list, "peer-ping"), Worst(Level::kUnknown, "no ringroad doctor --answer"));
}

TEST(PeerFindings, ALibraryThatCannotBeAskedIsUnknown) {
  ProbeResult result = promoted();
  result.state.clear();
  result.asked = "nobody listens there";
  EXPECT_THAT(judge(result), Worst(Level::kUnknown, "the library cannot be asked: nobody listens"));
}

TEST(PeerFindings, AnEchoThatFailsIsAFailure) {
  ProbeResult result = promoted();
  result.error = "the echo differs from what was sent";
  EXPECT_THAT(judge(result), Worst(Level::kFail, "the echo differs"));
}

std::vector<Finding> examine(const Tree& tree, const std::string& peer) {
  RecordedHost host(tree.path());
  Questions questions;
  questions.library = "/no/such/libringroad.so";  // a recorded host runs nothing
  Context context(host, questions, policy::Policy::load({tree.path() + "/policy"}));
  return examine_peer(context, peer);
}

TEST(Peer, IsResolvedRoutedAndProbed) {
  Tree tree;
  tree.says("getent ahosts -- db1", "10.20.0.1 STREAM db1\n10.20.0.1 DGRAM\n")
      .says("ringroad doctor --probe-peer 10.20.0.1:4790", to_text(promoted()));
  const auto list = examine(tree, "db1");
  EXPECT_EQ(worst(of_check(list, "peer-route")), Level::kOk);
  EXPECT_THAT(of_check(list, "peer-gid"), Worst(Level::kOk, "RoCE v2"));
  EXPECT_THAT(of_check(list, "peer-policy"), Worst(Level::kOk, "rule db"));
  EXPECT_EQ(worst(of_check(list, "peer-ping")), Level::kOk);
}

TEST(Peer, WithoutAnAddressOrARuleIsAFailure) {
  Tree tree;
  tree.fails("getent ahosts -- db9", "2\n");
  EXPECT_THAT(examine(tree, "db9"), Worst(Level::kFail, "finds no address"));
  tree.says("ip -json route get 192.0.2.9", R"([{"dev":"eno1","prefsrc":"192.0.2.11"}])")
      .says("ringroad doctor --probe-peer 192.0.2.9:4790", to_text(promoted()));
  const auto list = examine(tree, "192.0.2.9");
  EXPECT_THAT(of_check(list, "peer-policy"), Worst(Level::kFail, "no RDMA rule's subnet holds it"));
  EXPECT_TRUE(of_check(list, "peer-promotion").empty());
}

// The policy's rules, and a peer that the probe reaches.
std::vector<Finding> with_policy(const std::string& rules, const std::string& peer = "10.20.0.1",
                                 const std::string& port = "4790") {
  Tree tree;
  tree.remove("/policy/10.toml")
      .write("/policy/10.toml", "version = 1\n" + rules)
      .says("ip -json route get 10.20.0.1", R"([{"dev":"ens1f0np0","prefsrc":"10.20.0.11"}])")
      .says("ringroad doctor --probe-peer 10.20.0.1:" + port, to_text(promoted()));
  return examine(tree, peer);
}

std::string rule(const std::string& name, const std::string& subnet, const std::string& via,
                 const std::string& more = "") {
  return "[[rule]]\nname = \"" + name + "\"\nsubnet = \"" + subnet + "\"\nvia = \"" + via + "\"\n" +
         more;
}

TEST(PeerPolicy, AnEarlierTcpRuleThatHoldsThePeerIsAFailure) {
  const std::string all = rule("all", "10.20.0.0/16", "rdma");
  const auto list = with_policy(rule("not-these", "10.20.0.0/31", "tcp") + all);
  EXPECT_THAT(of_check(list, "peer-policy"), Worst(Level::kFail, "rule not-these"));
  EXPECT_TRUE(of_check(list, "peer-promotion").empty()) << texts(list);
  // Of another subnet, or after the rule that decides.
  EXPECT_THAT(of_check(with_policy(rule("not-these", "10.20.0.2/31", "tcp") + all), "peer-policy"),
              Worst(Level::kOk, "rule all"));
  EXPECT_THAT(of_check(with_policy(all + rule("rest", "0.0.0.0/0", "tcp")), "peer-policy"),
              Worst(Level::kOk, "rule all"));
}

TEST(PeerPolicy, AnEarlierTcpRuleWithConditionsIsAWarningThatNamesThem) {
  const std::string all = rule("all", "10.20.0.0/16", "rdma");
  const auto judged = [&](const std::string& more, const std::string& peer = "10.20.0.1",
                          const std::string& port = "4790") {
    return of_check(with_policy(rule("some", "10.20.0.0/24", "tcp", more) + all, peer, port),
                    "peer-policy");
  };
  EXPECT_THAT(judged("port = [22, \"4000-4100\"]\n"),
              Worst(Level::kWarn, "rule some keeps port 22, 4000-4100 on TCP"));
  EXPECT_THAT(judged("program = \"rsync*\"\n"), Worst(Level::kWarn, "program rsync*"));
  EXPECT_THAT(judged("role = \"connect\"\n"), Worst(Level::kWarn, "role connect"));
  // The port that is asked for settles it.
  const std::string port = "port = 3306\n";
  EXPECT_THAT(judged(port, "10.20.0.1:3306", "3306"), Worst(Level::kFail, "rule some"));
  EXPECT_THAT(judged(port, "10.20.0.1:3307", "3307"), Worst(Level::kOk, "rule all"));
  const std::string apart = rule("ssh", "10.20.0.0/24", "tcp", "port = 22\n") +
                            rule("db", "10.20.0.0/16", "rdma", "port = 3306\n");
  EXPECT_THAT(of_check(with_policy(apart), "peer-policy"), Worst(Level::kOk, "rule db"));
}

TEST(PeerPolicy, APortThatNoRuleHoldsIsAWarning) {
  const std::string db = rule("db", "10.20.0.0/16", "rdma", "port = 3306\n");
  EXPECT_THAT(of_check(with_policy(db, "10.20.0.1:5432", "5432"), "peer-policy"),
              Worst(Level::kWarn, "no RDMA rule for it holds port 5432"));
  const std::string rest = rule("rest", "0.0.0.0/0", "tcp");
  EXPECT_THAT(of_check(with_policy(db + rest, "10.20.0.1:5432", "5432"), "peer-policy"),
              Worst(Level::kWarn, "no RDMA rule for it holds port 5432"));
  EXPECT_THAT(of_check(with_policy(db, "10.20.0.1:3306", "3306"), "peer-policy"),
              Worst(Level::kOk, "rule db"));
  EXPECT_THAT(of_check(with_policy(db), "peer-policy"), Worst(Level::kOk, "rule db"));
}

TEST(PeerPolicy, OfSeveralRulesTheOneThatHoldsThePortIsTold) {
  const std::string rules = rule("db", "10.20.0.0/16", "rdma", "port = 3306\n") +
                            rule("copy", "10.20.0.0/16", "rdma", "port = 4444\n");
  EXPECT_THAT(of_check(with_policy(rules, "10.20.0.1:4444", "4444"), "peer-policy"),
              Worst(Level::kOk, "rule copy"));
}

TEST(Peer, AProbeThatCrashesOrHangsIsUnknown) {
  for (const char* exit : {"timeout", "killed 11"}) {
    Tree tree;
    tree.fails("ringroad doctor --probe-peer 10.20.0.1:4790", exit);
    EXPECT_EQ(worst(of_check(examine(tree, "10.20.0.1"), "peer-tcp")), Level::kUnknown) << exit;
  }
}

TEST(ProbePolicy, IsAcceptedAndKeepsWhatTheRulesSay) {
  const policy::LoadResult original = policy::Policy::load_text(
      "version = 1\n[[rule]]\nsubnet = [\"10.0.0.0/8\", \"fd00::/16\"]\nport = 3306\nprogram = "
      "\"x\"\n"
      "via = \"rdma\"\ndevice = \"mlx5_0\"\ntraffic_class = 106\nring = \"4KiB\"\n"
      "[[rule]]\nname = \"b\"\nsubnet = \"11.0.0.0/8\"\nvia = \"auto\"\n",
      "p.toml");
  ASSERT_TRUE(original);
  const std::string text =
      probe_policy_text({&original.policy->conditions(0), &original.policy->conditions(1)}, 4790);
  const policy::LoadResult loaded = policy::Policy::load_text(text, "probe");
  ASSERT_TRUE(loaded) << text;
  ASSERT_EQ(loaded.policy->rule_count(), 2U);
  const policy::Settings& rule = loaded.policy->rule(0);
  EXPECT_EQ(rule.via, policy::Via::kRdma);
  EXPECT_EQ(rule.device, "mlx5_0");
  EXPECT_EQ(rule.traffic_class, 106);
  EXPECT_GE(rule.ring_bytes, 65536U);
  const auto local = Endpoint::parse("10.0.0.1:4790");
  const auto remote = Endpoint::parse("10.0.0.2:4790");
  EXPECT_NE(loaded.policy->match(Role::kConnect, "ringroad", *local, *remote), nullptr);
  const auto other = Endpoint::parse("10.0.0.2:3306");
  EXPECT_EQ(loaded.policy->match(Role::kConnect, "ringroad", *local, *other), nullptr);
}

TEST(ProbePolicy, KeepsOnTcpWhatRulesWithoutConditionsKeepThereFirst) {
  const policy::LoadResult original = policy::Policy::load_text(
      "version = 1\n" + rule("ssh", "10.0.0.0/8", "tcp", "port = 22\n") +
          rule("not-these", "10.0.0.0/24", "tcp") + rule("db", "10.0.0.0/8", "rdma") +
          rule("rest", "0.0.0.0/0", "tcp"),
      "p.toml");
  ASSERT_TRUE(original);
  const std::string text = probe_policy_text(probe_rules(*original.policy), 4790);
  const policy::LoadResult loaded = policy::Policy::load_text(text, "probe");
  ASSERT_TRUE(loaded) << text;
  const auto local = Endpoint::parse("10.0.0.1:4790");
  const auto via = [&](const char* remote) {
    const auto* rule = loaded.policy->match(Role::kConnect, "ringroad", *local,
                                            *Endpoint::parse(remote));
    return rule == nullptr ? policy::Via::kShm : rule->via;
  };
  EXPECT_EQ(via("10.0.0.2:4790"), policy::Via::kTcp);
  EXPECT_EQ(via("10.0.1.2:4790"), policy::Via::kRdma);
  EXPECT_EQ(via("11.0.0.2:4790"), policy::Via::kTcp);
}

TEST(Answerer, RefusesAPeerThatAnEarlierTcpRuleHolds) {
  const auto loaded = policy::Policy::load_text(
      "version = 1\n" + rule("not", "10.0.0.0/24", "tcp") + rule("db", "10.0.0.0/8", "rdma"),
      "p.toml");
  ASSERT_TRUE(loaded);
  EXPECT_FALSE(is_answered(*loaded.policy, *Address::parse("10.0.0.7")));
  EXPECT_TRUE(is_answered(*loaded.policy, *Address::parse("10.0.1.7")));
  EXPECT_FALSE(is_answered(*loaded.policy, *Address::parse("11.0.0.7")));
}

}  // namespace
}  // namespace ringroad::cli::doctor
