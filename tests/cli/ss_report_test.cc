#include "cli/ss_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

Endpoint v4(std::uint8_t last, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.addr.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, last};
  endpoint.port = port;
  return endpoint;
}

StreamReport on_rdma() {
  StreamReport stream;
  stream.id = 1;
  stream.fd = 5;
  stream.role = Role::kAccept;
  stream.local = v4(1, 23306);
  stream.remote = v4(2, 40000);
  stream.rule = "demo";
  stream.state = State::kOnChannel;
  stream.channel.carrier = Carrier::kRdma;
  std::snprintf(stream.channel.device, sizeof stream.channel.device, "rxe1");
  std::snprintf(stream.channel.gid, sizeof stream.channel.gid, "::ffff:10.9.0.1");
  stream.channel.qpn = 17;
  stream.channel.peer_qpn = 18;
  stream.channel.traffic_class = 106;
  stream.channel.path_mtu = 4096;
  stream.channel.pinned_bytes = 524288;
  stream.channel.descriptors = 3;
  stream.extra_descriptors = 2;
  stream.traffic = {{10, 20, 1, 2}, {3000, 4000, 30, 40}};
  stream.measures.stalls = 4;
  stream.measures.waited_ns = 5000;
  stream.measures.tx_sizes[6] = 31;
  stream.measures.waits[2] = 4;
  stream.measures.promotions = 1;
  stream.measures.resumptions = 6;
  LatenciesReport latencies;
  latencies.answers[1].counts[2] = 9;
  latencies.reads.counts[0] = 5;
  stream.latencies = std::make_shared<const LatenciesReport>(latencies);
  return stream;
}

StreamReport on_tcp() {
  StreamReport stream;
  stream.id = 2;
  stream.fd = 6;
  stream.local = v4(1, 50000);
  stream.remote = v4(3, 3306);
  stream.rule = "galera";
  stream.reason = Reason::kPeerRefused;
  stream.peer_reason = Reason::kMemlock;
  stream.traffic = {{500, 600, 7, 8}, {}};
  return stream;
}

ProcessReport process(pid_t pid, std::vector<StreamReport> streams) {
  ProcessReport result;
  result.pid = pid;
  result.program = "mariadbd";
  result.alive = true;
  result.library_version = "0.1.0";
  result.policy_status = stats::PolicyStatus::kLoaded;
  result.policy_rules = 3;
  result.policy_detail = "/etc/ringroad/policy.toml";
  result.streams = std::move(streams);
  return result;
}

SsView on_carrier(Carrier carrier) {
  SsView view;
  view.filter = [carrier](const ProcessReport&, const StreamReport& stream) {
    return stream.carrier() == carrier;
  };
  view.filter_words = std::string("carrier ") + carrier_name(carrier);
  return view;
}

TEST(SsText, OneLineAStream) {
  Snapshot snapshot{{process(4711, {on_rdma(), on_tcp()})}, {}};
  snapshot.processes[0].container = "web-1";
  EXPECT_EQ(
      ss_text(snapshot, {}),
      " PID  PROGRAM   ROLE     LOCAL           REMOTE          CARRIER  STATE       DEVICE  QPN"
      "  REASON        PEER-REASON    TX  TX-MSGS    RX  RX-MSGS  RULE    CONTAINER\n"
      "4711  mariadbd  accept   10.9.0.1:23306  10.9.0.2:40000  rdma     ON_CHANNEL  rxe1     17"
      "  -             -            2.9K       31  3.9K       42  demo    web-1\n"
      "4711  mariadbd  connect  10.9.0.1:50000  10.9.0.3:3306   tcp      ON_TCP      -         -"
      "  peer_refused  memlock       500        7   600        8  galera  web-1\n");
}

TEST(SsText, AChannelThatDoesNotCarryTheStreamIsNotShown) {
  StreamReport stream = on_rdma();
  stream.state = State::kConnecting;
  const std::string text = ss_text({{process(4711, {stream})}, {}}, {});
  EXPECT_THAT(text, HasSubstr("tcp      CONNECTING"));
  EXPECT_THAT(text, Not(HasSubstr("rxe1")));
}

TEST(SsText, AContainerIsNamedWithoutStreamsToo) {
  Snapshot snapshot{{process(4711, {})}, {}};
  snapshot.processes[0].container = "web\x1b";
  EXPECT_THAT(ss_text(snapshot, {}), StartsWith("4711 mariadbd in web?: no streams"));
}

TEST(SsText, AContainersNameIsPrintedWithoutWhatMovesATerminal) {
  Snapshot snapshot{{process(4711, {on_tcp()})}, {}};
  snapshot.processes[0].container = "web\x1b";
  EXPECT_THAT(ss_text(snapshot, {}), HasSubstr("  web?\n"));
}

TEST(SsText, NothingAtAllIsSaid) {
  EXPECT_EQ(ss_text({}, {}), "no preloaded processes\n");
  EXPECT_EQ(ss_text({}, on_carrier(Carrier::kRdma)), "no preloaded processes\n");
}

TEST(SsText, AProcessWithoutStreamsTellsItsPolicy) {
  ProcessReport none = process(2, {});
  none.policy_status = stats::PolicyStatus::kNone;
  const Snapshot snapshot{{process(1, {}), none}, {}};
  EXPECT_EQ(ss_text(snapshot, {}),
            "1 mariadbd: no streams; policy of 3 rules from /etc/ringroad/policy.toml\n"
            "2 mariadbd: no streams; no policy: every connection stays on TCP\n");
}

TEST(SsText, ARefusedPolicyIsToldEvenWhereThereAreStreams) {
  ProcessReport refused = process(7, {on_tcp()});
  refused.policy_status = stats::PolicyStatus::kRefused;
  refused.policy_detail = "/etc/ringroad/policy.toml:3:8: error: unknown key";
  const std::string line =
      "7 mariadbd: policy refused: /etc/ringroad/policy.toml:3:8: error: unknown key\n";
  EXPECT_THAT(ss_text({{refused}, {}}, {}), HasSubstr("\n" + line));
  EXPECT_THAT(ss_text({{refused}, {}}, on_carrier(Carrier::kRdma)), HasSubstr("\n" + line));
  refused.streams.clear();
  EXPECT_THAT(ss_text({{refused}, {}}, {}), HasSubstr("7 mariadbd: no streams; policy refused: "));
}

TEST(SsText, ARefusedEditIsToldAsOne) {
  ProcessReport edited = process(7, {on_tcp()});
  edited.policy_status = stats::PolicyStatus::kEditRefused;
  edited.policy_detail = "/etc/ringroad/policy.toml:3:8: error: unknown key";
  EXPECT_THAT(
      ss_text({{edited}, {}}, {}),
      HasSubstr("\n7 mariadbd: edit of the policy refused, the policy before it holds (3 rules): "
                "/etc/ringroad/policy.toml:3:8: error: unknown key\n"));
}

TEST(SsText, WhatTheOperatorAskedForIsTold) {
  ProcessReport moved = process(7, {on_tcp()});
  moved.operator_mode = control::Mode::kTcp;
  EXPECT_THAT(ss_text({{moved}, {}}, {}), HasSubstr("\n7 mariadbd: the operator asked for tcp\n"));
  moved.operator_mode = control::Mode::kAuto;
  EXPECT_THAT(ss_text({{moved}, {}}, {}), Not(HasSubstr("operator asked")));
}

TEST(SsText, StreamsThatCannotBeShownAreCounted) {
  ProcessReport crowded = process(7, {on_tcp()});
  crowded.unlisted = 1;
  crowded.unreadable = 2;
  EXPECT_THAT(ss_text({{crowded}, {}}, {}),
              HasSubstr("\n7 mariadbd: 1 more stream found no slot to be listed in; "
                        "2 streams in the middle of a change left out\n"));
}

TEST(SsText, AnEndedProcessIsMarked) {
  ProcessReport ended = process(7, {on_tcp()});
  ended.alive = false;
  EXPECT_THAT(ss_text({{ended}, {}}, {}), HasSubstr("7  mariadbd (ended)  connect"));
  ended.streams.clear();
  EXPECT_THAT(ss_text({{ended}, {}}, {}), HasSubstr("7 mariadbd (ended): no streams"));
}

TEST(SsText, OnlyTheCarrierThatWasAskedFor) {
  const Snapshot snapshot{{process(1, {on_rdma(), on_tcp()}), process(2, {})}, {}};
  EXPECT_THAT(ss_text(snapshot, on_carrier(Carrier::kRdma)), HasSubstr("ON_CHANNEL"));
  EXPECT_THAT(ss_text(snapshot, on_carrier(Carrier::kRdma)), Not(HasSubstr("ON_TCP")));
  EXPECT_THAT(ss_text(snapshot, on_carrier(Carrier::kRdma)), Not(HasSubstr("no streams")));
  EXPECT_THAT(ss_text(snapshot, on_carrier(Carrier::kTcp)), Not(HasSubstr("ON_CHANNEL")));
  EXPECT_EQ(ss_text(snapshot, on_carrier(Carrier::kShm)), "no stream matches: carrier shm\n");
}

TEST(SsText, NothingFromAProcessReachesTheTerminalAsAControlCharacter) {
  ProcessReport hostile = process(7, {on_rdma()});
  hostile.program = "a\x1b]0;b";
  hostile.streams[0].rule = "c\nd";
  std::snprintf(hostile.streams[0].channel.device, 8, "e\x1b" "f");
  const std::string text = ss_text({{hostile}, {}}, {});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_THAT(text, HasSubstr("a?]0;b"));
  EXPECT_THAT(text, HasSubstr("c?d"));
  EXPECT_THAT(text, HasSubstr("e?f"));
}

TEST(SsText, SaysWhenAllChannelsAreTaken) {
  ProcessReport one = process(4711, {on_rdma()});
  one.max_channels = 64;
  one.channels = 63;
  EXPECT_THAT(ss_text({{one}, {}}, {}), Not(HasSubstr("max_channels")));
  one.channels = 64;
  EXPECT_THAT(ss_text({{one}, {}}, {}),
              HasSubstr("4711 mariadbd: all 64 channels that max_channels allows are taken\n"));
}

TEST(SsJson, HasTheFormThatItsHelpPromises) {
  ProcessReport one = process(4711, {on_rdma(), on_tcp()});
  one.closed = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  one.closed_measures.stalls = 3;
  one.closed_measures.tx_sizes[0] = 2;
  one.closed_measures.rx_sizes.back() = 1;
  RuleReport& rule = one.rules.emplace_back();
  rule.name = "demo";
  rule.streams = rule.on_channel = 1;
  rule.opened = 4;
  rule.promoted = 3;
  rule.refused[static_cast<unsigned>(Reason::kTimeout)] = 1;
  rule.traffic = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  rule.measures.stalls = 2;
  rule.measures.waited_ns = 3;
  rule.measures.promotions = 4;
  rule.measures.resumptions = 5;
  rule.latencies.answers[0].counts[1] = 1;
  one.streams_opened = 9;
  one.streams_promoted = 8;
  one.unlisted = 7;
  one.unreadable = 6;
  one.policy_reloads = 2;
  one.max_channels = 64;
  one.channels = 1;
  one.channels_given_back = 5;
  one.operator_mode = control::Mode::kTcp;
  one.container = "web-1";
  one.cgroup = "/web";
  one.own_pid = 7;
  one.pid_namespace = 4026532179;
  one.promotions_refused[static_cast<unsigned>(Reason::kMemlock)] = 2;
  const json expected = json::parse(R"({"processes": [{
    "pid": 4711, "program": "mariadbd", "alive": true, "library_version": "0.1.0",
    "container": "web-1", "cgroup": "/web", "own_pid": 7, "pid_namespace": 4026532179,
    "policy": {"status": "loaded", "rules": 3, "detail": "/etc/ringroad/policy.toml",
               "reloads": 2},
    "operator": "tcp",
    "streams": [
      {"id": 1, "fd": 5, "role": "accept", "local": "10.9.0.1:23306", "remote": "10.9.0.2:40000",
       "rule": "demo", "state": "ON_CHANNEL", "carrier": "rdma", "device": "rxe1",
       "gid": "::ffff:10.9.0.1", "qpn": 17, "peer_qpn": 18, "traffic_class": 106,
       "path_mtu": 4096, "reason": "none", "peer_reason": "none",
       "tx_bytes": {"tcp": 10, "channel": 3000}, "rx_bytes": {"tcp": 20, "channel": 4000},
       "tx_messages": {"tcp": 1, "channel": 30}, "rx_messages": {"tcp": 2, "channel": 40},
       "stalls": 4, "waited_ns": 5000, "promotions": 1, "resumptions": 6, "stalled_ns": 0,
       "pinned_bytes": 524288,
       "protocol": 0, "gives_back": false, "descriptors": 3, "extra_descriptors": 2},
      {"id": 2, "fd": 6, "role": "connect", "local": "10.9.0.1:50000", "remote": "10.9.0.3:3306",
       "rule": "galera", "state": "ON_TCP", "carrier": "tcp", "device": "",
       "gid": "", "qpn": 0, "peer_qpn": 0, "traffic_class": 0,
       "path_mtu": 0, "reason": "peer_refused", "peer_reason": "memlock",
       "tx_bytes": {"tcp": 500, "channel": 0}, "rx_bytes": {"tcp": 600, "channel": 0},
       "tx_messages": {"tcp": 7, "channel": 0}, "rx_messages": {"tcp": 8, "channel": 0},
       "stalls": 0, "waited_ns": 0, "promotions": 0, "resumptions": 0, "stalled_ns": 0,
       "pinned_bytes": 0,
       "protocol": 0, "gives_back": false, "descriptors": 0, "extra_descriptors": 0}],
    "totals": {
      "tcp": {"tx_bytes": 511, "rx_bytes": 622, "tx_messages": 11, "rx_messages": 14,
              "streams": 1},
      "channel": {"tx_bytes": 3005, "rx_bytes": 4006, "tx_messages": 37, "rx_messages": 48,
                  "streams": 1}},
    "measures": {"stalls": 7, "waited_ns": 5000, "promotions": 1, "resumptions": 6},
    "histograms": {"tx_size_bytes": [{"up_to": 1, "count": 2}, {"up_to": 64, "count": 31}],
                   "rx_size_bytes": [{"up_to": null, "count": 1}],
                   "wait_ns": [{"up_to": 4096, "count": 4}],
                   "answer_tcp_ns": [], "answer_channel_ns": [{"up_to": 1024, "count": 9}],
                   "read_ns": [{"up_to": 256, "count": 5}]},
    "streams_opened": 9, "streams_promoted": 8,
    "channels": {"in_use": 1, "max": 64, "given_back": 5}, "unlisted": 7, "unreadable": 6,
    "promotions_refused": {"memlock": 2},
    "rules": [{"name": "demo", "streams": 1, "on_channel": 1, "opened": 4, "promoted": 3,
      "refused": {"timeout": 1},
      "tx_bytes": {"tcp": 1, "channel": 5}, "rx_bytes": {"tcp": 2, "channel": 6},
      "tx_messages": {"tcp": 3, "channel": 7}, "rx_messages": {"tcp": 4, "channel": 8},
      "stalls": 2, "waited_ns": 3, "promotions": 4, "resumptions": 5,
      "histograms": {"tx_size_bytes": [], "rx_size_bytes": [], "wait_ns": [],
                     "answer_tcp_ns": [{"up_to": 512, "count": 1}], "answer_channel_ns": [],
                     "read_ns": []}}]}]})");
  EXPECT_EQ(json::parse(ss_json({{one}, {}}, {})), expected);
}

TEST(SsRules, TellWhatHalfOfTheAnswersAndAlmostAllTake) {
  ProcessReport one = process(4711, {});
  RuleReport& rule = one.rules.emplace_back();
  rule.name = "demo";
  rule.latencies.answers[0].counts = {};
  rule.latencies.answers[1].counts[2] = 90;   // 1024 ns at most
  rule.latencies.answers[1].counts[12] = 10;  // 1,048,576 ns
  EXPECT_THAT(ss_rules({{one}, {}}, {}), HasSubstr("TCP-ANSWER  CHANNEL-ANSWER  REFUSED\n"));
  EXPECT_THAT(ss_rules({{one}, {}}, {}), HasSubstr("           -     1.0us/1.0ms  -\n"));
  SsView exact;
  exact.exact = true;
  EXPECT_THAT(ss_rules({{one}, {}}, exact), HasSubstr("  1024/1048576  "));
}

TEST(SsHistograms, HaveTheTimesOfAnswersByCarrier) {
  const std::string text = ss_histograms({{process(4711, {on_rdma()})}, {}}, {});
  EXPECT_THAT(text, HasSubstr("4711  mariadbd  answer, channel  <= 1.0us      9           100.0\n"));
  EXPECT_THAT(text, HasSubstr("4711  mariadbd  read             <= 256ns      5           100.0\n"));
  EXPECT_THAT(text, Not(HasSubstr("answer, TCP")));
}

TEST(Quantile, IsTheBoundThatSoManyStayBelow) {
  TimesReport times;
  EXPECT_EQ(quantile_ns(times, 0.5), 0U);
  times.counts[0] = 1;
  times.counts[3] = 1;
  EXPECT_EQ(quantile_ns(times, 0.5), stats::kLatencyUnitNs);
  EXPECT_EQ(quantile_ns(times, 0.51), 8 * stats::kLatencyUnitNs);
  times.counts.back() = 100;  // has no bound
  const std::uint64_t last = stats::Log2Histogram::bound(times.counts.size() - 2);
  EXPECT_EQ(quantile_ns(times, 0.99), last * stats::kLatencyUnitNs);
}

TEST(SsJson, NoProcessesAreAnEmptyArray) {
  EXPECT_EQ(json::parse(ss_json({}, {})), json::parse(R"({"processes": []})"));
}

TEST(SsJson, ACarrierFiltersTheStreamsButNotTheTotals) {
  const json document =
      json::parse(ss_json({{process(1, {on_rdma(), on_tcp()})}, {}}, on_carrier(Carrier::kTcp)));
  const json& only = document["processes"][0];
  ASSERT_EQ(only["streams"].size(), 1U);
  EXPECT_EQ(only["streams"][0]["id"], 2);
  EXPECT_EQ(only["totals"]["channel"]["tx_bytes"], 3000);
  EXPECT_EQ(only["totals"]["channel"]["streams"], 1);
}

TEST(SsJson, EveryStatusOfAPolicyHasItsName) {
  ProcessReport one = process(1, {});
  const auto status = [&](stats::PolicyStatus value) {
    one.policy_status = value;
    return json::parse(ss_json({{one}, {}}, {}))["processes"][0]["policy"]["status"];
  };
  EXPECT_EQ(status(stats::PolicyStatus::kNone), "none");
  EXPECT_EQ(status(stats::PolicyStatus::kLoaded), "loaded");
  EXPECT_EQ(status(stats::PolicyStatus::kRefused), "refused");
  EXPECT_EQ(status(stats::PolicyStatus::kEditRefused), "edit_refused");
}

TEST(SsJson, ANameThatIsNoUtf8IsStillValidJson) {
  ProcessReport odd = process(1, {});
  odd.program = "a\xff\x1b";
  const json document = json::parse(ss_json({{odd}, {}}, {}));
  EXPECT_EQ(document["processes"][0]["program"], "a\xef\xbf\xbd\x1b");
}

}  // namespace
}  // namespace ringroad::cli
