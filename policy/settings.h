// What a policy rule decides for the connections that it matches, and the values it takes when
// the rule leaves a key out.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rsocket-core/net/role.h"

namespace ringroad::policy {

// kAuto: shared memory if the peer is on this host, else RDMA.
enum class Via : std::uint8_t { kTcp, kRdma, kShm, kAuto };

// The words of the policy file: "tcp", "rdma", "shm", "auto".
std::string_view to_string(Via via) noexcept;

constexpr std::uint32_t kDefaultRingBytes = 256U << 10;
constexpr std::uint32_t kSmallestRingBytes = 4U << 10;
constexpr std::uint32_t kLargestRingBytes = 1U << 30;
constexpr std::chrono::nanoseconds kDefaultSpin = std::chrono::microseconds(50);
constexpr std::chrono::nanoseconds kLongestSpin = std::chrono::seconds(1);
constexpr std::chrono::nanoseconds kNoWait{0};
constexpr std::chrono::nanoseconds kLongestWait = std::chrono::seconds(60);
constexpr std::uint64_t kDefaultPromoteMessages = 4;
constexpr std::chrono::nanoseconds kDefaultIdle = std::chrono::seconds(60);
constexpr std::chrono::nanoseconds kShortestIdle = std::chrono::milliseconds(200);
constexpr std::chrono::nanoseconds kLongestIdle = std::chrono::hours(24);
constexpr std::chrono::nanoseconds kDefaultDetect = std::chrono::milliseconds(500);
constexpr std::chrono::nanoseconds kShortestDetect = std::chrono::milliseconds(10);
constexpr std::chrono::nanoseconds kLongestDetect = std::chrono::seconds(30);
constexpr std::uint32_t kDefaultMaxChannels = 1024;
constexpr std::uint32_t kMostChannels = 65536;

// Whichever given threshold is reached first; at least one is given.
struct PromoteAfter {
  std::optional<std::uint64_t> messages;
  std::optional<std::uint64_t> bytes;

  bool reached(std::uint64_t messages_so_far, std::uint64_t bytes_so_far) const noexcept {
    return (messages && messages_so_far >= *messages) || (bytes && bytes_so_far >= *bytes);
  }
};

struct Settings {
  std::string name;        // the rule's name, or "FILE:LINE" (no directory) if it has none
  std::size_t index = 0;   // position among all rules of the policy, from 0
  std::string file;        // where the rule was read
  std::uint32_t line = 0;  // from 1

  Via via = Via::kAuto;
  std::string device;                            // verbs device name; empty: chosen by route
  std::string key_file;                          // its path; empty: no key is asked for
  std::string key;                               // what stands in it, without a final line end
  std::optional<std::uint8_t> traffic_class;     // RoCE traffic class byte: DSCP << 2 | ECN
  std::uint32_t ring_bytes = kDefaultRingBytes;  // each direction; a power of two
  std::chrono::nanoseconds spin = kDefaultSpin;  // upper bound of the polling budget
  PromoteAfter promote_after;
  std::chrono::nanoseconds wait = kNoWait;  // how long connect and accept may wait for promotion
  // A stream that is not used for so long gives its channel back until it is used again; 0: it
  // keeps it for as long as nobody else needs it.
  std::chrono::nanoseconds idle = kDefaultIdle;
  // A queue pair whose peer acknowledges nothing for so long has failed.
  std::chrono::nanoseconds detect = kDefaultDetect;
};

// Where the log goes, unless it is the whole path of a file.
constexpr std::array<std::string_view, 4> kLogWords = {"off", "stderr", "syslog", "journal"};
constexpr std::array<std::string_view, 4> kLogLevels = {"error", "warn", "info", "debug"};
constexpr std::size_t kLongestLogPath = 1000;

struct Place {
  std::string file;        // empty: nowhere
  std::uint32_t line = 0;  // from 1
};

// What holds for each process as a whole, whatever the rule; and where that was read.
struct Limits {
  std::uint32_t max_channels = kDefaultMaxChannels;  // 1 to kMostChannels
  Place max_channels_at;
  std::string log;  // one of kLogWords, or a path; empty: not said
  Place log_at;
  std::string log_level;  // one of kLogLevels; empty: not said
  Place log_level_at;
};

}  // namespace ringroad::policy
