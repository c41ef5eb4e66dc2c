// Handlers of signals that jump out of calls, as clients with time-outs have done since before there were
// threads.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/preload/drivers/actor.h"

// What longjmp(3) is in programs that are built with _FORTIFY_SOURCE.
extern "C" [[noreturn]] void longjmp_checked(__jmp_buf_tag* buffer, int value) asm("__longjmp_chk");

namespace ringroad::test {
namespace {

enum class Way { kSiglongjmp, kLongjmp, kOldLongjmp, kCheckedLongjmp, kSetcontext };

volatile sig_atomic_t way_index = 0;
sigjmp_buf outside_of_call;
ucontext_t context_outside;
volatile sig_atomic_t jumps = 0;

void go() {
  jumps = jumps + 1;
  switch (static_cast<Way>(static_cast<int>(way_index))) {
    case Way::kSiglongjmp:
      siglongjmp(outside_of_call, 1);
    case Way::kLongjmp:
      longjmp(outside_of_call, 1);
    case Way::kOldLongjmp:
      _longjmp(outside_of_call, 1);
    case Way::kCheckedLongjmp:
      longjmp_checked(outside_of_call, 1);
    case Way::kSetcontext:
      setcontext(&context_outside);
  }
}

void jump_out(int) { go(); }

void handle(int signo, void (*handler)(int), int flags = 0) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signo, &action, nullptr);
}

void arm(int microseconds) {
  const itimerval timer{{0, 0}, {0, microseconds}};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

bool is_blocked(int signo) {
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signo) == 1;
}

void unblock(int signo) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, signo);
  ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
}

struct Call {
  const char* name;
  void (*wait)(int fd, int epoll);
};

char buffer[64];

constexpr std::size_t kMany = 200;  // more entries than a call has room for without memory

constexpr Call kReceiving[] = {
    {"recv", [](int fd, int) { ::recv(fd, buffer, sizeof buffer, 0); }},
    {"recv of all", [](int fd, int) { ::recv(fd, buffer, sizeof buffer, MSG_WAITALL); }},
    {"peek at all", [](int fd, int) { ::recv(fd, buffer, sizeof buffer, MSG_WAITALL | MSG_PEEK); }},
    {"read", [](int fd, int) { static_cast<void>(!::read(fd, buffer, sizeof buffer)); }},
    {"poll", [](int fd, int) { pollfd p{fd, POLLIN, 0}; ::poll(&p, 1, -1); }},
    {"poll of many",
     [](int fd, int) {
       std::array<pollfd, kMany> all;
       all.fill({-1, 0, 0});
       all[kMany / 2] = {fd, POLLIN, 0};
       ::poll(all.data(), all.size(), 100'000);
     }},
    {"select",
     [](int fd, int) {
       fd_set set;
       FD_ZERO(&set);
       FD_SET(fd, &set);
       ::select(fd + 1, &set, nullptr, nullptr, nullptr);
     }},
    {"epoll_wait", [](int, int epoll) { epoll_event event; ::epoll_wait(epoll, &event, 1, -1); }},
    {"epoll_pwait2",
     [](int, int epoll) {
       epoll_event event;
       const timespec timeout{100, 0};
       ::epoll_pwait2(epoll, &event, 1, &timeout, nullptr);
     }},
};

constexpr Call kSending[] = {
    {"send", [](int fd, int) { ::send(fd, buffer, sizeof buffer, MSG_NOSIGNAL); }},
    {"poll for room", [](int fd, int) { pollfd p{fd, POLLOUT, 0}; ::poll(&p, 1, -1); }},
};

// The call is left so often, at whatever moment the timer goes off.
void leave_often(const Call& call, int times, int fd, int epoll) {
  volatile int left = times;
  getcontext(&context_outside);
  sigsetjmp(outside_of_call, 1);
  unblock(SIGALRM);
  if (left == 0) return;
  const int in = 40 + 25 * (left % 16);
  left = left - 1;
  arm(in);
  call.wait(fd, epoll);
}

// KiB of the process' own memory, whichever allocator has it.
long allocated() {
  long data = -1;
  if (std::FILE* file = std::fopen("/proc/self/status", "re")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) std::sscanf(line, "VmData: %ld", &data);
    std::fclose(file);
  }
  return data;
}

template <std::size_t count>
void leave_each(Actor& a, const Call (&calls)[count], int times, int fd, int epoll) {
  for (const Call& call : calls) {
    leave_often(call, 4, fd, epoll);  // what is made once is made
    jumps = 0;
    const long before = allocated();
    leave_often(call, times, fd, epoll);
    a.log("%s: left %d times, %s", call.name, static_cast<int>(jumps),
          allocated() > before + 400 ? "memory is lost" : "nothing is lost");
  }
}

int instance_with(int fd) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {.fd = fd}};
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  return epoll;
}

// As ever.
void talk(Actor& a, int fd) {
  a.client([&] { a.send(fd, "ping"); });
  a.server([&] { a.recv(fd, 4); });
  a.server([&] { a.send(fd, "pong"); });
  a.client([&] { a.recv(fd, 4); });
}

// Until there is no room, and none will come.
void fill(int fd) {
  const std::string bytes = patterned(0, 100'000);
  for (;;) {
    tcp_info info{};
    socklen_t length = sizeof info;
    ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    bool room = false;
    while (::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) room = true;
    if (!room && info.tcpi_unacked == 0) return;
    ::sched_yield();
  }
}

void leave_receiving_calls(Actor& a) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] {
    way_index = static_cast<int>(Way::kSiglongjmp);
    handle(SIGALRM, jump_out);
    const int epoll = instance_with(fd);
    leave_each(a, kReceiving, 32, fd, epoll);
    ::close(epoll);
  });
  talk(a, fd);
  a.both([&] { a.close(fd); });
}

}  // namespace

SCENARIO(a_handler_jumps_out_of_calls_that_receive, kStaysOnChannel) {
  leave_receiving_calls(a);
}

SCENARIO(a_handler_jumps_out_of_calls_that_poll, kStaysOnChannel | kPolls) {
  leave_receiving_calls(a);
}

SCENARIO(a_handler_jumps_by_other_names, kStaysOnChannel) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] {
    handle(SIGALRM, jump_out);
    for (const Way by : {Way::kLongjmp, Way::kOldLongjmp, Way::kCheckedLongjmp, Way::kSetcontext}) {
      way_index = static_cast<int>(by);
      leave_often(kReceiving[0], 4, fd, -1);
    }
  });
  talk(a, fd);
}

SCENARIO(a_handler_jumps_out_of_calls_that_send, kStaysOnChannel) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] {
    way_index = static_cast<int>(Way::kSiglongjmp);
    handle(SIGALRM, jump_out);
    fill(fd);
    leave_each(a, kSending, 32, fd, -1);
    ::shutdown(fd, SHUT_WR);
  });
  a.server([&] {
    char taken[65536];
    while (::recv(fd, taken, sizeof taken, 0) > 0) {
    }
    a.send(fd, "pong");
  });
  a.client([&] { a.recv(fd, 4); });
  a.both([&] { a.close(fd); });
}

// The mask of signals stays what it was in the handler.
SCENARIO(a_jump_that_saved_no_mask_leaves_the_signal_blocked, kStaysOnChannel) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] {
    way_index = static_cast<int>(Way::kLongjmp);
    handle(SIGALRM, jump_out);
    for (const Call& call : kReceiving) {
      const int epoll = instance_with(fd);
      if (sigsetjmp(outside_of_call, 0) == 0) {
        arm(1000);
        call.wait(fd, epoll);
      }
      a.log("%s: blocked %d", call.name, is_blocked(SIGALRM));
      unblock(SIGALRM);
      ::close(epoll);
    }
  });
  talk(a, fd);
}

SCENARIO(a_jump_leaves_the_threads_way_to_be_cancelled, kStaysOnChannel) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] {
    way_index = static_cast<int>(Way::kSiglongjmp);
    handle(SIGALRM, jump_out);
    for (const Call& call : kReceiving) {
      const int epoll = instance_with(fd);
      if (sigsetjmp(outside_of_call, 1) == 0) {
        arm(1000);
        call.wait(fd, epoll);
      }
      int type = -1;
      ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
      a.log("%s: %s", call.name, type == PTHREAD_CANCEL_DEFERRED ? "deferred" : "at any time");
      ::close(epoll);
    }
  });
  talk(a, fd);
}

SCENARIO(a_handler_jumps_from_another_stack, kStaysOnChannel) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] {
    way_index = static_cast<int>(Way::kSiglongjmp);
    static char memory[64 * 1024];
    const stack_t other{memory, 0, sizeof memory};
    ::sigaltstack(&other, nullptr);
    handle(SIGALRM, jump_out, SA_ONSTACK);
    const int epoll = instance_with(fd);
    leave_each(a, kReceiving, 8, fd, epoll);
    ::close(epoll);
    const stack_t none{nullptr, SS_DISABLE, 0};
    ::sigaltstack(&none, nullptr);
  });
  talk(a, fd);
}

namespace {

int inner_fd = -1;
volatile sig_atomic_t inner_jumps = 0;
sigjmp_buf inside_of_handler;

void jump_inside(int) {
  inner_jumps = inner_jumps + 1;
  siglongjmp(inside_of_handler, 1);
}

// Waits itself, and is left for a place within itself.
void wait_inside(int) {
  if (sigsetjmp(inside_of_handler, 1) == 0) {
    arm(1000);
    ::recv(inner_fd, buffer, sizeof buffer, 0);
  }
  if (inner_jumps == 2) siglongjmp(outside_of_call, 1);
}

void jump_far(int) { siglongjmp(outside_of_call, 1); }

// Waits itself, and is left together with the call that it has interrupted.
void wait_for_jump(int) {
  arm(1000);
  ::recv(inner_fd, buffer, sizeof buffer, 0);
}

}  // namespace

SCENARIO(a_jump_within_a_handler_leaves_the_interrupted_call_alone, kStaysOnChannel) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] {
    inner_fd = fd;
    inner_jumps = 0;
    handle(SIGUSR1, wait_inside);
    handle(SIGALRM, jump_inside);
    Thread sleeper(a, [&] {
      sigsetjmp(outside_of_call, 1);
      if (inner_jumps < 2) {
        const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
        a.log("%zd %s, %d jumps", n,
              n < 0 ? std::strerror(errno) : "", static_cast<int>(inner_jumps));
        ::recv(fd, buffer, sizeof buffer, 0);
      }
      a.log("out, %d jumps", static_cast<int>(inner_jumps));
    });
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    ::pthread_sigmask(SIG_BLOCK, &alarms, nullptr);  // they are the sleeper's
    sleeper.wait_asleep();
    sleeper.signal(SIGUSR1);
    while (inner_jumps < 1) ::sched_yield();
    sleeper.wait_asleep();
    sleeper.signal(SIGUSR1);
    sleeper.join();
    ::pthread_sigmask(SIG_UNBLOCK, &alarms, nullptr);
  });
  talk(a, fd);
}

SCENARIO(a_jump_leaves_a_handlers_call_and_the_one_below, kStaysOnChannel) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] {
    inner_fd = fd;
    handle(SIGUSR1, wait_for_jump);
    handle(SIGALRM, jump_far);
    volatile int left = 20;
    sigsetjmp(outside_of_call, 1);
    if (left > 0) {
      left = left - 1;
      sigset_t none;
      sigemptyset(&none);
      pollfd p{fd, POLLIN, 0};
      ::raise(SIGUSR1);  // at once, and then in the sleep
      const timespec timeout{100, 0};
      ::ppoll(&p, 1, &timeout, &none);
    }
    a.log("out of both");
  });
  talk(a, fd);
}

// Some connections are left while they are made.
SCENARIO(a_handler_jumps_out_of_connect, 0) {
  const int fd = a.stream();
  talk(a, fd);
  constexpr int kConnections = 40;
  if (a.is_client()) {
    way_index = static_cast<int>(Way::kSiglongjmp);
    handle(SIGALRM, jump_out);
    volatile int left = kConnections;
    static volatile int socket_fd = -1;
    sigsetjmp(outside_of_call, 1);
    if (socket_fd >= 0) ::close(socket_fd);
    socket_fd = -1;
    if (left > 0) {
      left = left - 1;
      socket_fd = ::socket(AF_INET, SOCK_STREAM, 0);
      socklen_t length = 0;
      const sockaddr_storage to = a.address(AF_INET, length);
      arm(30 + 20 * (left % 20));
      ::connect(socket_fd, reinterpret_cast<const sockaddr*>(&to), length);
      ::recv(socket_fd, buffer, sizeof buffer, 0);
    }
    arm(0);
  }
  a.sync();
  talk(a, fd);
  a.both([&] { a.close(fd); });
}

SCENARIO(a_thread_ends_after_jumps, kStaysOnChannel) {
  const int fd = a.stream();
  talk(a, fd);
  a.client([&] {
    way_index = static_cast<int>(Way::kSiglongjmp);
    handle(SIGALRM, jump_out);
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    ::pthread_sigmask(SIG_BLOCK, &alarms, nullptr);
    for (int i = 0; i < 10; ++i) {
      Thread sleeper(a, [&] { leave_often(kReceiving[0], 4, fd, -1); });
      sleeper.join();
    }
    ::pthread_sigmask(SIG_UNBLOCK, &alarms, nullptr);
  });
  talk(a, fd);
  a.both([&] { a.close(fd); });
}

}  // namespace ringroad::test
