// `ringroad ss --json`.
#include <algorithm>
#include <ctime>

#include "cli/json_writer.h"
#include "cli/ss_report.h"

namespace ringroad::cli {
namespace {

using stats::Log2Histogram;
using stats::PolicyStatus;

void write_pair(JsonWriter& json, const char* name, std::uint64_t tcp, std::uint64_t channel) {
  json.key(name).begin_object().member("tcp", tcp).member("channel", channel).end_object();
}

void write_traffic(JsonWriter& json, const CarrierTraffic& traffic) {
  write_pair(json, "tx_bytes", traffic.tcp.tx_bytes, traffic.channel.tx_bytes);
  write_pair(json, "rx_bytes", traffic.tcp.rx_bytes, traffic.channel.rx_bytes);
  write_pair(json, "tx_messages", traffic.tcp.tx_messages, traffic.channel.tx_messages);
  write_pair(json, "rx_messages", traffic.tcp.rx_messages, traffic.channel.rx_messages);
}

void write_buckets(JsonWriter& json, const char* name, const Buckets& buckets,
                   std::uint64_t unit = 1) {
  json.key(name).begin_array();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i] == 0) continue;
    json.begin_object().key("up_to");
    if (i + 1 == buckets.size()) {
      json.null();
    } else {
      json.value(Log2Histogram::bound(i) * unit);
    }
    json.member("count", buckets[i]).end_object();
  }
  json.end_array();
}

void write_histograms(JsonWriter& json, const Measures& measures, const LatenciesReport& latencies) {
  json.key("histograms").begin_object();
  write_buckets(json, "tx_size_bytes", measures.tx_sizes);
  write_buckets(json, "rx_size_bytes", measures.rx_sizes);
  write_buckets(json, "wait_ns", measures.waits, stats::kWaitUnitNs);
  write_buckets(json, "answer_tcp_ns", latencies.answers[0].counts, stats::kLatencyUnitNs);
  write_buckets(json, "answer_channel_ns", latencies.answers[1].counts, stats::kLatencyUnitNs);
  write_buckets(json, "read_ns", latencies.reads.counts, stats::kLatencyUnitNs);
  json.end_object();
}

void write_measures(JsonWriter& json, const Measures& measures) {
  json.member("stalls", measures.stalls)
      .member("waited_ns", measures.waited_ns)
      .member("promotions", measures.promotions)
      .member("resumptions", measures.resumptions);
}

template <typename Refused>
void write_refused(JsonWriter& json, const char* name, const Refused& refused) {
  json.key(name).begin_object();
  for (std::size_t i = 0; i < refused.size(); ++i) {
    if (refused[i] > 0) json.member(reason_name(static_cast<Reason>(i)), refused[i]);
  }
  json.end_object();
}

std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void write_stream(JsonWriter& json, const StreamReport& stream, bool alive, std::int64_t now_ns,
                  bool histograms) {
  const ChannelInfo& channel = stream.channel;
  const bool stalled = alive && stream.stalled_since_ns != 0;
  json.begin_object()
      .member("id", stream.id)
      .member("fd", stream.fd)
      .member("role", std::string(to_string(stream.role)))
      .member("local", stream.local.to_string())
      .member("remote", stream.remote.to_string())
      .member("rule", stream.rule)
      .member("state", state_name(stream.state))
      .member("carrier", carrier_name(stream.carrier()))
      .member("device", channel.device)
      .member("gid", channel.gid)
      .member("qpn", channel.qpn)
      .member("peer_qpn", channel.peer_qpn)
      .member("traffic_class", unsigned{channel.traffic_class})
      .member("path_mtu", channel.path_mtu)
      .member("reason", reason_name(stream.reason))
      .member("peer_reason", reason_name(stream.peer_reason));
  write_traffic(json, stream.traffic);
  write_measures(json, stream.measures);
  json.member("stalled_ns",
              stalled ? std::max<std::int64_t>(now_ns - stream.stalled_since_ns, 0) : 0)
      .member("pinned_bytes", channel.pinned_bytes)
      .member("protocol", stream.protocol)
      .member("gives_back", (stream.features & static_cast<unsigned>(Feature::kGivenBack)) != 0)
      .member("descriptors", channel.descriptors)
      .member("extra_descriptors", stream.extra_descriptors);
  static const LatenciesReport none;
  if (histograms) {
    write_histograms(json, stream.measures, stream.latencies != nullptr ? *stream.latencies : none);
  }
  json.end_object();
}

const char* status_name(PolicyStatus status) noexcept {
  switch (status) {
    case PolicyStatus::kLoaded:
      return "loaded";
    case PolicyStatus::kRefused:
      return "refused";
    case PolicyStatus::kEditRefused:
      return "edit_refused";
    case PolicyStatus::kNone:
      break;
  }
  return "none";
}

void write_total(JsonWriter& json, const char* name, const Traffic& traffic, std::size_t streams) {
  json.key(name)
      .begin_object()
      .member("tx_bytes", traffic.tx_bytes)
      .member("rx_bytes", traffic.rx_bytes)
      .member("tx_messages", traffic.tx_messages)
      .member("rx_messages", traffic.rx_messages)
      .member("streams", streams)
      .end_object();
}

void write_rules(JsonWriter& json, const std::vector<RuleReport>& rules) {
  json.key("rules").begin_array(!rules.empty());
  for (const RuleReport& rule : rules) {
    json.begin_object()
        .member("name", rule.name)
        .member("streams", rule.streams)
        .member("on_channel", rule.on_channel)
        .member("opened", rule.opened)
        .member("promoted", rule.promoted);
    write_refused(json, "refused", rule.refused);
    write_traffic(json, rule.traffic);
    write_measures(json, rule.measures);
    write_histograms(json, rule.measures, rule.latencies);
    json.end_object();
  }
  json.end_array();
}

void write_process(JsonWriter& json, const ProcessReport& process) {
  json.member("pid", process.pid)
      .member("program", process.program)
      .member("alive", process.alive)
      .member("library_version", process.library_version)
      .member("container", process.container)
      .member("cgroup", process.cgroup)
      .member("own_pid", process.own_pid)
      .member("pid_namespace", process.pid_namespace);
  json.key("policy")
      .begin_object()
      .member("status", status_name(process.policy_status))
      .member("rules", process.policy_rules)
      .member("detail", process.policy_detail)
      .member("reloads", process.policy_reloads)
      .end_object();
  json.member("operator", control::mode_name(process.operator_mode));
}

void write_totals(JsonWriter& json, const ProcessReport& process) {
  const CarrierTraffic totals = process.totals();
  const auto on_channel = static_cast<std::size_t>(
      std::count_if(process.streams.begin(), process.streams.end(),
                    [](const StreamReport& stream) { return stream.carrier() != Carrier::kTcp; }));
  json.key("totals").begin_object();
  write_total(json, "tcp", totals.tcp, process.streams.size() - on_channel);
  write_total(json, "channel", totals.channel, on_channel);
  json.end_object();
  const Measures measures = process.total_measures();
  json.key("measures").begin_object();
  write_measures(json, measures);
  json.end_object();
  write_histograms(json, measures, process.total_latencies());
  json.member("streams_opened", process.streams_opened)
      .member("streams_promoted", process.streams_promoted);
  json.key("channels")
      .begin_object()
      .member("in_use", process.channels)
      .member("max", process.max_channels)
      .member("given_back", process.channels_given_back)
      .end_object();
  json.member("unlisted", process.unlisted).member("unreadable", process.unreadable);
  write_refused(json, "promotions_refused", process.promotions_refused);
  write_rules(json, process.rules);
}

}  // namespace

std::string ss_json(const Snapshot& snapshot, const SsView& view, bool streams) {
  std::string text;
  const std::vector<StreamRow> rows = rows_of(snapshot, view);
  text.reserve(rows.size() * 1024 + 4096);
  const std::int64_t now = monotonic_ns();
  JsonWriter json(text);
  json.begin_object(true).key("processes").begin_array(!snapshot.processes.empty());
  for (const ProcessReport& process : snapshot.processes) {
    json.begin_object(true);
    write_process(json, process);
    if (streams) {
      const auto of_it = [&](const StreamRow& row) { return row.process == &process; };
      json.key("streams").begin_array(std::any_of(rows.begin(), rows.end(), of_it));
      for (const StreamRow& row : rows) {
        if (of_it(row)) write_stream(json, *row.stream, process.alive, now, view.histograms);
      }
      json.end_array();
    }
    write_totals(json, process);
    json.end_object();
  }
  json.end_array().end_object();
  text += '\n';
  return text;
}

}  // namespace ringroad::cli
