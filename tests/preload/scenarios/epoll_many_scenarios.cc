// epoll over a channel: instances of several streams, of several threads and processes.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/epoll_calls.h"

namespace ringroad::test {

SCENARIO(epoll_is_fair_to_all_when_one_event_is_taken_at_a_time, 0) {
  const auto fds = streams(a, 4);
  int events[2] = {-1, -1};
  const int epoll = make();
  a.client([&] { for (const int fd : fds) a.send(fd, "x"); });
  a.server([&] {
    for (std::size_t i = 0; i < fds.size(); ++i) {
      a.settle(fds[i], POLLIN, POLLIN);
      add(a, epoll, fds[i], EPOLLIN, i);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      events[i] = ::eventfd(1, EFD_CLOEXEC);
      add(a, epoll, events[i], EPOLLIN, fds.size() + i);
    }
    int counts[6] = {};
    for (int i = 0; i < 600; ++i) {
      epoll_event event{};
      if (::epoll_wait(epoll, &event, 1, 0) == 1 && event.data.u64 < 6) ++counts[event.data.u64];
    }
    for (const int count : counts) a.log("its share %d", count >= 50 && count <= 200);
  });
}

SCENARIO(epoll_reports_no_more_than_asked_and_loses_none, kStaysOnChannel) {
  const auto fds = streams(a, 6);
  const int epoll = make();
  a.server([&] {
    for (std::size_t i = 0; i < fds.size(); ++i) add(a, epoll, fds[i], EPOLLIN | EPOLLET, i);
    wait(a, epoll, 0);
  });
  a.client([&] { for (const int fd : fds) a.send(fd, "x"); });
  a.server([&] {
    for (const int fd : fds) a.settle(fd, POLLIN, POLLIN);
    int seen = 0;
    unsigned which = 0;
    for (int i = 0; i < 3; ++i) {
      epoll_event events[2];
      const int n = ::epoll_wait(epoll, events, 2, kSoon);
      seen += n;
      for (int k = 0; k < n; ++k) which |= 1U << events[k].data.u64;
    }
    a.log("seen %d, which %x", seen, which);
    wait(a, epoll, 0);
  });
}

SCENARIO(epoll_one_event_at_a_time_is_one_if_there_is_any, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  int pipes[2] = {-1, -1};
  a.server([&] {
    a.result("pipe", ::pipe2(pipes, O_CLOEXEC));
    add(a, epoll, fd, EPOLLIN, 1);
    add(a, epoll, pipes[0], EPOLLIN, 2);
    wait(a, epoll, 0, 1);
  });
  for (int i = 0; i < 4; ++i) {
    a.client([&] { a.send(fd, "x"); });
    a.server([&] {
      a.recv(fd, 1);  // there was news, and there is none any more
      a.result("pipe write", ::write(pipes[1], "p", 1));
      wait(a, epoll, 0, 1);
      char byte;
      a.result("pipe read", ::read(pipes[0], &byte, 1));
      wait(a, epoll, 0, 1);
    });
  }
}

SCENARIO(epoll_mixes_streams_with_what_is_the_kernels, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  const int other = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int pipes[2] = {-1, -1};
  a.server([&] {
    a.result("pipe", ::pipe(pipes));
    add(a, epoll, other, EPOLLIN | EPOLLET, 1);
    add(a, epoll, fd, EPOLLIN, 2);
    add(a, epoll, pipes[0], EPOLLIN, 3);
    wait(a, epoll, 0);
    const std::uint64_t one = 1;
    a.result("event", ::write(other, &one, sizeof one));
    wait(a, epoll, kSoon);
    wait(a, epoll, 0);
    modify(a, epoll, other, EPOLLIN | EPOLLET, 4);  // of a readable one: it is reported again
    wait(a, epoll, kSoon);
    a.result("pipe write", ::write(pipes[1], "p", 1));
    wait(a, epoll, kSoon);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); wait(a, epoll, kSoon); });
}

SCENARIO(epoll_times_out_when_it_should, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLIN);
    a.timed(0, [&] { wait(a, epoll, 0); });
    a.timed(150, [&] { wait(a, epoll, 150); });
    epoll_event events[2];
    const timespec timeout{0, 120'000'000};
    a.timed(120, [&] { a.result("pwait2", ::epoll_pwait2(epoll, events, 2, &timeout, nullptr)); });
    const timespec wrong{0, 1'000'000'000};
    a.result("pwait2", ::epoll_pwait2(epoll, events, 2, &wrong, nullptr));
  });
}

SCENARIO(epoll_a_signal_interrupts, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    count_signal(SIGUSR1, true);  // SA_RESTART changes nothing: signal(7)
    add(a, epoll, fd, EPOLLIN);
    Thread waiter(a, [&] { wait(a, epoll, 5000); });
    waiter.wait_asleep();
    waiter.signal(SIGUSR1);
    waiter.join();
    a.log("signals %d", signals_seen());
  });
}

SCENARIO(epoll_pwait_has_its_mask_while_it_waits, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    count_signal(SIGUSR1, false);
    add(a, epoll, fd, EPOLLIN);
    sigset_t blocked;
    sigset_t none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    ::raise(SIGUSR1);
    a.log("signals %d", signals_seen());
    epoll_event events[2];
    a.result("pwait", ::epoll_pwait(epoll, events, 2, 1000, &none));
    a.log("signals %d", signals_seen());
    ::raise(SIGUSR1);
    a.result("pwait", ::epoll_pwait(epoll, events, 2, 20, &blocked));
    a.log("signals %d", signals_seen());
    pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  });
}

SCENARIO(epoll_many_threads_on_one_instance, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  constexpr int kThreads = 4;
  std::atomic<int> woken{0};
  std::vector<Thread> threads;
  a.server([&] {
    add(a, epoll, fd, EPOLLIN | EPOLLET | EPOLLONESHOT);
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back(a, [&] {
        epoll_event event{};
        if (::epoll_wait(epoll, &event, 1, 600) == 1) ++woken;
      });
    }
    for (Thread& thread : threads) thread.wait_asleep();
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    for (Thread& thread : threads) thread.join();
    a.log("woken %d", woken.load());
    modify(a, epoll, fd, EPOLLIN | EPOLLET | EPOLLONESHOT);
    wait(a, epoll, kSoon);
  });
}

SCENARIO(epoll_changed_by_another_thread_during_the_wait, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLIN);
    Thread first(a, [&] { wait(a, epoll, 5000); });
    first.wait_asleep();
    modify(a, epoll, fd, EPOLLIN | EPOLLOUT);
    first.join();
    remove(a, epoll, fd);
    Thread second(a, [&] { wait(a, epoll, 5000); });
    second.wait_asleep();
    add(a, epoll, fd, EPOLLOUT, 3);
    second.join();
  });
}

SCENARIO(epoll_gets_its_first_stream_while_somebody_waits, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  const int other = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  a.server([&] {
    add(a, epoll, other, EPOLLIN, 1);
    Thread waiter(a, [&] { wait(a, epoll, 5000); });
    waiter.wait_asleep();
    add(a, epoll, fd, EPOLLIN | EPOLLONESHOT, 2);
    modify(a, epoll, fd, EPOLLIN | EPOLLOUT | EPOLLONESHOT, 3);
    waiter.join();
    wait(a, epoll, 20);
  });
}

SCENARIO(epoll_gets_its_first_stream_while_somebody_waits_for_the_second_time, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  const int other = ::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
  a.server([&] {
    add(a, epoll, other, EPOLLIN | EPOLLONESHOT, 1);
    Thread waiter(a, [&] {
      wait(a, epoll, 5000);
      wait(a, epoll, 5000);
    });
    waiter.wait_asleep();
    add(a, epoll, fd, EPOLLIN | EPOLLONESHOT, 2);
    modify(a, epoll, fd, EPOLLIN | EPOLLOUT | EPOLLONESHOT, 3);
    waiter.join();
    wait(a, epoll, 20);
  });
}

SCENARIO(epoll_under_a_number_from_before_its_first_stream, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    const int copy = ::dup(epoll);
    add(a, epoll, fd, EPOLLOUT, 2);
    wait(a, copy, kSoon);
    modify(a, copy, fd, EPOLLIN, 3);
    wait(a, copy, 20);
    wait(a, epoll, 0);
    ::close(epoll);
    modify(a, copy, fd, EPOLLOUT, 4);
    wait(a, copy, kSoon);
  });
}

SCENARIO(epoll_instance_is_closed_and_made_again, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    for (int i = 0; i < 3; ++i) {
      const int epoll = make();
      add(a, epoll, fd, EPOLLIN);
      wait(a, epoll, kSoon);
      a.result("close", ::close(epoll));
    }
    a.recv(fd, 9);
  });
}

SCENARIO(epoll_reset_by_the_peer, 0) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] { add(a, epoll, fd, EPOLLIN | EPOLLRDHUP); a.send(fd, "unread"); });
  a.client([&] { a.settle(fd, POLLIN, POLLIN); a.close(fd); });
  a.server([&] {
    wait(a, epoll, kSoon);
    a.error(fd);
    a.recv(fd, 4);
    wait(a, epoll, 0);
  });
}

// Beside one that is always ready, where the wait has room for both.
SCENARIO(epoll_tells_in_the_same_wait_of_a_stream_that_goes_back_to_the_kernel, kComesBack) {
  const int on = 1;
  for (const std::uint32_t events : {EPOLLIN + 0U, EPOLLIN | EPOLLET}) {
    for (const int waits : {0, 1}) {
      const int ready = a.stream();
      const int fd = a.stream();
      const int epoll = make();
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      const auto arrived = [&](int wanted) {
        int have = -1;
        for (int ms = 0; ms < 2000 && have != wanted; ++ms) {
          ::usleep(1000);
          ::ioctl(fd, FIONREAD, &have);
        }
        a.log("unread: %d", have);
        wait(a, epoll, 0, 2);  // once: an edge may be told again after a change of the carrier
      };
      a.client([&] { a.send(fd, "ping"); });
      a.server([&] {
        a.recv(fd, 4, MSG_WAITALL);
        a.send(fd, "pong");
      });
      a.client([&] { a.recv(fd, 4, MSG_WAITALL); });
      a.server([&] {
        add(a, epoll, ready, EPOLLOUT, 1);
        add(a, epoll, fd, events, 2);
        for (int i = 0; i <= waits; ++i) wait(a, epoll, 0, 2);
      });
      a.client([&] { a.result("dprintf", ::dprintf(fd, "x")); });
      a.server([&] { arrived(1); });
      a.client([&] { a.send(fd, "y"); });
      a.server([&] {
        arrived(2);
        a.recv(fd, 9);
      });
      ::close(epoll);
    }
  }
}

SCENARIO(epoll_before_and_after_fork, 0) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLIN);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    int status = 0;
    ::waitpid(child, &status, 0);
    wait(a, epoll, 0);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    wait(a, epoll, kSoon);
    modify(a, epoll, fd, EPOLLOUT, 4);
    wait(a, epoll, 0);
    remove(a, epoll, fd);
    wait(a, epoll, 0);
  });
}

}  // namespace ringroad::test
