// A server that forks in the way that it is told, prints "port N.", and echoes lines:
//
//   forking_program child       accepts, forks; the child serves, the parent closes at once
//   forking_program late        as child; the parent closes at the first line of its own input
//   forking_program grandchild  as child, through a process between them that ends
//   forking_program both        accepts, forks; the child reads, the parent writes
//   forking_program exec        accepts, forks; the parent serves, the child becomes cat(1) with the
//                               connection open, which ends with the program's input
//   forking_program cloexec     as exec, with the connection closed by exec
//   forking_program passed      as late; the parent has sent it to itself over a Unix socket before
//   forking_program stdio       as child; the child has it as its standard input and output
//   forking_program helper      accepts and serves; for each line of its own input it forks a child, which
//                               ends with the next one. helper level, edge or oneshot: it waits by epoll so;
//                               helper keeper: as level, and the child closes the connection, and has the
//                               instance
//   forking_program failing     accepts and serves; for each line of its own input it tries to become a
//                               program that there is not
//   forking_program seccomp     as child; the child may read and write, and nothing else
//   forking_program prefork N   forks N workers that accept and serve, one connection at a time, and
//                               another one for each that is killed; they end with its input
//   forking_program handover N  as prefork; the one that listened lives, and closes the listener at the
//                               first line of its input
//   forking_program daemon N    as prefork, from a child of the process that listened, which ends
//   forking_program heir        listens and becomes itself, which accepts and echoes, one connection at
//                               a time
//   forking_program heirs N     as prefork, by what the one that listened has become
//
// And clients that fork: forking_program connect PORT connects, forks and ends; its child sends each
// line of its input and prints the answer. forking_program connecting PORT forks before its connection is
// made; its child sends each line of its input, and the parent prints the answers. forking_program becoming
// PORT sends each line of its input and prints the answer; at the line "become" it becomes itself, with a new
// connection.
//
// The process that serves says "PID serves PORT." with the number of the client's port.
#include <fcntl.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

int listener = -1;

void announce(int fd) {
  sockaddr_in peer{};
  socklen_t length = sizeof peer;
  getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length);
  std::printf("%d serves %d.\n", static_cast<int>(getpid()), ntohs(peer.sin_port));
  std::fflush(stdout);
}

void serve(int fd, int answers_to) {
  announce(fd);
  char buffer[4096];
  ssize_t n;
  while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
    if (write(answers_to, buffer, static_cast<size_t>(n)) != n) break;
  }
}

[[noreturn]] void serve_and_end(int fd) {
  close(listener);
  serve(fd, fd);
  _exit(0);
}

[[noreturn]] void serve_by_stdio(int fd) {
  close(listener);
  announce(fd);
  dup2(fd, STDIN_FILENO);
  dup2(fd, STDOUT_FILENO);
  close(fd);
  char line[4096];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    std::fputs(line, stdout);
    std::fflush(stdout);
  }
  _exit(0);
}

void pass_to_oneself(int fd) {
  int pair[2];
  socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
  char word = 'x';
  iovec piece{&word, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  sendmsg(pair[0], &message, 0);
}

// Until the connection or the input has something to say.
class Waiting {
 public:
  Waiting(const std::string& way, int fd) : fd_(fd), way_(way) {
    if (way.empty()) return;
    instance_ = epoll_create1(EPOLL_CLOEXEC);
    control(EPOLL_CTL_ADD, fd, mask());
    control(EPOLL_CTL_ADD, STDIN_FILENO, EPOLLIN);
  }
  ~Waiting() {
    if (instance_ >= 0) close(instance_);
  }
  bool wait(bool& peer, bool& input) {
    if (instance_ < 0) {
      pollfd set[2] = {{fd_, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
      if (poll(set, 2, -1) < 0) return false;
      peer = set[0].revents != 0;
      input = set[1].revents != 0;
      return true;
    }
    epoll_event event{};
    if (epoll_wait(instance_, &event, 1, -1) != 1) return false;
    peer = event.data.fd == fd_;
    input = !peer;
    return true;
  }
  // What the connection had to say has been read.
  void heard() {
    if (way_ == "oneshot") control(EPOLL_CTL_MOD, fd_, mask());
  }

 private:
  std::uint32_t mask() const {
    return EPOLLIN | (way_ == "edge" ? EPOLLET : 0U) | (way_ == "oneshot" ? EPOLLONESHOT : 0U);
  }
  void control(int op, int fd, std::uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    epoll_ctl(instance_, op, fd, &event);
  }

  int fd_;
  std::string way_;
  int instance_ = -1;
};

// Serves, and does what a line of its own input asks for. Until the connection ends.
void serve_and_obey(const std::string& mode, const std::string& way, int fd) {
  announce(fd);
  Waiting waiting(way, fd);
  pid_t helper = 0;
  int told[2] = {-1, -1};
  char line[4096];
  for (;;) {
    bool peer = false;
    bool input = false;
    if (!waiting.wait(peer, input)) return;
    if (peer) {
      ssize_t n;
      do {  // an edge is told once
        n = recv(fd, line, sizeof line, way == "edge" ? MSG_DONTWAIT : 0);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0 || send(fd, line, static_cast<size_t>(n), MSG_NOSIGNAL) != n) return;
      } while (way == "edge");
      waiting.heard();
    }
    if (!input) continue;
    if (read(STDIN_FILENO, line, 1) != 1) return;
    if (line[0] != '\n') continue;
    if (mode == "failing") {
      execl("/nowhere/nothing", "nothing", static_cast<char*>(nullptr));
      std::printf("still here.\n");
    } else if (helper != 0) {
      close(told[1]);
      waitpid(helper, nullptr, 0);
      helper = 0;
      std::printf("alone.\n");
    } else {
      if (pipe2(told, O_CLOEXEC) != 0) return;
      helper = fork();
      if (helper == 0) {
        close(told[1]);
        if (way == "keeper") close(fd);
        _exit(read(told[0], line, 1) == 0 ? 0 : 1);
      }
      close(told[0]);
      std::printf("forked.\n");
    }
    std::fflush(stdout);
  }
}

void one(const std::string& mode, const std::string& way, int fd) {
  if (mode == "helper" || mode == "failing") {
    serve_and_obey(mode, way, fd);
    close(fd);
    return;
  }
  int pipes[2];
  if (pipe(pipes) != 0) std::exit(1);
  if (fork() == 0) {
    if (mode == "child" || mode == "late" || mode == "passed") serve_and_end(fd);
    if (mode == "stdio") serve_by_stdio(fd);
    if (mode == "seccomp") {
      announce(fd);
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
      char buffer[4096];
      ssize_t n;
      while ((n = read(fd, buffer, sizeof buffer)) > 0 &&
             write(fd, buffer, static_cast<size_t>(n)) == n) {
      }
      syscall(SYS_exit, 0);
    }
    if (mode == "grandchild") {
      if (fork() == 0) serve_and_end(fd);
      _exit(0);
    }
    if (mode == "both") {
      close(pipes[0]);
      serve(fd, pipes[1]);
      _exit(0);
    }
    execl("/bin/cat", "cat", static_cast<char*>(nullptr));
    _exit(127);
  }
  close(pipes[1]);
  char line[4096];
  if (mode == "late" || mode == "passed") {
    if (mode == "passed") pass_to_oneself(fd);
    if (std::fgets(line, sizeof line, stdin) == nullptr) std::exit(1);
  }
  if (mode == "both") {
    ssize_t n;
    while ((n = read(pipes[0], line, sizeof line)) > 0) {
      if (send(fd, line, static_cast<size_t>(n), MSG_NOSIGNAL) != n) break;
    }
  }
  if (mode == "exec" || mode == "cloexec") serve(fd, fd);
  close(pipes[0]);
  close(fd);
}

void work() {
  for (;;) {
    // The end of the input is a hang-up; a line on it is the master's.
    pollfd set[2] = {{listener, POLLIN, 0}, {STDIN_FILENO, 0, 0}};
    if (poll(set, 2, -1) < 0 || set[1].revents != 0) _exit(0);
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) continue;  // another one was quicker
    serve(fd, fd);
    close(fd);
  }
}

int prefork(int workers, bool hands_over) {
  fcntl(listener, F_SETFL, O_NONBLOCK);
  for (int i = 0; i < workers; ++i) {
    if (fork() == 0) work();
  }
  std::printf("master %d.\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  if (hands_over) {
    char line[4096];
    if (std::fgets(line, sizeof line, stdin) == nullptr) return 1;
    close(listener);
    std::printf("handed over.\n");
    std::fflush(stdout);
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
    }
    return 0;
  }
  for (;;) {
    int status = 0;
    if (wait(&status) < 0) return 0;
    if (WIFSIGNALED(status) && fork() == 0) work();
  }
}

int fork_while_connecting(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<in_port_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 || errno != EINPROGRESS) return 1;
  const bool child = fork() == 0;
  pollfd writable{fd, POLLOUT, 0};
  if (poll(&writable, 1, -1) != 1) return 1;
  fcntl(fd, F_SETFL, 0);
  char line[4096];
  if (child) {
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
      if (send(fd, line, std::strlen(line), MSG_NOSIGNAL) < 0) return 1;
    }
    return shutdown(fd, SHUT_WR);
  }
  std::printf("parent %d.\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  ssize_t n;
  while ((n = recv(fd, line, sizeof line, 0)) > 0) {
    std::printf("%.*s", static_cast<int>(n), line);
    std::fflush(stdout);
  }
  return n < 0;
}

int connect_and_fork(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<in_port_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) return 1;
  if (fork() != 0) _exit(0);
  std::printf("child %d.\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  char line[4096];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    const size_t length = std::strlen(line);
    if (send(fd, line, length, MSG_NOSIGNAL) != static_cast<ssize_t>(length)) return 1;
    const ssize_t n = recv(fd, line, length, MSG_WAITALL);
    std::printf("%.*s", n < 0 ? 0 : static_cast<int>(n), line);
    std::fflush(stdout);
  }
  return 0;
}

int connect_and_become(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<in_port_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) return 1;
  std::printf("connected.\n");
  std::fflush(stdout);
  setvbuf(stdin, nullptr, _IONBF, 0);  // what it has not read is for the program that it becomes
  char line[4096];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    if (std::strcmp(line, "become\n") == 0) {
      const std::string number = std::to_string(port);
      execl("/proc/self/exe", "forking_program", "becoming", number.c_str(), static_cast<char*>(nullptr));
      return 1;
    }
    const size_t length = std::strlen(line);
    if (send(fd, line, length, MSG_NOSIGNAL) != static_cast<ssize_t>(length)) return 1;
    const ssize_t n = recv(fd, line, length, MSG_WAITALL);
    std::printf("%.*s", n < 0 ? 0 : static_cast<int>(n), line);
    std::fflush(stdout);
  }
  return 0;
}

// Becomes this program anew, with the listener at the number that it is told.
int become_heir(const std::string& workers) {
  const std::string number = std::to_string(dup(listener));
  execl("/proc/self/exe", "forking_program", "given", number.c_str(), workers.c_str(),
        static_cast<char*>(nullptr));
  return 1;
}

int use_what_was_given(int given, int workers) {
  listener = given;
  if (workers > 0) {
    int type = 0;
    socklen_t length = sizeof type;
    if (getsockopt(listener, SOL_SOCKET, SO_TYPE, &type, &length) != 0) return 1;
    return prefork(workers, false);
  }
  for (;;) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) return 1;
    serve(fd, fd);
    close(fd);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? std::atoi(argv[2]) : 0;
  if (mode == "given") return use_what_was_given(number, std::atoi(argv[3]));
  if (mode == "connect") return connect_and_fork(number);
  if (mode == "connecting") return fork_while_connecting(number);
  if (mode == "becoming") return connect_and_become(number);
  const int type = mode == "cloexec" ? SOCK_CLOEXEC : 0;
  listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  if (bind(listener, reinterpret_cast<sockaddr*>(&at), length) != 0 || listen(listener, 16) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    return 1;
  }
  std::printf("port %d.\n", ntohs(at.sin_port));
  std::fflush(stdout);
  if (mode == "heir" || mode == "heirs") return become_heir(std::to_string(number));
  if (mode == "daemon" && fork() != 0) _exit(0);
  if (mode == "prefork" || mode == "daemon" || mode == "handover") {
    return prefork(number, mode == "handover");
  }
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, type);
    if (fd < 0) return 1;
    one(mode, mode == "helper" && argc > 2 ? argv[2] : "", fd);
  }
}
