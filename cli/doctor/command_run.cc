#include "cli/doctor/command_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace ringroad::cli::doctor {
namespace {

using Clock = std::chrono::steady_clock;

// An ordinary user's PATH lacks the folders of the tools.
constexpr const char* kToolFolders = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

struct Pipe {
  int ends[2] = {-1, -1};
  bool open() noexcept { return pipe2(ends, O_CLOEXEC) == 0; }
  void shut(int end) noexcept {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
  ~Pipe() {
    shut(0);
    shut(1);
  }
};

std::string find_tool(const std::string& name) {
  if (name == "ringroad") return "/proc/self/exe";
  if (name.find('/') != std::string::npos) return name;
  const char* own = std::getenv("PATH");
  std::string folders = std::string(own != nullptr ? own : "") + ":" + kToolFolders;
  for (std::size_t begin = 0; begin < folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string folder = folders.substr(begin, end - begin);
    begin = end + 1;
    // The current folder is no place to take root's tools from.
    if (folder.empty() || folder[0] != '/') continue;
    const std::string file = folder + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

std::vector<std::string> environment_of(const Command& command) {
  std::vector<std::string> result = command.environment;
  result.emplace_back("LC_ALL=C");
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string name(*variable, strcspn(*variable, "="));
    // What is asked is not to be preloaded because this command is.
    if (name == "LD_PRELOAD" || name == "LC_ALL") continue;
    const auto sets_it = [&](const std::string& set) { return set.starts_with(name + "="); };
    if (std::none_of(command.environment.begin(), command.environment.end(), sets_it)) {
      result.emplace_back(*variable);
    }
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

// False at its end. Further bytes than kMostBytes are read, so that it can go on, and dropped.
bool take(int fd, std::string& text) {
  char bytes[65536];
  const ssize_t n = read(fd, bytes, sizeof bytes);
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  if (n == 0) return false;
  text.append(bytes, std::min(static_cast<std::size_t>(n), kMostBytes - text.size()));
  return true;
}

// Until both are at their end, or the time is up: then false.
bool take_all(Pipe& out, Pipe& err, CommandResult& result, Clock::time_point until) {
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd fds[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    poll(fds, 2, static_cast<int>(std::min<long>(left, 1000)));
    if (fds[0].revents != 0 && !take(out.ends[0], result.out)) out.shut(0);
    if (fds[1].revents != 0 && !take(err.ends[0], result.err)) err.shut(0);
  }
  return true;
}

// Of waitpid(2), without waiting for longer than until then.
bool wait_for_end(pid_t pid, int& status, Clock::time_point until) {
  for (;;) {
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return true;
    if (ended < 0 && errno != EINTR) {
      status = 0;
      return true;
    }
    if (Clock::now() >= until) return false;
    poll(nullptr, 0, 1);
  }
}

}  // namespace

CommandResult run_command(const Command& command) {
  CommandResult result;
  const std::string file = command.words.empty() ? std::string() : find_tool(command.words.front());
  if (file.empty()) return result;
  std::vector<std::string> words = command.words;
  std::vector<std::string> variables = environment_of(command);
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> envp = pointers(variables);
  Pipe out;
  Pipe err;
  Pipe problem;
  if (!out.open() || !err.open() || !problem.open()) {
    result.end = CommandResult::End::kFailed;
    result.status = errno;
    return result;
  }
  const pid_t pid = fork();
  if (pid == 0) {
    // Its own group, so that what it started ends with it; and it ends with this command.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    dup2(out.ends[1], STDOUT_FILENO);
    dup2(err.ends[1], STDERR_FILENO);
    execve(file.c_str(), argv.data(), envp.data());
    const int error = errno;
    if (write(problem.ends[1], &error, sizeof error) < 0) _exit(126);
    _exit(127);
  }
  const int fork_error = errno;
  for (Pipe* pipe : {&out, &err, &problem}) pipe->shut(1);
  int error = pid < 0 ? fork_error : 0;
  if (pid > 0 && read(problem.ends[0], &error, sizeof error) != sizeof error) error = 0;
  if (error != 0) {
    if (pid > 0) waitpid(pid, nullptr, 0);
    result.end = error == ENOENT ? CommandResult::End::kMissing : CommandResult::End::kFailed;
    result.status = error;
    return result;
  }
  setpgid(pid, pid);
  const Clock::time_point until = Clock::now() + command.time;
  int status = 0;
  if (!take_all(out, err, result, until) || !wait_for_end(pid, status, until)) {
    kill(-pid, SIGKILL);
    // One that the kernel holds in the middle of a call cannot be killed either: leave it behind.
    wait_for_end(pid, status, Clock::now() + std::chrono::seconds(1));
    result.end = CommandResult::End::kTimedOut;
    return result;
  }
  const bool killed = WIFSIGNALED(status);
  result.end = killed ? CommandResult::End::kKilled : CommandResult::End::kExited;
  result.status = killed ? WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace ringroad::cli::doctor
