#include "cli/set_cmd.h"

#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/operator_request.h"
#include "cli/process_state.h"
#include "cli/segment_reader.h"
#include "cli/text.h"
#include "cli/usage.h"

namespace ringroad::cli {
namespace {

using Clock = std::chrono::steady_clock;
using control::Mode;

enum ExitStatus { kDone = 0, kFailed = 1, kWrongArguments = 2 };

struct Arguments {
  std::vector<std::string> words;  // processes, then the mode
  double wait_s = 2;
  std::string directory;
};

std::optional<Mode> mode_of(const std::string& word) {
  for (const Mode mode : {Mode::kAuto, Mode::kTcp, Mode::kRdma}) {
    if (word == control::mode_name(mode)) return mode;
  }
  return std::nullopt;
}

std::optional<pid_t> pid_of(const std::string& word) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), pid);
  if (error != std::errc{} || end != word.data() + word.size() || pid <= 0) return std::nullopt;
  return pid;
}

int complain(const std::string& text) {
  std::fprintf(stderr, "ringroad set: %s\n", text.c_str());
  return kFailed;
}

// A process that is there may be one of another version, which the file says.
std::string why_unknown(pid_t pid, const SegmentSource& source, const Snapshot& snapshot) {
  const std::string number = std::to_string(pid);
  const std::string path = place_of(source, pid).path();
  const auto file = std::find_if(snapshot.skipped.begin(), snapshot.skipped.end(),
                                 [&](const SkippedFile& skipped) { return skipped.path == path; });
  if (file == snapshot.skipped.end() || (kill(pid, 0) != 0 && errno == ESRCH)) {
    return why_no_segment(pid, path);
  }
  return "process " + number + " cannot be asked: " + path + ": " + file->why;
}

// "fork 3, closing 1"
std::string reasons_of(const ProcessReport& process) {
  std::map<std::string, std::size_t> counts;
  for (const StreamReport& stream : process.streams) {
    if (stream.state != State::kOnTcp) continue;
    const bool peers = stream.reason == Reason::kPeerRefused || stream.reason == Reason::kPeerLeft;
    std::string reason = reason_name(stream.reason);
    if (peers && stream.peer_reason != Reason::kNone) {
      reason += std::string("/") + reason_name(stream.peer_reason);
    }
    ++counts[reason];
  }
  std::string text;
  for (const auto& [reason, count] : counts) {
    text += (text.empty() ? "" : ", ") + reason + " " + std::to_string(count);
  }
  return text;
}

std::string told(const ProcessReport& process, const Progress& progress, Mode mode,
                 Clock::duration took) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(took).count();
  const std::string after = " after " + std::to_string(ms) + " ms";
  const std::size_t all = progress.there + progress.moving + progress.waiting + progress.staying;
  switch (mode) {
    case Mode::kAuto:
      return "auto: " + counted(process.streams.size(), "stream") + " as the policy says";
    case Mode::kTcp:
      return "tcp: " + std::to_string(progress.there) + " of " + counted(all, "stream") +
             " on TCP" + after;
    case Mode::kRdma:
      break;
  }
  std::string text = "rdma: " + std::to_string(progress.there) + " of " + counted(all, "stream") +
                     " on a channel" + after;
  if (progress.there < all) text += "; on TCP: " + reasons_of(process);
  return text;
}

int set(const Arguments& arguments) {
  const SegmentSource source = source_of(arguments.directory);
  const std::optional<Mode> mode = mode_of(arguments.words.back());
  if (!mode || arguments.words.size() < 2) {
    std::fprintf(
        stderr, "ringroad set: %s; as in: ringroad set 4711 tcp\n",
        mode ? "which processes? name them, or all, before the mode"
             : ("\"" + arguments.words.back() + "\" is no mode: tcp, rdma or auto").c_str());
    return kWrongArguments;
  }
  bool all = false;
  std::vector<pid_t> pids;
  for (std::size_t i = 0; i + 1 < arguments.words.size(); ++i) {
    const std::string& word = arguments.words[i];
    const std::optional<pid_t> pid = pid_of(word);
    if (word == "all") {
      all = true;
    } else if (pid) {
      pids.push_back(*pid);
    } else {
      std::fprintf(stderr, "ringroad set: \"%s\" is neither a process number nor all\n",
                   word.c_str());
      return kWrongArguments;
    }
  }
  const Snapshot snapshot = read_segments(source, Which::kRunning);
  int status = kDone;
  struct Asked {
    ProcessReport before;
    std::uint64_t serial;
  };
  std::vector<Asked> asked;
  const Clock::time_point began = Clock::now();
  const auto ask_one = [&](const ProcessReport& process, bool by_name) {
    std::string why;
    const std::uint64_t serial = new_serial();
    if (ask(source, process.pid, *mode, serial, why)) {
      asked.push_back({process, serial});
    } else if (by_name || !process.streams.empty()) {
      status =
          complain(std::to_string(process.pid) + " " + printable(process.program) + ": " + why);
    }
  };
  for (const pid_t pid : pids) {
    const auto is_it = [&](const ProcessReport& process) {
      return process.pid == pid && process.alive;
    };
    const auto found = std::find_if(snapshot.processes.begin(), snapshot.processes.end(), is_it);
    if (found == snapshot.processes.end()) {
      status = complain(why_unknown(pid, source, snapshot));
    } else {
      ask_one(*found, true);
    }
  }
  for (const ProcessReport& process : snapshot.processes) {
    const bool named = std::find(pids.begin(), pids.end(), process.pid) != pids.end();
    if (all && process.alive && !named) ask_one(process, false);
  }
  for (const SkippedFile& file : snapshot.skipped) {
    if (all && file.of_running) status = complain(printable(file.path) + " is not asked: " + file.why);
  }
  if (asked.empty() && status == kDone) std::puts("no preloaded processes");
  const Clock::time_point until = began + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(arguments.wait_s));
  for (const Asked& one : asked) {
    ProcessReport process;
    Progress progress;
    std::string why;
    const std::string name =
        std::to_string(one.before.pid) + " " + printable(one.before.program) + ": ";
    if (!watch(source, one.before.pid, *mode, one.serial, until, process, progress, why)) {
      status = complain(name + why);
    } else if (!progress.obeys) {
      status = complain(name + no_answer(process));
    } else {
      std::printf("%s%s\n", name.c_str(),
                  told(process, progress, *mode, Clock::now() - began).c_str());
      if (!progress.over()) status = kFailed;
    }
  }
  return status;
}

}  // namespace

void add_set_command(CLI::App& app, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "set", "Move the streams of running processes to TCP, or to their channels");
  set_usage(*command, "ringroad set [OPTIONS] PROCESS... MODE");
  command
      ->add_option("PROCESS...MODE", arguments->words,
                   "process numbers, or all; then tcp, rdma or auto")
      ->required()
      ->option_text(" ");
  command->add_option("--wait", arguments->wait_s, "how long to wait for it; default: 2")
      ->option_text("SECONDS")
      ->check(seconds_within(0, 86'400));
  add_directory_option(*command, arguments->directory);
  command->footer(
      "Modes:\n"
      "  tcp   every stream goes back to TCP and stays there: the kill switch\n"
      "  rdma  every stream that the policy lets off TCP goes to its channel (RDMA or shared "
      "memory)\n"
      "        now, also one that is idle or has not reached the rule's promote_after\n"
      "  auto  as the policy says, with the next use; what a process does when it starts\n"
      "\n"
      "No connection is closed, no byte is lost, and the program is not told. The mode holds for\n"
      "connections to come, too, and for processes that this one forks, until it is set again or "
      "the\n"
      "process ends. Either end can keep a stream on TCP; an accepting end that lets it off again\n"
      "waits for the connecting end to ask, which is told to.\n"
      "\n"
      "Examples:\n"
      "  ringroad set 4711 tcp\n"
      "  ringroad set all auto\n"
      "\n"
      "Exit status:\n"
      "  0  done; streams that cannot leave TCP are told with their reasons (see ringroad ss)\n"
      "  1  a process could not be asked, or was not through in time\n"
      "  2  wrong arguments\n");
  command->callback([arguments, &exit_status] { exit_status = set(*arguments); });
}

}  // namespace ringroad::cli
