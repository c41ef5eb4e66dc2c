#include "policy/settings_reader.h"

#include <array>
#include <bit>
#include <utility>

#include "policy/suggest.h"
#include "policy/units.h"

namespace ringroad::policy {
namespace {

constexpr std::array<std::string_view, 2> kThresholds = {"messages", "bytes"};

std::optional<std::chrono::nanoseconds> read_duration(const Value& value, std::string_view key,
                                                      std::chrono::nanoseconds longest,
                                                      const std::string& example, Report& report) {
  if (!expect_string(value, key, example, report)) {
    return std::nullopt;
  }
  Complaint complaint;
  const std::optional<std::chrono::nanoseconds> duration = parse_duration(value.string, complaint);
  if (!duration) {
    report.error(value.at, std::move(complaint));
    return std::nullopt;
  }
  if (*duration > longest) {
    report.error(value.at, {(key.front() == 'i' ? "an " : "a ") + std::string(key) + " of " +
                                format_duration(*duration) + " is too long",
                            "the longest is " + in_quotes(format_duration(longest))});
    return std::nullopt;
  }
  return duration;
}

std::optional<std::uint64_t> read_messages(const Value& value, Report& report) {
  if (value.kind != Value::Kind::kInteger) {
    report.error(value.at,
                 {"\"messages\" must be an integer, not " + std::string(describe(value.kind)),
                  "write promote_after = { messages = 4 }"});
    return std::nullopt;
  }
  if (value.integer < 0) {
    report.error(value.at, {"messages = " + std::to_string(value.integer) + " is negative",
                            "0 promotes as soon as the connection is made"});
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(value.integer);
}

std::optional<std::uint64_t> read_bytes(const Value& value, Report& report) {
  if (!expect_string(value, "bytes", R"(promote_after = { bytes = "64KiB" })", report)) {
    return std::nullopt;
  }
  Complaint complaint;
  const std::optional<std::uint64_t> bytes = parse_size(value.string, complaint);
  if (!bytes) {
    report.error(value.at, std::move(complaint));
  }
  return bytes;
}

}  // namespace

bool expect_string(const Value& value, std::string_view key, const std::string& example,
                   Report& report) {
  if (value.kind == Value::Kind::kString) {
    return true;
  }
  report.error(value.at,
               {in_quotes(key) + " must be a string, not " + std::string(describe(value.kind)),
                "write " + example});
  return false;
}

std::optional<std::uint8_t> read_traffic_class(const Value& value, Report& report) {
  if (value.kind != Value::Kind::kInteger) {
    report.error(value.at,
                 {"\"traffic_class\" must be an integer, not " + std::string(describe(value.kind)),
                  "write traffic_class = 106 for DSCP 26 with ECN"});
    return std::nullopt;
  }
  if (value.integer < 0 || value.integer > UINT8_MAX) {
    report.error(value.at, {"traffic_class " + std::to_string(value.integer) + " is not a byte",
                            "it is 0 to 255: DSCP * 4 + ECN bits"});
    return std::nullopt;
  }
  return static_cast<std::uint8_t>(value.integer);
}

std::optional<std::uint32_t> read_ring(const Value& value, Report& report) {
  // An integer was surely meant in bytes.
  const std::uint64_t meant = value.kind == Value::Kind::kInteger && value.integer > 0
                                  ? static_cast<std::uint64_t>(value.integer)
                                  : kDefaultRingBytes;
  if (!expect_string(value, "ring", "ring = " + in_quotes(format_size(meant)), report)) {
    return std::nullopt;
  }
  Complaint complaint;
  const std::optional<std::uint64_t> bytes = parse_size(value.string, complaint);
  if (!bytes) {
    report.error(value.at, std::move(complaint));
    return std::nullopt;
  }
  const std::string size = "a ring of " + format_size(*bytes);
  if (*bytes < kSmallestRingBytes) {
    report.error(value.at, {size + " is too small",
                            "the smallest is " + in_quotes(format_size(kSmallestRingBytes))});
    return std::nullopt;
  }
  if (*bytes > kLargestRingBytes) {
    report.error(value.at, {size + " is too large",
                            "the largest is " + in_quotes(format_size(kLargestRingBytes))});
    return std::nullopt;
  }
  if (!std::has_single_bit(*bytes)) {
    report.error(value.at, {size + " is not a power of two",
                            "the nearest are " + in_quotes(format_size(std::bit_floor(*bytes))) +
                                " and " + in_quotes(format_size(std::bit_ceil(*bytes)))});
    return std::nullopt;
  }
  return static_cast<std::uint32_t>(*bytes);
}

std::optional<std::chrono::nanoseconds> read_spin(const Value& value, Report& report) {
  return read_duration(value, "spin", kLongestSpin, R"(spin = "20us")", report);
}

std::optional<std::chrono::nanoseconds> read_wait(const Value& value, Report& report) {
  return read_duration(value, "wait", kLongestWait, R"(wait = "200ms")", report);
}

std::optional<std::chrono::nanoseconds> read_idle(const Value& value, Report& report) {
  const auto time = read_duration(value, "idle", kLongestIdle, R"(idle = "60s")", report);
  if (time && time->count() != 0 && *time < kShortestIdle) {
    report.error(value.at, {"an idle of " + format_duration(*time) + " is too short",
                            "the shortest is " + in_quotes(format_duration(kShortestIdle)) +
                                R"(, or "0s" to keep the channel)"});
    return std::nullopt;
  }
  return time;
}

std::optional<std::chrono::nanoseconds> read_detect(const Value& value, Report& report) {
  const auto time = read_duration(value, "detect", kLongestDetect, R"(detect = "500ms")", report);
  if (time && *time < kShortestDetect) {
    report.error(value.at, {"a detect of " + format_duration(*time) + " is too short",
                            "the shortest is " + in_quotes(format_duration(kShortestDetect))});
    return std::nullopt;
  }
  return time;
}

PromoteAfter read_promote_after(const Value& value, Report& report) {
  PromoteAfter threshold;
  if (value.kind != Value::Kind::kTable) {
    report.error(value.at,
                 {"\"promote_after\" must be a table, not " + std::string(describe(value.kind)),
                  "write promote_after = { messages = 4 }"});
    return threshold;
  }
  if (value.entries.empty()) {
    report.error(value.at, {"\"promote_after\" says neither messages nor bytes",
                            R"(write { messages = 4 }, { bytes = "64KiB" } or both)"});
  }
  for (const Entry& entry : value.entries) {
    if (entry.key == "messages") {
      threshold.messages = read_messages(entry.value, report);
    } else if (entry.key == "bytes") {
      threshold.bytes = read_bytes(entry.value, report);
    } else {
      report.error(entry.at, {"unknown key " + in_quotes(entry.key) + " in promote_after",
                              suggestion(entry.key, kThresholds)});
    }
  }
  return threshold;
}

}  // namespace ringroad::policy
