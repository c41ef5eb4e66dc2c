#include "cli/top_cmd.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "cli/stream_selection.h"
#include "cli/terminal.h"
#include "cli/top_screen.h"
#include "cli/usage.h"

namespace ringroad::cli {
namespace {

enum Status { kDone = 0, kFailed = 1, kWrongArguments = 2 };

constexpr double kShortestS = 0.1;
constexpr double kLongestS = 3600;
constexpr std::int64_t kSecondNs = 1'000'000'000;

struct Arguments {
  StreamSelection selection;
  std::string by = "process";
  std::string sort = "bytes";
  bool reverse = false;
  double interval_s = 1;
  unsigned count = 0;  // 0: until it is ended
  bool batch = false;
  bool json = false;
};

std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * kSecondNs + now.tv_nsec;
}

double unix_time() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

std::string time_of_day() {
  const time_t now = time(nullptr);
  tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  strftime(text, sizeof text, "%H:%M:%S", &parts);
  return text;
}

class Top {
 public:
  Top(const Arguments& arguments, StreamFilter filter)
      : arguments_(arguments),
        filter_(std::move(filter)),
        interval_ns_(std::llround(arguments.interval_s * 1e9)) {
    view_.by = arguments.by == "stream" ? TopBy::kStream
               : arguments.by == "rule" ? TopBy::kRule
                                        : TopBy::kProcess;
    view_.sort = arguments.sort;
    view_.reverse = arguments.reverse;
  }

  int run() {
    bool complete = true;
    arguments_.selection.read("ringroad top", false, complete);  // for what it says on stderr
    if (!complete) return kFailed;
    now_ = sample();
    before_ = now_;
    const bool screen = !arguments_.batch && !arguments_.json && Terminal::usable();
    return screen ? on_screen() : in_lines();
  }

 private:
  TopSample sample() const {
    TopSample result;
    result.snapshot = arguments_.selection.read_quietly();
    result.monotonic_ns = monotonic_ns();
    return result;
  }

  void next_sample() {
    before_ = std::move(now_);
    now_ = sample();
  }

  // Those that --pid names, if it does, have all ended.
  bool over() const { return arguments_.selection.names_pids() && now_.snapshot.processes.empty(); }

  TopReading reading() const {
    TopReading result;
    result.rows = top_rows(before_, now_, view_.by, filter_);
    sort_rows(result.rows, view_.sort, view_.reverse);
    result.seconds = seconds_between(before_, now_);
    result.processes = now_.snapshot.processes.size();
    result.skipped = now_.snapshot.skipped.size();
    for (const TopRow& row : result.rows) {
      const bool is_stream = view_.by == TopBy::kStream;
      result.streams += is_stream ? 1 : row.streams;
      result.on_channel += is_stream ? (row.carrier != Carrier::kTcp ? 1U : 0U) : row.on_channel;
    }
    result.time = time_of_day();
    return result;
  }

  int in_lines() {
    std::int64_t next = now_.monotonic_ns;
    for (unsigned done = 0; arguments_.count == 0 || done < arguments_.count; ++done) {
      next = std::max(next + interval_ns_, monotonic_ns());
      const timespec until{next / kSecondNs, next % kSecondNs};
      while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
      }
      next_sample();
      if (over()) {
        std::fputs("ringroad top: the processes have ended\n", stderr);
        return kFailed;
      }
      const TopReading now = reading();
      std::fputs(
          (arguments_.json ? top_json(now, view_, unix_time()) : top_lines(now, view_)).c_str(),
          stdout);
      // A reader wants it now; and one that reads no more ends it.
      if (std::fflush(stdout) != 0) return kFailed;
    }
    return kDone;
  }

  int on_screen() {
    int end_with = 0;
    int status = kDone;
    {
      Terminal terminal;
      status = on(terminal);
      end_with = terminal.signal();
    }
    if (end_with != 0) {
      ::signal(end_with, SIG_DFL);
      raise(end_with);
    }
    if (status == kFailed && over()) std::fputs("ringroad top: the processes have ended\n", stderr);
    return status;
  }

  int on(Terminal& terminal) {
    std::int64_t next = now_.monotonic_ns + interval_ns_;
    TopReading shown = reading();
    unsigned readings = 0;
    std::string keys;
    for (;;) {
      const TerminalSize size = terminal.size();
      if (!terminal.write(top_frame(shown, view_, size))) return kFailed;
      if (arguments_.count != 0 && readings >= arguments_.count) return kDone;
      const std::int64_t left_ms = (next - monotonic_ns() + 999'999) / 1'000'000;
      const auto event = terminal.wait(static_cast<int>(std::max<std::int64_t>(left_ms, 0)), keys);
      if (event == Terminal::Event::kInterrupted) return kDone;
      if (event == Terminal::Event::kEnded || event == Terminal::Event::kGone) return kFailed;
      if (event == Terminal::Event::kKeys) {
        if (!obey(keys, view_, size.rows > 4 ? size.rows - 3 : 1)) return kDone;
        shown = reading();
      }
      if (monotonic_ns() < next) continue;
      next_sample();
      if (over()) return kFailed;
      ++readings;
      // Not every one that it was stopped for.
      next = std::max(next + interval_ns_, monotonic_ns());
      shown = reading();
    }
  }

  const Arguments& arguments_;
  const StreamFilter filter_;
  const std::int64_t interval_ns_;
  TopView view_;
  TopSample before_;
  TopSample now_;
};

int show(const Arguments& arguments) {
  StreamFilter filter;
  if (!arguments.selection.make_filter("ringroad top", filter)) return kWrongArguments;
  if (!(arguments.interval_s >= kShortestS && arguments.interval_s <= kLongestS)) {
    std::fputs("ringroad top: --interval must be a number of seconds from 0.1 to 3600\n", stderr);
    return kWrongArguments;
  }
  return Top(arguments, std::move(filter)).run();
}

}  // namespace

void add_top_command(CLI::App& app, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("top", "Watch what streams, processes or rules move, second by second");
  set_usage(*command, "ringroad top [OPTIONS] [FILTER...]");
  arguments->selection.add_options(*command);
  command
      ->add_option("--by", arguments->by,
                   "a line for each process, stream or rule; default: process")
      ->option_text("WHAT")
      ->check(CLI::IsMember({"process", "stream", "rule"}));
  command
      ->add_option("--sort", arguments->sort,
                   "the busiest first, or names from A; default: bytes; by one of\n" +
                       wrapped_list(top_sort_keys()))
      ->option_text("KEY")
      ->check(CLI::IsMember(top_sort_keys()));
  command->add_flag("-r,--reverse", arguments->reverse, "the other way round");
  command
      ->add_option("-d,--interval", arguments->interval_s,
                   "seconds between two readings, 0.1 to 3600; default: 1")
      ->option_text("SECONDS");
  command
      ->add_option("-n,--count", arguments->count, "end after so many; default: when it is ended")
      ->option_text("N")
      ->check(CLI::Range(1U, 1'000'000'000U));
  command->add_flag(
      "--batch", arguments->batch,
      "one table after the other, also on a terminal; where the output is none, or TERM\n"
      "is dumb, that is so anyway");
  command->add_flag("--json", arguments->json,
                    "as --batch, one JSON object a line; all bytes exact");
  command->footer(
      "Keys: q quits, h shows the others.\n"
      "\n"
      "Columns:\n"
      "  TX/s, RX/s   bytes that the programs sent and received a second; K = 1024 bytes\n"
      "  TX-MSGS/s    their send calls; RX-MSGS/s their receive calls\n"
      "  STALLS/s     sends that found no room in the ring (credits are out)\n"
      "  WAITING      how many senders waited for room at a time, on average\n"
      "  CARRIER, REASON   of a stream: what carries it, and why no channel does; after a / the\n"
      "               other end's reason\n"
      "\n" +
      std::string(kFilterHelp) +
      "With a filter, processes and rules show what their streams that match do, while they live.\n"
      "\n"
      "Reading does not slow the processes. The first table comes after one interval.\n"
      "\n"
      "Examples:\n"
      "  ringroad top\n"
      "  ringroad top --by stream --sort stalls dport = :3306\n"
      "  ringroad top --pid 4711 --interval 5 --count 12 > minute.txt\n"
      "  ringroad top --json --by rule | jq '.rows[] | {rule, tx_bytes}'\n"
      "\n"
      "Exit status:\n"
      "  0  ended as asked: q, Ctrl-C on a screen, or --count\n"
      "  1  a process that --pid names could not be shown, or all of them ended; the directory "
      "cannot\n"
      "     be read; the output could not be written\n"
      "  2  wrong arguments, or a filter that is none\n");
  command->callback([arguments, &exit_status] { exit_status = show(*arguments); });
}

}  // namespace ringroad::cli
