// Calls that a signal interrupts.
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/settling.h"

namespace ringroad::test {
namespace {

// A thread sleeps in `call` and is signalled; `restarts`: it is expected to sleep on, and is let go
// by the peer's `release`.
void interrupt(Actor& a, bool restart_handler, bool restarts, const std::function<void(int)>& call,
               const std::function<void(int)>& release) {
  const int fd = a.stream();
  if (a.is_server()) {
    count_signal(SIGUSR1, restart_handler);
    Thread sleeper(a, [&] { call(fd); });
    sleeper.wait_asleep();
    sleeper.signal(SIGUSR1);
    if (restarts) {
      sleeper.wait_asleep();
      a.sync();
    }
    sleeper.join();
    a.log("%d signals", signals_seen());
    if (!restarts) a.sync();
  } else {
    a.sync();
    release(fd);
  }
  a.sync();
}

void empty(int fd) {
  char buffer[65536];
  while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
  }
}

std::atomic<int> handler_fd{-1};
std::atomic<int> handler_sent{0};

void send_from_handler(int) {
  const int saved = errno;
  if (::send(handler_fd.load(), "H", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) handler_sent.fetch_add(1);
  errno = saved;
}

}  // namespace

// As interrupt(), of a thread that cannot be seen to sleep: a timer goes off while it polls, and
// once more should that not have ended the call.
void interrupt_who_polls(Actor& a, const std::function<void(int)>& call) {
  const int fd = a.stream();
  // A message, so that it may pay to poll for the next.
  a.client([&] { a.send(fd, "first"); });
  a.server([&] {
    a.recv(fd, 5);
    count_signal(SIGALRM, false);
    a.timed(50, [&] {
      const itimerval timer{{2, 0}, {0, 50'000}};
      ::setitimer(ITIMER_REAL, &timer, nullptr);
      call(fd);
    });
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    a.log("signals: %s", signals_seen() > 0 ? "yes" : "no");
  });
}

SCENARIO(a_signal_interrupts_recv, kStaysOnChannel) {
  interrupt(a, false, false, [&](int fd) { a.recv(fd, 10); }, [&](int fd) { a.send(fd, "late"); });
}

// A signal from before the first byte is over when a later wait begins.
SCENARIO(a_restarted_recv_waits_for_all_that_was_asked, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    count_signal(SIGUSR1, true);
    Thread sleeper(a, [&] { a.recv(fd, 10, MSG_WAITALL); });
    sleeper.wait_asleep();
    sleeper.signal(SIGUSR1);
    sleeper.wait_asleep();
    a.sync();
    sleeper.wait_asleep();
    a.sync();
    sleeper.join();
    a.log("%d signals", signals_seen());
  } else {
    a.sync();
    a.send(fd, "01234");
    a.sync();
    a.send(fd, "56789");
  }
  a.sync();
}

SCENARIO(a_signal_interrupts_recv_that_polls, kStaysOnChannel | kPolls) {
  interrupt_who_polls(a, [&](int fd) { a.recv(fd, 10); });
}

SCENARIO(a_signal_interrupts_poll_that_polls, kStaysOnChannel | kPolls) {
  interrupt_who_polls(a, [&](int fd) { a.poll(fd, POLLIN, -1); });
}

SCENARIO(a_signal_interrupts_epoll_wait_that_polls, kStaysOnChannel | kPolls) {
  interrupt_who_polls(a, [&](int fd) {
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN, {.fd = fd}};
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    const int found = ::epoll_wait(epoll, &event, 1, -1);
    a.log("epoll_wait = %d %s", found, found < 0 ? std::strerror(errno) : "");
    ::close(epoll);
  });
}

// `wait` with a mask of signals, of a rule that lets it poll for longer than the peer waits before
// it sends: while the program says nothing more.
void wait_with_mask(Actor& a, const std::function<void(int)>& wait) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "first"); });
  a.server([&] { a.recv(fd, 5); });
  if (a.is_server()) {
    ::send(fd, "begun", 5, 0);
    wait(fd);
    ::send(fd, "over", 4, 0);
  } else {
    char heard[16];
    ::recv(fd, heard, 5, MSG_WAITALL);
    pollfd over{fd, POLLIN, 0};
    if (::poll(&over, 1, 300) == 0) ::send(fd, "late", 4, 0);
    ::recv(fd, heard, 4, MSG_WAITALL);
  }
  a.sync();
}

sigset_t only(int signo) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signo);
  return set;
}

// What the thread blocks comes first, as soon as the wait's mask opens it.
void wait_with_one_opened(Actor& a, const std::function<int(int, const sigset_t*)>& wait) {
  wait_with_mask(a, [&](int fd) {
    const sigset_t alarm = only(SIGALRM);
    count_signal(SIGALRM, false);
    ::sigprocmask(SIG_BLOCK, &alarm, nullptr);
    ::raise(SIGALRM);
    sigset_t none;
    ::sigemptyset(&none);
    a.result("wait", wait(fd, &none));
    a.log("%d signals", signals_seen());
  });
}

// And also where it comes after the wait has begun.
void wait_with_one_opened_that_comes_later(Actor& a, const std::function<int(int, const sigset_t*)>& wait) {
  wait_with_mask(a, [&](int fd) {
    const sigset_t alarm = only(SIGALRM);
    count_signal(SIGALRM, false);
    ::sigprocmask(SIG_BLOCK, &alarm, nullptr);
    const itimerval timer{{0, 0}, {0, 20'000}};
    ::setitimer(ITIMER_REAL, &timer, nullptr);
    sigset_t none;
    ::sigemptyset(&none);
    a.result("wait", wait(fd, &none));
    a.log("%d signals", signals_seen());
  });
}

// What the wait's mask blocks does not end it, and comes afterwards.
void wait_with_one_blocked(Actor& a, const std::function<int(int, const sigset_t*)>& wait) {
  wait_with_mask(a, [&](int fd) {
    const sigset_t alarm = only(SIGALRM);
    count_signal(SIGALRM, false);
    const itimerval timer{{0, 0}, {0, 1'000}};
    ::setitimer(ITIMER_REAL, &timer, nullptr);
    a.result("wait", wait(fd, &alarm));
    a.log("%d signals", signals_seen());
  });
}

int wait_in_ppoll(int fd, const sigset_t* mask) {
  pollfd set{fd, POLLIN, 0};
  return ::ppoll(&set, 1, nullptr, mask);
}

int wait_in_pselect(int fd, const sigset_t* mask) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  return ::pselect(fd + 1, &set, nullptr, nullptr, nullptr, mask);
}

int wait_in_epoll_pwait(int fd, const sigset_t* mask) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {.fd = fd}};
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  const int found = ::epoll_pwait(epoll, &event, 1, -1, mask);
  const int saved = errno;
  ::close(epoll);
  errno = saved;
  return found;
}

SCENARIO(a_signal_that_only_ppoll_opens_comes_first, kStaysOnChannel | kPolls) {
  wait_with_one_opened(a, wait_in_ppoll);
}

SCENARIO(a_signal_that_only_pselect_opens_comes_first, kStaysOnChannel | kPolls) {
  wait_with_one_opened(a, wait_in_pselect);
}

SCENARIO(a_signal_that_only_epoll_pwait_opens_comes_first, kStaysOnChannel | kPolls) {
  wait_with_one_opened(a, wait_in_epoll_pwait);
}

SCENARIO(a_signal_that_only_ppoll_opens_comes_while_it_waits, kStaysOnChannel | kPolls) {
  wait_with_one_opened_that_comes_later(a, wait_in_ppoll);
}

SCENARIO(a_signal_that_only_pselect_opens_comes_while_it_waits, kStaysOnChannel | kPolls) {
  wait_with_one_opened_that_comes_later(a, wait_in_pselect);
}

SCENARIO(a_signal_interrupts_ppoll_that_polls_with_the_threads_mask, kStaysOnChannel | kPolls) {
  interrupt_who_polls(a, [&](int fd) {
    sigset_t own;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &own);
    a.result("ppoll", wait_in_ppoll(fd, &own));
  });
}

SCENARIO(a_signal_that_ppoll_blocks_comes_afterwards, kStaysOnChannel | kPolls) {
  wait_with_one_blocked(a, wait_in_ppoll);
}

SCENARIO(a_signal_that_epoll_pwait_blocks_comes_afterwards, kStaysOnChannel | kPolls) {
  wait_with_one_blocked(a, wait_in_epoll_pwait);
}

// SA_RESETHAND: the library does not see it run.
SCENARIO(a_handler_that_runs_once_interrupts_poll_that_polls, kStaysOnChannel | kPolls) {
  interrupt_who_polls(a, [&](int fd) {
    ::__sysv_signal(SIGALRM, [](int) {});
    a.poll(fd, POLLIN, -1);
    count_signal(SIGALRM, false);
  });
}

SCENARIO(a_poll_that_may_poll_tells_of_an_end_at_once, kStaysOnChannel | kPolls) {
  const int fd = a.stream();
  a.client([&] {
    a.send(fd, "first");
    a.shutdown(fd, SHUT_WR);
  });
  a.server([&] {
    a.recv(fd, 5);
    a.recv(fd, 5);
    a.timed(0, [&] {
      for (const int events : {POLLIN, POLLIN, POLLIN, POLLIN | POLLRDHUP}) {
        a.poll(fd, static_cast<short>(events), -1);
      }
    });
  });
}

SCENARIO(recv_restarts_after_a_signal, kStaysOnChannel) {
  interrupt(a, true, true, [&](int fd) { a.recv(fd, 10); }, [&](int fd) { a.send(fd, "woken"); });
}

SCENARIO(read_restarts_after_a_signal, kStaysOnChannel) {
  interrupt(a, true, true, [&](int fd) { a.read(fd, 10); }, [&](int fd) { a.send(fd, "woken"); });
}

SCENARIO(a_signal_interrupts_a_timed_recv, kStaysOnChannel) {
  // With a time-out set the kernel does not restart, whatever the handler asks for.
  interrupt(a, true, false,
            [&](int fd) {
              a.set_timeout(fd, SO_RCVTIMEO, 20'000);
              a.recv(fd, 10);
            },
            [&](int fd) { a.send(fd, "late"); });
}

SCENARIO(a_signal_interrupts_send, kStaysOnChannel) {
  interrupt(a, false, false,
            [&](int fd) {
              a.keep_full_ring(fd);
              fill(fd);
              a.send(fd, "no room");
              ::shutdown(fd, SHUT_WR);
            },
            [&](int fd) { empty(fd); });
}

SCENARIO(send_restarts_after_a_signal, kStaysOnChannel) {
  interrupt(a, true, true,
            [&](int fd) {
              a.keep_full_ring(fd);
              fill(fd);
              a.send(fd, "at last");
              ::shutdown(fd, SHUT_WR);
            },
            [&](int fd) { empty(fd); });
}

SCENARIO(a_signal_cuts_a_long_send_short, kStaysOnChannel) {
  const std::string bytes = patterned(0, 16 << 20);
  interrupt(a, true, false,
            [&](int fd) {
              a.keep_full_ring(fd);
              const ssize_t n = ::send(fd, bytes.data(), bytes.size(), 0);
              a.log("a part was sent: %d", n > 0 && n < static_cast<ssize_t>(bytes.size()));
              ::shutdown(fd, SHUT_WR);
            },
            [&](int fd) { empty(fd); });
}

SCENARIO(a_signal_interrupts_poll, kStaysOnChannel) {
  interrupt(a, true, false, [&](int fd) { a.poll(fd, POLLIN, -1); },
            [&](int fd) { a.send(fd, "late"); });
}

SCENARIO(a_signal_interrupts_a_timed_poll, kStaysOnChannel) {
  interrupt(a, false, false, [&](int fd) { a.poll(fd, POLLIN, 20'000); },
            [&](int fd) { a.send(fd, "late"); });
}

SCENARIO(a_signal_cuts_waitall_short, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "abc"); });
  if (a.is_server()) {
    count_signal(SIGUSR1, true);
    a.settle(fd, POLLIN, POLLIN);
    Thread sleeper(a, [&] { a.recv(fd, 10, MSG_WAITALL); });
    sleeper.wait_asleep();
    sleeper.signal(SIGUSR1);
    sleeper.join();
    a.log("%d signals", signals_seen());
  }
  a.sync();
}

SCENARIO(an_ignored_signal_disturbs_nobody, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    signal(SIGUSR2, SIG_IGN);
    Thread sleeper(a, [&] { a.recv(fd, 10); });
    Thread poller(a, [&] { a.poll(fd, POLLPRI, 300); });
    sleeper.wait_asleep();
    poller.wait_asleep();
    sleeper.signal(SIGUSR2);
    poller.signal(SIGUSR2);
    sleeper.wait_asleep();
    a.sync();
    sleeper.join();
    poller.join();
  } else {
    a.sync();
    a.send(fd, "quiet");
  }
  a.sync();
}

SCENARIO(another_signals_handler_does_not_matter, kStaysOnChannel) {
  // One handler asks for a restart, another, which never runs, does not.
  const int fd = a.stream();
  if (a.is_server()) {
    count_signal(SIGUSR2, false);
    count_signal(SIGUSR1, true);
    Thread sleeper(a, [&] { a.recv(fd, 10); });
    sleeper.wait_asleep();
    sleeper.signal(SIGUSR1);
    sleeper.wait_asleep();
    a.sync();
    sleeper.join();
  } else {
    a.sync();
    a.send(fd, "woken");
  }
  a.sync();
}

SCENARIO(a_crash_handler_does_not_matter, kStaysOnChannel) {
  // As database servers install them.
  const int fd = a.stream();
  if (a.is_server()) {
    for (const int signo : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) count_signal(signo, false);
    count_signal(SIGUSR1, true);
    Thread sleeper(a, [&] { a.recv(fd, 10); });
    sleeper.wait_asleep();
    sleeper.signal(SIGUSR1);
    sleeper.wait_asleep();
    a.sync();
    sleeper.join();
  } else {
    a.sync();
    a.send(fd, "woken");
  }
  a.sync();
}

SCENARIO(a_handler_sends_on_the_same_stream, kStaysOnChannel) {
  // send(2) is safe in a signal handler, also while the same thread is inside it.
  const int fd = a.stream();
  if (a.is_client()) {
    handler_fd.store(fd);
    handler_sent.store(0);
    struct sigaction action {};
    action.sa_handler = send_from_handler;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    const itimerval every{{0, 50}, {0, 50}};
    setitimer(ITIMER_REAL, &every, nullptr);
    for (int i = 0; i < 50'000; ++i) {
      while (::send(fd, "m", 1, MSG_NOSIGNAL) < 0 && errno == EINTR) {
      }
    }
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    signal(SIGALRM, SIG_IGN);
    a.log("the handler ran: %d", handler_sent.load() > 0);
    const std::string total = "." + std::to_string(handler_sent.load());
    ::send(fd, total.data(), total.size(), 0);
    a.shutdown(fd, SHUT_WR);
  } else {
    int own = 0;
    int handlers = 0;
    std::string total;
    char buffer[4096];
    ssize_t n;
    while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
      for (ssize_t i = 0; i < n; ++i) {
        if (buffer[i] == 'm') ++own;
        else if (buffer[i] == 'H') ++handlers;
        else total += buffer[i];
      }
    }
    a.log("%d own, the handler's as sent: %d", own, total == "." + std::to_string(handlers));
  }
  a.sync();
}

SCENARIO(signals_rain_on_a_transfer, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    count_signal(SIGALRM, true);
    const itimerval every{{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &every, nullptr);
    a.send_pattern(fd, 0, 8 << 20, 40'000);
    a.recv_pattern(fd, 0, 8 << 20, 40'000);
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    a.log("signals came: %d", signals_seen() > 0);
    signal(SIGALRM, SIG_IGN);
  } else {
    a.recv_pattern(fd, 0, 8 << 20, 40'000);
    a.send_pattern(fd, 0, 8 << 20, 40'000);
  }
  a.sync();
}

}  // namespace ringroad::test
