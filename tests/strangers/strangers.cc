// strangers PROBE serve | strangers PROBE connect PORT: what programs do that nobody here wrote, each in two
// processes of which either may be preloaded. What they print is theirs alone to know: strangers_test.cc has
// a table of it.
//
// `serve` prints "port N.", echoes what comes on any connection, and says how much when standard input ends.
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace ringroad::test {
namespace {

constexpr std::size_t kMessage = 64;
constexpr int kRounds = 10;

__attribute__((format(printf, 1, 2))) void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::putchar('\n');
  std::fflush(stdout);
}

const char* error_of(long value) { return value < 0 ? strerrorname_np(errno) : ""; }

sockaddr_in at(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in to = at(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) say("connect: %s", error_of(-1));
  return fd;
}

// One message there and back. False: the answer is another.
bool ask(int fd) {
  char bytes[kMessage];
  char answer[kMessage] = {};
  std::memset(bytes, 'q', sizeof bytes);
  if (::send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kMessage)) return false;
  return ::recv(fd, answer, sizeof answer, MSG_WAITALL) == static_cast<ssize_t>(kMessage) &&
         std::memcmp(bytes, answer, sizeof bytes) == 0;
}

int answered(int fd) {
  int good = 0;
  for (int i = 0; i < kRounds; ++i) good += ask(fd) ? 1 : 0;
  return good;
}

// ---- Servers

int listen_somewhere() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in own = at(0);
  socklen_t length = sizeof own;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&own), length) != 0 || ::listen(fd, 64) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    say("listen: %s", error_of(-1));
  }
  say("port %d.", ntohs(own.sin_port));
  return fd;
}

struct Served {
  int connections = 0;
  long bytes = 0;
  int errors = 0;
};

// Echoes what there is. False: it has ended.
bool echo(int fd, Served& served) {
  char bytes[4096];
  const ssize_t n = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return true;
  if (n < 0) ++served.errors;
  if (n <= 0) return false;
  served.bytes += n;
  if (::send(fd, bytes, static_cast<std::size_t>(n), MSG_NOSIGNAL) != n) ++served.errors;
  return true;
}

void report(const Served& served) {
  say("%d connections, %ld bytes, %d errors", served.connections, served.bytes, served.errors);
}

void serve() {
  Served served;
  std::vector<pollfd> set = {{STDIN_FILENO, POLLIN, 0}, {listen_somewhere(), POLLIN, 0}};
  while (::poll(set.data(), set.size(), -1) > 0 && set[0].revents == 0) {
    if (set[1].revents != 0) {
      set.push_back({::accept(set[1].fd, nullptr, nullptr), POLLIN, 0});
      ++served.connections;
    }
    for (std::size_t i = set.size(); i-- > 2;) {
      if (set[i].revents == 0 || echo(set[i].fd, served)) continue;
      ::close(set[i].fd);
      set.erase(set.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  report(served);
}

long raw(long number, long a, long b, long c, long d) {
  long result;
#if defined(__x86_64__)
  register long fourth asm("r10") = d;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
               : "rcx", "r11", "memory");
#else
  result = ::syscall(number, a, b, c, d);
#endif
  return result;
}

long word(const void* pointer) { return static_cast<long>(reinterpret_cast<std::intptr_t>(pointer)); }

// epoll by system calls of its own, the bytes by libc, as the runtimes of some languages do.
void serve_by_own_epoll() {
  Served served;
  const int listener = listen_somewhere();
  const auto epoll = static_cast<int>(raw(SYS_epoll_create1, 0, 0, 0, 0));
  const auto watch = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    raw(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, word(&event));
  };
  watch(listener);
  watch(STDIN_FILENO);
  for (bool goes_on = true; goes_on;) {
    epoll_event event{};
#if defined(__x86_64__)
    if (raw(SYS_epoll_wait, epoll, word(&event), 1, -1) != 1) continue;
#else
    if (::epoll_wait(epoll, &event, 1, -1) != 1) continue;
#endif
    const int fd = event.data.fd;
    if (fd == STDIN_FILENO) {
      goes_on = false;
    } else if (fd == listener) {
      watch(::accept(listener, nullptr, nullptr));
      ++served.connections;
    } else if (!echo(fd, served)) {
      ::close(fd);
    }
  }
  report(served);
}

// ---- Clients

void asks(int port) {
  const int fd = connect_to(port);
  say("%d answers", answered(fd) + answered(fd));
  ::close(fd);
}

// The program's own calls and those of a plug-in by turns.
void has_a_plugin(int port) {
  const int fd = connect_to(port);
  say("%d answers", answered(fd));
  void* const plugin = ::dlopen(STRANGERS_PLUGIN, RTLD_NOW | RTLD_DEEPBIND);
  if (plugin == nullptr) return say("%s", ::dlerror());
  using Send = long (*)(int, const void*, unsigned long);
  using Recv = long (*)(int, void*, unsigned long);
  const auto send = reinterpret_cast<Send>(::dlsym(plugin, "plugin_send"));
  const auto recv = reinterpret_cast<Recv>(::dlsym(plugin, "plugin_recv"));
  int good = 0;
  for (int i = 0; i < kRounds; ++i) {
    char bytes[kMessage] = {};
    char answer[kMessage];
    std::memset(answer, 'x', sizeof answer);
    good += send(fd, bytes, kMessage) == kMessage && recv(fd, answer, kMessage) == kMessage &&
                    std::memcmp(bytes, answer, kMessage) == 0
                ? 1
                : 0;
  }
  say("%d of the plug-in's", good);
  say("%d answers", answered(fd));
  ::close(fd);
}

struct Work {
  int fd;
  int port;
  int file;
  bool done;
};

bool gets_back(int fd) {
  char bytes[kMessage];
  return ::recv(fd, bytes, sizeof bytes, MSG_WAITALL) == static_cast<ssize_t>(kMessage);
}

bool sends(int fd) {
  const char bytes[kMessage] = {};
  return ::send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(kMessage);
}

constexpr struct {
  const char* name;
  bool (*make)(const Work&);
} kOnSmallStacks[] = {
    {"send and recv", [](const Work& w) { return sends(w.fd) && gets_back(w.fd); }},
    {"writev and readv",
     [](const Work& w) {
       char bytes[kMessage] = {};
       iovec two[2] = {{bytes, 32}, {bytes + 32, 32}};
       return ::writev(w.fd, two, 2) == 64 && gets_back(w.fd);
     }},
    {"sendmsg and recvmsg",
     [](const Work& w) {
       char bytes[kMessage] = {};
       iovec one{bytes, sizeof bytes};
       msghdr message{};
       message.msg_iov = &one;
       message.msg_iovlen = 1;
       return ::sendmsg(w.fd, &message, 0) == 64 && ::recvmsg(w.fd, &message, MSG_WAITALL) == 64;
     }},
    {"poll",
     [](const Work& w) {
       pollfd three[3] = {{-1, 0, 0}, {w.fd, POLLIN, 0}, {-1, 0, 0}};
       return sends(w.fd) && ::poll(three, 3, -1) == 1 && gets_back(w.fd);
     }},
    {"select",
     [](const Work& w) {
       fd_set set;
       FD_ZERO(&set);
       FD_SET(w.fd, &set);
       return sends(w.fd) && ::select(w.fd + 1, &set, nullptr, nullptr, nullptr) == 1 && gets_back(w.fd);
     }},
    {"epoll",
     [](const Work& w) {
       const int epoll = ::epoll_create1(0);
       epoll_event event{EPOLLIN, {}};
       const bool good = ::epoll_ctl(epoll, EPOLL_CTL_ADD, w.fd, &event) == 0 && sends(w.fd) &&
                         ::epoll_wait(epoll, &event, 1, -1) == 1 && gets_back(w.fd);
       ::close(epoll);
       return good;
     }},
    {"sendfile",
     [](const Work& w) {
       off_t from = 0;
       return ::sendfile(w.fd, w.file, &from, kMessage) == 64 && gets_back(w.fd);
     }},
    {"connect and close",
     [](const Work& w) {
       const int fd = connect_to(w.port);
       return sends(fd) && gets_back(fd) && ::close(fd) == 0;
     }},
    {"options and copies",
     [](const Work& w) {
       int value = 0;
       socklen_t length = sizeof value;
       const int copy = ::dup(w.fd);
       return ::getsockopt(w.fd, SOL_SOCKET, SO_ERROR, &value, &length) == 0 &&
              ::ioctl(w.fd, FIONREAD, &value) == 0 && ::close(copy) == 0;
     }},
    {"fork",
     [](const Work& w) {
       const pid_t child = ::fork();
       if (child == 0) ::_exit(0);
       int status = -1;
       return ::waitpid(child, &status, 0) == child && status == 0 && sends(w.fd) && gets_back(w.fd);
     }},
};

// Each in a thread with the smallest stack that there is.
void has_small_stacks(int port) {
  const int fd = connect_to(port);
  say("%d answers", answered(fd));
  const int file = ::memfd_create("file", 0);
  const std::string bytes(kMessage, 'f');
  if (::write(file, bytes.data(), bytes.size()) < 0) say("no file");
  for (const auto& call : kOnSmallStacks) {
    struct Errand {
      bool (*make)(const Work&);
      Work work;
    } errand{call.make, {fd, port, file, false}};
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, static_cast<std::size_t>(::sysconf(_SC_THREAD_STACK_MIN)));
    const auto run = [](void* data) -> void* {
      auto* own = static_cast<Errand*>(data);
      own->work.done = own->make(own->work);
      return nullptr;
    };
    pthread_t thread;
    if (::pthread_create(&thread, &attributes, run, &errand) != 0) return say("no thread");
    ::pthread_join(thread, nullptr);
    ::pthread_attr_destroy(&attributes);
    say("%s: %s", call.name, errand.work.done ? "done" : "not done");
  }
  ::close(fd);
}

// A table by numbers, most of which are not open.
void polls_as_many_as_may_be_open(int port) {
  constexpr rlim_t kLimit = 256;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = kLimit;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const int fd = connect_to(port);
  say("%d answers", answered(fd));
  std::vector<pollfd> table(kLimit + 1, pollfd{-1, 0, 0});
  table[static_cast<std::size_t>(fd)] = {fd, POLLIN, 0};
  for (const nfds_t count : {kLimit - 1, kLimit, kLimit + 1}) {
    sends(fd);
    const int n = ::poll(table.data(), count, count > kLimit ? 0 : -1);
    say("%d entries: %d %s", static_cast<int>(count - kLimit), n, error_of(n));
    gets_back(fd);
  }
  ::close(fd);
}

// As a daemon does that starts clean, at a bad moment.
void closes_all_that_it_sees(int port) {
  const int fd = connect_to(port);
  say("%d answers", answered(fd));
  std::vector<int> numbers;
  DIR* const directory = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(directory)) {
    const int number = std::atoi(entry->d_name);
    if (number > STDERR_FILENO && number != fd && number != ::dirfd(directory)) numbers.push_back(number);
  }
  ::closedir(directory);
  int refused = 0;
  for (const int number : numbers) refused += ::close(number) != 0 ? 1 : 0;
  say("%d refused, %d answers", refused, answered(fd));
  ::close(fd);
}

// The child has nobody to end what a thread of its parent has begun.
void forks_beside_its_first_connection(int port) {
  int good = 0;
  for (int i = 0; i < kRounds; ++i) {
    const pid_t round = ::fork();
    if (round == 0) {
      std::atomic<bool> begun{false};
      bool own = false;
      std::thread first([&] {
        begun.store(true);
        const int fd = connect_to(port);
        own = ask(fd);
        ::close(fd);
      });
      while (!begun.load()) {
      }
      ::usleep(static_cast<useconds_t>(100 * i));
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(20);
        const int fd = connect_to(port);
        ::_exit(ask(fd) ? 0 : 1);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      first.join();
      ::_exit(own && status == 0 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(round, &status, 0);
    good += status == 0 ? 1 : 0;
  }
  say("%d of %d", good, kRounds);
}

struct Probe {
  const char* name;
  void (*serve)();
  void (*connect)(int port);
};

constexpr Probe kProbes[] = {
    {"own_epoll", serve_by_own_epoll, asks},
    {"plugin", serve, has_a_plugin},
    {"small_stacks", serve, has_small_stacks},
    {"poll_limit", serve, polls_as_many_as_may_be_open},
    {"close_all", serve, closes_all_that_it_sees},
    {"fork_beside", serve, forks_beside_its_first_connection},
};

}  // namespace
}  // namespace ringroad::test

int main(int argc, char** argv) {
  const std::string name = argc > 2 ? argv[1] : "";
  const std::string role = argc > 2 ? argv[2] : "";
  for (const auto& probe : ringroad::test::kProbes) {
    if (name != probe.name) continue;
    if (role == "serve" && argc == 3) return probe.serve(), 0;
    if (role == "connect" && argc == 4) return probe.connect(std::atoi(argv[3])), 0;
  }
  std::fprintf(stderr, "usage: strangers PROBE serve | strangers PROBE connect PORT\n");
  return 2;
}
