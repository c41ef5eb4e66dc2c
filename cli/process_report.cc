#include "cli/process_report.h"

#include <algorithm>
#include <numeric>

namespace ringroad::cli {

Traffic& Traffic::operator+=(const Traffic& other) noexcept {
  tx_bytes += other.tx_bytes;
  rx_bytes += other.rx_bytes;
  tx_messages += other.tx_messages;
  rx_messages += other.rx_messages;
  return *this;
}

CarrierTraffic& CarrierTraffic::operator+=(const CarrierTraffic& other) noexcept {
  tcp += other.tcp;
  channel += other.channel;
  return *this;
}

Traffic CarrierTraffic::sum() const noexcept {
  Traffic result = tcp;
  return result += channel;
}

std::uint64_t sum_of(const Buckets& buckets) noexcept {
  return std::accumulate(buckets.begin(), buckets.end(), std::uint64_t{0});
}

TimesReport& TimesReport::operator+=(const TimesReport& other) noexcept {
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  sum_ns += other.sum_ns;
  return *this;
}

std::uint64_t quantile_ns(const TimesReport& times, double part) noexcept {
  const auto wanted = part * static_cast<double>(sum_of(times.counts));
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < times.counts.size(); ++i) {
    below += times.counts[i];
    if (below == 0 || static_cast<double>(below) < wanted) continue;
    return stats::Log2Histogram::bound(std::min(i, times.counts.size() - 2)) * stats::kLatencyUnitNs;
  }
  return 0;
}

Measures& Measures::operator+=(const Measures& other) noexcept {
  stalls += other.stalls;
  promotions += other.promotions;
  resumptions += other.resumptions;
  for (std::size_t i = 0; i < tx_sizes.size(); ++i) {
    tx_sizes[i] += other.tx_sizes[i];
    rx_sizes[i] += other.rx_sizes[i];
    waits[i] += other.waits[i];
  }
  waited_ns += other.waited_ns;
  return *this;
}

LatenciesReport& LatenciesReport::operator+=(const LatenciesReport& other) noexcept {
  for (std::size_t i = 0; i < answers.size(); ++i) answers[i] += other.answers[i];
  reads += other.reads;
  return *this;
}

RuleReport& RuleReport::operator+=(const RuleReport& other) noexcept {
  opened += other.opened;
  promoted += other.promoted;
  for (std::size_t i = 0; i < refused.size(); ++i) refused[i] += other.refused[i];
  streams += other.streams;
  on_channel += other.on_channel;
  traffic += other.traffic;
  measures += other.measures;
  latencies += other.latencies;
  return *this;
}

Carrier StreamReport::carrier() const noexcept {
  return state == State::kOnChannel || state == State::kResuming ? channel.carrier : Carrier::kTcp;
}

CarrierTraffic ProcessReport::totals() const noexcept {
  CarrierTraffic result = closed;
  for (const StreamReport& stream : streams) result += stream.traffic;
  return result;
}

Measures ProcessReport::total_measures() const noexcept {
  Measures result = closed_measures;
  for (const StreamReport& stream : streams) result += stream.measures;
  return result;
}

LatenciesReport ProcessReport::total_latencies() const noexcept {
  LatenciesReport result = closed_latencies;
  for (const StreamReport& stream : streams) {
    if (stream.latencies != nullptr) result += *stream.latencies;
  }
  return result;
}

std::vector<RuleReport> rules_of(const std::vector<ProcessReport>& processes) {
  std::vector<RuleReport> result;
  for (const ProcessReport& process : processes) {
    for (const RuleReport& rule : process.rules) {
      const auto known = std::find_if(result.begin(), result.end(),
                                      [&](const RuleReport& one) { return one.name == rule.name; });
      if (known == result.end()) {
        result.push_back(rule);
      } else {
        *known += rule;
      }
    }
  }
  std::sort(result.begin(), result.end(),
            [](const RuleReport& a, const RuleReport& b) { return a.name < b.name; });
  return result;
}

const char* carrier_name(Carrier carrier) noexcept {
  switch (carrier) {
    case Carrier::kTcp: return "tcp";
    case Carrier::kShm: return "shm";
    case Carrier::kRdma: return "rdma";
  }
  return "invalid";
}

}  // namespace ringroad::cli
