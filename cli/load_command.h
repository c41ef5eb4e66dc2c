// The command that `ringroad ab` runs as the load: its output goes where it would go anyway, and
// what sysbench reports on the way (--report-interval) is kept.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringroad::cli {

struct IntervalReport {
  std::chrono::steady_clock::time_point at{};  // when it was read: the end of its interval
  double interval_s = 0;
  double tps = 0;
  double latency_ms = 0;  // the percentile that sysbench was told to report
  double errors_per_s = 0;
  double reconnects_per_s = 0;
};

// "[ 5s ] thds: 4 tps: 123.00 qps: ... lat (ms,95%): 8.90 err/s: 0.00 reconn/s: 0.00", and nothing
// else. `last_s`: the number of the report before, 0 for the first; set to this one's.
std::optional<IntervalReport> parse_report(std::string_view line, double& last_s);

// Thread rule: one thread.
class LoadCommand {
 public:
  LoadCommand() = default;
  ~LoadCommand();  // stops it
  LoadCommand(const LoadCommand&) = delete;
  LoadCommand& operator=(const LoadCommand&) = delete;

  // False with `why`.
  bool start(const std::vector<std::string>& words, std::string& why);
  // Passes on what it says, until `until` or its end. False once it has ended.
  bool run_until(std::chrono::steady_clock::time_point until);
  // Asks it to end (SIGTERM), waits `patience`, then kills it.
  void stop(std::chrono::milliseconds patience);
  const std::vector<IntervalReport>& reports() const noexcept { return reports_; }
  // Of waitpid(2); only once it has ended.
  int status() const noexcept { return status_; }

 private:
  bool take_output();
  void collect();

  pid_t pid_ = -1;
  int pidfd_ = -1;
  int output_ = -1;
  int status_ = 0;
  std::string line_;
  double last_report_s_ = 0;
  std::vector<IntervalReport> reports_;
};

}  // namespace ringroad::cli
