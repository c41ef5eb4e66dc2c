// connecting_program CONNECTIONS: what a connection costs that asks once, is answered and ends, for
// strace. A child of its connects, and it accepts, and answers when the child is asleep: each makes
// the same calls every time, but for those by which it looks (pread, sched_yield).
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/preload/programs/asleep.h"

namespace {

using ringroad::test::fail;

constexpr std::size_t kBytes = 64;

void send_one(int fd) {
  const char bytes[kBytes] = {};
  if (send(fd, bytes, kBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kBytes)) fail("send");
}

void receive_one(int fd) {
  char bytes[kBytes];
  if (recv(fd, bytes, kBytes, 0) != static_cast<ssize_t>(kBytes)) fail("recv");
}

}  // namespace

int main(int argc, char** argv) {
  const long connections = argc > 1 ? std::atol(argv[1]) : 1;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe2");
  const pid_t accepts = getpid();
  const pid_t connects = fork();
  if (connects < 0) fail("fork");
  if (connects == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != accepts) return 1;
    sockaddr_in at{};
    if (read(ends[0], &at, sizeof at) != sizeof at) fail("read");
    for (long i = 0; i < connections; ++i) {
      const int fd = ringroad::test::connected_to(at);
      send_one(fd);
      receive_one(fd);
      close(fd);
    }
    return 0;
  }
  const ringroad::test::OtherProcess other(connects);
  ringroad::test::Listener listener;
  if (write(ends[1], &listener.address(), sizeof(sockaddr_in)) != sizeof(sockaddr_in))
    fail("write");
  for (long i = 0; i < connections; ++i) {
    const int fd = listener.accepted();
    other.wait_until_asleep();
    receive_one(fd);
    send_one(fd);
    close(fd);
  }
  int status = 0;
  if (waitpid(connects, &status, 0) != connects) fail("waitpid");
  return status == 0 ? 0 : 1;
}
