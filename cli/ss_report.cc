#include "cli/ss_report.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/text.h"

namespace ringroad::cli {
namespace {

using nlohmann::ordered_json;
using stats::PolicyStatus;

bool shown(const StreamReport& stream, OnlyCarrier only) noexcept {
  return !only || *only == stream.carrier();
}

std::string reason_cell(Reason reason) {
  return reason == Reason::kNone ? std::string() : reason_name(reason);
}

void add_row(Table& table, const ProcessReport& process, const StreamReport& stream) {
  const bool on_rdma = stream.carrier() == Carrier::kRdma;
  const bool on_channel = stream.carrier() != Carrier::kTcp;
  const Traffic traffic = stream.traffic.sum();
  table.add({std::to_string(process.pid),
             printable(process.program) + (process.alive ? "" : " (ended)"),
             stream.accepted ? "accept" : "connect",
             stream.local.to_string(),
             stream.remote.to_string(),
             carrier_name(stream.carrier()),
             state_name(stream.state),
             on_channel ? printable(stream.channel.device) : "",
             on_rdma ? std::to_string(stream.channel.qpn) : "",
             reason_cell(stream.reason),
             reason_cell(stream.peer_reason),
             human_count(traffic.tx_bytes),
             std::to_string(traffic.tx_messages),
             human_count(traffic.rx_bytes),
             std::to_string(traffic.rx_messages),
             printable(stream.rule)});
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
                {"RULE"}});
}

std::string policy_words(const ProcessReport& process) {
  switch (process.policy_status) {
    case PolicyStatus::kRefused:
      return "policy refused: " + printable(process.policy_detail);
    case PolicyStatus::kEditRefused:
      return "edit of the policy refused, the " + counted(process.policy_rules, "rule") +
             " from before it hold: " + printable(process.policy_detail);
    case PolicyStatus::kLoaded:
      return "policy of " + counted(process.policy_rules, "rule") +
             (process.policy_detail.empty() ? "" : " from " + printable(process.policy_detail));
    case PolicyStatus::kNone: break;
  }
  return "no policy: every connection stays on TCP";
}

// What the table does not say about a process; may be empty.
std::string remark(const ProcessReport& process, OnlyCarrier only) {
  std::vector<std::string> words;
  if (process.streams.empty() && !only) words.emplace_back("no streams");
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
  return std::to_string(process.pid) + " " + printable(process.program) +
         (process.alive ? "" : " (ended)") + ": " + text + "\n";
}

ordered_json to_json(const Traffic& traffic, std::uint64_t streams) {
  return {{"tx_bytes", traffic.tx_bytes},
          {"rx_bytes", traffic.rx_bytes},
          {"tx_messages", traffic.tx_messages},
          {"rx_messages", traffic.rx_messages},
          {"streams", streams}};
}

ordered_json pair(std::uint64_t tcp, std::uint64_t channel) {
  return {{"tcp", tcp}, {"channel", channel}};
}

ordered_json to_json(const StreamReport& stream) {
  const ChannelInfo& channel = stream.channel;
  const CarrierTraffic& traffic = stream.traffic;
  return {{"id", stream.id},
          {"fd", stream.fd},
          {"role", stream.accepted ? "accept" : "connect"},
          {"local", stream.local.to_string()},
          {"remote", stream.remote.to_string()},
          {"rule", stream.rule},
          {"state", state_name(stream.state)},
          {"carrier", carrier_name(stream.carrier())},
          {"device", channel.device},
          {"gid", channel.gid},
          {"qpn", channel.qpn},
          {"peer_qpn", channel.peer_qpn},
          {"traffic_class", channel.traffic_class},
          {"path_mtu", channel.path_mtu},
          {"reason", reason_name(stream.reason)},
          {"peer_reason", reason_name(stream.peer_reason)},
          {"tx_bytes", pair(traffic.tcp.tx_bytes, traffic.channel.tx_bytes)},
          {"rx_bytes", pair(traffic.tcp.rx_bytes, traffic.channel.rx_bytes)},
          {"tx_messages", pair(traffic.tcp.tx_messages, traffic.channel.tx_messages)},
          {"rx_messages", pair(traffic.tcp.rx_messages, traffic.channel.rx_messages)},
          {"stalls", stream.stalls},
          {"promotions", stream.promotions},
          {"resumptions", stream.resumptions},
          {"pinned_bytes", channel.pinned_bytes},
          {"descriptors", channel.descriptors},
          {"extra_descriptors", stream.extra_descriptors}};
}

const char* status_name(PolicyStatus status) noexcept {
  switch (status) {
    case PolicyStatus::kLoaded: return "loaded";
    case PolicyStatus::kRefused: return "refused";
    case PolicyStatus::kEditRefused:
      return "edit_refused";
    case PolicyStatus::kNone: break;
  }
  return "none";
}

ordered_json to_json(const ProcessReport& process, OnlyCarrier only) {
  ordered_json streams = ordered_json::array();
  std::uint64_t on_channel = 0;
  for (const StreamReport& stream : process.streams) {
    if (shown(stream, only)) streams.push_back(to_json(stream));
    on_channel += stream.carrier() != Carrier::kTcp ? 1U : 0U;
  }
  ordered_json refused = ordered_json::object();
  for (std::size_t i = 0; i < process.promotions_refused.size(); ++i) {
    if (process.promotions_refused[i] > 0) {
      refused[reason_name(static_cast<Reason>(i))] = process.promotions_refused[i];
    }
  }
  const CarrierTraffic totals = process.totals();
  return {{"pid", process.pid},
          {"program", process.program},
          {"alive", process.alive},
          {"library_version", process.library_version},
          {"policy",
           {{"status", status_name(process.policy_status)},
            {"rules", process.policy_rules},
            {"detail", process.policy_detail},
            {"reloads", process.policy_reloads}}},
          {"operator", control::mode_name(process.operator_mode)},
          {"streams", streams},
          {"totals",
           {{"tcp", to_json(totals.tcp, process.streams.size() - on_channel)},
            {"channel", to_json(totals.channel, on_channel)}}},
          {"streams_opened", process.streams_opened},
          {"streams_promoted", process.streams_promoted},
          {"channels",
           {{"in_use", process.channels},
            {"max", process.max_channels},
            {"given_back", process.channels_given_back}}},
          {"unlisted", process.unlisted},
          {"unreadable", process.unreadable},
          {"promotions_refused", refused}};
}

}  // namespace

std::string ss_text(const Snapshot& snapshot, OnlyCarrier only) {
  if (snapshot.processes.empty()) return "no preloaded processes\n";
  Table table = stream_table();
  std::string remarks;
  for (const ProcessReport& process : snapshot.processes) {
    for (const StreamReport& stream : process.streams) {
      if (shown(stream, only)) add_row(table, process, stream);
    }
    remarks += remark(process, only);
  }
  if (!table.empty()) return table.to_string() + remarks;
  return only ? "no stream on " + std::string(carrier_name(*only)) + "\n" + remarks : remarks;
}

std::string ss_json(const Snapshot& snapshot, OnlyCarrier only) {
  ordered_json processes = ordered_json::array();
  for (const ProcessReport& process : snapshot.processes) {
    processes.push_back(to_json(process, only));
  }
  // A program's name need not be UTF-8.
  return ordered_json{{"processes", processes}}.dump(2, ' ', false,
                                                     ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace ringroad::cli
