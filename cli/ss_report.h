// `ringroad ss`: the forms in which a snapshot is shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "cli/stream_filter.h"

namespace ringroad::cli {

// What is shown of it. Totals, rules and histograms of processes are of all their streams all the
// same.
struct SsView {
  StreamFilter filter;       // none: every stream
  std::string filter_words;  // as they were given
  std::string sort;          // one of stream_sort_keys(); empty: by process, then as they came
  bool reverse = false;
  bool exact = false;  // numbers as they are, not 12.3M
  bool header = true;
  bool histograms = false;  // JSON: also of each stream

  bool shows(const ProcessReport& process, const StreamReport& stream) const {
    return !filter || filter(process, stream);
  }
};

const std::vector<std::string>& stream_sort_keys();

// "12.3M", or all digits where the view asks for them.
std::string count_cell(std::uint64_t value, const SsView& view);

// A table with one line a stream, then one line for each process that needs a word. With a filter,
// nothing is said of processes that have merely no streams.
std::string ss_text(const Snapshot& snapshot, const SsView& view);

// How many streams there are of what, and what all have moved.
std::string ss_summary(const Snapshot& snapshot, const SsView& view);

// What the rules of the policies have done, added up over the processes.
std::string ss_rules(const Snapshot& snapshot, const SsView& view);

// Sizes and waits of each process, or, with a filter, of the live streams that it shows.
std::string ss_histograms(const Snapshot& snapshot, const SsView& view);

// The same and more, as one JSON object with an array "processes". Numbers are never shortened.
// Without `streams` only what is known of whole processes.
std::string ss_json(const Snapshot& snapshot, const SsView& view, bool streams = true);

// Below a table: what it does not say about the processes; may be empty.
std::string ss_remarks(const Snapshot& snapshot, const SsView& view);

// The streams that `view` shows, in its order.
struct StreamRow {
  const ProcessReport* process;
  const StreamReport* stream;
};
std::vector<StreamRow> rows_of(const Snapshot& snapshot, const SsView& view);

}  // namespace ringroad::cli
