// What one process says about itself and its streams, as plain values. Strings may hold control
// characters: see printable().
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rsocket-core/channel/channel.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/net/role.h"
#include "rsocket-core/process/control_socket.h"
#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/protocol/state.h"
#include "rsocket-core/stats/stats.h"

namespace ringroad::cli {

struct Traffic {
  std::uint64_t tx_bytes = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t tx_messages = 0;  // successful send calls of the program
  std::uint64_t rx_messages = 0;

  Traffic& operator+=(const Traffic& other) noexcept;
};

// What went over each carrier since the stream, or the process, began.
struct CarrierTraffic {
  Traffic tcp;
  Traffic channel;

  CarrierTraffic& operator+=(const CarrierTraffic& other) noexcept;
  Traffic sum() const noexcept;
};

// Bucket i holds what is at most Log2Histogram::bound(i) and more than bound(i - 1); the last, the
// rest.
using Buckets = std::array<std::uint64_t, stats::Log2Histogram::kBuckets>;
std::uint64_t sum_of(const Buckets& buckets) noexcept;

// Times of some of a stream's calls: in units of stats::kLatencyUnitNs, and their sum.
struct TimesReport {
  Buckets counts{};
  std::uint64_t sum_ns = 0;

  TimesReport& operator+=(const TimesReport& other) noexcept;
};
// The time that at least this part of them stays below: the bound of a bucket. 0: there are none; the last
// bucket has no bound, and tells that of the one before it.
std::uint64_t quantile_ns(const TimesReport& times, double part) noexcept;

// What streams have counted besides their traffic.
struct Measures {
  std::uint64_t stalls = 0;  // sends that found no room in the ring
  std::uint64_t promotions = 0;
  std::uint64_t resumptions = 0;
  Buckets tx_sizes{};  // bytes of the program's sends
  Buckets rx_sizes{};
  Buckets waits{};  // for room in the ring: units of stats::kWaitUnitNs
  std::uint64_t waited_ns = 0;

  Measures& operator+=(const Measures& other) noexcept;
};

// How long some of their calls took.
struct LatenciesReport {
  std::array<TimesReport, 2> answers;  // from a request to its answer: over TCP, over a channel
  TimesReport reads;                   // from the end of a sleep to the receive

  LatenciesReport& operator+=(const LatenciesReport& other) noexcept;
};

struct StreamReport {
  std::uint64_t id = 0;
  int fd = -1;
  Role role = Role::kConnect;
  Endpoint local;
  Endpoint remote;
  std::string rule;
  State state = State::kOnTcp;
  Reason reason = Reason::kNone;
  Reason peer_reason = Reason::kNone;
  ChannelInfo channel;  // strings are NUL-terminated
  unsigned extra_descriptors = 0;
  CarrierTraffic traffic;
  Measures measures;
  std::shared_ptr<const LatenciesReport> latencies;  // null: nothing was timed
  std::int64_t stalled_since_ns = 0;  // CLOCK_MONOTONIC; 0: no send of its waits for room
  std::size_t rule_index = 0;         // in ProcessReport::rules, unless that is shorter
  unsigned protocol = 0;  // the version that both ends of the channel use; 0: no channel, or not known
  unsigned features = 0;  // that both know (Feature)

  // What carries the stream now. While it resumes, what is in the rings still counts.
  Carrier carrier() const noexcept;
};

// What streams of one rule have done; of all processes that have one of that name, or of one.
struct RuleReport {
  std::string name;
  std::uint64_t opened = 0;
  std::uint64_t promoted = 0;
  std::array<std::uint64_t, static_cast<std::size_t>(Reason::kCount)> refused{};
  std::uint64_t streams = 0;  // that are live
  std::uint64_t on_channel = 0;
  CarrierTraffic traffic;  // of all streams, gone and live
  Measures measures;
  LatenciesReport latencies;

  RuleReport& operator+=(const RuleReport& other) noexcept;
};

struct ProcessReport {
  pid_t pid = 0;  // as the reader numbers it; of an ended one in a container, as that did
  std::string program;
  bool alive = false;
  std::string container;  // what it is called (container_name.h); empty: none, in the reader's pid namespace
  std::string cgroup;     // of one in a container
  pid_t own_pid = 0;      // in its pid namespace
  std::uint64_t pid_namespace = 0;  // 0: an older library's, which does not say it
  std::uint64_t file_inode = 0;     // of its statistics file
  std::uint64_t start_ticks = 0;  // with the pid, what names a process for good
  std::string library_version;
  stats::PolicyStatus policy_status = stats::PolicyStatus::kNone;
  std::uint32_t policy_rules = 0;
  std::string policy_detail;  // the first error, or the files that were read
  std::uint32_t policy_reloads = 0;
  control::Mode operator_mode = control::Mode::kAuto;
  std::uint32_t max_channels = 0;  // 0: the process has no agent thread yet
  std::uint32_t channels = 0;
  std::uint64_t channels_given_back = 0;
  std::string control_suffix;  // of the name of its control socket, behind the file's; or empty
  std::uint64_t operator_serial = 0;  // of the last request that was carried out; 0: none was
  std::vector<StreamReport> streams;  // by id
  CarrierTraffic closed;              // of streams that are gone
  Measures closed_measures;
  LatenciesReport closed_latencies;
  std::vector<RuleReport> rules;  // as they were met
  std::uint64_t streams_opened = 0;
  std::uint64_t streams_promoted = 0;
  std::uint32_t unlisted = 0;    // live streams that found no slot
  std::uint32_t unreadable = 0;  // slots that stayed in the middle of a change
  std::array<std::uint64_t, static_cast<std::size_t>(Reason::kCount)> promotions_refused{};

  // Of all streams, gone and live.
  CarrierTraffic totals() const noexcept;
  Measures total_measures() const noexcept;
  LatenciesReport total_latencies() const noexcept;
};

// The rules of all these processes by name, added up.
std::vector<RuleReport> rules_of(const std::vector<ProcessReport>& processes);

const char* carrier_name(Carrier carrier) noexcept;  // tcp, shm, rdma; else "invalid"

}  // namespace ringroad::cli
