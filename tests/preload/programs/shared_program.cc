// shared_program MESSAGES: what a message costs on a connection that a child of fork(2) has too, for strace.
// The program is at both ends, does not block, and waits for each end by epoll as an event loop does.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/preload/programs/loopback.h"

namespace {

using ringroad::test::fail;

constexpr std::size_t kBytes = 64;

void wait_for(int epoll, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
  if (epoll_wait(epoll, &event, 1, -1) != 1) fail("epoll_wait");
  if (epoll_ctl(epoll, EPOLL_CTL_DEL, fd, nullptr) != 0) fail("epoll_ctl");
}

}  // namespace

int main(int argc, char** argv) {
  const long messages = argc > 1 ? std::atol(argv[1]) : 1;
  ringroad::test::Listener listener;
  const ringroad::test::Loopback ends = listener.connect_to();
  for (const int fd : {ends.client, ends.server}) {
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) fail("fcntl");
  }
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (epoll < 0 || child < 0) fail("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent) pause();
    return 1;
  }
  for (long i = 0; i < messages; ++i) {
    char bytes[kBytes] = {};
    wait_for(epoll, ends.client, EPOLLOUT);
    if (send(ends.client, bytes, kBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kBytes)) fail("send");
    wait_for(epoll, ends.server, EPOLLIN);
    if (recv(ends.server, bytes, kBytes, 0) != static_cast<ssize_t>(kBytes)) fail("recv");
  }
  kill(child, SIGKILL);
  return waitpid(child, nullptr, 0) == child ? 0 : 1;
}
