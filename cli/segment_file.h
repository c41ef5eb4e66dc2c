// One process' segment (rsocket-core/stats/segment_layout.h) as a file: opened, and copied out of piece by
// piece.
//
// Nothing is mapped, because a mapped file that its owner truncates would end the reader with
// SIGBUS, and nothing is locked or written: the process does not notice.
//
// Thread rule: one thread. Errors are values.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rsocket-core/stats/stats.h"

namespace ringroad::cli {

class SegmentFile {
 public:
  explicit SegmentFile(const std::string& path) noexcept;
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  // 0, or the errno with which it could not be opened.
  int error() const noexcept { return error_; }
  std::optional<std::uint64_t> size_if_regular() const noexcept;
  // As it was when it was opened. REQUIRES: error() == 0.
  const struct stat& status() const noexcept { return status_; }
  // False where the file ends before that.
  bool read_at(std::uint64_t offset, void* to, std::size_t bytes) const noexcept;

 private:
  int fd_;
  int error_ = 0;
  struct stat status_ {};
};

// Where the parts of a segment are, as its header says.
class SegmentLayout {
 public:
  explicit SegmentLayout(const stats::SegmentHeader& header) noexcept
      : header_bytes_(header.header_bytes),
        rule_bytes_(header.rule_bytes),
        slot_bytes_(header.slot_bytes),
        rules_(header.rules),
        slots_(header.slots) {}

  // Nothing that this command knows is missing, and nothing is there that could not be meant.
  bool is_readable() const noexcept;
  std::uint64_t rule_at(std::uint32_t index) const noexcept {
    return header_bytes_ + std::uint64_t{index} * rule_bytes_;
  }
  std::uint64_t slot_at(std::uint32_t index) const noexcept {
    return (rule_at(rules_) + 4095) / 4096 * 4096 + std::uint64_t{index} * slot_bytes_;
  }
  std::uint32_t rule_bytes() const noexcept { return rule_bytes_; }
  std::uint32_t slot_bytes() const noexcept { return slot_bytes_; }

 private:
  std::uint32_t header_bytes_;
  std::uint32_t rule_bytes_;
  std::uint32_t slot_bytes_;
  std::uint32_t rules_;
  std::uint32_t slots_;
};

// The slots of a segment, each as it was at one moment, together with what is counted of those that
// have ended: no stream is in both, and none in neither.
class SlotsReader {
 public:
  // REQUIRES: layout.is_readable().
  SlotsReader(const SegmentFile& file, const SegmentLayout& layout) noexcept
      : file_(file), layout_(layout) {}

  // False: the file was truncated meanwhile.
  bool read();

  const stats::SegmentHeader& header() const noexcept { return header_; }
  const std::vector<stats::RuleSlot>& rules() const noexcept { return rules_; }
  // In use, in the order of the file.
  const std::vector<const stats::StreamSlot*>& live() const noexcept { return live_; }
  // Ended after the header was read: their counters are not in it.
  const std::vector<const stats::StreamSlot*>& ended() const noexcept { return ended_; }
  // Slots that stayed in the middle of a change.
  std::uint32_t unreadable() const noexcept { return unreadable_; }

 private:
  // The known part of `count` parts of this size, one behind the other in `to`.
  template <typename Part>
  bool read_parts(std::uint64_t offset, std::uint32_t part_bytes, std::uint32_t count, Part* to);
  bool copy_slots(std::uint32_t used);
  bool read_header();
  bool verify(std::uint32_t used);
  bool again(std::uint32_t index);
  bool pause() noexcept;
  stats::StreamSlot& slot(std::uint32_t index) noexcept;

  const SegmentFile& file_;
  const SegmentLayout layout_;
  stats::SegmentHeader header_;
  std::vector<stats::RuleSlot> rules_;
  std::vector<std::byte> slots_;
  std::vector<std::uint32_t> sequences_;
  std::vector<const stats::StreamSlot*> live_;
  std::vector<const stats::StreamSlot*> ended_;
  bool lost_ = false;  // a stream that was live when the header was read is nowhere
  std::uint32_t unreadable_ = 0;
  int retries_ = 0;
};

}  // namespace ringroad::cli
