#include "cli/process_report.h"

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

Carrier StreamReport::carrier() const noexcept {
  return state == State::kOnChannel || state == State::kResuming ? channel.carrier : Carrier::kTcp;
}

CarrierTraffic ProcessReport::totals() const noexcept {
  CarrierTraffic result = closed;
  for (const StreamReport& stream : streams) result += stream.traffic;
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
