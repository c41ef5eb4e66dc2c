// The writer's side of what `ringroad ss` reads (segment_layout.h), and what stands beside a process' file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "rsocket-core/base/deferred_use.h"
#include "rsocket-core/base/spin_lock.h"
#include "rsocket-core/stats/segment_layout.h"

namespace ringroad::stats {

// What stands beside a process' own file (stats_files.cc). None of these throws; errno is kept.
// Removes the files of processes that have ended and could not do so themselves, at the earliest `keep_s`
// seconds after they were first found dead here, and of those only what a file of this pid namespace says.
void remove_files_of_the_dead(const char* directory, std::int64_t keep_s) noexcept;
inline constexpr std::int64_t kKeepDeadS = 600;
std::uint64_t own_pid_namespace() noexcept;  // 0: unknown
// What an operator has asked of the process whose file this is (control::Mode); 0 if it is another's, or no
// file.
std::uint32_t mode_of_file(const char* path, std::uint32_t pid, std::uint64_t start_ticks) noexcept;

// The writer's side. Thread rule: any thread; create() and release() are internally serialised.
class Segment {
 public:
  // Makes the file. Null, and errno says why, where that is impossible (the process then runs unlisted).
  static Segment* create(const char* directory, const char* program) noexcept;
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  SegmentHeader& header() noexcept { return *header_; }
  // A slot in use whose counters are zero; its identity is to be filled in between begin() and end().
  // Null when all are taken.
  StreamSlot* acquire() noexcept;
  // Adds the slot's counters to the header's and its rule's, and frees it.
  void release(StreamSlot* slot) noexcept;
  bool owns(const StreamSlot* slot) const noexcept {
    return slot >= slots_ && slot < slots_ + kSlots;
  }
  // The times of a slot's stream, and of a rule's streams that have ended.
  // REQUIRES: owns(&slot); an index from rule_index().
  Latencies& latencies(const StreamSlot& slot) noexcept { return latencies_[kRules + (&slot - slots_)]; }
  Latencies& rule_latencies(std::uint8_t index) noexcept { return latencies_[index]; }
  // The counters and times of a stream that found no slot, when it ends.
  void count_closed(const StreamSlot& slot, const Latencies& latencies) noexcept;
  // A stream of that rule has begun.
  void note_opened(std::uint8_t rule_index) noexcept;
  // A connection of that rule has begun and ended, and was never a stream.
  void count_early(std::uint8_t rule_index, const DeferredUse& early) noexcept;
  // Where the rule of this name is counted: made if need be, the last one for all when there are
  // too many, the first one while the file system has no memory for another.
  std::uint8_t rule_index(const char* name) noexcept;
  // REQUIRES: an index from rule_index().
  RuleSlot& rule(std::uint8_t index) noexcept { return rules_[index]; }
  // And the control socket beside it, once and for all: waits for a make_beside() of another
  // thread.
  void remove_file() noexcept;
  // `make` makes a file beside this one, unless they have been removed: false, and nothing is made.
  // Thread rule: the agent's thread.
  template <typename Make>
  bool make_beside(Make make) noexcept {
    making_.store(true);
    const bool stands = !removed_.load();
    if (stands) make();
    making_.store(false);
    return stands;
  }
  const char* path() const noexcept { return path_; }
  // What an operator had asked of the program that this process was before exec(2), whose file stood there
  // (control::Mode).
  std::uint32_t mode_before_exec() const noexcept { return mode_before_exec_; }

  static void begin(StreamSlot& slot) noexcept {
    slot.sequence.store(slot.sequence.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  static void end(StreamSlot& slot) noexcept {
    slot.sequence.store(slot.sequence.load(std::memory_order_relaxed) + 1,
                        std::memory_order_release);
  }

 private:
  void one_more_opened(RuleSlot& rule) noexcept RR_REQUIRES(busy_);
  Segment() noexcept = default;

  void lock() noexcept RR_ACQUIRE(busy_);
  template <typename Part>
  static bool has_memory(const Part& part) noexcept;
  // What it returns is to be stored in `closings`.
  std::uint64_t begin_closing(const StreamSlot& slot, const Latencies& latencies) noexcept RR_REQUIRES(busy_);
  void unlock() noexcept RR_RELEASE(busy_) { busy_.unlock(); }

  SegmentHeader* header_ = nullptr;
  RuleSlot* rules_ = nullptr;
  StreamSlot* slots_ = nullptr;
  Latencies* latencies_ = nullptr;  // of kRules rules, then of kSlots slots
  std::uint32_t* free_ = nullptr;  // stack of freed slot numbers
  std::uint32_t free_count_ = 0;
  std::atomic<bool> removed_{false};
  std::atomic<bool> making_{false};
  SpinLock busy_ RR_RANK(segment);
  char path_[256] = {};
  std::uint32_t mode_before_exec_ = 0;
};

}  // namespace ringroad::stats
