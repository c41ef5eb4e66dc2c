#include "cli/ss_cmd.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "cli/ss_report.h"
#include "cli/usage.h"

namespace ringroad::cli {
namespace {

struct Arguments {
  bool json = false;
  bool all = false;
  std::vector<pid_t> pids;
  std::string carrier;
  std::string directory;
};

OnlyCarrier carrier_of(const std::string& name) {
  for (const Carrier carrier : {Carrier::kTcp, Carrier::kShm, Carrier::kRdma}) {
    if (name == carrier_name(carrier)) return carrier;
  }
  return std::nullopt;
}

std::string pid_problem(const std::string& text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return digits ? "" : "\"" + text + "\" is not a process number";
}

int show(const Arguments& arguments) {
  Snapshot snapshot = read_segments(directory_of(arguments.directory));
  for (const SkippedFile& file : snapshot.skipped) {
    std::fprintf(stderr, "ringroad ss: %s is skipped: %s\n", file.path.c_str(), file.why.c_str());
  }
  const auto& pids = arguments.pids;
  std::erase_if(snapshot.processes, [&](const ProcessReport& process) {
    return (!process.alive && !arguments.all) ||
           (!pids.empty() && std::find(pids.begin(), pids.end(), process.pid) == pids.end());
  });
  const OnlyCarrier only = carrier_of(arguments.carrier);
  std::fputs((arguments.json ? ss_json(snapshot, only) : ss_text(snapshot, only)).c_str(), stdout);
  return 0;
}

}  // namespace

void add_ss_command(CLI::App& app, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "ss", "Show the streams of every preloaded process: carrier, reason, traffic");
  command->add_flag("--json", arguments->json, "one JSON object, with all that is known");
  command->add_option("--pid", arguments->pids, "only this process; may be given several times")
      ->option_text("PID")
      ->allow_extra_args(false)
      ->check(pid_problem);
  command->add_option("--carrier", arguments->carrier, "only streams on it: tcp, shm or rdma")
      ->option_text("CARRIER")
      ->check(CLI::IsMember({"tcp", "shm", "rdma"}));
  command->add_flag("--all", arguments->all,
                    "also what processes that are gone left behind, marked (ended)");
  add_directory_option(*command, arguments->directory);
  command->footer(
      "Columns:\n"
      "  ROLE         connect or accept, as the program did\n"
      "  CARRIER      what carries the stream now: tcp (the kernel), shm or rdma\n"
      "  STATE        ON_TCP, CONNECTING, SWITCHING, ON_CHANNEL, RESUMING, RESET, CLOSED\n"
      "  DEVICE, QPN  of the channel, if there is one\n"
      "  REASON       why it is not on a channel, at this end; PEER-REASON at the other\n"
      "  TX, RX       bytes sent and received over all carriers; K = 1024 bytes, M = 1024 K\n"
      "  TX-MSGS      the program's send calls; RX-MSGS its receive calls\n"
      "  RULE         the rule of the policy that chose the stream\n"
      "Below the table: processes without streams, and policies that were refused, and why.\n"
      "\n"
      "The processes are not stopped or asked; this also works for one that hangs.\n"
      "Files that cannot be read are named on stderr and skipped.\n"
      "\n"
      "Examples:\n"
      "  ringroad ss\n"
      "  ringroad ss --pid 4711 --carrier tcp\n"
      "  ringroad ss --json | jq '.processes[].totals.channel.tx_bytes'\n"
      "\n"
      "Exit status:\n"
      "  0  shown, also when there was nothing to show\n"
      "  1  the output could not be written\n"
      "  2  wrong arguments\n");
  command->callback([arguments, &exit_status] { exit_status = show(*arguments); });
}

}  // namespace ringroad::cli
