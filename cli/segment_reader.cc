#include "cli/segment_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <set>

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
std::string library_of(const SegmentHeader& header, pid_t pid) {
  if (!process_runs(pid, header.start_ticks)) return "; its process has ended: remove the file";
  const std::string file = mapped_library(pid);
  return file.empty() ? "" : " (" + printable(file) + ")";
}

std::string writer_of(const SegmentHeader& header) {
  const std::string version = printable(text_of(header.library_version));
  return version.empty() ? "" : ", written by ringroad " + version;
}

// Empty: the header can be used.
std::string header_problem(const SegmentHeader& header, std::uint64_t file_size, pid_t pid) {
  if (header.magic == 0) return kUnfinished;
  if (header.magic != stats::kSegmentMagic) return "it is not a Ringroad statistics segment";
  if (header.version != stats::kSegmentVersion) {
    return "it is of version " + std::to_string(header.version) + writer_of(header) +
           ", this command (ringroad " + RINGROAD_VERSION + ") reads version " +
           std::to_string(stats::kSegmentVersion) +
           ": use the ringroad command that came with the preloaded library" + library_of(header, pid);
  }
  const SegmentLayout layout(header);
  if (!layout.is_readable()) {
    return "its parts have other sizes than this command (ringroad " RINGROAD_VERSION
           ") knows (header " +
           std::to_string(header.header_bytes) + " bytes, " + std::to_string(header.slots) +
           " slots of " + std::to_string(header.slot_bytes) + " bytes, latencies of " +
           std::to_string(header.latencies_bytes) + " bytes)" + writer_of(header) +
           ": use the ringroad command that came with the preloaded library" + library_of(header, pid);
  }
  const std::uint64_t needed = layout.bytes();
  if (file_size < needed) {
    return "it is truncated: " + std::to_string(file_size) + " of " + std::to_string(needed) +
           " bytes";
  }
  return {};
}

// Anybody may put a file there under the name of a process that has none. Empty: it is that process' own, or
// the process has ended.
std::string owner_problem(const SegmentHeader& header, const struct stat& status, const SegmentPlace& place) {
  if (place.says.pid != 0 && place.says.pid != header.pid) {
    return "it says that it belongs to process " + std::to_string(header.pid);
  }
  if (status.st_nlink > 1) return "it has several names";
  if (place.pid != 0 && !may_be_of(place.pid, status.st_uid)) {
    return "it belongs to user " + std::to_string(status.st_uid) + ", and process " +
           std::to_string(place.pid) + " to another";
  }
  return {};
}

// Whether the file's own word for its pid namespace is what its place asks for. A file of an older library
// may have none.
bool is_of_namespace(const SegmentHeader& header, const SegmentPlace& place) noexcept {
  const std::uint64_t wanted = place.says.pid_namespace != 0 ? place.says.pid_namespace : place.own_namespace;
  return header.pid_namespace == wanted || header.pid_namespace == 0 || wanted == 0;
}

void report_header(const SegmentHeader& header, ProcessReport& out) {
  out.own_pid = static_cast<pid_t>(header.pid);
  out.pid_namespace = header.pid_namespace;
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
  // Behind the name "47" the suffix "11.control" would lead to another process' socket.
  const bool is_beside = out.control_suffix.starts_with(control::kSuffix);
  if (!is_beside || out.control_suffix.find('/') != std::string::npos) out.control_suffix.clear();
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

bool names_segment_directory() {
  const char* named = std::getenv("RINGROAD_RUNTIME_DIR");
  return named != nullptr && *named != '\0';
}

std::string segment_directory() {
  return names_segment_directory() ? std::getenv("RINGROAD_RUNTIME_DIR") : stats::kDefaultDirectory;
}

namespace {

// kOfAnother: of another pid namespace than the place's.
enum class Outcome { kRead, kFailed, kPassedOver, kOfAnother };

Outcome read_one(const SegmentPlace& place, Which which, ProcessReport& out, std::string& why) {
  const SegmentFile file(place.folder->fd(), place.name);
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
  why = header_problem(header, *size, place.pid);
  if (!why.empty()) return Outcome::kFailed;
  if (!is_of_namespace(header, place)) {
    out.own_pid = static_cast<pid_t>(header.pid);
    out.pid_namespace = header.pid_namespace;
    return Outcome::kOfAnother;
  }
  why = owner_problem(header, file.status(), place);
  if (!why.empty()) return Outcome::kFailed;
  const bool is_told = header.start_ticks != 0 || !place.is_of_container();
  const bool runs = place.pid != 0 && is_told && process_runs(place.pid, header.start_ticks);
  // Of an ended process that had a container's number nothing is told by the one that has it now.
  if (!runs && (which == Which::kRunning || (place.is_of_container() && place.pid != 0))) {
    return Outcome::kPassedOver;
  }
  SlotsReader reader(file, SegmentLayout(header));
  if (!reader.read()) {
    why = "it was truncated while it was read";
    return Outcome::kFailed;
  }
  report_header(reader.header(), out);
  out.pid = place.pid != 0 ? place.pid : out.own_pid;
  out.container = place.container.name;
  out.cgroup = place.container.cgroup;
  out.file_inode = file.status().st_ino;
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
  out.alive = runs && process_runs(out.pid, reader.header().start_ticks);
  return Outcome::kRead;
}

Outcome add_segment(const SegmentPlace& place, Which which, Snapshot& snapshot, ProcessReport& process) {
  std::string why;
  const Outcome outcome = read_one(place, which, process, why);
  if (outcome == Outcome::kFailed) {
    const bool runs = place.pid != 0 && process_runs(place.pid, 0) && !mapped_library(place.pid).empty();
    snapshot.skipped.push_back({place.path(), why, runs});
  }
  if (outcome == Outcome::kRead && (which == Which::kAll || process.alive)) {
    snapshot.processes.push_back(std::move(process));
  }
  return outcome;
}

// One name in the source's own directory, of this command's pid namespace.
SegmentPlace place_in(const RuntimeFolderPtr& folder, const std::string& name, const stats::FileName& says,
                      std::uint64_t own_namespace) {
  SegmentPlace place;
  place.folder = folder;
  place.name = name;
  place.says = {says.pid, 0};
  place.own_namespace = own_namespace;
  place.pid = static_cast<pid_t>(says.pid);
  return place;
}

class Listing {
 public:
  Listing(const SegmentSource& source, Which which)
      : source_(source), which_(which), own_(own_folder(source.directory)) {}

  Snapshot read() {
    read_directory();
    if (source_.and_containers || !others_.empty()) search();
    const auto by_pid = [](const ProcessReport& a, const ProcessReport& b) { return a.pid < b.pid; };
    std::stable_sort(snapshot_.processes.begin(), snapshot_.processes.end(), by_pid);
    std::sort(snapshot_.skipped.begin(), snapshot_.skipped.end(),
              [](const SkippedFile& a, const SkippedFile& b) { return a.path < b.path; });
    return std::move(snapshot_);
  }

 private:
  using Key = ContainerSearch::Key;

  void read_directory() {
    struct CloseDirectory {
      void operator()(DIR* opened) const noexcept { closedir(opened); }
    };
    const std::unique_ptr<DIR, CloseDirectory> listing(opendir(source_.directory.c_str()));
    if (!listing) {
      snapshot_.no_directory = errno != ENOENT;
      if (errno != ENOENT) snapshot_.skipped.push_back({source_.directory, strerrordesc_np(errno)});
      return;
    }
    while (const dirent* entry = readdir(listing.get())) {
      const char* end;
      const stats::FileName name = stats::FileName::at(entry->d_name, end);
      if (name.pid != 0 && *end == '\0') read_own(entry->d_name, name);
    }
  }

  void read_own(const std::string& text, const stats::FileName& name) {
    if (name.pid_namespace != 0 && name.pid_namespace != own_namespace_) {
      others_.insert_or_assign(Key{name.pid_namespace, name.pid}, text);
      return;
    }
    const SegmentPlace place = place_in(own_, text, name, own_namespace_);
    // What an older library has left stands beside what counts.
    if (name.pid_namespace == 0 && !stands_alone(name)) return;
    ProcessReport process;
    if (add_one(place, process) != Outcome::kOfAnother) return;
    others_.emplace(Key{process.pid_namespace, static_cast<std::uint32_t>(process.own_pid)}, text);
  }

  Outcome add_one(const SegmentPlace& place, ProcessReport& process) {
    const Outcome outcome = add_segment(place, which_, snapshot_, process);
    // A file that is gone by now was of a process that has just ended.
    if (outcome == Outcome::kFailed && !place.exists()) snapshot_.skipped.pop_back();
    return outcome;
  }
  void add_one(const SegmentPlace& place) {
    ProcessReport process;
    add_one(place, process);
  }

  bool stands_alone(const stats::FileName& name) const {
    const stats::FileName now = stats::FileName::of(name.pid, own_namespace_);
    char text[stats::FileName::kBytes];
    now.write(text);
    return now.pid_namespace == 0 || !own_->has(text);
  }

  void search() {
    std::set<Key> known;
    for (const auto& [key, name] : others_) known.insert(key);
    ContainerSearch containers(source_, own_, std::move(known));
    containers.run([&](const SegmentPlace& place) {
      const bool is_own = place.folder->is(*own_);
      if (is_own && !place.is_of_container()) return;  // read_directory() has met it
      if (is_own) others_.erase({place.says.pid_namespace, place.says.pid});
      add_one(place);
    });
    for (const auto& [key, name] : others_) {
      SegmentPlace place;
      const ContainerSearch::Known known_as = containers.look_at(key, name, place);
      const bool is_wanted = known_as == ContainerSearch::Known::kRuns ||
                             (known_as == ContainerSearch::Known::kEnded && which_ == Which::kAll);
      if (is_wanted) add_one(place);
    }
  }

  const SegmentSource& source_;
  const Which which_;
  const RuntimeFolderPtr own_;
  const std::uint64_t own_namespace_ = own_name_space("pid");
  std::map<Key, std::string> others_;  // names of files of other pid namespaces
  Snapshot snapshot_;
};

}  // namespace

bool read_segment(const SegmentPlace& place, ProcessReport& out, std::string& why) {
  switch (read_one(place, Which::kAll, out, why)) {
    case Outcome::kRead:
      return true;
    case Outcome::kOfAnother:
      why = "it is of another pid namespace";
      return false;
    case Outcome::kPassedOver:
      why = "it is of a process that has ended";
      return false;
    case Outcome::kFailed:
      break;
  }
  return false;
}

bool read_segment(const std::string& path, ProcessReport& out, std::string& why) {
  const std::size_t slash = path.rfind('/');
  const std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
  const char* end;
  const stats::FileName says = stats::FileName::at(name.c_str(), end);
  const RuntimeFolderPtr folder = own_folder(slash == std::string::npos ? "." : path.substr(0, slash + 1));
  return read_segment(place_in(folder, name, says, own_name_space("pid")), out, why);
}

Snapshot read_segments_of(const SegmentSource& source, const std::vector<pid_t>& pids) {
  std::vector<pid_t> each = pids;
  std::sort(each.begin(), each.end());
  each.erase(std::unique(each.begin(), each.end()), each.end());
  Snapshot snapshot;
  for (const pid_t pid : each) {
    const SegmentPlace place = place_of(source, pid);
    ProcessReport process;
    switch (place.exists() ? add_segment(place, Which::kAll, snapshot, process) : Outcome::kPassedOver) {
      case Outcome::kRead:
      case Outcome::kFailed:
        break;
      case Outcome::kOfAnother:
      case Outcome::kPassedOver:
        snapshot.skipped.push_back({place.path(), why_no_segment(pid, place.path())});
    }
  }
  return snapshot;
}

Snapshot read_segments(const SegmentSource& source, Which which) { return Listing(source, which).read(); }

}  // namespace ringroad::cli
