#include "cli/ab_cmd.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/ab_run.h"
#include "cli/process_state.h"
#include "cli/segment_reader.h"
#include "cli/text.h"
#include "cli/usage.h"

namespace ringroad::cli {
namespace {

using control::Mode;
using nlohmann::ordered_json;

enum ExitStatus { kDone = 0, kFailed = 1, kWrongArguments = 2 };

constexpr std::chrono::milliseconds kStopPatience{10'000};

struct Arguments {
  std::vector<pid_t> pids;
  double period_s = 5;
  unsigned rounds = 6;
  double warm_up_s = 5;
  double move_s = 2;
  std::string json;
  std::string directory;
};

struct Measure {
  const char* name;
  const char* key;  // in the JSON
  double Phase::*value;
  int digits;
};

constexpr Measure kMeasures[] = {
    {"transactions/s", "tps", &Phase::tps, 1},
    {"latency, ms", "latency_ms", &Phase::latency_ms, 3},
    {"messages/s", "messages_per_s", &Phase::messages_per_s, 0},
    {"CPU, us a message", "cpu_us_per_message", &Phase::cpu_us_per_message, 2},
    {"CPU, cores", "cpu_s_per_s", &Phase::cpu_s_per_s, 2},
};

std::chrono::milliseconds ms(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// Empty where nothing was measured: shown as "-".
std::string cell(double value, int digits) { return value > 0 ? fixed(value, digits) : ""; }

std::string phases_table(const AbResult& result) {
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"ROUND", kRight},
               {"CARRIER"},
               {"MOVED-MS", kRight},
               {"ELSEWHERE", kRight},
               {"ON-CHANNEL", kRight},
               {"TPS", kRight},
               {"LAT-MS", kRight},
               {"MSGS/S", kRight},
               {"CPU-US/MSG", kRight},
               {"CORES", kRight}});
  for (const Phase& phase : result.phases) {
    table.add({std::to_string(phase.round), phase.mode == Mode::kTcp ? "tcp" : "channel",
               fixed(phase.move_ms, 0), std::to_string(phase.elsewhere),
               fixed(100 * phase.channel_share, 1) + "%", cell(phase.tps, 1),
               cell(phase.latency_ms, 3), fixed(phase.messages_per_s, 0),
               cell(phase.cpu_us_per_message, 2), cell(phase.cpu_s_per_s, 2)});
  }
  return table.to_string();
}

std::string summary_table(const AbResult& result) {
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"MEASURE"},
               {"TCP", kRight},
               {"CHANNEL", kRight},
               {"RATIO", kRight},
               {"95%", kRight},
               {"P", kRight},
               {"PAIRS", kRight}});
  for (const Measure& measure : kMeasures) {
    const Comparison c = compare(pairs_of(result, measure.value));
    if (c.pairs == 0) continue;
    table.add({measure.name, fixed(c.mean_a, measure.digits), fixed(c.mean_b, measure.digits),
               fixed(c.ratio, 3), c.pairs < 2 ? "" : fixed(c.low, 3) + "-" + fixed(c.high, 3),
               fixed(c.p, 3), std::to_string(c.pairs)});
  }
  return table.to_string();
}

ordered_json to_json(const AbPlan& plan, const AbResult& result) {
  ordered_json phases = ordered_json::array();
  for (const Phase& phase : result.phases) {
    ordered_json one = {{"round", phase.round},
                        {"carrier", phase.mode == Mode::kTcp ? "tcp" : "channel"},
                        {"seconds", phase.seconds},
                        {"move_ms", phase.move_ms},
                        {"streams_elsewhere", phase.elsewhere},
                        {"channel_share", phase.channel_share},
                        {"bytes_per_s", phase.bytes_per_s},
                        {"errors_per_s", phase.errors_per_s}};
    for (const Measure& measure : kMeasures) one[measure.key] = phase.*measure.value;
    phases.push_back(one);
  }
  ordered_json summary = ordered_json::object();
  for (const Measure& measure : kMeasures) {
    const Comparison c = compare(pairs_of(result, measure.value));
    if (c.pairs == 0) continue;
    summary[measure.key] = {{"tcp", c.mean_a}, {"channel", c.mean_b}, {"ratio", c.ratio},
                            {"low", c.low},    {"high", c.high},      {"p", c.p},
                            {"pairs", c.pairs}};
  }
  return {{"pids", plan.pids},     {"period_ms", plan.period.count()},
          {"rounds", plan.rounds}, {"problem", result.problem},
          {"phases", phases},      {"summary", summary}};
}

int wrong(const std::string& text) {
  std::fprintf(stderr, "ringroad ab: %s\n", text.c_str());
  return kWrongArguments;
}

int run(const Arguments& arguments, const std::vector<std::string>& words) {
  if (words.empty()) return wrong("name the load to run, after --; see ringroad ab --help");
  if (arguments.rounds < 1 || arguments.rounds > 20) return wrong("--rounds is 1 to 20");
  if (!(arguments.period_s >= 0.1)) return wrong("--period is at least 100ms");
  AbPlan plan;
  plan.source = source_of(arguments.directory);
  plan.pids = arguments.pids;
  plan.period = ms(arguments.period_s);
  plan.rounds = arguments.rounds;
  plan.warm_up = ms(arguments.warm_up_s);
  plan.move = ms(arguments.move_s);
  // Before a load is started for nothing.
  for (const pid_t pid : plan.pids) {
    ProcessReport process;
    std::string why;
    const SegmentPlace place = place_of(plan.source, pid);
    if (!place.exists()) return wrong(why_no_segment(pid, place.path()));
    if (!read_segment(place, process, why) || !process.alive) {
      return wrong("process " + std::to_string(pid) + ": " + (why.empty() ? "it has ended" : why));
    }
  }
  if (!arguments.json.empty() && !std::ofstream(arguments.json, std::ios::app)) {
    return wrong("--json " + arguments.json + ": " + strerrordesc_np(errno) + "; nothing was started");
  }
  LoadCommand load;
  std::string why;
  if (!load.start(words, why)) return wrong(why);
  const AbResult result = run_ab(plan, load);
  load.stop(kStopPatience);
  std::printf("\n%s\n%s", phases_table(result).c_str(), summary_table(result).c_str());
  std::puts(
      "\nRATIO is the channel's to TCP's, the geometric mean of the rounds; 95% its interval; P "
      "how\n"
      "often chance alone would give one so far from 1.");
  double errors = 0;
  std::size_t elsewhere = 0;
  std::uint64_t still = 0;
  for (const Phase& phase : result.phases) {
    if (phase.messages_per_s <= 0) ++still;
    errors += phase.errors_per_s * phase.seconds;
    elsewhere += phase.elsewhere;
  }
  if (still > 0) {
    std::printf("In %s the processes received nothing: their rounds are in no RATIO.\n",
                counted(still, "phase").c_str());
  }
  if (errors > 0) std::printf("The load reported errors or reconnections: about %.0f.\n", errors);
  if (elsewhere > 0) {
    std::puts("Some streams were not on the carrier (ELSEWHERE): ringroad ss tells why.");
  }
  if (!arguments.json.empty()) {
    std::ofstream file(arguments.json);
    file << to_json(plan, result).dump(2) << "\n";
    if (!file.flush()) {
      std::fprintf(stderr, "ringroad ab: cannot write %s: %s\n", arguments.json.c_str(),
                   strerrordesc_np(errno));
      return kFailed;
    }
  }
  if (!result.problem.empty()) {
    std::fprintf(stderr, "ringroad ab: not all rounds were measured: %s\n", result.problem.c_str());
    return kFailed;
  }
  return kDone;
}

}  // namespace

std::vector<std::string> take_load(std::vector<std::string>& words) {
  if (words.empty() || words.front() != "ab") return {};
  const auto dashes = std::find(words.begin(), words.end(), "--");
  if (dashes == words.end()) return {};
  std::vector<std::string> load(dashes + 1, words.end());
  words.erase(dashes, words.end());
  return load;
}

namespace {

// "5s", "500ms", "5".
CLI::AsNumberWithUnit time_with_unit() {
  return CLI::AsNumberWithUnit(
      std::map<std::string, double>{{"ms", 0.001}, {"s", 1.0}, {"min", 60.0}},
      CLI::AsNumberWithUnit::UNIT_OPTIONAL, "TIME");
}

}  // namespace

void add_ab_command(CLI::App& app, const std::vector<std::string>& load, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "ab", "Compare TCP with the channel under one load that is never interrupted");
  set_usage(*command, "ringroad ab [OPTIONS] PID... -- LOAD [ARGUMENTS...]");
  command->add_option("PID", arguments->pids, "processes whose streams alternate")
      ->required()
      ->option_text(" ");
  command
      ->add_option("--period", arguments->period_s,
                   "how long each phase is: 5s, 500ms; default: 5s")
      ->option_text("TIME")
      ->transform(time_with_unit());
  command
      ->add_option("--rounds", arguments->rounds,
                   "how often each carrier has its turn, 1 to 20; default: 6")
      ->option_text("N");
  command
      ->add_option("--warm-up", arguments->warm_up_s, "what is not measured at first; default: 5s")
      ->option_text("TIME")
      ->transform(time_with_unit())
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--move", arguments->move_s,
                   "how long the streams may take to change their carrier; default: 2s")
      ->option_text("TIME")
      ->transform(time_with_unit())
      ->check(CLI::NonNegativeNumber);
  command->add_option("--json", arguments->json, "write all figures there, too")
      ->option_text("FILE");
  add_directory_option(*command, arguments->directory);
  command->footer(
      "Starts the load, and moves the streams of the processes between TCP and their channels (as\n"
      "ringroad set does) while it runs. The load must last for longer than the warm-up and\n"
      "2 x rounds x period; it is asked to end (SIGTERM) after the last round. Each carrier goes "
      "first\n"
      "in every other round, and what one round measured of both is compared as a pair, so that a\n"
      "drift of the whole cancels.\n"
      "\n"
      "Transactions and latency are what sysbench reports with --report-interval=1 (its "
      "--percentile;\n"
      "only intervals that lie within a phase). For other loads there are messages and CPU, which "
      "are\n"
      "the processes' own: a message is a receive call that returned bytes, CPU is user and "
      "system.\n"
      "ON-CHANNEL is the share of the bytes that the channel carried: the proof.\n"
      "\n"
      "The mode that the processes had before is set again at the end, also after Ctrl-C, and\n"
      "when the terminal goes away.\n"
      "\n"
      "Example:\n"
      "  ringroad ab 4711 --period 5s --rounds 6 -- ringroad run -- sysbench oltp_point_select \\\n"
      "      --mysql-host=10.9.0.1 --threads=16 --time=0 --report-interval=1 run\n"
      "\n"
      "Exit status:\n"
      "  0  all rounds were measured, whatever they say\n"
      "  1  the load or a process ended too early, or did not answer; what was measured is shown\n"
      "  2  wrong arguments, nothing was started\n");
  command->callback([arguments, &load, &exit_status] { exit_status = run(*arguments, load); });
}

}  // namespace ringroad::cli
