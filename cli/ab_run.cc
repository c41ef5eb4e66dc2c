#include "cli/ab_run.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cli/operator_request.h"
#include "cli/segment_reader.h"

namespace ringroad::cli {
namespace {

using Clock = std::chrono::steady_clock;
using control::Mode;

// How long a process may take to set its mode back.
constexpr std::chrono::seconds kAnswers{2};

std::atomic<bool> interrupted{false};

double seconds_of(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Ends the run in order: the streams go back to where they were.
class Interruptible {
 public:
  Interruptible() {
    interrupted = false;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before_[i]);
  }
  ~Interruptible() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], &before_[i], nullptr);
    }
    // What is still to be said must not end the process before it has stopped the load.
    signal(SIGPIPE, SIG_IGN);
  }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  // A terminal that goes away, or a pager that is left, is no reason to leave servers where they are.
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT};
  struct sigaction before_[std::size(kSignals)];
};

// User and system time, all threads, also those that have ended: proc(5), fields 14 and 15.
double cpu_seconds(pid_t pid) {
  char text[1024];
  const int fd = open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  const char* after_name = std::strrchr(text, ')');
  unsigned long user = 0;
  unsigned long system = 0;
  if (after_name == nullptr ||
      std::sscanf(after_name + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lu %lu", &user,
                  &system) != 2) {
    return 0;
  }
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

struct Sample {
  Clock::time_point at{};
  CarrierTraffic traffic;
  double cpu_s = 0;
};

class Alternation {
 public:
  Alternation(const AbPlan& plan, LoadCommand& load) : plan_(plan), load_(load) {}

  AbResult run() {
    const Interruptible until_the_end;
    if (!remember_modes()) return std::move(result_);
    note("warming up for " + std::to_string(plan_.warm_up.count()) + " ms");
    bool goes_on = wait(plan_.warm_up);
    for (unsigned round = 1; goes_on && round <= plan_.rounds; ++round) {
      // Each goes first in turn: what changes steadily is in both alike.
      const Mode first = round % 2 == 1 ? Mode::kTcp : Mode::kRdma;
      const Mode second = round % 2 == 1 ? Mode::kRdma : Mode::kTcp;
      goes_on = measure(round, first) && measure(round, second);
    }
    restore_modes();
    return std::move(result_);
  }

 private:
  static void note(const std::string& text) {
    std::fprintf(stderr, "ringroad ab: %s\n", text.c_str());
  }
  bool fail(const std::string& why) {
    if (result_.problem.empty()) result_.problem = why;
    return false;
  }
  bool wait(Clock::duration time) {
    const Clock::time_point until = Clock::now() + time;
    while (Clock::now() < until) {
      if (interrupted) return fail("interrupted");
      if (!load_.run_until(std::min(until, Clock::now() + std::chrono::milliseconds(100)))) {
        return fail(interrupted ? "interrupted" : "the load has ended");
      }
    }
    return true;
  }

  bool read(pid_t pid, ProcessReport& process) {
    std::string why;
    process = ProcessReport{};
    if (!read_segment(place_of(plan_.source, pid), process, why)) {
      return fail("process " + std::to_string(pid) + ": " + why);
    }
    return process.alive || fail("process " + std::to_string(pid) + " has ended");
  }

  bool remember_modes() {
    for (const pid_t pid : plan_.pids) {
      ProcessReport process;
      if (!read(pid, process)) return false;
      modes_.push_back(process.operator_mode);
    }
    return true;
  }
  void restore_modes() {
    const Clock::time_point until = Clock::now() + kAnswers;
    for (std::size_t i = 0; i < modes_.size(); ++i) {
      std::string why;
      if (!restore(plan_.pids[i], modes_[i], until, why)) {
        note("process " + std::to_string(plan_.pids[i]) + " keeps its mode: " + why);
      }
    }
  }
  // Returns when the process has the mode again. Where its streams are then is the mode's affair.
  bool restore(pid_t pid, Mode mode, Clock::time_point until, std::string& why) {
    const std::uint64_t serial = new_serial();
    ProcessReport process;
    Progress progress;
    if (!ask(plan_.source, pid, mode, serial, why) ||
        !watch(plan_.source, pid, Mode::kAuto, serial, until, process, progress, why)) {
      return false;
    }
    if (!progress.obeys) why = no_answer(process);
    return progress.obeys;
  }

  // Every process at once; then waits for each, with the load running on.
  bool move(Mode mode, Phase& phase) {
    const Clock::time_point began = Clock::now();
    std::vector<std::uint64_t> serials;
    for (const pid_t pid : plan_.pids) {
      std::string why;
      serials.push_back(new_serial());
      if (!ask(plan_.source, pid, mode, serials.back(), why)) {
        return fail("process " + std::to_string(pid) + ": " + why);
      }
    }
    const Clock::time_point until = began + plan_.move;
    for (bool over = false; !over;) {
      if (!wait(std::chrono::milliseconds(2))) return false;
      over = true;
      phase.elsewhere = 0;
      for (std::size_t i = 0; i < plan_.pids.size(); ++i) {
        ProcessReport process;
        if (!read(plan_.pids[i], process)) return false;
        const Progress progress = progress_of(process, mode, serials[i]);
        over = over && progress.over();
        phase.elsewhere += progress.moving + progress.waiting + progress.staying;
        if (!progress.obeys && Clock::now() >= until) {
          return fail("process " + std::to_string(plan_.pids[i]) + ": " + no_answer(process));
        }
      }
      over = over || Clock::now() >= until;
    }
    phase.move_ms = 1000 * seconds_of(Clock::now() - began);
    return true;
  }

  bool sample(Sample& out) {
    out = Sample{};
    for (const pid_t pid : plan_.pids) {
      ProcessReport process;
      if (!read(pid, process)) return false;
      out.traffic += process.totals();
      out.cpu_s += cpu_seconds(pid);
    }
    out.at = Clock::now();
    return true;
  }

  bool measure(unsigned round, Mode mode) {
    Phase phase;
    phase.round = round;
    phase.mode = mode;
    Sample before;
    Sample after;
    if (!move(mode, phase) || !sample(before) || !wait(plan_.period) || !sample(after))
      return false;
    phase.seconds = seconds_of(after.at - before.at);
    const auto bytes = [](const Traffic& now, const Traffic& then) {
      return static_cast<double>(now.tx_bytes + now.rx_bytes - then.tx_bytes - then.rx_bytes);
    };
    const double tcp = bytes(after.traffic.tcp, before.traffic.tcp);
    const double channel = bytes(after.traffic.channel, before.traffic.channel);
    const auto messages =
        static_cast<double>(after.traffic.sum().rx_messages - before.traffic.sum().rx_messages);
    const double cpu = after.cpu_s - before.cpu_s;
    phase.messages_per_s = messages / phase.seconds;
    phase.bytes_per_s = (tcp + channel) / phase.seconds;
    phase.channel_share = tcp + channel > 0 ? channel / (tcp + channel) : 0;
    phase.cpu_s_per_s = cpu / phase.seconds;
    phase.cpu_us_per_message = messages > 0 ? 1e6 * cpu / messages : 0;
    add_reports(before.at, after.at, phase);
    result_.phases.push_back(phase);
    char line[160];
    std::snprintf(line, sizeof line, "round %u of %u, %s: %.0f messages/s, moved in %.0f ms", round,
                  plan_.rounds, control::mode_name(mode), phase.messages_per_s, phase.move_ms);
    note(line);
    return true;
  }

  // The intervals of sysbench's that lie within the phase.
  void add_reports(Clock::time_point from, Clock::time_point to, Phase& phase) {
    double count = 0;
    for (const IntervalReport& report : load_.reports()) {
      const auto length = std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(report.interval_s));
      if (report.at - length < from || report.at > to) continue;
      phase.tps += report.tps;
      phase.latency_ms += report.latency_ms;
      phase.errors_per_s += report.errors_per_s + report.reconnects_per_s;
      ++count;
    }
    if (count == 0) return;
    phase.tps /= count;
    phase.latency_ms /= count;
    phase.errors_per_s /= count;
  }

  const AbPlan& plan_;
  LoadCommand& load_;
  std::vector<Mode> modes_;
  AbResult result_;
};

}  // namespace

AbResult run_ab(const AbPlan& plan, LoadCommand& load) { return Alternation(plan, load).run(); }

std::vector<Pair> pairs_of(const AbResult& result, double Phase::*measure) {
  std::vector<Pair> pairs;
  for (const Phase& tcp : result.phases) {
    if (tcp.mode != Mode::kTcp) continue;
    for (const Phase& channel : result.phases) {
      if (channel.round == tcp.round && channel.mode == Mode::kRdma) {
        pairs.push_back({tcp.*measure, channel.*measure});
      }
    }
  }
  return pairs;
}

}  // namespace ringroad::cli
