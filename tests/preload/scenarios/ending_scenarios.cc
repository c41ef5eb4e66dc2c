// A process that ends: what it has sent still arrives.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

constexpr std::uint64_t kBytes = 180'000;

// The client sends, more than a segment and less than any buffer, and ends at once by `end`.
void send_and_end(Actor& a, const std::function<void()>& end) {
  const int fd = a.stream();
  if (a.is_client()) {
    a.recv(fd, 10);
    a.send_pattern(fd, 0, kBytes, kBytes);
    end();
  } else {
    a.send(fd, "go");
    a.settle(fd, POLLIN, POLLIN);
    a.drain_to_end(fd);
    a.recv(fd, 1);
    a.error(fd);
  }
}

// The program that a process becomes: it says back what it reads.
struct Heir {
  const int file = ::open("/bin/sh", O_RDONLY | O_CLOEXEC);
  char name[3] = "sh";
  char option[3] = "-c";
  char what[14] = "head -c20 >&0";
  char* argv[4] = {name, option, what, nullptr};
};

// The client sends, and becomes by `exec` another program, whose standard input is the stream: what
// was sent to it before and not read is that program's to read.
void send_and_become(Actor& a, const std::function<void()>& exec) {
  a.meet();
  if (a.is_client()) {
    ::close(STDIN_FILENO);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&to), length));
    a.log("standard input: %d", fd == STDIN_FILENO);
    a.sync();
    a.recv(fd, 2, MSG_WAITALL);
    a.sync();
    a.settle(fd, POLLIN, POLLIN);
    a.send_pattern(fd, 0, kBytes, kBytes);
    exec();
    a.log("did not become it: %s", strerrorname_np(errno));
  } else {
    const int fd = a.accept_blocking();
    a.sync();
    a.send(fd, "go");
    a.send(fd, "for the next program");
    a.sync();
    a.set_timeout(fd, SO_RCVTIMEO, 5000);
    a.recv_pattern(fd, 0, kBytes, 16384);
    a.recv(fd, 20, MSG_WAITALL);
    a.recv(fd, 1);
    a.error(fd);
  }
}

}  // namespace

SCENARIO(exit_right_after_a_send, kEndsItself | kClearsAway) {
  send_and_end(a, [] { std::exit(0); });
}

SCENARIO(underscore_exit_right_after_a_send, kEndsItself | kClearsAway) {
  send_and_end(a, [] { ::_exit(0); });
}

SCENARIO(underscore_capital_exit_right_after_a_send, kEndsItself | kClearsAway) {
  send_and_end(a, [] { ::_Exit(0); });
}

SCENARIO(quick_exit_right_after_a_send, kEndsItself | kClearsAway) {
  send_and_end(a, [] { std::quick_exit(0); });
}

SCENARIO(exit_group_by_number_right_after_a_send, kEndsItself | kClearsAway) {
  send_and_end(a, [] { ::syscall(SYS_exit_group, 0L); });
}

SCENARIO(exit_in_a_thread_right_after_a_send, kEndsItself | kClearsAway) {
  send_and_end(a, [&] { Thread(a, [] { std::exit(0); }).join(); });
}

SCENARIO(exec_right_after_a_send, kEndsItself) {
  send_and_become(a,
                  [] { ::execl("/bin/sh", "sh", "-c", Heir().what, static_cast<char*>(nullptr)); });
}

SCENARIO(execv_right_after_a_send, kEndsItself) {
  send_and_become(a, [] { ::execv("/bin/sh", Heir().argv); });
}

SCENARIO(execve_right_after_a_send, kEndsItself) {
  send_and_become(a, [] { ::execve("/bin/sh", Heir().argv, environ); });
}

SCENARIO(execvp_right_after_a_send, kEndsItself) {
  send_and_become(a, [] { ::execvp("sh", Heir().argv); });
}

SCENARIO(execvpe_right_after_a_send, kEndsItself) {
  send_and_become(a, [] { ::execvpe("sh", Heir().argv, environ); });
}

SCENARIO(execle_right_after_a_send, kEndsItself) {
  send_and_become(a, [] {
    ::execle("/bin/sh", "sh", "-c", Heir().what, static_cast<char*>(nullptr), environ);
  });
}

SCENARIO(execlp_right_after_a_send, kEndsItself) {
  send_and_become(a, [] { ::execlp("sh", "sh", "-c", Heir().what, static_cast<char*>(nullptr)); });
}

SCENARIO(fexecve_right_after_a_send, kEndsItself) {
  send_and_become(a, [] { ::fexecve(Heir().file, Heir().argv, environ); });
}

SCENARIO(execveat_right_after_a_send, kEndsItself) {
  send_and_become(a, [] { ::execveat(Heir().file, "", Heir().argv, environ, AT_EMPTY_PATH); });
}

SCENARIO(exec_by_number_right_after_a_send, kEndsItself) {
  send_and_become(a, [] { ::syscall(SYS_execve, "/bin/sh", Heir().argv, environ); });
}

SCENARIO(exec_of_a_file_by_number_right_after_a_send, kEndsItself) {
  send_and_become(a, [] {
    ::syscall(SYS_execveat, Heir().file, "", Heir().argv, environ,
              static_cast<long>(AT_EMPTY_PATH));
  });
}

SCENARIO(close_and_exit_right_after_a_send, kEndsItself | kClearsAway) {
  const int fd = a.stream();
  if (a.is_client()) {
    a.send_pattern(fd, 0, kBytes, kBytes);
    a.close(fd);
    ::_exit(0);
  }
  a.drain_to_end(fd);
}

SCENARIO(exit_with_unread_bytes_resets, kEndsItself | kClearsAway) {
  const int fd = a.stream();
  if (a.is_client()) {
    a.settle(fd, POLLIN, POLLIN);
    a.sync();
    a.send(fd, "said before");
    ::_exit(0);
  }
  a.send(fd, "never read");
  a.sync();
  a.settle(fd, POLLIN, POLLHUP);
  a.recv(fd, 20);
  a.recv(fd, 20);
}

SCENARIO(exit_while_others_sleep, kEndsItself | kClearsAway) {
  // Threads that sleep in recv and poll do not keep the process, and what was sent arrives.
  const int fd = a.stream();
  if (a.is_client()) {
    auto* reader = new Thread(a, [&] { a.recv(fd, 10); });
    auto* poller = new Thread(a, [&] { a.poll(fd, POLLIN, -1); });
    reader->wait_asleep();
    poller->wait_asleep();
    a.send(fd, "bye");
    ::_exit(0);
  }
  a.recv(fd, 10);
  a.recv(fd, 10);
}

SCENARIO(exit_with_many_streams, kEndsItself | kClearsAway) {
  std::vector<int> fds;
  for (int i = 0; i < 20; ++i) fds.push_back(a.stream());
  if (a.is_client()) {
    for (const int fd : fds) {
      const std::string bytes = patterned(0, 5000);
      ::send(fd, bytes.data(), bytes.size(), 0);
    }
    std::exit(0);
  }
  for (const int fd : fds) a.drain_to_end(fd);
}

SCENARIO(both_exit_at_once, kEndsItself | kClearsAway) {
  const int fd = a.stream();
  a.send(fd, "x");
  a.recv(fd, 1);
  std::exit(0);
}

SCENARIO(killed_after_everything_was_read, kEndsItself) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "all"); });
  a.server([&] { a.recv(fd, 10); });
  if (a.is_client()) raise(SIGKILL);
  a.settle(fd, POLLIN | POLLRDHUP, POLLRDHUP);
  a.recv(fd, 10);
  a.recv(fd, 10);
}

SCENARIO(killed_with_bytes_on_their_way, kEndsItself) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "what arrived before"); });
  if (a.is_client()) raise(SIGKILL);
  a.settle(fd, POLLIN | POLLRDHUP, POLLRDHUP);
  a.recv(fd, 30);
  a.recv(fd, 30);
  a.recv(fd, 30);
}

SCENARIO(killed_while_the_peer_sleeps, kEndsItself) {
  const int fd = a.stream();
  if (a.is_client()) {
    a.sync();
    raise(SIGKILL);
  }
  Thread reader(a, [&] { a.recv(fd, 10); a.recv(fd, 10); });
  reader.wait_asleep();
  a.sync();
  reader.join();
}

}  // namespace ringroad::test
