// Which processes and streams `ringroad ss` and `ringroad top` are asked for.
//
// Thread rule: one thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "cli/stream_filter.h"

namespace CLI {
class App;
}

namespace ringroad::cli {

class StreamSelection {
 public:
  // --pid, --carrier, --directory and the words of the filter. This object must outlive the
  // command.
  void add_options(CLI::App& command);

  // Empty: every stream. False: the filter is none, which stderr was told by `command`.
  bool make_filter(const char* command, StreamFilter& filter) const;
  std::string words_of_filter() const;

  // The processes that are asked for; `ended` ones only where that or --pid asks for them. What
  // cannot be read is told on stderr; `complete` is false then if it was asked for by name, or is
  // the directory.
  Snapshot read(const char* command, bool ended, bool& complete) const;
  // The processes that run, without a word about others.
  Snapshot read_quietly() const;
  bool names_pids() const noexcept { return !pids_.empty(); }

 private:
  std::vector<pid_t> pids_;
  std::string carrier_;
  std::string directory_;
  std::vector<std::string> words_;
};

// "a, b, c", in lines of what an option's description has room for.
std::string wrapped_list(const std::vector<std::string>& names);

}  // namespace ringroad::cli
