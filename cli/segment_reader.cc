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

namespace ringroad::cli {
namespace {

using stats::Counters;
using stats::SegmentHeader;
using stats::StreamSlot;

// A writer is inside a slot for well under a microsecond, unless it was preempted, stopped or
// killed there. This is how often one whole segment is looked at again, and how long after.
constexpr int kRetries = 100;
constexpr timespec kRetryPause = {0, 100'000};
// How often a segment is read again because a stream closed meanwhile.
constexpr int kPasses = 5;

constexpr const char* kUnfinished =
    "its process has not finished it: it is just starting, or died at that";

class File {
 public:
  explicit File(const std::string& path) noexcept
      // Not blocking: it may be a FIFO.
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const noexcept { return fd_ >= 0; }

  std::optional<std::uint64_t> size_if_regular() const noexcept {
    struct stat status;
    if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    return static_cast<std::uint64_t>(status.st_size);
  }

  template <typename T>
  bool read_at(std::uint64_t offset, T& out) const noexcept {
    ssize_t n;
    do {
      n = pread(fd_, static_cast<void*>(&out), sizeof out, static_cast<off_t>(offset));
    } while (n < 0 && errno == EINTR);
    return n == static_cast<ssize_t>(sizeof out);
  }

 private:
  int fd_;
};

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

Reason reason_of(std::uint8_t value) noexcept {
  return value < static_cast<unsigned>(Reason::kCount) ? static_cast<Reason>(value)
                                                       : Reason::kCount;
}

State state_of(std::uint8_t value) noexcept {
  return value < static_cast<unsigned>(State::kCount) ? static_cast<State>(value) : State::kCount;
}

StreamReport report_of(const StreamSlot& slot) {
  StreamReport report;
  report.id = slot.id;
  report.fd = slot.fd;
  report.accepted = slot.role != 0;
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
  report.traffic = traffic_of(slot.counters);
  report.stalls = slot.stalls.load(std::memory_order_relaxed);
  report.promotions = slot.promotions.load(std::memory_order_relaxed);
  report.resumptions = slot.resumptions.load(std::memory_order_relaxed);
  return report;
}

// Copies one slot as it was at one moment. False: it was being changed, or the file ends there.
bool read_slot(const File& file, std::uint64_t offset, StreamSlot& out) noexcept {
  std::uint32_t before = 0;
  std::uint32_t after = 0;
  static_assert(offsetof(StreamSlot, sequence) == 0);
  if (!file.read_at(offset, before) || (before & 1U) != 0) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!file.read_at(offset, out)) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return file.read_at(offset, after) && before == after;
}

void read_streams(const File& file, std::uint32_t used, ProcessReport& out) {
  out.streams.clear();
  out.unreadable = 0;
  int retries = kRetries;
  for (std::uint32_t i = 0; i < used; ++i) {
    const std::uint64_t offset = stats::kHeaderBytes + std::uint64_t{i} * sizeof(StreamSlot);
    StreamSlot slot;
    bool read = read_slot(file, offset, slot);
    for (; !read && retries > 0; --retries) {
      nanosleep(&kRetryPause, nullptr);
      read = read_slot(file, offset, slot);
    }
    if (!read) {
      ++out.unreadable;
    } else if (slot.in_use.load(std::memory_order_relaxed) != 0) {
      out.streams.push_back(report_of(slot));
    }
  }
  std::sort(out.streams.begin(), out.streams.end(),
            [](const StreamReport& a, const StreamReport& b) { return a.id < b.id; });
}

// Empty: the header can be used.
std::string header_problem(const SegmentHeader& header, std::uint64_t file_size) {
  if (header.magic == 0) return kUnfinished;
  if (header.magic != stats::kSegmentMagic) return "it is not a Ringroad statistics segment";
  if (header.version != stats::kSegmentVersion) {
    return "it is of version " + std::to_string(header.version) + ", this command reads version " +
           std::to_string(stats::kSegmentVersion) +
           ": use the ringroad command that came with the preloaded library";
  }
  if (header.header_bytes != stats::kHeaderBytes || header.slot_bytes != sizeof(StreamSlot) ||
      header.slots > stats::kSlots) {
    return "its parts have other sizes than this command knows (header " +
           std::to_string(header.header_bytes) + " bytes, " + std::to_string(header.slots) +
           " slots of " + std::to_string(header.slot_bytes) +
           " bytes): use the ringroad command that came with the preloaded library";
  }
  const std::uint64_t needed =
      stats::kHeaderBytes + std::uint64_t{header.slots} * sizeof(StreamSlot);
  if (file_size < needed) {
    return "it is truncated: " + std::to_string(file_size) + " of " + std::to_string(needed) +
           " bytes";
  }
  return {};
}

void report_header(const SegmentHeader& header, ProcessReport& out) {
  out.pid = static_cast<pid_t>(header.pid);
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
  out.closed = traffic_of(header.closed);
  out.streams_opened = header.streams_opened.load(std::memory_order_relaxed);
  out.streams_promoted = header.streams_promoted.load(std::memory_order_relaxed);
  out.unlisted = header.unlisted.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < out.promotions_refused.size(); ++i) {
    out.promotions_refused[i] = header.promotions_refused[i].load(std::memory_order_relaxed);
  }
}

bool same_closed(const SegmentHeader& a, const SegmentHeader& b) noexcept {
  return std::memcmp(static_cast<const void*>(&a.closed), static_cast<const void*>(&b.closed),
                     sizeof a.closed) == 0;
}

// What is said about the policy is whole in both, and the same.
bool same_policy(const SegmentHeader& a, const SegmentHeader& b) noexcept {
  const std::uint32_t before = a.policy_sequence.load(std::memory_order_relaxed);
  return (before & 1U) == 0 && before == b.policy_sequence.load(std::memory_order_relaxed);
}

std::optional<pid_t> pid_of(std::string_view name) noexcept {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc{} || end != name.data() + name.size() || pid <= 0) return std::nullopt;
  return pid;
}

}  // namespace

std::string segment_directory() {
  const char* named = std::getenv("RINGROAD_RUNTIME_DIR");
  return named != nullptr && *named != '\0' ? named : stats::kDefaultDirectory;
}

bool read_segment(const std::string& path, ProcessReport& out, std::string& why) {
  const File file(path);
  if (!file.is_open()) {
    why = errno == ELOOP ? "it is a symbolic link" : strerrordesc_np(errno);
    return false;
  }
  const std::optional<std::uint64_t> size = file.size_if_regular();
  if (!size) {
    why = "it is not a regular file";
    return false;
  }
  SegmentHeader header;
  if (!file.read_at(0, header)) {
    why = *size == 0 ? std::string(kUnfinished)
                     : "it is truncated: " + std::to_string(*size) + " bytes hold no header";
    return false;
  }
  why = header_problem(header, *size);
  if (!why.empty()) return false;
  // The policy may be edited meanwhile. A stream that closes while the slots are read moves its
  // counters from a slot to the header: it would be counted twice or not at all.
  for (int pass = 1;; ++pass) {
    read_streams(file, std::min(header.slots_used.load(std::memory_order_relaxed), header.slots),
                 out);
    SegmentHeader after;
    if (!file.read_at(0, after)) {
      why = "it was truncated while it was read";
      return false;
    }
    if (pass == kPasses || (same_closed(header, after) && same_policy(header, after))) break;
    static_assert(sizeof header == sizeof after);
    std::memcpy(static_cast<void*>(&header), static_cast<const void*>(&after), sizeof header);
  }
  report_header(header, out);
  out.alive = process_runs(out.pid, header.start_ticks);
  return true;
}

Snapshot read_segments(const std::string& directory) {
  Snapshot snapshot;
  struct CloseDirectory {
    void operator()(DIR* opened) const noexcept { closedir(opened); }
  };
  const std::unique_ptr<DIR, CloseDirectory> listing(opendir(directory.c_str()));
  if (!listing) {
    if (errno != ENOENT) snapshot.skipped.push_back({directory, strerrordesc_np(errno)});
    return snapshot;
  }
  while (const dirent* entry = readdir(listing.get())) {
    const std::optional<pid_t> pid = pid_of(entry->d_name);
    if (!pid) continue;
    const std::string path = directory + "/" + entry->d_name;
    ProcessReport process;
    std::string why;
    if (!read_segment(path, process, why)) {
      // A file that is gone by now was of a process that has just ended.
      if (access(path.c_str(), F_OK) == 0) snapshot.skipped.push_back({path, why});
    } else if (process.pid != *pid) {
      snapshot.skipped.push_back(
          {path, "it says that it belongs to process " + std::to_string(process.pid)});
    } else {
      snapshot.processes.push_back(std::move(process));
    }
  }
  std::sort(snapshot.processes.begin(), snapshot.processes.end(),
            [](const ProcessReport& a, const ProcessReport& b) { return a.pid < b.pid; });
  std::sort(snapshot.skipped.begin(), snapshot.skipped.end(),
            [](const SkippedFile& a, const SkippedFile& b) { return a.path < b.path; });
  return snapshot;
}

}  // namespace ringroad::cli
