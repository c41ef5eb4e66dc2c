#include "tests/preload/drivers/scenario_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace ringroad::test {
namespace {

using Clock = std::chrono::steady_clock;

int left_ms(Clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
  return left.count() <= 0 ? 0 : static_cast<int>(left.count());
}

std::string setting(const char* name, const char* usual) {
  const char* value = std::getenv(name);
  return value == nullptr ? usual : value;
}

std::string policy(const std::string& rest) {
  return "version = 1\n[[rule]]\nname = \"left-alone\"\nsubnet = [\"127.0.0.99/32\"]\nvia = "
         "\"tcp\"\n"
         "[[rule]]\nname = \"differential\"\nsubnet = [" +
         setting("RINGROAD_TEST_SUBNET", "\"127.0.0.0/8\", \"::1/128\"") + "]\nvia = \"" +
         setting("RINGROAD_TEST_VIA", "shm") + "\"\n" + rest;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "ringroad-test-XXXXXX").string();
  if (::mkdtemp(name.data()) != nullptr) path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryDirectory::write(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path) << text;
  return path;
}

Program::Program(const std::vector<std::string>& argv,
                 const std::vector<std::string>& environment) {
  int in[2];
  int out[2];
  int err[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0 ||
      ::pipe2(err, O_CLOEXEC) != 0) {
    return;
  }
  std::vector<char*> arguments;
  std::vector<char*> variables;
  for (const std::string& text : argv) arguments.push_back(const_cast<char*>(text.c_str()));
  for (const std::string& text : environment) variables.push_back(const_cast<char*>(text.c_str()));
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    ::execvpe(arguments[0], arguments.data(), variables.data());
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  in_ = in[1];
  fds_[0] = out[0];
  fds_[1] = err[0];
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {in_, fds_[0], fds_[1]}) {
    if (fd >= 0) ::close(fd);
  }
}

bool Program::take_in(int timeout_ms) {
  pollfd set[2] = {{fds_[0], POLLIN, 0}, {fds_[1], POLLIN, 0}};
  if (::poll(set, 2, timeout_ms) <= 0) return false;
  for (int i = 0; i < 2; ++i) {
    if (set[i].revents == 0) continue;
    char buffer[4096];
    const ssize_t n = ::read(fds_[i], buffer, sizeof buffer);
    if (n > 0) {
      (i == 0 ? out_ : err_).append(buffer, static_cast<std::size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      ::close(fds_[i]);
      fds_[i] = -1;
    }
  }
  return true;
}

bool Program::wait_for(const std::string& text, int timeout_ms, std::size_t from) {
  const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (out_.find(text, from) == std::string::npos) {
    if (fds_[0] < 0 || left_ms(until) == 0) return false;
    take_in(left_ms(until));
  }
  return true;
}

void Program::write(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(in_, text.data() + done, text.size() - done);
    if (n <= 0 && errno != EINTR) return;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
}

int Program::finish(int timeout_ms) {
  const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
  if (in_ >= 0) ::close(in_);
  in_ = -1;
  while ((fds_[0] >= 0 || fds_[1] >= 0) && left_ms(until) > 0) take_in(left_ms(until));
  if (fds_[0] >= 0 || fds_[1] >= 0) return -1;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (left_ms(until) == 0) return -1;
    ::poll(nullptr, 0, 1);
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string policy_from_the_first_byte() {
  return policy("promote_after = { messages = 0 }\nwait = \"" +
                setting("RINGROAD_TEST_WAIT", "3s") + "\"\n");
}

std::string policy_after_messages(unsigned count) {
  return policy("promote_after = { messages = " + std::to_string(count) + " }\n");
}

std::vector<std::string> environment_with(const std::vector<std::string>& changes) {
  std::vector<std::string> all = changes;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('=') + 1);
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const std::string& c) {
      return c.compare(0, name.size(), name) == 0;
    });
    const bool librarys = name.starts_with("RINGROAD_") && !name.starts_with("RINGROAD_TEST_");
    if (!changed && !librarys && name != "LD_PRELOAD=") all.push_back(text);
  }
  return all;
}

std::string difference(const std::string& expected, const std::string& actual) {
  if (expected == actual) return "";
  const std::vector<std::string> a = lines_of(expected);
  const std::vector<std::string> b = lines_of(actual);
  // The longest common subsequence; transcripts are short.
  std::vector<std::vector<unsigned>> length(a.size() + 1, std::vector<unsigned>(b.size() + 1, 0));
  for (std::size_t i = a.size(); i-- > 0;) {
    for (std::size_t j = b.size(); j-- > 0;) {
      length[i][j] = a[i] == b[j] ? length[i + 1][j + 1] + 1
                                  : std::max(length[i + 1][j], length[i][j + 1]);
    }
  }
  std::string out = "\n";
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      out += "    " + a[i] + "\n";
      ++i;
      ++j;
    } else if (j >= b.size() || (i < a.size() && length[i + 1][j] >= length[i][j + 1])) {
      out += "  - " + a[i++] + "\n";
    } else {
      out += "  + " + b[j++] + "\n";
    }
  }
  return out;
}

}  // namespace ringroad::test
