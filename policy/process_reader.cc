#include "policy/process_reader.h"

#include <algorithm>
#include <array>
#include <string>

#include "policy/settings_reader.h"
#include "policy/suggest.h"

namespace ringroad::policy {
namespace {

constexpr std::array<std::string_view, 3> kKeys = {"max_channels", "log", "log_level"};

bool refuse_second(const Entry& entry, Report& report, const Place& first) {
  if (first.file.empty()) return false;
  report.error(entry.at, {in_quotes(entry.key) + " is given a second time",
                          "the first is at " + first.file + ":" + std::to_string(first.line) +
                              "; it holds for the whole process, so leave one of them out"});
  return true;
}

void read_max_channels(const Entry& entry, Report& report, Limits& limits) {
  const Value& value = entry.value;
  const std::string usual = std::to_string(kDefaultMaxChannels);
  if (value.kind != Value::Kind::kInteger) {
    report.error(value.at,
                 {"\"max_channels\" must be an integer, not " + std::string(describe(value.kind)),
                  "write max_channels = " + usual});
  } else if (value.integer < 1 || value.integer > std::int64_t{kMostChannels}) {
    report.error(value.at, {"max_channels = " + std::to_string(value.integer) +
                                " is not between 1 and " + std::to_string(kMostChannels),
                            value.integer == 0 ? R"(write via = "tcp" to have no channels)"
                                               : "the usual is " + usual});
  } else if (!refuse_second(entry, report, limits.max_channels_at)) {
    limits.max_channels = static_cast<std::uint32_t>(value.integer);
    limits.max_channels_at = {report.file(), entry.at.line};
  }
}

void read_log(const Entry& entry, Report& report, Limits& limits) {
  const Value& value = entry.value;
  if (!expect_string(value, "log", R"(log = "syslog")", report)) return;
  const std::string& log = value.string;
  const bool path = log.starts_with('/');
  if (path && (log.size() > kLongestLogPath || log.find('\0') != std::string::npos)) {
    report.error(value.at, {"the path of the log is too long, or no path",
                            "it has at most " + std::to_string(kLongestLogPath) + " characters"});
  } else if (!path && std::find(kLogWords.begin(), kLogWords.end(), log) == kLogWords.end()) {
    // A process changes its folder, and programs in many folders have the same policy.
    report.error(value.at,
                 {"log = " + in_quotes(log) + " is neither a known word nor a file's whole path",
                  log.find('/') != std::string::npos ? "write the file's whole path, from / on"
                                                     : suggestion(log, kLogWords)});
  } else if (!refuse_second(entry, report, limits.log_at)) {
    limits.log = log;
    limits.log_at = {report.file(), entry.at.line};
  }
}

void read_log_level(const Entry& entry, Report& report, Limits& limits) {
  const Value& value = entry.value;
  if (!expect_string(value, "log_level", R"(log_level = "info")", report)) return;
  if (std::find(kLogLevels.begin(), kLogLevels.end(), value.string) == kLogLevels.end()) {
    report.error(value.at, {"unknown log_level " + in_quotes(value.string),
                            suggestion(value.string, kLogLevels)});
  } else if (!refuse_second(entry, report, limits.log_level_at)) {
    limits.log_level = value.string;
    limits.log_level_at = {report.file(), entry.at.line};
  }
}

}  // namespace

std::span<const std::string_view> process_keys() noexcept { return kKeys; }

bool is_process_key(std::string_view key) noexcept {
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

bool read_process_key(const Entry& entry, Report& report, Limits& limits) {
  if (entry.key == "max_channels") {
    read_max_channels(entry, report, limits);
  } else if (entry.key == "log") {
    read_log(entry, report, limits);
  } else if (entry.key == "log_level") {
    read_log_level(entry, report, limits);
  } else {
    return false;
  }
  return true;
}

}  // namespace ringroad::policy
