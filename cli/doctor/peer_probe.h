// The near end of a peer's probe, in a process of its own that is preloaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringroad::cli::doctor {

struct Pings {
  std::uint32_t bytes = 0;
  std::uint32_t count = 0;
  double min_us = 0;  // whole round trips
  double p50_us = 0;
};

struct ProbeResult {
  std::string error;  // what ended it early
  bool connected = false;
  std::string local;  // the socket's own end
  double connect_us = 0;
  bool answers = false;  // it is `ringroad doctor --answer`
  bool preloaded = false;
  std::string asked;  // why the library could not be asked; empty: it could
  std::string state;  // of the stream, at the end
  std::string carrier;
  std::string reason;
  std::string peer_reason;
  std::string device;
  double promotion_ms = 0;
  std::vector<Pings> tcp;
  std::vector<Pings> rdma;
};

std::string to_text(const ProbeResult& result);
// False: it is none.
bool probe_result_from_text(const std::string& text, ProbeResult& result);

// Of sorted or unsorted round trips; count 0 where there are none.
Pings summary(std::uint32_t bytes, std::vector<double> times_us);

// "ADDRESS:PORT". Prints a ProbeResult as JSON; returns the exit status.
int probe_peer(const std::string& peer);

}  // namespace ringroad::cli::doctor
