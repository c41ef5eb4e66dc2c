#include "cli/ss_cmd.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "cli/ss_report.h"
#include "cli/stream_selection.h"
#include "cli/usage.h"

namespace ringroad::cli {
namespace {

enum Status { kShown = 0, kNotShown = 1, kWrongArguments = 2 };

struct Arguments {
  StreamSelection selection;
  std::string sort;
  bool reverse = false;
  bool json = false;
  bool all = false;
  bool exact = false;
  bool human = false;
  bool no_header = false;
  bool summary = false;
  bool rules = false;
  bool histograms = false;
};

std::string shown(const Snapshot& snapshot, const SsView& view, const Arguments& arguments) {
  if (arguments.json) return ss_json(snapshot, view, !arguments.summary);
  if (arguments.summary) return ss_summary(snapshot, view);
  if (arguments.rules) return ss_rules(snapshot, view);
  if (arguments.histograms) return ss_histograms(snapshot, view);
  return ss_text(snapshot, view);
}

int show(const Arguments& arguments) {
  SsView view;
  if (!arguments.selection.make_filter("ringroad ss", view.filter)) return kWrongArguments;
  view.filter_words = arguments.selection.words_of_filter();
  view.sort = arguments.sort;
  view.reverse = arguments.reverse;
  view.exact = arguments.exact;
  view.header = !arguments.no_header;
  view.histograms = arguments.histograms;
  bool complete = true;
  const Snapshot snapshot = arguments.selection.read("ringroad ss", arguments.all, complete);
  std::fputs(shown(snapshot, view, arguments).c_str(), stdout);
  return complete ? kShown : kNotShown;
}

}  // namespace

void add_ss_command(CLI::App& app, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "ss", "Show the streams of every preloaded process: carrier, reason, traffic");
  set_usage(*command, "ringroad ss [OPTIONS] [FILTER...]");
  arguments->selection.add_options(*command);
  command->add_flag("--all", arguments->all,
                    "also what processes that are gone have left, marked (ended)");
  command
      ->add_option(
          "--sort", arguments->sort,
          "the busiest first, or names from A; by one of\n" + wrapped_list(stream_sort_keys()))
      ->option_text("KEY")
      ->check(CLI::IsMember(stream_sort_keys()));
  command->add_flag("-r,--reverse", arguments->reverse, "the other way round");
  command->add_flag("--json", arguments->json,
                    "one JSON object, with all that is known; numbers as they are");
  auto* human =
      command->add_flag("-H,--human", arguments->human, "numbers of bytes as 12.3M: the default")
          ->option_text(" ");
  command->add_flag("--exact", arguments->exact, "numbers of bytes as they are")
      ->excludes(human)
      ->option_text(" ");
  command->add_flag("--no-header", arguments->no_header, "only the lines of the table");
  auto* summary = command
                      ->add_flag("-s,--summary", arguments->summary,
                                 "how many streams there are of what; with --json: no streams")
                      ->option_text(" ");
  auto* rules = command
                    ->add_flag("--rules", arguments->rules,
                               "what the streams of each rule have done, over all processes")
                    ->excludes(summary)
                    ->option_text(" ");
  command
      ->add_flag("--histograms", arguments->histograms,
                 "sizes of sends and receives, and times of waits and answers, of each process;\n"
                 "with a filter: of the streams that match; with --json: also of each stream")
      ->excludes(summary)
      ->excludes(rules)
      ->option_text(" ");
  command->footer(
      std::string(kFilterHelp) +
      "\n"
      "Columns:\n"
      "  ROLE         connect or accept, as the program did\n"
      "  CARRIER      what carries the stream now: tcp (the kernel), shm or rdma\n"
      "  STATE        ON_TCP, CONNECTING, SWITCHING, ON_CHANNEL, RESUMING, RESET, CLOSED\n"
      "  DEVICE, QPN  of the channel, if there is one\n"
      "  REASON       why it is not on a channel, at this end; PEER-REASON at the other\n"
      "  TX, RX       bytes sent and received over all carriers; K = 1024 bytes, M = 1024 K\n"
      "  TX-MSGS      the program's send calls; RX-MSGS its receive calls\n"
      "  RULE         the rule of the policy that chose the stream\n"
      "  CONTAINER    of a process in another pid namespace: the word container= or pod= of its labels,\n"
      "               its host's name, or the end of its cgroup; only root sees those of others\n"
      "Below the table: processes without streams, and policies that were refused, and why.\n"
      "\n"
      "Histograms count by powers of two: UP-TO is the largest of a line, PERCENT-SO-FAR is of "
      "this\n"
      "line and those above it. A wait lasts from a send that finds no room in the ring (credits "
      "are\n"
      "out) to one that does. A stall is a send that found none.\n"
      "An answer's time is from the last byte of a request to the first of its answer, of about\n"
      "one request in 64: at a client, with the way there and back; at a server, its own. A read's is\n"
      "from the end of a sleep to the receive, of one sleep in 16. --rules shows what half of the\n"
      "answers, and 99 in 100, take at most.\n"
      "\n"
      "The processes are not stopped or asked; this also works for one that hangs, is stopped, or "
      "was\n"
      "killed (--pid or --all). Files that cannot be read are named on stderr and skipped.\n"
      "\n"
      "Examples:\n"
      "  ringroad ss\n"
      "  ringroad ss --pid 4711 --carrier tcp\n"
      "  ringroad ss --sort rx dst 10.9.0.0/16 and dport = :3306\n"
      "  ringroad ss 'not state on_channel and (tx > 1M or rx > 1M)'\n"
      "  ringroad ss --summary\n"
      "  ringroad ss --json | jq '.processes[].totals.channel.tx_bytes'\n"
      "\n"
      "Exit status:\n"
      "  0  shown, also when there was nothing to show\n"
      "  1  a process that --pid names could not be shown (there is none, it is not preloaded, it "
      "may not\n"
      "     be read, another version wrote it), nor the directory; or the output could not be "
      "written\n"
      "  2  wrong arguments, or a filter that is none\n");
  command->callback([arguments, &exit_status] { exit_status = show(*arguments); });
}

}  // namespace ringroad::cli
