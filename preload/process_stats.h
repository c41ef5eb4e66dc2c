// The statistics of this process, which the agent, its streams and its operator share.
//
// Thread rule: any thread at any time, but set_up() and what a fork calls.
#pragma once

#include <cstddef>

#include "policy/settings.h"
#include "rsocket-core/stats/stats.h"
#include "rsocket-core/stream/deferred_selector.h"

namespace ringroad::preload::process_stats {

// Once, before all else: the folder of the files, and the program's name. Both are kept.
void set_up(const char* directory, const char* program) noexcept;

// Made when they are asked for first; null: they cannot be.
stats::Segment* own_segment() noexcept;
// Null: they have not been made.
stats::Segment* existing_segment() noexcept;
void publish_policy(stats::PolicyStatus status, std::size_t rules, const char* detail) noexcept;
// A connection of the rule's has ended, and was never a stream.
void count_deferred(const policy::Settings& rule, const DeferredUse& use) noexcept;

// In the child of a fork, which makes its own when it needs them. Those of the parent, or null: streams of
// the parent's keep pointing there, and are never touched again.
stats::Segment* after_fork_child() noexcept;

}  // namespace ringroad::preload::process_stats
