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
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rsocket-core/stats/stats.h"

namespace ringroad::cli {

class SegmentFile {
 public:
  // A name in a folder, or in none (-1); it is no symbolic link.
  SegmentFile(int folder, const std::string& name) noexcept;
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
        slots_(header.slots),
        latencies_bytes_(header.latencies_bytes) {}

  // Nothing that this command knows is missing but the latencies, and nothing is there that could not be
  // meant.
  bool is_readable() const noexcept;
  // Of the whole. REQUIRES: is_readable(), which bounds it.
  std::uint64_t bytes() const noexcept { return latencies_at(rules_ + slots_); }
  std::uint64_t rule_at(std::uint32_t index) const noexcept {
    return header_bytes_ + std::uint64_t{index} * rule_bytes_;
  }
  std::uint64_t slot_at(std::uint32_t index) const noexcept {
    return on_page(rule_at(rules_)) + std::uint64_t{index} * slot_bytes_;
  }
  // An older library's files have none.
  bool has_latencies() const noexcept { return latencies_bytes_ != 0; }
  std::uint64_t rule_latencies_at(std::uint32_t index) const noexcept { return latencies_at(index); }
  std::uint64_t slot_latencies_at(std::uint32_t index) const noexcept { return latencies_at(rules_ + index); }
  std::uint32_t slots() const noexcept { return slots_; }
  std::uint32_t rule_bytes() const noexcept { return rule_bytes_; }
  std::uint32_t slot_bytes() const noexcept { return slot_bytes_; }
  std::uint32_t latencies_bytes() const noexcept { return latencies_bytes_; }

 private:
  static std::uint64_t on_page(std::uint64_t offset) noexcept { return (offset + 4095) / 4096 * 4096; }
  std::uint64_t latencies_at(std::uint32_t index) const noexcept {
    return on_page(slot_at(slots_)) + std::uint64_t{index} * latencies_bytes_;
  }

  std::uint32_t header_bytes_;
  std::uint32_t rule_bytes_;
  std::uint32_t slot_bytes_;
  std::uint32_t rules_;
  std::uint32_t slots_;
  std::uint32_t latencies_bytes_;
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
  // Of a rule's ended streams, and of the stream of a slot of live() or ended(). Null: nothing was timed, or
  // the file has none.
  const stats::Latencies* rule_latencies(std::size_t rule) const noexcept;
  const stats::Latencies* latencies(const stats::StreamSlot* slot) const noexcept;
  // In use, in the order of the file.
  const std::vector<const stats::StreamSlot*>& live() const noexcept { return live_; }
  // Ended after the header was read: their counters are not in it.
  const std::vector<const stats::StreamSlot*>& ended() const noexcept { return ended_; }
  // Slots that stayed in the middle of a change.
  std::uint32_t unreadable() const noexcept { return unreadable_; }

 private:
  // The known part of `count` parts of this size, one behind the other in `to`; zero where they are shorter.
  template <typename Part>
  bool read_parts(std::uint64_t offset, std::uint32_t part_bytes, std::uint32_t count, Part* to);
  bool copy_slots(std::uint32_t used);
  bool read_header();
  bool verify(std::uint32_t used);
  bool again(std::uint32_t index);
  bool pause() noexcept;
  stats::StreamSlot& slot(std::uint32_t index) noexcept;
  // Those of slots, from this one on, as they are just now. True as well where the file has none.
  bool copy_latencies(std::uint32_t begin, std::uint32_t count);

  const SegmentFile& file_;
  const SegmentLayout layout_;
  stats::SegmentHeader header_;
  std::vector<stats::RuleSlot> rules_;
  std::vector<stats::Latencies> rule_latencies_;  // none, or of each of rules_
  std::unique_ptr<std::byte[]> slots_;
  std::vector<std::unique_ptr<stats::Latencies>> latencies_;  // of slots_; few have some
  std::vector<std::uint32_t> sequences_;
  std::vector<const stats::StreamSlot*> live_;
  std::vector<const stats::StreamSlot*> ended_;
  bool lost_ = false;  // a stream that was live when the header was read is nowhere
  std::uint32_t unreadable_ = 0;
  int retries_ = 0;
};

}  // namespace ringroad::cli
