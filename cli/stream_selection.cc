#include "cli/stream_selection.h"

#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <system_error>

#include "cli/text.h"
#include "cli/usage.h"

namespace ringroad::cli {
namespace {

std::string pid_problem(const std::string& text) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  const bool is_one = error == std::errc{} && end == text.data() + text.size() && pid > 0;
  return is_one ? "" : "\"" + text + "\" is not a process number";
}

}  // namespace

void StreamSelection::add_options(CLI::App& command) {
  command.add_option("FILTER", words_, "which streams: see below; default: all")->option_text(" ");
  command.add_option("-p,--pid", pids_, "only this process; may be given several times")
      ->option_text("PID")
      ->allow_extra_args(false)
      ->check(pid_problem);
  command.add_option("--carrier", carrier_, "only streams on it: tcp, shm or rdma")
      ->option_text("CARRIER")
      ->check(CLI::IsMember({"tcp", "shm", "rdma"}));
  add_directory_option(command, directory_);
}

bool StreamSelection::make_filter(const char* command, StreamFilter& filter) const {
  std::string why;
  if (!words_.empty()) {
    const std::optional<StreamFilter> parsed = parse_filter(words_, why);
    if (!parsed) {
      std::fprintf(stderr, "%s: %s\n", command, why.c_str());
      return false;
    }
    filter = *parsed;
  }
  if (!carrier_.empty()) {
    filter = [first = filter, wanted = carrier_](const ProcessReport& process,
                                                 const StreamReport& stream) {
      return wanted == carrier_name(stream.carrier()) && (!first || first(process, stream));
    };
  }
  return true;
}

std::string StreamSelection::words_of_filter() const {
  std::string text = carrier_.empty() ? "" : "carrier " + carrier_;
  for (const std::string& word : words_) text += (text.empty() ? "" : " ") + word;
  return text;
}

Snapshot StreamSelection::read(const char* command, bool ended, bool& complete) const {
  const SegmentSource source = source_of(directory_);
  Snapshot snapshot = pids_.empty()
                          ? read_segments(source, ended ? Which::kAll : Which::kRunning)
                          : read_segments_of(source, pids_);
  for (const SkippedFile& file : snapshot.skipped) {
    std::fprintf(stderr, "%s: %s is skipped: %s\n", command, printable(file.path).c_str(), file.why.c_str());
  }
  complete = !snapshot.no_directory && (pids_.empty() || snapshot.skipped.empty());
  return snapshot;
}

Snapshot StreamSelection::read_quietly() const {
  const SegmentSource source = source_of(directory_);
  Snapshot snapshot = pids_.empty() ? read_segments(source, Which::kRunning)
                                    : read_segments_of(source, pids_);
  std::erase_if(snapshot.processes, [](const ProcessReport& process) { return !process.alive; });
  return snapshot;
}

std::string wrapped_list(const std::vector<std::string>& names) {
  constexpr std::size_t kColumns = 70;
  std::string text;
  std::size_t line = 0;
  for (const std::string& name : names) {
    if (!text.empty()) {
      const bool fits = line + name.size() + 2 <= kColumns;
      text += fits ? ", " : ",\n";
      line = fits ? line + 2 : 0;
    }
    text += name;
    line += name.size();
  }
  return text;
}

}  // namespace ringroad::cli
