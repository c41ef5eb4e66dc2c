// random_operations MODE SEED COUNT [NUMBER,...]: draws COUNT operations on the sockets of three connections
// between two processes, and prints what each gave, one line an operation:
//
//   17 S 1.4 recv(200, PEEK) = 3 "abc"      operation, side, connection.incarnation, call
//
//   MODE exact     every event of epoll counts
//   MODE switching connections may change their carrier during the run: what a program may then see
//                  once more is marked (edges, in braces), and room to send is waited for
//   MODE strange   as switching, with the operations of random_strange.h; of those, only the ones that
//                  are named, if any are
//
// After "== end" both keep their sockets until standard input ends. Exit status: 0, 1 if a process
// crashed, 2 for a wrong command line.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/preload/programs/random_player.h"
#include "tests/preload/programs/random_strange.h"

namespace ringroad::test {
namespace {

struct Play {
  std::string mode;
  std::uint64_t seed;
  long count;
  std::vector<long> only;
};

[[noreturn]] void run(int side, const Play& play, int out, int in) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const bool strange = play.mode == "strange";
  const std::unique_ptr<Player> player =
      strange ? strange_player(side, play.seed, out, in, play.only)
              : std::make_unique<Player>(side, play.mode == "switching", play.seed, out, in);
  if (strange) lower_limits_at_the_start(play.seed);
  player->play(play.count);
  // Both are through: the end is said once.
  char byte = '.';
  if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) _exit(3);
  if (side == kServer) {
    std::puts("== end");
    std::fflush(stdout);
  }
  while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR) errno = 0;
  std::exit(0);
}

int run_both(const Play& play) {
  int to_client[2];
  int to_server[2];
  if (pipe2(to_client, O_CLOEXEC) != 0 || pipe2(to_server, O_CLOEXEC) != 0) {
    std::perror("pipe2");
    return 1;
  }
  pid_t children[2];
  for (int side = 0; side < 2; ++side) {
    const bool server = side == kServer;
    children[side] = fork();
    if (children[side] != 0) continue;
    close(server ? to_server[1] : to_client[1]);
    close(server ? to_client[0] : to_server[0]);
    run(side, play, server ? to_client[1] : to_server[1], server ? to_server[0] : to_client[0]);
  }
  for (const int fd : {to_client[0], to_client[1], to_server[0], to_server[1]}) close(fd);
  int status = 0;
  for (int side = 0; side < 2; ++side) {
    int how = 0;
    waitpid(children[side], &how, 0);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) continue;
    std::printf("%c ended with %s %d\n", side == kServer ? 'S' : 'C',
                WIFSIGNALED(how) ? "signal" : "status",
                WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    status = 1;
  }
  return status;
}

}  // namespace
}  // namespace ringroad::test

int main(int argc, char** argv) {
  const std::string mode = argc >= 4 ? argv[1] : "";
  if ((mode != "exact" && mode != "switching" && mode != "strange") || argc > 5) {
    std::fprintf(stderr, "usage: random_operations exact|switching|strange SEED COUNT [NUMBER,...]\n");
    return 2;
  }
  ringroad::test::Play play{mode, std::strtoull(argv[2], nullptr, 0), std::atol(argv[3]), {}};
  std::istringstream only(argc == 5 ? argv[4] : "");
  for (std::string number; std::getline(only, number, ',');) play.only.push_back(std::atol(number.c_str()));
  return ringroad::test::run_both(play);
}
