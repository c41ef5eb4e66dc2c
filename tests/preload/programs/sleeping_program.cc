// sleeping_program recv|poll|polls|epoll MESSAGES: what a message costs whose receiver sleeps, for strace.
// This process and a child of it send each other so many in turns, each when the other is asleep.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string_view>

#include "tests/preload/programs/asleep.h"

namespace {

using ringroad::test::fail;

constexpr std::size_t kBytes = 64;

// Waits for messages of one connection.
class Receiver {
 public:
  Receiver(std::string_view how, int fd) : how_(how), fd_(fd) {
    if (how != "epoll") return;
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
  }

  void receive() {
    pollfd one{fd_, POLLIN, 0};
    pollfd some[] = {one, one, one, one};
    epoll_event events[8];
    if (how_ == "poll" && poll(&one, 1, -1) != 1) fail("poll");
    if (how_ == "polls" && poll(some, 4, -1) != 4) fail("poll");
    if (how_ == "epoll" && epoll_wait(epoll_, events, 8, -1) != 1) fail("epoll_wait");
    char bytes[kBytes];
    if (recv(fd_, bytes, kBytes, 0) != static_cast<ssize_t>(kBytes)) fail("recv");
  }

 private:
  const std::string_view how_;
  const int fd_;
  int epoll_ = -1;
};

void send_to(const ringroad::test::OtherProcess& other, int fd) {
  const char bytes[kBytes] = {};
  other.wait_until_asleep();
  if (send(fd, bytes, kBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kBytes)) fail("send");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const long messages = std::atol(argv[2]);
  ringroad::test::Listener listener;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 1;
    const int fd = ringroad::test::connected_to(listener.address());
    Receiver receiver(argv[1], fd);
    const ringroad::test::OtherProcess other(parent);
    for (long i = 0; i < messages; ++i) {
      receiver.receive();
      send_to(other, fd);
    }
    return 0;
  }
  const int fd = listener.accepted();
  Receiver receiver(argv[1], fd);
  const ringroad::test::OtherProcess other(child);
  for (long i = 0; i < messages; ++i) {
    send_to(other, fd);
    receiver.receive();
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) fail("waitpid");
  return status == 0 ? 0 : 1;
}
