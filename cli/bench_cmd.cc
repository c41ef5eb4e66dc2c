#include "cli/bench_cmd.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/benches.h"
#include "cli/library_file.h"
#include "cli/usage.h"

namespace ringroad::cli {
namespace {

constexpr int kFailed = 1;
// Debian's, which has the modules that the plots need.
constexpr const char* kPython = "/usr/bin/python3";

struct Bench {
  const char* name;
  const char* what;
  const char* more;
  // Else it has options of its own alone, and `more` is all of its help.
  bool shares = true;
};

constexpr const char* kSharedHelp =
    "\n"
    "The carriers take turns within each round, in another order each time, and a ratio is\n"
    "of two neighbours in one round. What cannot run on these hosts has a row that says why,\n"
    "and so has what crashes or hangs; it does not hold up the others.\n"
    "\n"
    "With two hosts, this command runs on either of them or on a third. It needs ssh(1)\n"
    "without a password, Python and the programs that are measured on both:\n"
    "  [server]\n"
    "  ssh     = \"root@db1\"      # as ssh(1) knows it; without it: this host\n"
    "  address = \"10.9.1.1\"      # on the network that is measured\n"
    "  device  = \"mlx5_0\"        # optional, as in a policy\n"
    "  [client]\n"
    "  ssh     = \"root@db2\"\n"
    "  address = \"10.9.1.2\"\n"
    "\n"
    "Leaves report.md, report.json, plots and cells.jsonl (each measurement) in DIR.\n";

constexpr const char* kExits =
    "\n"
    "Exit status:\n"
    "  0    measured; rivals that failed have their rows\n"
    "  1    TCP or Ringroad could not be measured, or was not what it claims to be\n"
    "  2    wrong arguments, a program is missing, or DIR is of other settings\n";

const std::vector<Bench> kBenches = {
    {"oltp",
     "MariaDB or MySQL under sysbench's OLTP workloads, by each carrier",
     "Each carrier has a throw-away server of its own, in memory, on a copy of the\n"
     "same data; those that are not under load are stopped meanwhile. A measured window\n"
     "begins when all connections are on their carrier.\n"},
    {"net",
     "What a connection itself costs: ping-pong, streams, small messages, connecting",
     "Ringroad's connections are on their channel before what is measured begins; -polls and\n"
     "-sleeps are those of a policy with spin = \"100ms\" and \"0us\". Raw verbs need perftest\n"
     "on both hosts.\n"},
    {"redis",
     "Redis under redis-benchmark, by each carrier",
     "Each carrier has a throw-away Redis server of its own, with a password of its own, that\n"
     "keeps nothing on a disk.\n"
     "Ringroad's connections are promoted from their first message on; a row says how much of\n"
     "what was sent went over the channel.\n"},
    {"model",
     "What a network card would make of the costs that the others measured on one host",
     "A query over TCP on this host less TCP's software is the database's own work. With\n"
     "Ringroad's software in its place, and the latency and the bandwidth of a card, it is\n"
     "what the query would cost there. The software is that of ping-pongs of as many bytes:\n"
     "TCP's over loopback, Ringroad's over shared memory and, for a queue pair, by the count\n"
     "of its instructions.\n"
     "\n"
     "Prints Markdown: for each workload and number of threads what a query costs and what\n"
     "of it is TCP; the ratios to TCP by the same card in time, for one thread, and in the\n"
     "server's processor time, for a busy server; the same subtraction for shared memory\n"
     "beside what was measured of it, which shows how far the model can be trusted; and each\n"
     "assumption with the side that it flatters. It measures nothing itself: all three need\n"
     "the same quiet host and the same build.\n"
     "\n"
     "The defaults of the card are what perftest's ib_write_lat and ib_write_bw were reported\n"
     "to say of a ConnectX-5 at 100 GbE.\n"
     "\n"
     "Example; the third, in a source tree, prints the numbers of the fourth:\n"
     "  ringroad bench net --awake --carriers tcp,shm,shm-polls,shm-sleeps\n"
     "  ringroad bench oltp --awake --carriers tcp,shm\n"
     "  ctest --test-dir build -L cost -V\n"
     "  ringroad bench model --shm-instructions N --verbs-instructions N --instructions-per-s N\n"
     "\n"
     "Exit status:\n"
     "  0    printed\n"
     "  1    printed, but rows lack what was not measured; each says which command does\n"
     "  2    wrong arguments, or DIR has no such results of one host\n",
     false},
    {"accept",
     "All that two hosts with RDMA have to show, in one run of less than an hour, with one report",
     "The steps, each with its share of the budget:\n"
     "  doctor    both hosts, and the way between them\n"
     "  perftest  raw verbs\n"
     "  net       ringroad bench net\n"
     "  oltp      ringroad bench oltp\n"
     "  link      while sysbench runs, the link of one host goes down for 3 s: no query may fail.\n"
     "            Only where ssh goes by another network; the link comes up again in any case\n"
     "  upgrade   while sysbench runs, the files of --upgrade come in the place of the first\n"
     "            build's, in a copy; then each end starts with them\n"
     "  device    while sysbench runs, the client's host has no RDMA device for 3 s\n"
     "What cannot run here has a row that says why. The same command goes on with the steps that\n"
     "have neither passed nor failed.\n"
     "\n"
     "This command runs on either host or on a third, as root on both. It needs ssh(1) without a\n"
     "password, and Python, Ringroad, perftest, sysbench and the database on both:\n"
     "  [server]\n"
     "  ssh     = \"root@192.0.2.1\"   # by another network; without it: this host\n"
     "  address = \"10.9.1.1\"         # on the network that is measured\n"
     "  device  = \"mlx5_0\"           # optional, as in a policy\n"
     "  [client]\n"
     "  ssh     = \"root@192.0.2.2\"\n"
     "  address = \"10.9.1.2\"\n"
     "\n"
     "Leaves report.md, report.json, plots and the benches' own reports in DIR, and all of it in\n"
     "DIR.tar.gz, to be sent. They hold addresses and names of hosts.\n"
     "\n"
     "Examples:\n"
     "  ringroad bench accept --inventory hosts.toml\n"
     "  ringroad bench accept --inventory hosts.toml --upgrade /opt/next/bin/ringroad --remove-device\n"
     "\n"
     "Exit status:\n"
     "  0    every step passed that was asked for\n"
     "  1    a step failed, could not run, or had no time\n"
     "  2    wrong arguments, a host is not reached, or DIR is of other settings\n",
     false},
};

std::vector<std::filesystem::path> program_candidates(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> result;
  for (const char* share : {"../share/ringroad", RINGROAD_SHAREDIR_FROM_BINDIR}) {
    std::filesystem::path candidate = (directory / share).lexically_normal();
    if (result.empty() || result.back() != candidate) result.push_back(std::move(candidate));
  }
  return result;
}

int fail(const std::string& message) {
  std::fprintf(stderr, "ringroad bench: %s\n", message.c_str());
  return kFailed;
}

// Returns only when it failed.
int run(const std::string& name, const std::vector<std::string>& words) {
  const std::filesystem::path directory = own_directory();
  std::string program, looked_at;
  for (const std::filesystem::path& candidate : program_candidates(directory)) {
    if (access((candidate / "__main__.py").c_str(), R_OK) == 0) {
      program = candidate;
      break;
    }
    looked_at += (looked_at.empty() ? "" : ", ") + candidate.string();
  }
  if (program.empty()) return fail("its programs are not at " + looked_at);
  if (access(kPython, X_OK) != 0) {
    return fail(std::string(kPython) + ": " + strerrordesc_np(errno) +
                "; apt-get install --no-install-recommends python3");
  }
  // -B: no bytecode beside what is installed.
  std::vector<std::string> command = {kPython, "-B", program, name,
                                      "--ringroad=" + (directory / "ringroad").string()};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<char*> pointers;
  for (std::string& word : command) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(kPython, pointers.data());
  return fail(std::string(kPython) + ": " + strerrordesc_np(errno));
}

void add_options(CLI::App& command, const std::vector<BenchOption>& options,
                 const std::shared_ptr<std::vector<std::string>>& words) {
  for (const BenchOption& option : options) {
    const std::string name = option.name;
    if (option.value.empty()) {
      command.add_flag_callback(
          name, [words, name] { words->push_back(name); }, option.help);
      continue;
    }
    command
        .add_option_function<std::string>(
            name, [words, name](const std::string& value) { words->push_back(name + "=" + value); },
            option.help)
        ->option_text(option.value);
  }
}

void add_benches(CLI::App& command, int& exit_status) {
  for (const Bench& bench : kBenches) {
    const auto words = std::make_shared<std::vector<std::string>>();
    CLI::App* sub = command.add_subcommand(bench.name, bench.what);
    set_usage(*sub, std::string("ringroad bench ") + bench.name + " [OPTIONS]");
    sub->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_options(*sub, bench_options(bench.name), words);
    if (bench.shares) add_options(*sub, bench_options("shared"), words);
    sub->footer(!bench.shares
                    ? bench.more
                    : std::string(bench.more) + kSharedHelp + "\nExamples:\n  ringroad bench " +
                          bench.name + " --quick\n  ringroad bench " + bench.name +
                          " --inventory hosts.toml --out results\n" + kExits);
    sub->callback(
        [name = std::string(bench.name), words, &exit_status] { exit_status = run(name, *words); });
  }
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_status) {
  CLI::App* command =
      app.add_subcommand("bench", "Compare TCP, Ringroad and other ways onto RDMA under load");
  set_usage(*command, "ringroad bench COMMAND [OPTIONS]");
  command->require_subcommand(1);
  // Only then: what is declared takes as long to read as the command takes to start.
  command->preparse_callback([command, &exit_status](std::size_t) { add_benches(*command, exit_status); });
}

}  // namespace ringroad::cli
