// socket_scenarios NAME: runs one scenario between two processes and prints its transcript.
//
//   socket_scenarios --list      names and traits, one scenario a line
//   socket_scenarios NAME        the server's transcript, then the client's, then "== end"; both
//                                processes keep their sockets until standard input ends
//
//   socket_scenarios --duplex ..., --receive ...  a scenario's heir (duplex.h)
//
// Exit status: 0 if both processes ended as they should, 1 after a time-out or a crash (said in the
// transcript), 2 for a wrong command line.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/duplex.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 12'000;

struct Child {
  pid_t pid = -1;
  int log = -1;
  std::string transcript;
  bool finished = false;  // said its last word, and waits
  bool gone = false;      // or left without
};

[[noreturn]] void run_child(const Scenario& scenario, char side, int log, int to_peer,
                            int from_peer, int hold) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  {
    Actor actor(side, log, to_peer, from_peer);
    scenario.run(actor);
    actor.finish();
  }
  char byte;
  while (read(hold, &byte, 1) < 0 && errno == EINTR) {
  }
  std::exit(0);
}

void take_in(Child& child) {
  char buffer[4096];
  const ssize_t n = read(child.log, buffer, sizeof buffer);
  if (n < 0 && errno == EINTR) return;
  if (n <= 0) {
    child.gone = true;
    return;
  }
  child.transcript.append(buffer, static_cast<std::size_t>(n));
  if (child.transcript.back() == '\0') {
    child.transcript.pop_back();
    child.finished = true;
  }
}

int run(const Scenario& scenario) {
  int to_client[2];
  int to_server[2];
  int hold[2];
  int logs[2][2];
  if (pipe2(to_client, O_CLOEXEC) != 0 || pipe2(to_server, O_CLOEXEC) != 0 ||
      pipe2(hold, O_CLOEXEC) != 0 || pipe2(logs[0], O_CLOEXEC) != 0 ||
      pipe2(logs[1], O_CLOEXEC) != 0) {
    std::perror("pipe2");
    return 1;
  }
  std::fflush(nullptr);
  Child children[2];
  for (int i = 0; i < 2; ++i) {
    const bool server = i == 0;
    children[i].pid = fork();
    if (children[i].pid == 0) {
      // Each keeps only its own ends, so that the other's end of life is seen.
      close(hold[1]);
      close(logs[1 - i][0]);
      close(logs[1 - i][1]);
      close(logs[i][0]);
      const int out = server ? to_client[1] : to_server[1];
      const int in = server ? to_server[0] : to_client[0];
      close(server ? to_server[1] : to_client[1]);
      close(server ? to_client[0] : to_server[0]);
      run_child(scenario, server ? 'S' : 'C', logs[i][1], out, in, hold[0]);
    }
    children[i].log = logs[i][0];
  }
  for (int i = 0; i < 2; ++i) {
    close(to_client[i]);
    close(to_server[i]);
    close(logs[i][1]);
  }
  close(hold[0]);

  bool late = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTimeoutMs);
  for (;;) {
    pollfd fds[2];
    bool waiting = false;
    for (int i = 0; i < 2; ++i) {
      const bool open = !children[i].finished && !children[i].gone;
      fds[i] = {open ? children[i].log : -1, POLLIN, 0};
      waiting |= open;
    }
    if (!waiting) break;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                          deadline - std::chrono::steady_clock::now()).count();
    const int n = left <= 0 ? 0 : poll(fds, 2, static_cast<int>(left));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      late = true;
      break;
    }
    for (int i = 0; i < 2; ++i) {
      if (fds[i].revents != 0) take_in(children[i]);
    }
  }
  for (int i = 0; i < 2; ++i) {
    std::fputs(children[i].transcript.c_str(), stdout);
    if (!children[i].finished && !children[i].gone) std::printf("%c TIME-OUT\n", i == 0 ? 'S' : 'C');
  }
  std::puts("== end");
  std::fflush(stdout);
  char byte;
  while (!late && (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR)) errno = 0;
  close(hold[1]);
  int status = late ? 1 : 0;
  for (int i = 0; i < 2; ++i) {
    if (late) kill(children[i].pid, SIGKILL);
    int how = 0;
    waitpid(children[i].pid, &how, 0);
    const bool killed_on_purpose = (scenario.traits & kEndsItself) != 0 && WIFSIGNALED(how) &&
                                   WTERMSIG(how) == SIGKILL;
    if (late || killed_on_purpose) continue;
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) {
      std::printf("%c ended with %s %d\n", i == 0 ? 'S' : 'C',
                  WIFSIGNALED(how) ? "signal" : "status",
                  WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
      status = 1;
    }
  }
  return status;
}

std::string trait_names(unsigned traits) {
  std::string out;
  if ((traits & kStaysOnChannel) != 0) out += " stays-on-channel";
  if ((traits & kPolls) != 0) out += " polls";
  if ((traits & kFromTheFirstByte) != 0) out += " from-the-first-byte";
  if ((traits & kComesBack) != 0) out += " comes-back";
  if ((traits & kEndsItself) != 0) out += " ends-itself";
  if ((traits & kClearsAway) != 0) out += " clears-away";
  return out;
}

}  // namespace
}  // namespace ringroad::test

int main(int argc, char** argv) {
  using namespace ringroad::test;
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Scenario& s : scenarios()) {
      std::printf("%s%s\n", s.name, trait_names(s.traits).c_str());
    }
    return 0;
  }
  if (argc > 2 && (std::strcmp(argv[1], "--duplex") == 0 || std::strcmp(argv[1], "--receive") == 0)) {
    return duplex_program(argc, argv);
  }
  if (argc == 2) {
    for (const Scenario& s : scenarios()) {
      if (std::strcmp(s.name, argv[1]) == 0) return run(s);
    }
  }
  std::fprintf(stderr, "usage: socket_scenarios --list | NAME\n");
  return 2;
}
