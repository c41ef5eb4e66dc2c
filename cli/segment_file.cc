#include "cli/segment_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace ringroad::cli {
namespace {

using stats::Latencies;
using stats::RuleSlot;
using stats::SegmentHeader;
using stats::StreamSlot;

// A writer is inside a slot for well under a microsecond, unless it was preempted, stopped or
// killed there. This is how often one whole segment is looked at again, and how long after.
constexpr int kRetries = 100;
constexpr timespec kRetryPause = {0, 100'000};
// How often a segment is read again because streams closed faster than that could be told apart.
constexpr int kPasses = 5;
// So many slots are copied at once: little enough for the processor's cache.
constexpr std::uint32_t kChunk = 64;

constexpr bool is_odd(std::uint64_t value) noexcept { return (value & 1U) != 0; }

// Nothing in the header moved between the two that has to be read as one.
bool same_moment(const SegmentHeader& a, const SegmentHeader& b) noexcept {
  const std::uint32_t policy = a.policy_sequence.load(std::memory_order_relaxed);
  const std::uint64_t closings = a.closings.load(std::memory_order_relaxed);
  return !is_odd(policy) && policy == b.policy_sequence.load(std::memory_order_relaxed) &&
         !is_odd(closings) && closings == b.closings.load(std::memory_order_relaxed);
}

}  // namespace

// Looked at before it is opened for reading: to open a device may be to use it.
SegmentFile::SegmentFile(int folder, const std::string& name) noexcept
    : fd_(openat(folder, name.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW)) {
  if (fd_ < 0 || fstat(fd_, &status_) != 0) {
    error_ = errno == EBADF ? ENOENT : errno;  // there is no such folder
    return;
  }
  if (S_ISLNK(status_.st_mode)) error_ = ELOOP;
  if (!S_ISREG(status_.st_mode)) return;
  const std::string same = "/proc/self/fd/" + std::to_string(fd_);
  int readable = open(same.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (readable < 0 && errno == ENOENT) {  // without /proc
    readable = openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  }
  if (readable < 0 || fstat(readable, &status_) != 0) error_ = errno;
  close(fd_);
  fd_ = readable;
}

SegmentFile::~SegmentFile() {
  if (fd_ >= 0) close(fd_);
}

std::optional<std::uint64_t> SegmentFile::size_if_regular() const noexcept {
  if (!S_ISREG(status_.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(status_.st_size);
}

bool SegmentFile::read_at(std::uint64_t offset, void* to, std::size_t bytes) const noexcept {
  auto* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = pread(fd_, next, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    next += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  // The kernel's copy is loads of memory that others write; a sequence that is read next is younger than
  // they.
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

bool SegmentLayout::is_readable() const noexcept {
  constexpr std::uint32_t kLargest = 64 * 1024;  // of anything that could be meant
  const auto holds = [](std::uint32_t bytes, std::size_t known) noexcept {
    return bytes >= known && bytes <= kLargest && bytes % alignof(std::uint64_t) == 0;
  };
  // Those of an earlier version may be shorter: read_parts().
  return holds(header_bytes_, stats::kHeaderBytes) && holds(rule_bytes_, sizeof(RuleSlot)) &&
         holds(slot_bytes_, sizeof(StreamSlot)) && slots_ <= stats::kSlots &&
         rules_ == stats::kRules &&
         (!has_latencies() || holds(latencies_bytes_, sizeof(std::uint64_t)));
}

template <typename Part>
bool SlotsReader::read_parts(std::uint64_t offset, std::uint32_t part_bytes, std::uint32_t count,
                             Part* to) {
  if (part_bytes == sizeof(Part)) {
    return file_.read_at(offset, static_cast<void*>(to), std::size_t{count} * sizeof(Part));
  }
  std::vector<std::byte> whole(std::size_t{count} * part_bytes);
  if (!file_.read_at(offset, whole.data(), whole.size())) return false;
  const std::size_t both = std::min<std::size_t>(part_bytes, sizeof(Part));
  for (std::uint32_t i = 0; i < count; ++i) {
    auto* const part = reinterpret_cast<std::byte*>(to + i);
    std::memcpy(part, whole.data() + std::size_t{i} * part_bytes, both);
    std::memset(part + both, 0, sizeof(Part) - both);
  }
  return true;
}

StreamSlot& SlotsReader::slot(std::uint32_t index) noexcept {
  return *reinterpret_cast<StreamSlot*>(slots_.get() + std::size_t{index} * sizeof(StreamSlot));
}

const Latencies* SlotsReader::rule_latencies(std::size_t rule) const noexcept {
  return layout_.has_latencies() ? &rule_latencies_[rule] : nullptr;
}

const Latencies* SlotsReader::latencies(const StreamSlot* slot) const noexcept {
  const std::ptrdiff_t index = slot - reinterpret_cast<const StreamSlot*>(slots_.get());
  return latencies_[static_cast<std::size_t>(index)].get();
}

bool SlotsReader::copy_latencies(std::uint32_t begin, std::uint32_t count) {
  if (!layout_.has_latencies()) return true;
  std::vector<Latencies> now(count);
  if (!read_parts(layout_.slot_latencies_at(begin), layout_.latencies_bytes(), count, now.data())) {
    return false;
  }
  static constexpr std::byte kNothingTimed[sizeof(Latencies)]{};
  for (std::uint32_t i = 0; i < count; ++i) {
    std::unique_ptr<Latencies>& kept = latencies_[begin + i];
    kept.reset();
    if (std::memcmp(static_cast<const void*>(&now[i]), kNothingTimed, sizeof kNothingTimed) == 0) continue;
    kept = std::make_unique<Latencies>();
    std::memcpy(static_cast<void*>(kept.get()), static_cast<const void*>(&now[i]), sizeof(Latencies));
  }
  return true;
}

// False: it has paused often enough.
bool SlotsReader::pause() noexcept {
  if (retries_ <= 0) return false;
  --retries_;
  nanosleep(&kRetryPause, nullptr);
  return true;
}

bool SlotsReader::read() {
  retries_ = kRetries;
  for (int pass = 1;; ++pass) {
    SegmentHeader first;
    if (!file_.read_at(0, static_cast<void*>(&first), sizeof first)) return false;
    const std::uint32_t used =
        std::min(first.slots_used.load(std::memory_order_relaxed), layout_.slots());
    if (!copy_slots(used) || !read_header() || !verify(used)) return false;
    if (!lost_ || pass == kPasses) return true;
  }
}

// What is copied here is believed where verify() finds nothing changed. The sequence is of a copy
// before.
bool SlotsReader::copy_slots(std::uint32_t used) {
  static_assert(offsetof(StreamSlot, sequence) == 0);
  slots_ = std::make_unique_for_overwrite<std::byte[]>(std::size_t{used} * sizeof(StreamSlot));
  sequences_.resize(used);
  latencies_.resize(used);
  for (std::uint32_t begin = 0; begin < used; begin += kChunk) {
    const std::uint32_t count = std::min(kChunk, used - begin);
    const auto copy = [&] {
      return read_parts(layout_.slot_at(begin), layout_.slot_bytes(), count, &slot(begin));
    };
    if (!copy()) return false;
    for (std::uint32_t i = begin; i < begin + count; ++i) {
      sequences_[i] = slot(i).sequence.load(std::memory_order_relaxed);
    }
    if (!copy() || !copy_latencies(begin, count)) return false;
  }
  return true;
}

bool SlotsReader::read_header() {
  for (;;) {
    SegmentHeader before;
    SegmentHeader after;
    if (!file_.read_at(0, static_cast<void*>(&before), sizeof before) ||
        !file_.read_at(0, static_cast<void*>(&header_), sizeof header_)) {
      return false;
    }
    rules_ = std::vector<RuleSlot>(
        std::min(header_.rules_used.load(std::memory_order_relaxed), stats::kRules));
    if (!read_parts(layout_.rule_at(0), layout_.rule_bytes(),
                    static_cast<std::uint32_t>(rules_.size()), rules_.data())) {
      return false;
    }
    if (layout_.has_latencies()) {
      rule_latencies_ = std::vector<Latencies>(rules_.size());
      if (!read_parts(layout_.rule_latencies_at(0), layout_.latencies_bytes(),
                      static_cast<std::uint32_t>(rules_.size()), rule_latencies_.data())) {
        return false;
      }
    }
    if (!file_.read_at(0, static_cast<void*>(&after), sizeof after)) return false;
    if (same_moment(before, after) || !pause()) return true;
  }
}

// Reads one slot until it holds still. False: it does not.
bool SlotsReader::again(std::uint32_t index) {
  StreamSlot& out = slot(index);
  do {
    std::uint32_t before = 0;
    std::uint32_t after = 0;
    if (file_.read_at(layout_.slot_at(index), &before, sizeof before) && !is_odd(before) &&
        file_.read_at(layout_.slot_at(index), static_cast<void*>(&out), sizeof out) &&
        copy_latencies(index, 1) &&
        file_.read_at(layout_.slot_at(index), &after, sizeof after) && before == after) {
      return true;
    }
  } while (pause());
  return false;
}

bool SlotsReader::verify(std::uint32_t used) {
  live_.clear();
  ended_.clear();
  lost_ = false;
  unreadable_ = 0;
  const std::uint64_t closings = header_.closings.load(std::memory_order_relaxed);
  std::vector<std::byte> now(kChunk * sizeof(StreamSlot));
  for (std::uint32_t begin = 0; begin < used; begin += kChunk) {
    const std::uint32_t count = std::min(kChunk, used - begin);
    if (!read_parts(layout_.slot_at(begin), layout_.slot_bytes(), count,
                    reinterpret_cast<StreamSlot*>(now.data()))) {
      return false;
    }
    for (std::uint32_t i = begin; i < begin + count; ++i) {
      const auto& latest =
          *reinterpret_cast<const StreamSlot*>(now.data() + (i - begin) * sizeof(StreamSlot));
      const std::uint32_t sequence = latest.sequence.load(std::memory_order_relaxed);
      // The same stream, before the header was read and after: its counters are not in there.
      const bool same = sequence == sequences_[i] && !is_odd(sequence);
      const bool was_live =
          is_odd(sequences_[i]) || slot(i).in_use.load(std::memory_order_relaxed) != 0;
      if (!same && !again(i)) {
        ++unreadable_;
        continue;
      }
      const bool is_live = slot(i).in_use.load(std::memory_order_relaxed) != 0;
      if (is_live) live_.push_back(&slot(i));
      if (same || slot(i).closed_at.load(std::memory_order_relaxed) <= closings) continue;
      // The stream that ended here is not in the header. Nor here, if another has had the slot since.
      if (!is_live) ended_.push_back(&slot(i));
      const std::uint32_t changes =
          slot(i).sequence.load(std::memory_order_relaxed) - sequences_[i];
      lost_ = lost_ || (was_live && (is_live || changes != 2));
    }
  }
  return true;
}

}  // namespace ringroad::cli
