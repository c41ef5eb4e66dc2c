// What `ringroad top` shows: how fast the counters of two readings of the segments grew.
//
// Thread rule: values without shared state. std::bad_alloc may be thrown.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "cli/stream_filter.h"

namespace ringroad::cli {

enum class TopBy : std::uint8_t { kProcess, kStream, kRule };

struct TopSample {
  Snapshot snapshot;
  std::int64_t monotonic_ns = 0;  // when it was read
};

// A second's, but for what is said to be a number.
struct Rates {
  double tx_bytes = 0;
  double rx_bytes = 0;
  double tx_messages = 0;
  double rx_messages = 0;
  double stalls = 0;
  double waiting = 0;  // senders that waited for room in the ring at a time, on average

  Rates& operator+=(const Rates& other) noexcept;
};

struct TopRow {
  pid_t pid = 0;        // not of a rule
  std::string program;  // not of a rule
  std::string container;  // not of a rule
  std::string rule;     // not of a process
  // Of a stream:
  std::uint64_t id = 0;
  std::string local;
  std::string remote;
  Endpoint remote_endpoint;
  Carrier carrier = Carrier::kTcp;
  State state = State::kOnTcp;
  Reason reason = Reason::kNone;
  Reason peer_reason = Reason::kNone;
  // Of a process or rule: how many there are.
  std::uint64_t streams = 0;
  std::uint64_t on_channel = 0;
  Rates rates;
};

// Rows of what is in `now`; what was not in `before` has begun since. With a filter, processes and
// rules have the rates of those live streams only that it shows. `seconds` is the time between the
// two; 0 gives rates of 0.
std::vector<TopRow> top_rows(const TopSample& before, const TopSample& now, TopBy by,
                             const StreamFilter& filter);
double seconds_between(const TopSample& before, const TopSample& now) noexcept;

Rates sum_of(const std::vector<TopRow>& rows) noexcept;

const std::vector<std::string>& top_sort_keys();
// Numbers from the largest, names from A. REQUIRES: one of top_sort_keys().
void sort_rows(std::vector<TopRow>& rows, const std::string& key, bool reverse);

const char* by_name(TopBy by) noexcept;  // process, stream, rule

}  // namespace ringroad::cli
