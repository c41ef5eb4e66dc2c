// Handlers of signals, as the program that installs them sees them.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/settling.h"

#pragma GCC diagnostic ignored \
    "-Wdeprecated-declarations"  // sigset(3) and siginterrupt(3), in use still

namespace ringroad::test {
namespace {

void one(int) {}
void other(int) {}
void informed(int, siginfo_t*, void*) {}

const char* name_of(const struct sigaction& action) {
  if ((action.sa_flags & SA_SIGINFO) != 0)
    return action.sa_sigaction == informed ? "informed" : "?";
  return action.sa_handler == one       ? "one"
         : action.sa_handler == other   ? "other"
         : action.sa_handler == SIG_DFL ? "default"
         : action.sa_handler == SIG_IGN ? "ignored"
                                        : "?";
}

void log_installed(Actor& a, const char* what, const struct sigaction& action) {
  a.log("%s: %s, flags %x, %s", what, name_of(action),
        static_cast<unsigned>(action.sa_flags) & ~0x04000000U,  // SA_RESTORER is libc's business
        sigismember(&action.sa_mask, SIGUSR2) == 1 ? "masks SIGUSR2" : "masks nothing");
}

void ask(Actor& a, int signo) {
  struct sigaction action {};
  a.result("sigaction", sigaction(signo, nullptr, &action));
  log_installed(a, "asked", action);
}

void replace(Actor& a, int signo, const struct sigaction& action) {
  struct sigaction old {};
  a.result("sigaction", sigaction(signo, &action, &old));
  log_installed(a, "replaced", old);
}

std::atomic<long> sum{0};
std::atomic<int> count{0};
std::atomic<int> talking{-1};

void add_value(int, siginfo_t* info, void*) {
  sum.fetch_add(info->si_value.sival_int);
  count.fetch_add(1);
}

// What programs do in a handler that is to end the call which it interrupts, though that is made anew.
enum class End : std::uint8_t { kClose, kOtherFile, kNonBlocking, kByRequest, kTimeOut };
std::atomic<End> ends_by{End::kClose};
std::atomic<int> in_call{-1};
std::atomic<int> other_file{-1};

void end_call(int) {
  const int saved = errno;
  const int fd = in_call.load();
  const timeval soon{0, 50'000};
  int on = 1;
  switch (ends_by.load()) {
    case End::kClose:
      ::close(fd);
      break;
    case End::kOtherFile:
      ::dup2(other_file.load(), fd);
      break;
    case End::kNonBlocking:
      ::fcntl(fd, F_SETFL, O_NONBLOCK);
      break;
    case End::kByRequest:
      ::ioctl(fd, FIONBIO, &on);
      break;
    case End::kTimeOut:
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
      ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
      break;
  }
  errno = saved;
}

// A call of the server's is ended so, in each of these ways.
void end_calls(Actor& a, const std::function<void(int)>& begin, const std::function<void(int)>& call) {
  int ended[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ended) != 0) return;
  ::close(ended[1]);
  other_file = ended[0];
  for (const End how : {End::kClose, End::kOtherFile, End::kNonBlocking, End::kByRequest, End::kTimeOut}) {
    const int fd = a.stream();
    if (a.is_server()) {
      begin(fd);
      struct sigaction action {};
      action.sa_handler = end_call;
      action.sa_flags = SA_RESTART;
      sigaction(SIGUSR1, &action, nullptr);
      ends_by = how;
      in_call = fd;
      Thread sleeper(a, [&] { call(fd); });
      sleeper.wait_asleep();
      sleeper.signal(SIGUSR1);
      sleeper.join();
      if (how != End::kClose) a.close(fd);
    }
    a.sync();
  }
}

void leave_no_room(Actor& a, int fd) {
  a.keep_full_ring(fd);
  fill_for_long(fd);
}

void say_goodbye(int) {
  ::send(talking.load(), "goodbye", 7, MSG_NOSIGNAL);
  ::_exit(0);
}

}  // namespace

SCENARIO(handlers_are_told_as_they_were_installed, kStaysOnChannel) {
  a.stream();
  a.both([&] {
    struct sigaction action {};
    action.sa_handler = one;
    action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
    sigaddset(&action.sa_mask, SIGUSR2);
    replace(a, SIGUSR1, action);
    ask(a, SIGUSR1);
    action.sa_sigaction = informed;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    replace(a, SIGUSR1, action);
    ask(a, SIGUSR1);
    action.sa_handler = other;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    replace(a, SIGUSR1, action);
    ask(a, SIGUSR1);
    ::raise(SIGUSR1);
    ask(a, SIGUSR1);
    for (const int signo : {SIGUSR1, SIGSEGV, SIGRTMIN + 1, SIGKILL, 0, 65}) {
      action.sa_handler = one;
      action.sa_flags = 0;
      replace(a, signo, action);
    }
    ask(a, SIGKILL);
    ask(a, SIGRTMIN + 1);
  });
}

SCENARIO(older_calls_install_handlers_too, kStaysOnChannel) {
  a.stream();
  a.both([&] {
    a.log("%d", ::signal(SIGUSR1, one) == SIG_DFL);
    ask(a, SIGUSR1);
    a.log("%d", ::signal(SIGUSR1, other) == one);
    a.log("%d", ::ssignal(SIGUSR1, one) == other);
    a.log("%d", ::sigset(SIGUSR1, other) == one);
    ask(a, SIGUSR1);
    a.log("%d", ::sigset(SIGUSR1, SIG_HOLD) == other);
    a.log("%d", ::sigset(SIGUSR1, one) == SIG_HOLD);
    a.log("%d", ::sysv_signal(SIGUSR1, other) == one);
    ask(a, SIGUSR1);
    ::raise(SIGUSR1);
    ask(a, SIGUSR1);
    a.log("%d", ::signal(SIGUSR1, one) == SIG_DFL);
    a.result("siginterrupt", ::siginterrupt(SIGUSR1, 1));
    ask(a, SIGUSR1);
    a.result("siginterrupt", ::siginterrupt(SIGUSR1, 0));
    ask(a, SIGUSR1);
    a.log("%d", ::signal(SIGUSR1, SIG_IGN) == one);
    ask(a, SIGUSR1);
    a.log("%d", ::signal(SIGKILL, one) == SIG_ERR && errno == EINVAL);
  });
}

SCENARIO(what_interrupts_is_decided_by_siginterrupt, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    ::signal(SIGUSR1, one);
    ::siginterrupt(SIGUSR1, 1);
    Thread sleeper(a, [&] { a.recv(fd, 10); });
    sleeper.wait_asleep();
    sleeper.signal(SIGUSR1);
    sleeper.join();
  }
  a.sync();
  a.client([&] { a.send(fd, "late"); });
}

SCENARIO(queued_signals_keep_their_values_during_a_transfer, kStaysOnChannel) {
  const int fd = a.stream();
  constexpr int kSignals = 20'000;
  if (a.is_client()) {
    sum.store(0);
    count.store(0);
    struct sigaction action {};
    action.sa_sigaction = add_value;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGRTMIN, &action, nullptr);
    const pthread_t sender = ::pthread_self();
    Thread signaller(a, [sender] {
      for (int i = 1; i <= kSignals; ++i) {
        while (::pthread_sigqueue(sender, SIGRTMIN, sigval{i}) != 0) {
        }
      }
    });
    while (count.load() < kSignals) ::send(fd, "m", 1, MSG_NOSIGNAL);
    signaller.join();
    a.log("%d signals, their sum %ld", count.load(), sum.load());
    a.shutdown(fd, SHUT_WR);
    a.recv(fd, 1);
  } else {
    char buffer[4096];
    ssize_t n;
    while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
    }
    a.result("recv", n);
    a.close(fd);
  }
}

SCENARIO(a_forked_child_runs_its_handlers, kComesBack) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.recv(fd, 1); });
  a.both([&] {
    count_signal(SIGUSR1, true);
    const pid_t child = ::fork();
    if (child == 0) {
      ::raise(SIGUSR1);
      ::close(fd);
      ::raise(SIGUSR1);
      ::_exit(signals_seen());
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    a.log("the child's signals: %d, ours: %d", WEXITSTATUS(status), signals_seen());
  });
}

SCENARIO(a_handler_says_goodbye_and_ends_the_process, kEndsItself) {
  // As PostgreSQL's, at an immediate shutdown.
  const int fd = a.stream();
  if (a.is_client()) {
    talking.store(fd);
    ::signal(SIGALRM, say_goodbye);
    const itimerval once{{0, 0}, {0, 30'000}};
    setitimer(ITIMER_REAL, &once, nullptr);
    for (;;) ::send(fd, "m", 1, MSG_NOSIGNAL);
  }
  std::string last;
  char buffer[4096];
  ssize_t n;
  while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
    last.append(buffer, static_cast<std::size_t>(n));
    if (last.size() > 7) last.erase(0, last.size() - 7);
  }
  a.result("recv", n);
  a.log("the last of it: %s", last.c_str());
}

SCENARIO(a_restarted_recv_finds_what_the_handler_has_done, kStaysOnChannel) {
  end_calls(a, [](int) {}, [&](int fd) { a.recv(fd, 4); });
}

SCENARIO(a_restarted_read_finds_what_the_handler_has_done, kStaysOnChannel) {
  end_calls(a, [](int) {}, [&](int fd) { a.read(fd, 4); });
}

SCENARIO(a_restarted_peek_finds_what_the_handler_has_done, kStaysOnChannel) {
  end_calls(a, [](int) {}, [&](int fd) { a.recv(fd, 4, MSG_PEEK | MSG_WAITALL); });
}

SCENARIO(a_restarted_send_finds_what_the_handler_has_done, kStaysOnChannel) {
  end_calls(a, [&](int fd) { leave_no_room(a, fd); }, [&](int fd) { a.send(fd, "no room"); });
}

SCENARIO(a_restarted_sendfile_finds_what_the_handler_has_done, kStaysOnChannel) {
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  end_calls(a, [&](int fd) { leave_no_room(a, fd); }, [&](int fd) {
    off_t at = 0;
    a.result("sendfile", ::sendfile(fd, file, &at, 100));
  });
}

}  // namespace ringroad::test
