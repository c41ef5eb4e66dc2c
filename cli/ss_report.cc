#include "cli/ss_report.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/text.h"

namespace ringroad::cli {
namespace {

using stats::PolicyStatus;

using Before = bool (*)(const StreamRow&, const StreamRow&);

template <std::uint64_t (*kNumber)(const StreamReport&)>
bool larger(const StreamRow& a, const StreamRow& b) {
  return kNumber(*a.stream) > kNumber(*b.stream);
}

std::uint64_t tx(const StreamReport& s) { return s.traffic.sum().tx_bytes; }
std::uint64_t rx(const StreamReport& s) { return s.traffic.sum().rx_bytes; }
std::uint64_t bytes(const StreamReport& s) { return tx(s) + rx(s); }
std::uint64_t tx_messages(const StreamReport& s) { return s.traffic.sum().tx_messages; }
std::uint64_t rx_messages(const StreamReport& s) { return s.traffic.sum().rx_messages; }
std::uint64_t stalls(const StreamReport& s) { return s.measures.stalls; }
std::uint64_t waited(const StreamReport& s) { return s.measures.waited_ns; }
std::uint64_t resumptions(const StreamReport& s) { return s.measures.resumptions; }

// The busiest first, names from A.
const std::pair<const char*, Before> kOrders[] = {
    {"pid", [](const auto& a, const auto& b) { return a.process->pid < b.process->pid; }},
    {"program",
     [](const auto& a, const auto& b) { return a.process->program < b.process->program; }},
    {"container",
     [](const auto& a, const auto& b) { return a.process->container < b.process->container; }},
    {"local", [](const auto& a, const auto& b) { return a.stream->local < b.stream->local; }},
    {"peer", [](const auto& a, const auto& b) { return a.stream->remote < b.stream->remote; }},
    {"carrier",
     [](const auto& a, const auto& b) { return a.stream->carrier() < b.stream->carrier(); }},
    {"state", [](const auto& a, const auto& b) { return a.stream->state < b.stream->state; }},
    {"reason",
     [](const auto& a, const auto& b) {
       return std::tie(a.stream->reason, a.stream->peer_reason) <
              std::tie(b.stream->reason, b.stream->peer_reason);
     }},
    {"rule", [](const auto& a, const auto& b) { return a.stream->rule < b.stream->rule; }},
    {"tx", larger<tx>},
    {"rx", larger<rx>},
    {"bytes", larger<bytes>},
    {"tx-msgs", larger<tx_messages>},
    {"rx-msgs", larger<rx_messages>},
    {"stalls", larger<stalls>},
    {"waited", larger<waited>},
    {"resumptions", larger<resumptions>}};

std::string reason_cell(Reason reason) {
  return reason == Reason::kNone ? std::string() : reason_name(reason);
}

void add_row(Table& table, const StreamRow& row, const SsView& view) {
  const ProcessReport& process = *row.process;
  const StreamReport& stream = *row.stream;
  const bool on_rdma = stream.carrier() == Carrier::kRdma;
  const bool on_channel = stream.carrier() != Carrier::kTcp;
  const Traffic traffic = stream.traffic.sum();
  table.add({std::to_string(process.pid),
             printable(process.program) + (process.alive ? "" : " (ended)"),
             std::string(to_string(stream.role)), stream.local.to_string(),
             stream.remote.to_string(), carrier_name(stream.carrier()), state_name(stream.state),
             on_channel ? printable(stream.channel.device) : "",
             on_rdma ? std::to_string(stream.channel.qpn) : "", reason_cell(stream.reason),
             reason_cell(stream.peer_reason), count_cell(traffic.tx_bytes, view),
             std::to_string(traffic.tx_messages), count_cell(traffic.rx_bytes, view),
             std::to_string(traffic.rx_messages), printable(stream.rule), printable(process.container)});
}

Table stream_table() {
  constexpr auto kRight = Table::Align::kRight;
  return Table({{"PID", kRight},
                {"PROGRAM"},
                {"ROLE"},
                {"LOCAL"},
                {"REMOTE"},
                {"CARRIER"},
                {"STATE"},
                {"DEVICE"},
                {"QPN", kRight},
                {"REASON"},
                {"PEER-REASON"},
                {"TX", kRight},
                {"TX-MSGS", kRight},
                {"RX", kRight},
                {"RX-MSGS", kRight},
                {"RULE"},
                {"CONTAINER"}});
}

std::string policy_words(const ProcessReport& process) {
  switch (process.policy_status) {
    case PolicyStatus::kRefused:
      return "policy refused: " + printable(process.policy_detail);
    case PolicyStatus::kEditRefused:
      return "edit of the policy refused, the policy before it holds (" +
             counted(process.policy_rules, "rule") + "): " + printable(process.policy_detail);
    case PolicyStatus::kLoaded:
      return "policy of " + counted(process.policy_rules, "rule") +
             (process.policy_detail.empty() ? "" : " from " + printable(process.policy_detail));
    case PolicyStatus::kNone: break;
  }
  return "no policy: every connection stays on TCP";
}

// What the table does not say about a process; may be empty.
std::string remark(const ProcessReport& process, bool filtered) {
  std::vector<std::string> words;
  if (process.streams.empty() && !filtered) words.emplace_back("no streams");
  if (process.policy_status == PolicyStatus::kRefused ||
      process.policy_status == PolicyStatus::kEditRefused || !words.empty()) {
    words.push_back(policy_words(process));
  }
  if (process.operator_mode != control::Mode::kAuto) {
    words.push_back("the operator asked for " +
                    std::string(control::mode_name(process.operator_mode)));
  }
  if (process.max_channels > 0 && process.channels >= process.max_channels) {
    words.push_back(process.max_channels == 1
                        ? "the one channel that max_channels allows is taken"
                        : "all " + std::to_string(process.max_channels) +
                              " channels that max_channels allows are taken");
  }
  if (process.unlisted > 0) {
    words.push_back(counted(process.unlisted, "more stream") + " found no slot to be listed in");
  }
  if (process.unreadable > 0) {
    words.push_back(counted(process.unreadable, "stream") + " in the middle of a change left out");
  }
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : "; ") + word;
  if (text.empty()) return text;
  const std::string where = process.container.empty() ? "" : " in " + printable(process.container);
  return std::to_string(process.pid) + " " + printable(process.program) + where +
         (process.alive ? "" : " (ended)") + ": " + text + "\n";
}

}  // namespace

std::string count_cell(std::uint64_t value, const SsView& view) {
  return view.exact ? std::to_string(value) : human_count(value);
}

const std::vector<std::string>& stream_sort_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> names;
    for (const auto& [name, before] : kOrders) names.emplace_back(name);
    return names;
  }();
  return keys;
}

std::vector<StreamRow> rows_of(const Snapshot& snapshot, const SsView& view) {
  std::vector<StreamRow> rows;
  for (const ProcessReport& process : snapshot.processes) {
    for (const StreamReport& stream : process.streams) {
      if (view.shows(process, stream)) rows.push_back({&process, &stream});
    }
  }
  for (const auto& [name, before] : kOrders) {
    if (view.sort == name) std::stable_sort(rows.begin(), rows.end(), before);
  }
  if (view.reverse) std::reverse(rows.begin(), rows.end());
  return rows;
}

std::string ss_remarks(const Snapshot& snapshot, const SsView& view) {
  std::string remarks;
  for (const ProcessReport& process : snapshot.processes) {
    remarks += remark(process, view.filter != nullptr);
  }
  return remarks;
}

std::string ss_text(const Snapshot& snapshot, const SsView& view) {
  if (snapshot.processes.empty()) return view.header ? "no preloaded processes\n" : "";
  Table table = stream_table();
  for (const StreamRow& row : rows_of(snapshot, view)) add_row(table, row, view);
  if (!view.header) return table.to_string(false);
  const std::string remarks = ss_remarks(snapshot, view);
  if (!table.empty()) return table.to_string() + remarks;
  return view.filter ? "no stream matches: " + printable(view.filter_words) + "\n" + remarks
                     : remarks;
}

}  // namespace ringroad::cli
