// `ringroad top`: what one reading looks like, on a screen and in lines.
//
// Thread rule: values without shared state. std::bad_alloc may be thrown.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/terminal.h"
#include "cli/top_rates.h"

namespace ringroad::cli {

struct TopView {
  TopBy by = TopBy::kProcess;
  std::string sort = "bytes";
  bool reverse = false;
  bool help = false;
  std::size_t first = 0;  // row of the table; moved into it by top_frame()
};

struct TopReading {
  std::vector<TopRow> rows;  // sorted
  double seconds = 0;        // that the rates are of; 0: there are none yet
  std::size_t processes = 0;
  std::size_t streams = 0;
  std::size_t on_channel = 0;
  std::size_t skipped = 0;  // files that cannot be read
  std::string time;         // of day
};

// As many lines as fit, none longer than a line is; nothing else than text and what ends each line.
std::string top_frame(const TopReading& reading, TopView& view, TerminalSize size);
// What the keys ask for. False: to quit.
bool obey(const std::string& keys, TopView& view, std::size_t page);

// A title and the table, for a pipe.
std::string top_lines(const TopReading& reading, const TopView& view);
// One JSON object in one line, numbers a second.
std::string top_json(const TopReading& reading, const TopView& view, double unix_time);

}  // namespace ringroad::cli
