#include "cli/load_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ringroad::cli {
namespace {

using Clock = std::chrono::steady_clock;

// What follows `name` in `line` as a number.
std::optional<double> number_after(const std::string& line, const char* name) {
  const std::size_t at = line.find(name);
  if (at == std::string::npos) return std::nullopt;
  const char* text = line.c_str() + at + std::strlen(name);
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text) return std::nullopt;
  return value;
}

}  // namespace

std::optional<IntervalReport> parse_report(std::string_view text, double& last_s) {
  const std::string line(text);
  if (!line.starts_with("[ ")) return std::nullopt;
  const std::optional<double> second = number_after(line, "[ ");
  const std::optional<double> tps = number_after(line, " tps: ");
  if (!second || !tps || line.find("s ] thds: ") == std::string::npos) return std::nullopt;
  IntervalReport report;
  report.interval_s = *second - last_s;
  last_s = *second;
  report.tps = *tps;
  const std::size_t percentile = line.find("lat (ms,");
  if (percentile != std::string::npos) {
    report.latency_ms = number_after(line.substr(percentile), "): ").value_or(0);
  }
  report.errors_per_s = number_after(line, " err/s: ").value_or(0);
  report.reconnects_per_s = number_after(line, " reconn/s: ").value_or(0);
  return report;
}

LoadCommand::~LoadCommand() { stop(std::chrono::milliseconds(0)); }

bool LoadCommand::start(const std::vector<std::string>& words, std::string& why) {
  int output[2];
  int problem[2];
  if (pipe2(output, O_CLOEXEC) != 0) {
    why = strerrordesc_np(errno);
    return false;
  }
  if (pipe2(problem, O_CLOEXEC) != 0) {
    why = strerrordesc_np(errno);
    close(output[0]);
    close(output[1]);
    return false;
  }
  std::vector<std::string> copies = words;
  std::vector<char*> arguments;
  for (std::string& word : copies) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(stdout);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(output[1], STDOUT_FILENO);
    execvp(arguments[0], arguments.data());
    const int error = errno;
    if (write(problem[1], &error, sizeof error) < 0) _exit(126);
    _exit(127);
  }
  const int fork_error = errno;
  close(output[1]);
  close(problem[1]);
  int error = 0;
  const bool failed = pid_ < 0 || read(problem[0], &error, sizeof error) == sizeof error;
  close(problem[0]);
  if (failed) {
    why = words[0] + ": " + strerrordesc_np(pid_ < 0 ? fork_error : error);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = -1;
    close(output[0]);
    return false;
  }
  output_ = output[0];
  fcntl(output_, F_SETFL, O_NONBLOCK);
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  return true;
}

bool LoadCommand::take_output() {
  char bytes[4096];
  const ssize_t n = read(output_, bytes, sizeof bytes);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  const auto size = static_cast<std::size_t>(n);
  std::fwrite(bytes, 1, size, stdout);
  std::fflush(stdout);
  line_.append(bytes, size);
  for (std::size_t end; (end = line_.find('\n')) != std::string::npos; line_.erase(0, end + 1)) {
    if (auto report = parse_report(std::string_view(line_).substr(0, end), last_report_s_)) {
      report->at = Clock::now();
      reports_.push_back(*report);
    }
  }
  return true;
}

bool LoadCommand::run_until(Clock::time_point until) {
  while (pid_ > 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return true;
    pollfd fds[2] = {{pidfd_, POLLIN, 0}, {output_, POLLIN, 0}};
    poll(fds, 2, static_cast<int>(std::min<long>(left, 60'000)));
    if (fds[1].revents != 0 && !take_output()) {
      close(output_);
      output_ = -1;
    }
    if (fds[0].revents != 0) collect();
  }
  return false;
}

void LoadCommand::collect() {
  while (output_ >= 0) {
    pollfd rest{output_, POLLIN, 0};
    if (poll(&rest, 1, 0) <= 0 || !take_output()) break;
  }
  waitpid(pid_, &status_, 0);
  close(pidfd_);
  if (output_ >= 0) close(output_);
  pid_ = pidfd_ = output_ = -1;
}

void LoadCommand::stop(std::chrono::milliseconds patience) {
  if (pid_ <= 0) return;
  kill(pid_, SIGTERM);
  if (run_until(Clock::now() + patience) && pid_ > 0) {
    kill(pid_, SIGKILL);
    run_until(Clock::now() + std::chrono::hours(1));
  }
}

}  // namespace ringroad::cli
