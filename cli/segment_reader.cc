#include "cli/segment_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string_view>

#include "cli/process_state.h"
#include "cli/segment_file.h"
#include "cli/text.h"

namespace ringroad::cli {
namespace {

using stats::Counters;
using stats::SegmentHeader;
using stats::StreamSlot;

constexpr const char* kUnfinished =
    "its process has not finished it: it is just starting, or died at that";

template <std::size_t N>
std::string text_of(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

CarrierTraffic traffic_of(const Counters& counters) noexcept {
  const auto of_carrier = [&](std::size_t i) {
    return Traffic{counters.tx_bytes[i].load(std::memory_order_relaxed),
                   counters.rx_bytes[i].load(std::memory_order_relaxed),
                   counters.tx_messages[i].load(std::memory_order_relaxed),
                   counters.rx_messages[i].load(std::memory_order_relaxed)};
  };
  return {of_carrier(0), of_carrier(1)};
}

Buckets buckets_of(const stats::Log2Histogram& histogram) noexcept {
  Buckets result;
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = histogram.counts[i].load(std::memory_order_relaxed);
  }
  return result;
}

TimesReport times_of(const stats::Times& times) noexcept {
  return {buckets_of(times.counts), times.sum_ns.load(std::memory_order_relaxed)};
}

LatenciesReport latencies_of(const stats::Latencies& latencies) noexcept {
  return {{times_of(latencies.answers[0]), times_of(latencies.answers[1])}, times_of(latencies.reads)};
}

Measures measures_of(const stats::StreamCounts& counts) noexcept {
  Measures result;
  result.stalls = counts.stalls.load(std::memory_order_relaxed);
  result.promotions = counts.promotions.load(std::memory_order_relaxed);
  result.resumptions = counts.resumptions.load(std::memory_order_relaxed);
  result.tx_sizes = buckets_of(counts.tx_sizes);
  result.rx_sizes = buckets_of(counts.rx_sizes);
  result.waits = buckets_of(counts.waits);
  result.waited_ns = counts.waited_ns.load(std::memory_order_relaxed);
  return result;
}

Reason reason_of(std::uint8_t value) noexcept {
  return value < static_cast<unsigned>(Reason::kCount) ? static_cast<Reason>(value)
                                                       : Reason::kCount;
}

State state_of(std::uint8_t value) noexcept {
  return value < static_cast<unsigned>(State::kCount) ? static_cast<State>(value) : State::kCount;
}

StreamReport report_of(const StreamSlot& slot, const stats::Latencies* latencies) {
  StreamReport report;
  report.id = slot.id;
  report.fd = slot.fd;
  report.role = slot.role == 0 ? Role::kConnect : Role::kAccept;
  report.local = slot.local;
  report.remote = slot.remote;
  report.rule = text_of(slot.rule);
  report.state = state_of(slot.state.load(std::memory_order_relaxed));
  report.reason = reason_of(slot.reason.load(std::memory_order_relaxed));
  report.peer_reason = reason_of(slot.peer_reason.load(std::memory_order_relaxed));
  report.channel = slot.channel;
  report.channel.device[sizeof report.channel.device - 1] = '\0';
  report.channel.gid[sizeof report.channel.gid - 1] = '\0';
  report.extra_descriptors = slot.descriptors_extra.load(std::memory_order_relaxed);
  report.traffic = traffic_of(slot.counts.traffic);
  report.measures = measures_of(slot.counts);
  if (latencies != nullptr) {
    report.latencies = std::make_shared<const LatenciesReport>(latencies_of(*latencies));
  }
  report.stalled_since_ns =
      std::max<std::int64_t>(slot.stalled_since_ns.load(std::memory_order_relaxed), 0);
  report.rule_index = slot.rule_index;
  report.protocol = slot.protocol;
  report.features = slot.features;
  return report;
}

// Which library of which process wrote it: these fields have stood there in every version.
std::string library_of(const SegmentHeader& header) {
  const auto pid = static_cast<pid_t>(header.pid);
  if (!process_runs(pid, header.start_ticks)) return "; its process has ended: remove the file";
  const std::string file = mapped_library(pid);
  return file.empty() ? "" : " (" + printable(file) + ")";
}

std::string writer_of(const SegmentHeader& header) {
  const std::string version = printable(text_of(header.library_version));
  return version.empty() ? "" : ", written by ringroad " + version;
}

// Empty: the header can be used.
std::string header_problem(const SegmentHeader& header, std::uint64_t file_size) {
  if (header.magic == 0) return kUnfinished;
  if (header.magic != stats::kSegmentMagic) return "it is not a Ringroad statistics segment";
  if (header.version != stats::kSegmentVersion) {
    return "it is of version " + std::to_string(header.version) + writer_of(header) +
           ", this command (ringroad " + RINGROAD_VERSION + ") reads version " +
           std::to_string(stats::kSegmentVersion) +
           ": use the ringroad command that came with the preloaded library" + library_of(header);
  }
  const SegmentLayout layout(header);
  if (!layout.is_readable()) {
    return "its parts have other sizes than this command (ringroad " RINGROAD_VERSION
           ") knows (header " +
           std::to_string(header.header_bytes) + " bytes, " + std::to_string(header.slots) +
           " slots of " + std::to_string(header.slot_bytes) + " bytes, latencies of " +
           std::to_string(header.latencies_bytes) + " bytes)" + writer_of(header) +
           ": use the ringroad command that came with the preloaded library" + library_of(header);
  }
  const std::uint64_t needed = layout.bytes();
  if (file_size < needed) {
    return "it is truncated: " + std::to_string(file_size) + " of " + std::to_string(needed) +
           " bytes";
  }
  return {};
}

std::optional<pid_t> pid_of(std::string_view name) noexcept {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc{} || end != name.data() + name.size() || pid <= 0) return std::nullopt;
  return pid;
}

// Anybody may put a file there under a number of a process that has none. Empty: it is that process' own, or
// the process has ended.
std::string owner_problem(const SegmentHeader& header, const struct stat& status,
                          std::string_view path) {
  const auto pid = static_cast<pid_t>(header.pid);
  const std::optional<pid_t> named = pid_of(path.substr(path.rfind('/') + 1));
  if (named && *named != pid) return "it says that it belongs to process " + std::to_string(pid);
  if (status.st_nlink > 1) return "it has several names";
  if (!may_be_of(pid, status.st_uid)) {
    return "it belongs to user " + std::to_string(status.st_uid) + ", and process " +
           std::to_string(pid) + " to another";
  }
  return {};
}

void report_header(const SegmentHeader& header, ProcessReport& out) {
  out.pid = static_cast<pid_t>(header.pid);
  out.start_ticks = header.start_ticks;
  out.program = text_of(header.program);
  out.library_version = text_of(header.library_version);
  const std::uint32_t status = header.policy_status.load(std::memory_order_relaxed);
  out.policy_status = status <= static_cast<std::uint32_t>(stats::PolicyStatus::kEditRefused)
                          ? static_cast<stats::PolicyStatus>(status)
                          : stats::PolicyStatus::kNone;
  out.policy_rules = header.policy_rules;
  out.policy_detail = text_of(header.policy_detail);
  out.policy_reloads = header.policy_reloads.load(std::memory_order_relaxed);
  const std::uint32_t mode = header.operator_mode.load(std::memory_order_relaxed);
  out.operator_mode = mode <= static_cast<std::uint32_t>(control::kLastMode)
                          ? static_cast<control::Mode>(mode)
                          : control::Mode::kAuto;
  out.max_channels = header.max_channels.load(std::memory_order_relaxed);
  out.channels = header.channels.load(std::memory_order_relaxed);
  out.channels_given_back = header.channels_given_back.load(std::memory_order_relaxed);
  out.operator_serial = header.operator_serial.load(std::memory_order_relaxed);
  out.control_suffix = text_of(header.control_suffix);
  if (out.control_suffix.find('/') != std::string::npos) out.control_suffix.clear();
  out.closed = traffic_of(header.closed.traffic);
  out.closed_measures = measures_of(header.closed);
  out.streams_opened = header.streams_opened.load(std::memory_order_relaxed);
  out.streams_promoted = header.streams_promoted.load(std::memory_order_relaxed);
  out.unlisted = header.unlisted.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < out.promotions_refused.size(); ++i) {
    out.promotions_refused[i] =
        stats::refusals(header, static_cast<unsigned>(i)).load(std::memory_order_relaxed);
  }
}

void report_rules(const SlotsReader& reader, ProcessReport& out) {
  for (const stats::RuleSlot& rule : reader.rules()) {
    RuleReport& report = out.rules.emplace_back();
    report.name = text_of(rule.name);
    report.opened = rule.opened.load(std::memory_order_relaxed);
    report.promoted = rule.promoted.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < report.refused.size(); ++i) {
      report.refused[i] =
          stats::refusals(reader.header(), rule, out.rules.size() - 1, static_cast<unsigned>(i))
              .load(std::memory_order_relaxed);
    }
    report.traffic = traffic_of(rule.closed.traffic);
    report.measures = measures_of(rule.closed);
    if (const stats::Latencies* latencies = reader.rule_latencies(out.rules.size() - 1)) {
      report.latencies = latencies_of(*latencies);
      out.closed_latencies += report.latencies;  // the header has none
    }
  }
  for (const StreamReport& stream : out.streams) {
    if (stream.rule_index >= out.rules.size()) continue;
    RuleReport& report = out.rules[stream.rule_index];
    ++report.streams;
    if (stream.carrier() != Carrier::kTcp) ++report.on_channel;
    report.traffic += stream.traffic;
    report.measures += stream.measures;
    if (stream.latencies != nullptr) report.latencies += *stream.latencies;
  }
}

// By id; moving each only once, as they are large.
void sort_streams(std::vector<StreamReport>& streams) {
  const auto by_id = [](const auto& a, const auto& b) { return a.id < b.id; };
  if (std::is_sorted(streams.begin(), streams.end(), by_id)) return;
  std::vector<StreamReport*> order;
  order.reserve(streams.size());
  for (StreamReport& stream : streams) order.push_back(&stream);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->id < b->id; });
  std::vector<StreamReport> sorted;
  sorted.reserve(streams.size());
  for (StreamReport* stream : order) sorted.push_back(std::move(*stream));
  streams = std::move(sorted);
}

}  // namespace

std::string segment_directory() {
  const char* named = std::getenv("RINGROAD_RUNTIME_DIR");
  return named != nullptr && *named != '\0' ? named : stats::kDefaultDirectory;
}

namespace {

enum class Outcome { kRead, kFailed, kPassedOver };

Outcome read_one(const std::string& path, Which which, ProcessReport& out, std::string& why) {
  const SegmentFile file(path);
  if (file.error() != 0) {
    why = file.error() == ELOOP ? "it is a symbolic link" : strerrordesc_np(file.error());
    return Outcome::kFailed;
  }
  const std::optional<std::uint64_t> size = file.size_if_regular();
  if (!size) {
    why = "it is not a regular file";
    return Outcome::kFailed;
  }
  SegmentHeader header;
  if (!file.read_at(0, static_cast<void*>(&header), sizeof header)) {
    why = *size == 0 ? std::string(kUnfinished)
                     : "it is truncated: " + std::to_string(*size) + " bytes hold no header";
    return Outcome::kFailed;
  }
  why = header_problem(header, *size);
  if (why.empty()) why = owner_problem(header, file.status(), path);
  if (!why.empty()) return Outcome::kFailed;
  if (which == Which::kRunning &&
      !process_runs(static_cast<pid_t>(header.pid), header.start_ticks)) {
    return Outcome::kPassedOver;
  }
  SlotsReader reader(file, SegmentLayout(header));
  if (!reader.read()) {
    why = "it was truncated while it was read";
    return Outcome::kFailed;
  }
  report_header(reader.header(), out);
  out.unreadable = reader.unreadable();
  out.streams.reserve(reader.live().size());
  for (const StreamSlot* slot : reader.live()) {
    out.streams.push_back(report_of(*slot, reader.latencies(slot)));
  }
  sort_streams(out.streams);
  report_rules(reader, out);
  for (const StreamSlot* slot : reader.ended()) {
    out.closed += traffic_of(slot->counts.traffic);
    const Measures measures = measures_of(slot->counts);
    const stats::Latencies* timed = reader.latencies(slot);
    const LatenciesReport latencies = timed != nullptr ? latencies_of(*timed) : LatenciesReport{};
    out.closed_measures += measures;
    out.closed_latencies += latencies;
    if (slot->rule_index >= out.rules.size()) continue;
    out.rules[slot->rule_index].traffic += traffic_of(slot->counts.traffic);
    out.rules[slot->rule_index].measures += measures;
    out.rules[slot->rule_index].latencies += latencies;
  }
  out.alive = process_runs(out.pid, reader.header().start_ticks);
  return Outcome::kRead;
}

Outcome add_segment(const std::string& path, Which which, Snapshot& snapshot) {
  ProcessReport process;
  std::string why;
  const Outcome outcome = read_one(path, which, process, why);
  if (outcome == Outcome::kRead && (which == Which::kAll || process.alive)) {
    snapshot.processes.push_back(std::move(process));
  }
  if (outcome == Outcome::kFailed) {
    const std::optional<pid_t> pid = pid_of(std::string_view(path).substr(path.rfind('/') + 1));
    const bool runs = pid && process_runs(*pid, 0) && !mapped_library(*pid).empty();
    snapshot.skipped.push_back({path, why, runs});
  }
  return outcome;
}

}  // namespace

bool read_segment(const std::string& path, ProcessReport& out, std::string& why) {
  return read_one(path, Which::kAll, out, why) == Outcome::kRead;
}

Snapshot read_segments_of(const std::string& directory, const std::vector<pid_t>& pids) {
  std::vector<pid_t> each = pids;
  std::sort(each.begin(), each.end());
  each.erase(std::unique(each.begin(), each.end()), each.end());
  Snapshot snapshot;
  for (const pid_t pid : each) {
    const std::string path = directory + "/" + std::to_string(pid);
    if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
      snapshot.skipped.push_back({path, why_no_segment(pid, directory)});
    } else {
      add_segment(path, Which::kAll, snapshot);
    }
  }
  return snapshot;
}

Snapshot read_segments(const std::string& directory, Which which) {
  Snapshot snapshot;
  struct CloseDirectory {
    void operator()(DIR* opened) const noexcept { closedir(opened); }
  };
  const std::unique_ptr<DIR, CloseDirectory> listing(opendir(directory.c_str()));
  if (!listing) {
    snapshot.no_directory = errno != ENOENT;
    if (errno != ENOENT) snapshot.skipped.push_back({directory, strerrordesc_np(errno)});
    return snapshot;
  }
  while (const dirent* entry = readdir(listing.get())) {
    const std::optional<pid_t> pid = pid_of(entry->d_name);
    if (!pid) continue;
    const std::string path = directory + "/" + entry->d_name;
    // A file that is gone by now was of a process that has just ended.
    if (add_segment(path, which, snapshot) == Outcome::kFailed && access(path.c_str(), F_OK) != 0) {
      snapshot.skipped.pop_back();
    }
  }
  std::sort(snapshot.processes.begin(), snapshot.processes.end(),
            [](const ProcessReport& a, const ProcessReport& b) { return a.pid < b.pid; });
  std::sort(snapshot.skipped.begin(), snapshot.skipped.end(),
            [](const SkippedFile& a, const SkippedFile& b) { return a.path < b.path; });
  return snapshot;
}

}  // namespace ringroad::cli
