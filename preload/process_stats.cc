#include "preload/process_stats.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "preload/log.h"
#include "preload/policy_file.h"
#include "preload/text.h"
#include "rsocket-core/base/mutex.h"
#include "rsocket-core/base/signals.h"

namespace ringroad::preload::process_stats {
namespace {

const char* directory_of_files = nullptr;
const char* program_name = nullptr;
std::atomic<stats::Segment*> segment{nullptr};
std::atomic<bool> tried{false};  // in this process
Mutex making_mutex RR_RANK(segment_making);
std::atomic<bool> loss_told{false};  // also over a fork: children meet the same

void tell_loss(int error) noexcept {
  if (loss_told.exchange(true)) return;
  char line[640];
  std::snprintf(line, sizeof line,
                "no statistics in %.300s: %s; ringroad ss and set do not find this process (make room "
                "there, or name a directory that it may write by RINGROAD_RUNTIME_DIR, and restart it)",
                directory_of_files, strerrordesc_np(error));
  log::write(log::Level::kWarn, line);
}

}  // namespace

void set_up(const char* directory, const char* program) noexcept {
  directory_of_files = directory;
  program_name = program;
}

stats::Segment* existing_segment() noexcept { return segment.load(std::memory_order_acquire); }

void publish_policy(stats::PolicyStatus status, std::size_t rules, const char* detail) noexcept {
  stats::Segment* const own = existing_segment();
  if (own == nullptr) return;
  stats::SegmentHeader& header = own->header();
  const std::uint32_t sequence = header.policy_sequence.load(std::memory_order_relaxed);
  header.policy_sequence.store(sequence + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  header.policy_rules = static_cast<std::uint32_t>(rules);
  copy_text(header.policy_detail, sizeof header.policy_detail, detail);
  header.policy_status.store(static_cast<std::uint32_t>(status), std::memory_order_relaxed);
  header.policy_sequence.store(sequence + 2, std::memory_order_release);
}

stats::Segment* own_segment() noexcept {
  if (!tried.load(std::memory_order_acquire)) {
    const signals::DeferHandlers whole;  // a handler may ask for them, too
    MutexLock lock(making_mutex);
    if (!tried.load(std::memory_order_relaxed)) {
      stats::Segment* const made = stats::Segment::create(directory_of_files, program_name);
      if (made == nullptr) tell_loss(errno);
      if (made != nullptr) made->header().operator_mode.store(made->mode_before_exec());
      segment.store(made, std::memory_order_release);
      if (const policy::Policy* policy = policy_file::current(); policy != nullptr) {
        publish_policy(stats::PolicyStatus::kLoaded, policy->rule_count(), "");
      }
      tried.store(true, std::memory_order_release);
    }
  }
  return existing_segment();
}

void count_deferred(const policy::Settings& rule, const DeferredUse& use) noexcept {
  stats::Segment* const own = own_segment();
  if (own == nullptr) return;
  // The one whose index was asked for last: a segment's indices do not change.
  struct Index {
    const stats::Segment* segment;
    const policy::Settings* rule;
    std::uint8_t value;
  };
  static constinit thread_local Index last __attribute__((tls_model("initial-exec"))) = {};
  if (last.segment != own || last.rule != &rule) {
    last = {own, &rule, own->rule_index(rule.name.c_str())};
  }
  own->count_early(last.value, use);
}

stats::Segment* after_fork_child() noexcept {
  making_mutex.reset_after_fork();
  stats::Segment* const parents = segment.exchange(nullptr);
  tried.store(false);
  return parents;
}

}  // namespace ringroad::preload::process_stats
