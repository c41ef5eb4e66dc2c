// Which streams `ringroad ss` and `ringroad top` show: an expression as ss(8) has them.
//
//   state on_channel and ( dst 10.9.0.0/16 or dport = :3306 ) and not program mysqld*
//
// Thread rule: values without shared state. Errors are values; std::bad_alloc may be thrown.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/process_report.h"

namespace ringroad::cli {

using StreamFilter = std::function<bool(const ProcessReport&, const StreamReport&)>;

// The words are joined by "and" where nothing stands between two conditions; one word may hold
// several. No words: every stream. Nothing, with `why` naming the word that is wrong and what could
// stand there, when they are no expression.
std::optional<StreamFilter> parse_filter(const std::vector<std::string>& words, std::string& why);

// For --help: the conditions, a line each.
extern const char* const kFilterHelp;

}  // namespace ringroad::cli
