// A program at its limits, setrlimit(2): each that Linux has, lowered before the library has anything to do,
// and while a connection is in use.
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

struct Limit {
  const char* name;
  __rlimit_resource resource;
  rlim_t to;
};

// Of the memory that is in use now there is always enough.
constexpr rlim_t kNothingMore = 0;
constexpr Limit kLimits[] = {
    {"AS", RLIMIT_AS, kNothingMore},       {"DATA", RLIMIT_DATA, kNothingMore},
    {"STACK", RLIMIT_STACK, 64 * 1024},    {"CORE", RLIMIT_CORE, 0},
    {"RSS", RLIMIT_RSS, 0},                {"MEMLOCK", RLIMIT_MEMLOCK, 0},
    {"NPROC", RLIMIT_NPROC, 0},            {"FSIZE", RLIMIT_FSIZE, 0},
    {"CPU", RLIMIT_CPU, 60},               {"LOCKS", RLIMIT_LOCKS, 0},
    {"SIGPENDING", RLIMIT_SIGPENDING, 0},  {"MSGQUEUE", RLIMIT_MSGQUEUE, 0},
    {"NICE", RLIMIT_NICE, 0},              {"RTPRIO", RLIMIT_RTPRIO, 0},
    {"RTTIME", RLIMIT_RTTIME, 1},
    {"NOFILE of 1", RLIMIT_NOFILE, 1},     {"NOFILE of 2", RLIMIT_NOFILE, 2},
    {"NOFILE of 5", RLIMIT_NOFILE, 5},     {"NOFILE of 20", RLIMIT_NOFILE, 20},
};

rlim_t in_use(const char* what) {
  long kib = 0;
  if (std::FILE* file = std::fopen("/proc/self/status", "re")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::strncmp(line, what, std::strlen(what)) == 0) std::sscanf(line, "%*s %ld", &kib);
    }
    std::fclose(file);
  }
  return static_cast<rlim_t>(kib) * 1024;
}

// The soft one, which can be raised again.
class Lowered {
 public:
  explicit Lowered(const Limit& limit) : resource_(limit.resource) {
    const rlim_t used = resource_ == RLIMIT_AS     ? in_use("VmSize:")
                        : resource_ == RLIMIT_DATA ? in_use("VmData:")
                                                   : 0;
    ::getrlimit(resource_, &before_);
    const rlimit now{used != 0 ? used : limit.to, before_.rlim_max};
    ::setrlimit(resource_, &now);
  }
  ~Lowered() { ::setrlimit(resource_, &before_); }
  Lowered(const Lowered&) = delete;
  Lowered& operator=(const Lowered&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

// What a call came to, for the transcript: nothing is written while the limit holds.
struct Line {
  const char* what;
  long value;
  int error;
};
constexpr int kMostLines = 20;
Line lines[kMostLines];
int used = 0;

long note(const char* what, long value) {
  lines[used++] = {what, value, value < 0 ? errno : 0};
  return value;
}

void tell(Actor& a, const char* name) {
  for (int i = 0; i < used; ++i) {
    a.log("%s: %s = %ld %s", name, lines[i].what, lines[i].value,
          lines[i].error != 0 ? std::strerror(lines[i].error) : "");
  }
  used = 0;
}

char buffer[8];

// Of a peer that echoes.
void use(int fd, int epoll) {
  note("send", ::send(fd, "ping", 4, MSG_NOSIGNAL));
  note("recv", ::recv(fd, buffer, 4, MSG_WAITALL));
  pollfd two[] = {{fd, POLLIN | POLLOUT, 0}, {-1, 0, 0}};
  note("poll of one", ::poll(two, 1, 0));
  note("write", ::write(fd, "ping", 4));
  two[0].events = POLLIN;
  two[0].revents = 0;
  note("poll of two", ::poll(two, 2, 1000));
  note("tells", two[0].revents);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  timeval second{1, 0};
  note("select", ::select(fd + 1, &set, nullptr, nullptr, &second));
  epoll_event event{EPOLLIN, {.fd = fd}};
  note("epoll_ctl", ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
  note("epoll_wait", ::epoll_wait(epoll, &event, 1, 1000));
  note("epoll_ctl", ::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, &event));
  note("read", ::read(fd, buffer, 4));
  const int copy = ::dup(fd);
  note("dup", copy >= 0);
  if (copy >= 0) ::close(copy);
}

// Until the end.
void echo(int fd) {
  char bytes[64];
  for (ssize_t n; (n = ::recv(fd, bytes, sizeof bytes, 0)) > 0;) {
    ::send(fd, bytes, static_cast<std::size_t>(n), MSG_NOSIGNAL);
  }
}

}  // namespace

SCENARIO(limits_are_lowered_between_calls, 0) {
  const int fd = a.stream();
  if (a.is_server()) {
    echo(fd);
  } else {
    // Beyond the first messages, so that it is where it comes to be.
    for (int i = 0; i < 8; ++i) {
      ::send(fd, "ping", 4, 0);
      ::recv(fd, buffer, 4, MSG_WAITALL);
    }
    for (const Limit& limit : kLimits) {
      const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
      {
        const Lowered lowered(limit);
        use(fd, epoll);
      }
      tell(a, limit.name);
      ::close(epoll);
    }
    ::shutdown(fd, SHUT_WR);
  }
  a.sync();
}

// A stream lives on beside its close, and no number is free for it.
SCENARIO(a_close_where_no_number_is_free, 0) {
  const int fd = a.stream();
  for (int i = 0; i < 8; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] { a.recv(fd, 8); });
  }
  a.client([&] {
    const Lowered lowered({"NOFILE of 0", RLIMIT_NOFILE, 0});
    note("send", ::send(fd, "the last", 8, MSG_NOSIGNAL));
    note("close", ::close(fd));
  });
  if (a.is_client()) tell(a, "NOFILE of 0");
  a.server([&] {
    a.recv(fd, 64);
    a.recv(fd, 64);
  });
}

// A process each, all at once, as the library starts once in each, and a server's `accept` may wait for
// clients that have no room for a channel.
SCENARIO(limits_are_low_from_the_start, 0) {
  a.meet();
  struct Child {
    pid_t pid;
    int tells;
  };
  std::vector<Child> children;
  socklen_t length = 0;
  const sockaddr_storage to = a.is_client() ? a.address(AF_INET, length) : sockaddr_storage{};
  for (const Limit& limit : kLimits) {
    int ends[2];
    if (::pipe(ends) != 0) return a.log("no pipe");
    const pid_t child = ::fork();
    if (child != 0) {
      ::close(ends[1]);
      children.push_back({child, ends[0]});
      continue;
    }
    if (a.is_client()) {
      const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      const Lowered lowered(limit);
      note("connect", ::connect(fd, reinterpret_cast<const sockaddr*>(&to), length));
      for (int i = 0; i < 6; ++i) {
        ::send(fd, "ping", 4, MSG_NOSIGNAL);
        ::recv(fd, buffer, 4, MSG_WAITALL);
      }
      use(fd, epoll);
      if (limit.resource == RLIMIT_NOFILE) {
        long more = 0;
        while (::dup(epoll) >= 0) ++more;
        note("more descriptors", more);
      }
      note("shutdown", ::shutdown(fd, SHUT_WR));
      note("the end", ::recv(fd, buffer, 4, 0));
      note("close", ::close(fd));
    } else {
      const int fd = ::accept(a.listening(), nullptr, nullptr);
      echo(fd);
      note("close", ::close(fd));
    }
    ::_exit(::write(ends[1], lines, sizeof lines) == sizeof lines ? used : 99);
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    if (::read(children[i].tells, lines, sizeof lines) < 0) a.log("nothing is told");
    ::close(children[i].tells);
    ::waitpid(children[i].pid, &status, 0);
    if (!WIFEXITED(status)) a.log("%s: ended by %d", kLimits[i].name, WTERMSIG(status));
    used = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    tell(a, kLimits[i].name);
  }
  a.sync();
}

}  // namespace ringroad::test
