#include "cli/top_rates.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace ringroad::cli {
namespace {

struct Flow {
  Traffic traffic;
  std::uint64_t stalls = 0;
  std::uint64_t waited_ns = 0;
};

Flow flow_of(const CarrierTraffic& traffic, const Measures& measures) noexcept {
  return {traffic.sum(), measures.stalls, measures.waited_ns};
}

// A wait that has not ended counts, too.
std::uint64_t under_way(const ProcessReport& process, const StreamReport& stream,
                        std::int64_t now_ns) noexcept {
  if (!process.alive || stream.stalled_since_ns == 0 || stream.stalled_since_ns > now_ns) return 0;
  return static_cast<std::uint64_t>(now_ns - stream.stalled_since_ns);
}

Flow flow_of(const ProcessReport& process, const StreamReport& stream,
             std::int64_t now_ns) noexcept {
  Flow flow = flow_of(stream.traffic, stream.measures);
  flow.waited_ns += under_way(process, stream, now_ns);
  return flow;
}

// Of a process, or of one rule in it.
Flow flow_of(const ProcessReport& process, const RuleReport* rule, std::int64_t now_ns) noexcept {
  Flow flow = rule != nullptr ? flow_of(rule->traffic, rule->measures)
                              : flow_of(process.totals(), process.total_measures());
  for (const StreamReport& stream : process.streams) {
    if (rule == nullptr || stream.rule == rule->name) {
      flow.waited_ns += under_way(process, stream, now_ns);
    }
  }
  return flow;
}

// A counter that has fallen is another one by now.
double growth(std::uint64_t before, std::uint64_t now, double seconds) noexcept {
  return seconds > 0 && now > before ? static_cast<double>(now - before) / seconds : 0;
}

Rates rates_of(const Flow& before, const Flow& now, double seconds) noexcept {
  const Traffic& a = before.traffic;
  const Traffic& b = now.traffic;
  return {growth(a.tx_bytes, b.tx_bytes, seconds),
          growth(a.rx_bytes, b.rx_bytes, seconds),
          growth(a.tx_messages, b.tx_messages, seconds),
          growth(a.rx_messages, b.rx_messages, seconds),
          growth(before.stalls, now.stalls, seconds),
          growth(before.waited_ns, now.waited_ns, seconds) / 1e9};
}

const ProcessReport* find(const TopSample& sample, const ProcessReport& wanted) noexcept {
  for (const ProcessReport& process : sample.snapshot.processes) {
    if (process.pid == wanted.pid && process.start_ticks == wanted.start_ticks) return &process;
  }
  return nullptr;
}

const StreamReport* find(const ProcessReport* process, std::uint64_t id) noexcept {
  if (process == nullptr) return nullptr;
  const auto& streams = process->streams;
  const auto it = std::lower_bound(streams.begin(), streams.end(), id,
                                   [](const StreamReport& s, std::uint64_t n) { return s.id < n; });
  return it != streams.end() && it->id == id ? &*it : nullptr;
}

const RuleReport* find(const ProcessReport* process, const std::string& name) noexcept {
  if (process == nullptr) return nullptr;
  for (const RuleReport& rule : process->rules) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

class Rows {
 public:
  Rows(const TopSample& before, const TopSample& now) noexcept
      : before_(before), now_(now), seconds_(seconds_between(before, now)) {}

  Rates of(const ProcessReport& process, const ProcessReport* earlier) const {
    const Flow then =
        earlier != nullptr ? flow_of(*earlier, nullptr, before_.monotonic_ns) : Flow{};
    return rates_of(then, flow_of(process, nullptr, now_.monotonic_ns), seconds_);
  }
  Rates of(const ProcessReport& process, const ProcessReport* earlier,
           const RuleReport& rule) const {
    const RuleReport* same = find(earlier, rule.name);
    const Flow then = same != nullptr ? flow_of(*earlier, same, before_.monotonic_ns) : Flow{};
    return rates_of(then, flow_of(process, &rule, now_.monotonic_ns), seconds_);
  }
  Rates of(const ProcessReport& process, const ProcessReport* earlier,
           const StreamReport& stream) const {
    const StreamReport* same = find(earlier, stream.id);
    const Flow then = same != nullptr ? flow_of(*earlier, *same, before_.monotonic_ns) : Flow{};
    return rates_of(then, flow_of(process, stream, now_.monotonic_ns), seconds_);
  }

 private:
  const TopSample& before_;
  const TopSample& now_;
  const double seconds_;
};

TopRow row_of(const ProcessReport& process, const StreamReport& stream) {
  TopRow row;
  row.pid = process.pid;
  row.program = process.program;
  row.container = process.container;
  row.rule = stream.rule;
  row.id = stream.id;
  row.local = stream.local.to_string();
  row.remote = stream.remote.to_string();
  row.remote_endpoint = stream.remote;
  row.carrier = stream.carrier();
  row.state = stream.state;
  row.reason = stream.reason;
  row.peer_reason = stream.peer_reason;
  return row;
}

using RowBefore = bool (*)(const TopRow&, const TopRow&);

template <double Rates::*kRate>
bool faster(const TopRow& a, const TopRow& b) {
  return a.rates.*kRate > b.rates.*kRate;
}

const std::pair<const char*, RowBefore> kRowOrders[] = {
    {"bytes",
     [](const auto& a, const auto& b) {
       return a.rates.tx_bytes + a.rates.rx_bytes > b.rates.tx_bytes + b.rates.rx_bytes;
     }},
    {"tx", faster<&Rates::tx_bytes>},
    {"rx", faster<&Rates::rx_bytes>},
    {"msgs",
     [](const auto& a, const auto& b) {
       return a.rates.tx_messages + a.rates.rx_messages > b.rates.tx_messages + b.rates.rx_messages;
     }},
    {"tx-msgs", faster<&Rates::tx_messages>},
    {"rx-msgs", faster<&Rates::rx_messages>},
    {"stalls", faster<&Rates::stalls>},
    {"waiting", faster<&Rates::waiting>},
    {"streams", [](const auto& a, const auto& b) { return a.streams > b.streams; }},
    {"pid",
     [](const auto& a, const auto& b) { return std::tie(a.pid, a.id) < std::tie(b.pid, b.id); }},
    {"program", [](const auto& a, const auto& b) { return a.program < b.program; }},
    {"container", [](const auto& a, const auto& b) { return a.container < b.container; }},
    {"peer", [](const auto& a, const auto& b) { return a.remote_endpoint < b.remote_endpoint; }},
    {"carrier", [](const auto& a, const auto& b) { return a.carrier < b.carrier; }},
    {"reason", [](const auto& a, const auto& b) { return a.reason < b.reason; }},
    {"rule", [](const auto& a, const auto& b) { return a.rule < b.rule; }}};

}  // namespace

Rates& Rates::operator+=(const Rates& other) noexcept {
  tx_bytes += other.tx_bytes;
  rx_bytes += other.rx_bytes;
  tx_messages += other.tx_messages;
  rx_messages += other.rx_messages;
  stalls += other.stalls;
  waiting += other.waiting;
  return *this;
}

double seconds_between(const TopSample& before, const TopSample& now) noexcept {
  return static_cast<double>(now.monotonic_ns - before.monotonic_ns) / 1e9;
}

std::vector<TopRow> top_rows(const TopSample& before, const TopSample& now, TopBy by,
                             const StreamFilter& filter) {
  const Rows rates(before, now);
  std::vector<TopRow> streams;
  std::map<std::pair<pid_t, std::string>, TopRow> groups;
  const auto group_of = [&](const ProcessReport& process, const std::string& rule) -> TopRow& {
    const bool by_rule = by == TopBy::kRule;
    TopRow& row = groups[{by_rule ? 0 : process.pid, by_rule ? rule : std::string()}];
    if (by_rule) {
      row.rule = rule;
    } else {
      row.pid = process.pid;
      row.program = process.program;
      row.container = process.container;
    }
    return row;
  };
  for (const ProcessReport& process : now.snapshot.processes) {
    const ProcessReport* earlier = find(before, process);
    for (const StreamReport& stream : process.streams) {
      if (filter && !filter(process, stream)) continue;
      if (by == TopBy::kStream) {
        streams.push_back(row_of(process, stream));
        streams.back().rates = rates.of(process, earlier, stream);
        continue;
      }
      TopRow& row = group_of(process, stream.rule);
      ++row.streams;
      if (stream.carrier() != Carrier::kTcp) ++row.on_channel;
      if (filter) row.rates += rates.of(process, earlier, stream);
    }
    if (filter) continue;
    if (by == TopBy::kProcess) group_of(process, {}).rates += rates.of(process, earlier);
    if (by == TopBy::kRule) {
      for (const RuleReport& rule : process.rules) {
        group_of(process, rule.name).rates += rates.of(process, earlier, rule);
      }
    }
  }
  if (by == TopBy::kStream) return streams;
  std::vector<TopRow> rows;
  for (auto& [key, row] : groups) rows.push_back(std::move(row));
  return rows;
}

Rates sum_of(const std::vector<TopRow>& rows) noexcept {
  Rates sum;
  for (const TopRow& row : rows) sum += row.rates;
  return sum;
}

const std::vector<std::string>& top_sort_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> names;
    for (const auto& [name, before] : kRowOrders) names.emplace_back(name);
    return names;
  }();
  return keys;
}

void sort_rows(std::vector<TopRow>& rows, const std::string& key, bool reverse) {
  for (const auto& [name, before] : kRowOrders) {
    if (key == name) std::stable_sort(rows.begin(), rows.end(), before);
  }
  if (reverse) std::reverse(rows.begin(), rows.end());
}

const char* by_name(TopBy by) noexcept {
  switch (by) {
    case TopBy::kProcess:
      return "process";
    case TopBy::kStream:
      return "stream";
    case TopBy::kRule:
      return "rule";
  }
  return "invalid";
}

}  // namespace ringroad::cli
