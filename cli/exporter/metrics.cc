#include "cli/exporter/metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

namespace ringroad::cli::exporter {
namespace {

struct Metric {
  const char* name;
  Type type;
  const char* help;
  void (*collect)(const ProcessReport&, Exposition&);
};

constexpr std::array kCarriers = {Carrier::kTcp, Carrier::kShm, Carrier::kRdma};
constexpr std::array kModes = {control::Mode::kAuto, control::Mode::kTcp, control::Mode::kRdma};
constexpr std::array<std::pair<stats::PolicyStatus, const char*>, 4> kStatuses = {
    {{stats::PolicyStatus::kNone, "none"},
     {stats::PolicyStatus::kLoaded, "loaded"},
     {stats::PolicyStatus::kRefused, "refused"},
     {stats::PolicyStatus::kEditRefused, "edit_refused"}}};

// What the counters of a process are kept by: TCP, or whichever channel there was.
template <typename Value>
void by_kind(const ProcessReport& process, Exposition& out, Value value) {
  const CarrierTraffic totals = process.totals();
  out.sample({{"carrier", "tcp"}}, value(totals.tcp));
  out.sample({{"carrier", "channel"}}, value(totals.channel));
}

void streams_by_rule(const ProcessReport& process, Exposition& out) {
  std::map<std::string, std::array<std::uint64_t, kCarriers.size()>> rules;
  for (const StreamReport& stream : process.streams) {
    const bool known = rules.contains(stream.rule) || rules.size() < kMostRules;
    auto& counts = rules[known ? stream.rule : kOtherRules];
    const auto carrier = std::find(kCarriers.begin(), kCarriers.end(), stream.carrier());
    if (carrier != kCarriers.end()) {
      ++counts[static_cast<std::size_t>(carrier - kCarriers.begin())];
    }
  }
  for (const auto& [rule, counts] : rules) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      out.sample({{"rule", rule}, {"carrier", carrier_name(kCarriers[i])}}, counts[i]);
    }
  }
}

void streams_on_tcp(const ProcessReport& process, Exposition& out) {
  std::map<std::pair<Reason, Reason>, std::uint64_t> reasons;
  for (const StreamReport& stream : process.streams) {
    if (stream.carrier() == Carrier::kTcp) ++reasons[{stream.reason, stream.peer_reason}];
  }
  for (const auto& [reason, count] : reasons) {
    out.sample({{"reason", reason_name(reason.first)}, {"peer_reason", reason_name(reason.second)}},
               count);
  }
}

void refusals(const ProcessReport& process, Exposition& out) {
  for (std::size_t i = 1; i < process.promotions_refused.size(); ++i) {  // 0: no reason
    out.sample({{"reason", reason_name(static_cast<Reason>(i))}}, process.promotions_refused[i]);
  }
}

void histogram_of(const TimesReport& times, Labels labels, Exposition& out) {
  if (sum_of(times.counts) == 0) return;
  std::array<Bucket, stats::Log2Histogram::kBuckets - 1> buckets;  // the last has no bound
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    below += times.counts[i];
    buckets[i] = {static_cast<double>(stats::Log2Histogram::bound(i) * stats::kLatencyUnitNs) / 1e9, below};
  }
  out.histogram(labels, buckets, sum_of(times.counts), static_cast<double>(times.sum_ns) / 1e9);
}

void answers(const ProcessReport& process, Exposition& out) {
  for (const RuleReport& rule : process.rules) {
    histogram_of(rule.latencies.answers[0], {{"rule", rule.name}, {"carrier", "tcp"}}, out);
    histogram_of(rule.latencies.answers[1], {{"rule", rule.name}, {"carrier", "channel"}}, out);
  }
}

void reads(const ProcessReport& process, Exposition& out) {
  for (const RuleReport& rule : process.rules) histogram_of(rule.latencies.reads, {{"rule", rule.name}}, out);
}

using Process = ProcessReport;
using Out = Exposition;

// Names and units as prometheus.io/docs/practices/naming has them.
// clang-format off
constexpr Metric kMetrics[] = {
    {"ringroad_process_info", Type::kGauge, "A preloaded process, and the version of the library in it.",
     [](const Process& p, Out& out) { out.sample({{"library_version", p.library_version}}, std::uint64_t{1}); }},
    {"ringroad_streams", Type::kGauge, "Open streams, by the rule that chose them and by what carries them now.",
     streams_by_rule},
    {"ringroad_streams_on_tcp", Type::kGauge, "Open streams on TCP, by the reason at this end and at the other; no sample means none.",
     streams_on_tcp},
    {"ringroad_streams_opened_total", Type::kCounter, "Connections that a rule of the policy let off TCP.",
     [](const Process& p, Out& out) { out.sample(p.streams_opened); }},
    {"ringroad_streams_promoted_total", Type::kCounter, "Promotions of streams to a channel.",
     [](const Process& p, Out& out) { out.sample(p.streams_promoted); }},
    {"ringroad_promotions_refused_total", Type::kCounter, "Promotions that did not come about, by reason.",
     refusals},
    {"ringroad_stream_transmit_bytes_total", Type::kCounter, "Bytes that the program sent on streams, by carrier (tcp, or a channel of any kind).",
     [](const Process& p, Out& out) { by_kind(p, out, [](const Traffic& t) { return t.tx_bytes; }); }},
    {"ringroad_stream_receive_bytes_total", Type::kCounter, "Bytes that the program received on streams, by carrier.",
     [](const Process& p, Out& out) { by_kind(p, out, [](const Traffic& t) { return t.rx_bytes; }); }},
    {"ringroad_stream_transmit_messages_total", Type::kCounter, "Send calls of the program on streams, by carrier.",
     [](const Process& p, Out& out) { by_kind(p, out, [](const Traffic& t) { return t.tx_messages; }); }},
    {"ringroad_stream_receive_messages_total", Type::kCounter, "Receive calls of the program on streams, by carrier.",
     [](const Process& p, Out& out) { by_kind(p, out, [](const Traffic& t) { return t.rx_messages; }); }},
    {"ringroad_answer_seconds", Type::kHistogram, "From a request's last byte to its answer's first, of about one request in 64, by rule and carrier.",
     answers},
    {"ringroad_read_delay_seconds", Type::kHistogram, "From the end of a sleep on a channel to the receive of what ended it, of one sleep in 16, by rule.",
     reads},
    {"ringroad_channels", Type::kGauge, "Channels that the process's streams have.",
     [](const Process& p, Out& out) { out.sample(std::uint64_t{p.channels}); }},
    {"ringroad_channels_max", Type::kGauge, "The policy's max_channels; 0 until the process needs it.",
     [](const Process& p, Out& out) { out.sample(std::uint64_t{p.max_channels}); }},
    {"ringroad_channels_given_back_total", Type::kCounter, "Channels that streams gave back because they were not used.",
     [](const Process& p, Out& out) { out.sample(p.channels_given_back); }},
    {"ringroad_policy_status", Type::kGauge, "1 for what became of the policy when it was read last.",
     [](const Process& p, Out& out) {
       for (const auto& [status, name] : kStatuses) out.sample({{"status", name}}, std::uint64_t{p.policy_status == status});
     }},
    {"ringroad_policy_rules", Type::kGauge, "Rules of the policy that holds.",
     [](const Process& p, Out& out) { out.sample(std::uint64_t{p.policy_rules}); }},
    {"ringroad_policy_reloads_total", Type::kCounter, "Edits of the policy that were taken up.",
     [](const Process& p, Out& out) { out.sample(std::uint64_t{p.policy_reloads}); }},
    {"ringroad_operator_mode", Type::kGauge, "1 for the mode that an operator has set.",
     [](const Process& p, Out& out) {
       for (const control::Mode mode : kModes) out.sample({{"mode", control::mode_name(mode)}}, std::uint64_t{p.operator_mode == mode});
     }},
    {"ringroad_streams_unlisted", Type::kGauge, "Open streams that found no room in the segment, and are in no other number.",
     [](const Process& p, Out& out) { out.sample(std::uint64_t{p.unlisted}); }},
    {"ringroad_streams_unreadable", Type::kGauge, "Entries of the segment that stayed in the middle of a change.",
     [](const Process& p, Out& out) { out.sample(std::uint64_t{p.unreadable}); }},
};
// clang-format on

}  // namespace

std::string Collector::collect(Format format) {
  const auto began = std::chrono::steady_clock::now();
  Snapshot snapshot = read_segments(source_, Which::kRunning);
  const std::size_t found = snapshot.processes.size();
  snapshot.processes.resize(std::min(found, most_processes_));

  Exposition out(format, &history_);
  for (const Metric& metric : kMetrics) {
    out.family(metric.name, metric.type, metric.help);
    for (const ProcessReport& process : snapshot.processes) {
      const std::string pid = std::to_string(process.pid);
      // Another file, another process: its counters begin anew.
      const std::string identity = pid + "/" + std::to_string(process.file_inode);
      if (process.container.empty()) {
        out.subject({{"pid", pid}, {"program", process.program}}, identity);
      } else {
        out.subject({{"pid", pid}, {"program", process.program}, {"container", process.container}}, identity);
      }
      metric.collect(process, out);
    }
  }
  out.subject({}, "");
  const auto own = [&](const char* name, Type type, const char* help, auto value) {
    out.family(name, type, help);
    out.sample({}, value);
  };
  own("ringroad_exporter_processes", Type::kGauge, "Preloaded processes that run.",
      std::uint64_t{found});
  own("ringroad_exporter_processes_left_out", Type::kGauge,
      "Of these, those beyond --max-processes, about which nothing is told.",
      std::uint64_t{found - snapshot.processes.size()});
  own("ringroad_exporter_unreadable_segments", Type::kGauge,
      "Files that could not be read, say for their version; ringroad ss names them and the reason.",
      std::uint64_t{snapshot.skipped.size()});
  own("ringroad_exporter_scrapes_total", Type::kCounter, "How often the segments were read.",
      ++collections_);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  own("ringroad_exporter_scrape_duration_seconds", Type::kGauge,
      "How long reading them took this time.", took.count());
  out.family("ringroad_exporter_build_info", Type::kGauge, "The version of the exporter.");
  out.sample({{"version", RINGROAD_VERSION}}, std::uint64_t{1});
  return out.finish();
}

}  // namespace ringroad::cli::exporter
