// `ringroad ss --summary`, `--rules` and `--histograms`: what is told of many streams at once.
#include <algorithm>
#include <map>

#include "cli/ss_report.h"
#include "cli/text.h"

namespace ringroad::cli {
namespace {

using stats::Log2Histogram;

constexpr auto kRight = Table::Align::kRight;

// "1024 B", "2.0 ms": bounds are powers of two of their unit.
std::string wait_cell(std::uint64_t ns, const SsView& view) {
  return view.exact ? std::to_string(ns) : human_time(ns);
}

// Of what is timed, half is answered within the first, 99 in 100 within the second.
std::string answer_cell(const TimesReport& times, const SsView& view) {
  if (sum_of(times.counts) == 0) return {};
  return wait_cell(quantile_ns(times, 0.5), view) + "/" + wait_cell(quantile_ns(times, 0.99), view);
}

// The most frequent first: "memlock 3, timeout 1".
template <typename Counts, typename Name>
std::string listed(const Counts& counts, Name name) {
  std::vector<std::pair<std::uint64_t, std::string>> entries;
  for (const auto& [key, count] : counts) {
    if (count > 0) entries.emplace_back(count, name(key));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::string text;
  for (const auto& [count, words] : entries) {
    text += (text.empty() ? "" : ", ") + words + " " + std::to_string(count);
  }
  return text;
}

template <typename Refused>
std::string refusals_of(const Refused& refused) {
  std::map<Reason, std::uint64_t> counts;
  for (std::size_t i = 0; i < refused.size(); ++i) counts[static_cast<Reason>(i)] = refused[i];
  return listed(counts, reason_name);
}

std::string reasons_name(std::pair<Reason, Reason> reasons) {
  std::string text = reason_name(reasons.first);
  if (reasons.second != Reason::kNone) text += std::string("/") + reason_name(reasons.second);
  return text;
}

void add_traffic(Table& table, const char* carrier, std::uint64_t streams, const Traffic& traffic,
                 const SsView& view) {
  table.add({carrier, std::to_string(streams), count_cell(traffic.tx_bytes, view),
             std::to_string(traffic.tx_messages), count_cell(traffic.rx_bytes, view),
             std::to_string(traffic.rx_messages)});
}

// One line a bucket that anything is in.
void add_buckets(Table& table, const std::string& pid, const std::string& program, const char* what,
                 const Buckets& buckets, std::uint64_t unit, const SsView& view,
                 std::string (*cell)(std::uint64_t, const SsView&)) {
  const std::uint64_t all = sum_of(buckets);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i] == 0) continue;
    below += buckets[i];
    const bool last = i + 1 == buckets.size();
    const std::string bound = last ? "> " + cell(Log2Histogram::bound(i - 1) * unit, view)
                                   : "<= " + cell(Log2Histogram::bound(i) * unit, view);
    char percent[16];
    std::snprintf(percent, sizeof percent, "%.1f",
                  100.0 * static_cast<double>(below) / static_cast<double>(all));
    table.add({pid, program, what, bound, std::to_string(buckets[i]), percent});
  }
}

}  // namespace

std::string ss_summary(const Snapshot& snapshot, const SsView& view) {
  if (snapshot.processes.empty()) return "no preloaded processes\n";
  std::map<Carrier, std::uint64_t> carriers;
  std::map<State, std::uint64_t> states;
  std::map<std::pair<Reason, Reason>, std::uint64_t> reasons;
  const std::vector<StreamRow> rows = rows_of(snapshot, view);
  for (const StreamRow& row : rows) {
    ++carriers[row.stream->carrier()];
    ++states[row.stream->state];
    if (row.stream->carrier() == Carrier::kTcp) {
      ++reasons[{row.stream->reason, row.stream->peer_reason}];
    }
  }
  ProcessReport all;
  CarrierTraffic traffic;
  Measures measures;
  for (const ProcessReport& process : snapshot.processes) {
    traffic += process.totals();
    measures += process.total_measures();
    all.streams_opened += process.streams_opened;
    all.streams_promoted += process.streams_promoted;
    all.channels += process.channels;
    for (std::size_t i = 0; i < all.promotions_refused.size(); ++i) {
      all.promotions_refused[i] += process.promotions_refused[i];
    }
  }
  const std::string of_states = listed(states, state_name);
  const std::string of_carriers = listed(carriers, carrier_name);
  std::string text = counted(snapshot.processes.size(), "process", "processes") + ", " +
                     counted(rows.size(), "stream") + (view.filter ? " that match" : "") + "\n";
  if (!rows.empty()) text += "states: " + of_states + "\ncarriers: " + of_carriers + "\n";
  if (!reasons.empty()) text += "reasons on TCP: " + listed(reasons, reasons_name) + "\n";
  const std::string refused = refusals_of(all.promotions_refused);
  text += "since the processes began: " + std::to_string(all.streams_opened) + " opened, " +
          std::to_string(all.streams_promoted) + " promoted, " +
          std::to_string(measures.resumptions) + " back on TCP, " +
          std::to_string(measures.stalls) + " stalls (" + human_time(measures.waited_ns) + ")" +
          (refused.empty() ? "" : "; refused: " + refused) + "\n";
  Table table({{"CARRIER"},
               {"STREAMS", kRight},
               {"TX", kRight},
               {"TX-MSGS", kRight},
               {"RX", kRight},
               {"RX-MSGS", kRight}});
  const std::uint64_t on_tcp = carriers[Carrier::kTcp];
  add_traffic(table, "tcp", on_tcp, traffic.tcp, view);
  add_traffic(table, "channel", rows.size() - on_tcp, traffic.channel, view);
  return text + table.to_string(view.header) + ss_remarks(snapshot, view);
}

std::string ss_rules(const Snapshot& snapshot, const SsView& view) {
  const std::vector<RuleReport> rules = rules_of(snapshot.processes);
  if (rules.empty()) return view.header ? "no stream was ever chosen by a rule\n" : "";
  Table table({{"RULE"},
               {"STREAMS", kRight},
               {"ON-CHANNEL", kRight},
               {"OPENED", kRight},
               {"PROMOTED", kRight},
               {"TCP-TX", kRight},
               {"TCP-RX", kRight},
               {"TCP-MSGS", kRight},
               {"CHANNEL-TX", kRight},
               {"CHANNEL-RX", kRight},
               {"CHANNEL-MSGS", kRight},
               {"STALLS", kRight},
               {"TCP-ANSWER", kRight},
               {"CHANNEL-ANSWER", kRight},
               {"REFUSED"}});
  for (const RuleReport& rule : rules) {
    const Traffic& tcp = rule.traffic.tcp;
    const Traffic& channel = rule.traffic.channel;
    table.add({printable(rule.name), std::to_string(rule.streams), std::to_string(rule.on_channel),
               std::to_string(rule.opened), std::to_string(rule.promoted),
               count_cell(tcp.tx_bytes, view), count_cell(tcp.rx_bytes, view),
               std::to_string(tcp.tx_messages + tcp.rx_messages),
               count_cell(channel.tx_bytes, view), count_cell(channel.rx_bytes, view),
               std::to_string(channel.tx_messages + channel.rx_messages),
               std::to_string(rule.measures.stalls), answer_cell(rule.latencies.answers[0], view),
               answer_cell(rule.latencies.answers[1], view), refusals_of(rule.refused)});
  }
  return table.to_string(view.header);
}

std::string ss_histograms(const Snapshot& snapshot, const SsView& view) {
  if (snapshot.processes.empty()) return view.header ? "no preloaded processes\n" : "";
  Table table({{"PID", kRight},
               {"PROGRAM"},
               {"WHAT"},
               {"UP-TO", kRight},
               {"COUNT", kRight},
               {"PERCENT-SO-FAR", kRight}});
  for (const ProcessReport& process : snapshot.processes) {
    Measures measures = view.filter ? Measures{} : process.total_measures();
    LatenciesReport latencies = view.filter ? LatenciesReport{} : process.total_latencies();
    for (const StreamReport& stream : process.streams) {
      if (!view.filter || !view.filter(process, stream)) continue;
      measures += stream.measures;
      if (stream.latencies != nullptr) latencies += *stream.latencies;
    }
    const std::string pid = std::to_string(process.pid);
    const std::string program = printable(process.program) + (process.alive ? "" : " (ended)");
    add_buckets(table, pid, program, "send", measures.tx_sizes, 1, view, count_cell);
    add_buckets(table, pid, program, "receive", measures.rx_sizes, 1, view, count_cell);
    const auto add_times = [&](const char* what, const Buckets& buckets, std::uint64_t unit) {
      add_buckets(table, pid, program, what, buckets, unit, view, wait_cell);
    };
    add_times("wait", measures.waits, stats::kWaitUnitNs);
    add_times("answer, TCP", latencies.answers[0].counts, stats::kLatencyUnitNs);
    add_times("answer, channel", latencies.answers[1].counts, stats::kLatencyUnitNs);
    add_times("read", latencies.reads.counts, stats::kLatencyUnitNs);
  }
  if (table.empty()) return view.header ? "nothing was sent or received yet\n" : "";
  return table.to_string(view.header);
}

}  // namespace ringroad::cli
