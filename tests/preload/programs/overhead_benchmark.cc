// What an interposed call adds where the library has nothing to do: the call that a program makes, and
// libc's own behind it, on the same descriptor in the same run.
//
//   LD_PRELOAD=build/lib/libringroad.so RINGROAD_POLICY=… build/bin/overhead_benchmark
//
// `live` is a process that has an agent, because something of it is listening where the policy matches.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

// libc's own, whatever is preloaded.
template <typename F>
F libc(const char* name) {
  static void* const handle = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return reinterpret_cast<F>(dlsym(handle, name));
}

struct Descriptors {
  Descriptors() {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) abort();
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event) != 0) abort();
  }
  int pair[2];
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {}};
};
Descriptors d;

template <typename Call>
void run(benchmark::State& state, Call call) {
  for (auto _ : state) benchmark::DoNotOptimize(call());
}

void compare(const char* name, auto program, auto real) {
  const std::string text = name;
  auto* one = benchmark::RegisterBenchmark((text + "/libc").c_str(),
                                           [=](benchmark::State& s) { run(s, real); });
  auto* other = benchmark::RegisterBenchmark((text + "/program").c_str(),
                                             [=](benchmark::State& s) { run(s, program); });
  // For callgrind, whose clock is not the machine's.
  if (const char* calls = std::getenv("OVERHEAD_CALLS")) {
    for (auto* each : {one, other}) each->Iterations(std::atoi(calls));
  }
}

int add_and_take_out(auto call) {
  call(d.epoll, EPOLL_CTL_ADD, d.pair[1], &d.event);
  return call(d.epoll, EPOLL_CTL_DEL, d.pair[1], nullptr);
}

int select_one(auto call) {
  fd_set in;
  FD_ZERO(&in);
  FD_SET(d.pair[0], &in);
  timeval now{};
  return call(d.pair[0] + 1, &in, nullptr, nullptr, &now);
}

}  // namespace

int main(int argc, char** argv) {
  // Makes the library start its agent, where the policy says so.
  if (const char* port = std::getenv("OVERHEAD_LISTEN")) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<in_port_t>(std::atoi(port)));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
        listen(listener, 4) != 0) {
      std::perror("listen");
      return 1;
    }
  }
  static char byte;
  static const auto libc_recv = libc<ssize_t (*)(int, void*, size_t, int)>("recv");
  static const auto libc_read = libc<ssize_t (*)(int, void*, size_t)>("read");
  static const auto libc_poll = libc<int (*)(pollfd*, nfds_t, int)>("poll");
  static const auto libc_wait = libc<int (*)(int, epoll_event*, int, int)>("epoll_wait");
  static const auto libc_ctl = libc<int (*)(int, int, int, epoll_event*)>("epoll_ctl");
  static const auto libc_fcntl = libc<int (*)(int, int, ...)>("fcntl");
  static epoll_event out[4];
  static pollfd one;
  one = {d.pair[0], POLLIN, 0};
  compare("recv", [] { return recv(d.pair[0], &byte, 1, MSG_DONTWAIT); },
          [] { return libc_recv(d.pair[0], &byte, 1, MSG_DONTWAIT); });
  compare("read", [] { return read(d.pair[0], &byte, 1); },
          [] { return libc_read(d.pair[0], &byte, 1); });
  compare("fcntl", [] { return fcntl(d.pair[0], F_GETFL); },
          [] { return libc_fcntl(d.pair[0], F_GETFL); });
  compare("poll", [] { return poll(&one, 1, 0); }, [] { return libc_poll(&one, 1, 0); });
  compare("epoll_wait", [] { return epoll_wait(d.epoll, out, 4, 0); },
          [] { return libc_wait(d.epoll, out, 4, 0); });
  static epoll_event writable{EPOLLOUT, {}};
  static const int ready = epoll_create1(EPOLL_CLOEXEC);
  libc_ctl(ready, EPOLL_CTL_ADD, d.pair[0], &writable);
  compare(
      "epoll_wait with time", [] { return epoll_wait(ready, out, 4, 1000); },
      [] { return libc_wait(ready, out, 4, 1000); });
  compare("epoll_ctl", [] { return epoll_ctl(d.epoll, EPOLL_CTL_MOD, d.pair[0], &d.event); },
          [] { return libc_ctl(d.epoll, EPOLL_CTL_MOD, d.pair[0], &d.event); });
  compare(
      "epoll_ctl ADD and DEL", [] { return add_and_take_out(epoll_ctl); },
      [] { return add_and_take_out(libc_ctl); });
  static const auto libc_select = libc<decltype(&select)>("select");
  compare(
      "select", [] { return select_one(select); }, [] { return select_one(libc_select); });
  static const auto libc_syscall = libc<decltype(&syscall)>("syscall");
  compare(
      "syscall SYS_gettid", [] { return syscall(SYS_gettid); },
      [] { return libc_syscall(SYS_gettid); });
  compare(
      "syscall SYS_recvfrom",
      [] { return syscall(SYS_recvfrom, d.pair[0], &byte, 1, MSG_DONTWAIT, nullptr, nullptr); },
      [] {
        return libc_syscall(SYS_recvfrom, d.pair[0], &byte, 1, MSG_DONTWAIT, nullptr, nullptr);
      });
  static int value = 0;
  static const auto libc_ioctl = libc<decltype(&ioctl)>("ioctl");
  compare(
      "ioctl", [] { return ioctl(d.pair[0], FIONREAD, &value); },
      [] { return libc_ioctl(d.pair[0], FIONREAD, &value); });
  static const auto libc_setsockopt = libc<decltype(&setsockopt)>("setsockopt");
  static const auto set_priority = [](auto call) {
    return call(d.pair[0], SOL_SOCKET, SO_PRIORITY, &value, socklen_t{sizeof value});
  };
  compare(
      "setsockopt", [] { return set_priority(setsockopt); },
      [] { return set_priority(libc_setsockopt); });
  static const auto libc_send = libc<decltype(&send)>("send");
  compare(
      "send", [] { return send(-1, &byte, 1, 0); }, [] { return libc_send(-1, &byte, 1, 0); });
  static const auto libc_dup = libc<decltype(&dup)>("dup");
  static const auto libc_close = libc<decltype(&close)>("close");
  compare(
      "dup and close", [] { return close(dup(d.pair[0])); },
      [] { return libc_close(libc_dup(d.pair[0])); });
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
