// `ringroad ss`: the forms in which a snapshot is shown.
#pragma once

#include <optional>
#include <string>

#include "cli/segment_reader.h"

namespace ringroad::cli {

// With `only`, streams on other carriers are left out; the totals are of all streams all the same.
using OnlyCarrier = std::optional<Carrier>;

// A table with one line a stream, then one line for each process that needs a word. With `only`,
// nothing is said of processes that have merely no streams.
std::string ss_text(const Snapshot& snapshot, OnlyCarrier only);

// The same and more, as one JSON object with an array "processes".
std::string ss_json(const Snapshot& snapshot, OnlyCarrier only);

}  // namespace ringroad::cli
