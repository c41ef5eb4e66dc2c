// epoll over a channel, one stream in an instance: what epoll_ctl(2) and epoll_wait(2) answer, event by
// event.
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

SCENARIO(epoll_level_reports_until_it_is_read, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] { add(a, epoll, fd, EPOLLIN); wait(a, epoll, 0); });
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] {
    wait(a, epoll, kSoon);
    wait(a, epoll, 0);
    a.recv(fd, 1);
    wait(a, epoll, 0);
    a.recv(fd, 9);
    wait(a, epoll, 0);
    wait(a, epoll, 20);
  });
  a.client([&] { a.send(fd, "d"); });
  a.server([&] { wait(a, epoll, kSoon); a.recv(fd, 9); wait(a, epoll, 0); });
}

SCENARIO(epoll_edge_reports_each_arrival_once, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] { add(a, epoll, fd, EPOLLIN | EPOLLET); wait(a, epoll, 0); });
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] {
    wait(a, epoll, kSoon);
    wait(a, epoll, 0);
    a.recv(fd, 1);
    wait(a, epoll, 0);
  });
  a.client([&] { a.send(fd, "d"); });
  a.server([&] { wait(a, epoll, kSoon); wait(a, epoll, 0); a.recv(fd, 9); wait(a, epoll, 20); });
  a.client([&] { a.send(fd, "e"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.recv(fd, 9); wait(a, epoll, 0); });
}

SCENARIO(epoll_edge_tells_all_that_holds, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    wait(a, epoll, kSoon);
    wait(a, epoll, 0);
  });
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] { wait(a, epoll, kSoon); wait(a, epoll, 0); a.recv(fd, 9); wait(a, epoll, 0); });
}

SCENARIO(epoll_idle_and_writable_wakes_once, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLOUT | EPOLLET);
    wait(a, epoll, kSoon);
    wait(a, epoll, 200);
  });
}

SCENARIO(epoll_writable_again_after_it_was_full, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  std::size_t sent = 0;
  a.server([&] {
    add(a, epoll, fd, EPOLLOUT | EPOLLET);
    wait(a, epoll, kSoon);
    a.set_nonblocking(fd);
    const std::string piece(16384, 'x');
    ssize_t n;
    while ((n = ::send(fd, piece.data(), piece.size(), MSG_NOSIGNAL)) > 0) sent += std::size_t(n);
    a.log("full: %s", strerrorname_np(errno));
    wait(a, epoll, 0);
  });
  a.client([&] {
    // Until the other side has nothing more on the way.
    a.set_timeout(fd, SO_RCVTIMEO, 200);
    char buffer[65536];
    while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
    }
  });
  a.server([&] { wait(a, epoll, kSoon); wait(a, epoll, 20); a.log("sent something %d", sent > 0); });
}

SCENARIO(epoll_level_writable_is_reported_every_time, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLIN | EPOLLOUT);
    for (int i = 0; i < 3; ++i) wait(a, epoll, 0);
    modify(a, epoll, fd, EPOLLIN);
    wait(a, epoll, 0);
    modify(a, epoll, fd, EPOLLOUT);
    wait(a, epoll, 0);
  });
}

SCENARIO(epoll_edge_of_an_arrival_reaches_an_entry_that_asks_for_priority, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLOUT | EPOLLPRI | EPOLLET);
    wait(a, epoll, 0);
    wait(a, epoll, 0);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); wait(a, epoll, 0); wait(a, epoll, 0); });
}

SCENARIO(epoll_edge_of_each_shutdown, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLOUT | EPOLLET);
    wait(a, epoll, 0);
    for (int i = 0; i < 2; ++i) {
      a.shutdown(fd, SHUT_RD);
      wait(a, epoll, 0);
      wait(a, epoll, 0);
    }
  });
  a.client([&] { a.shutdown(fd, SHUT_WR); });
  a.server([&] { wait(a, epoll, kSoon); wait(a, epoll, 0); });
}

SCENARIO(epoll_oneshot_fires_once_for_each_mod, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] { add(a, epoll, fd, EPOLLIN | EPOLLONESHOT); });
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] { wait(a, epoll, kSoon); wait(a, epoll, 100); });
  a.client([&] { a.send(fd, "def"); });
  a.server([&] {
    wait(a, epoll, 50);
    modify(a, epoll, fd, EPOLLIN | EPOLLONESHOT, 5);
    wait(a, epoll, kSoon);
    wait(a, epoll, 0);
    modify(a, epoll, fd, EPOLLIN | EPOLLET | EPOLLRDHUP | EPOLLONESHOT);
    wait(a, epoll, kSoon);
    a.recv(fd, 99);
    modify(a, epoll, fd, EPOLLIN | EPOLLET | EPOLLRDHUP | EPOLLONESHOT);
    wait(a, epoll, 0);
  });
  a.client([&] { a.shutdown(fd, SHUT_WR); });
  a.server([&] { wait(a, epoll, kSoon); wait(a, epoll, 20); });
}

SCENARIO(epoll_mod_with_the_same_mask_reports_again, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLIN | EPOLLOUT | EPOLLET);
    wait(a, epoll, kSoon);
    wait(a, epoll, 0);
    for (int i = 0; i < 3; ++i) {
      modify(a, epoll, fd, EPOLLIN | EPOLLOUT | EPOLLET);
      wait(a, epoll, 0);
    }
  });
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] {
    wait(a, epoll, kSoon);
    modify(a, epoll, fd, EPOLLIN | EPOLLET, 9);
    wait(a, epoll, 0);
    wait(a, epoll, 0);
  });
}

SCENARIO(epoll_errors_are_the_kernels, 0) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    modify(a, epoll, fd, EPOLLIN);
    remove(a, epoll, fd);
    add(a, epoll, fd, EPOLLIN);
    add(a, epoll, fd, EPOLLIN);
    change(a, "no operation", epoll, 77, fd, EPOLLIN);
    a.result("no event", ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, nullptr));
    change(a, "not an instance", fd, EPOLL_CTL_ADD, fd, EPOLLIN);
    change(a, "not an instance", 0, EPOLL_CTL_ADD, fd, EPOLLIN);
    change(a, "nothing open", 5000, EPOLL_CTL_ADD, fd, EPOLLIN);
    change(a, "itself", epoll, EPOLL_CTL_ADD, epoll, EPOLLIN);
    modify(a, epoll, fd, EPOLLIN | EPOLLEXCLUSIVE);
    remove(a, epoll, fd);
    remove(a, epoll, fd);
    add(a, epoll, fd, EPOLLIN | EPOLLONESHOT | EPOLLEXCLUSIVE);
    add(a, epoll, fd, EPOLLIN | EPOLLEXCLUSIVE);
    modify(a, epoll, fd, EPOLLIN);
    epoll_event events[4];
    a.result("max 0", ::epoll_wait(epoll, events, 0, 0));
    volatile int negative = -1;
    a.result("max -1", ::epoll_wait(epoll, events, negative, 0));
    a.result("wait on a stream", ::epoll_wait(fd, events, 4, 0));
  });
}

SCENARIO(epoll_end_of_the_peer, kStaysOnChannel) {
  const auto fds = streams(a, 2);
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fds[0], EPOLLIN | EPOLLRDHUP, 0);
    add(a, epoll, fds[1], EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
    wait(a, epoll, 0);
  });
  a.client([&] { a.send(fds[0], "x"); a.send(fds[1], "y"); });
  a.server([&] {
    a.settle(fds[0], POLLIN, POLLIN);
    a.settle(fds[1], POLLIN, POLLIN);
    wait(a, epoll, kSoon);
  });
  a.client([&] { a.shutdown(fds[0], SHUT_WR); a.shutdown(fds[1], SHUT_WR); });
  a.server([&] {
    a.settle(fds[0], POLLRDHUP, POLLRDHUP);
    a.settle(fds[1], POLLRDHUP, POLLRDHUP);
    wait(a, epoll, kSoon);
    wait(a, epoll, 0);
    for (const int fd : fds) a.recv(fd, 9);
    wait(a, epoll, 0);
    for (const int fd : fds) a.recv(fd, 9);
    wait(a, epoll, 0);
    for (const int fd : fds) a.shutdown(fd, SHUT_WR);
  });
}

SCENARIO(epoll_own_shutdown_from_elsewhere_wakes_the_waiter, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLIN | EPOLLRDHUP);
    Thread waiter(a, [&] { wait(a, epoll, 5000); });
    waiter.wait_asleep();
    a.shutdown(fd, SHUT_RD);
    waiter.join();
    a.recv(fd, 4);
  });
}

SCENARIO(epoll_first_wait_for_one_event, 0) {
  const int fd = a.stream();
  const int epoll = make();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    for (int round = 0; round < 4; ++round) {
      add(a, epoll, fd, EPOLLIN | EPOLLONESHOT, 1);
      epoll_event event{};
      a.log("one: %d", ::epoll_wait(epoll, &event, 1, 0));
      ::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, &event);
    }
  });
}

SCENARIO(epoll_a_duplicate_of_the_instance, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    add(a, epoll, fd, EPOLLIN);
    const int copy = ::dup(epoll);
    ::close(epoll);
    wait(a, copy, 0);
    modify(a, copy, fd, EPOLLOUT, 7);
    wait(a, copy, kSoon);
    wait(a, epoll, 0);
  });
}

SCENARIO(epoll_in_two_instances, kStaysOnChannel) {
  const int fd = a.stream();
  const int level = make();
  const int edge = make();
  a.server([&] { add(a, level, fd, EPOLLIN, 1); add(a, edge, fd, EPOLLIN | EPOLLET, 2); });
  for (int round = 0; round < 3; ++round) {
    a.client([&] { a.send(fd, "x"); });
    a.server([&] {
      wait(a, level, kSoon);
      wait(a, edge, kSoon);
      wait(a, level, 0);
      wait(a, edge, 0);
      a.recv(fd, 9);
      wait(a, level, 0);
      wait(a, edge, 0);
    });
  }
}

SCENARIO(epoll_inside_epoll, kStaysOnChannel) {
  const int fd = a.stream();
  const int inner = make();
  const int outer = make();
  a.server([&] { add(a, outer, inner, EPOLLIN, 1); add(a, inner, fd, EPOLLIN, 2); wait(a, outer, 0); });
  a.client([&] { a.send(fd, "xy"); });
  a.server([&] {
    wait(a, outer, kSoon);
    wait(a, outer, 0);
    wait(a, inner, 0);
    wait(a, outer, 0);
    a.recv(fd, 1);
    wait(a, outer, 0);
    wait(a, inner, 0);
    a.recv(fd, 1);
    wait(a, inner, 0);
    wait(a, outer, 0);
  });
  a.client([&] { a.send(fd, "z"); });
  a.server([&] { wait(a, outer, kSoon); wait(a, inner, 0); a.recv(fd, 9); });
}

SCENARIO(epoll_put_inside_another_afterwards, kStaysOnChannel) {
  const int fd = a.stream();
  const int inner = make();
  const int outer = make();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    add(a, inner, fd, EPOLLIN, 2);
    wait(a, inner, kSoon);
    add(a, outer, inner, EPOLLIN, 1);
    wait(a, outer, 0);
    a.recv(fd, 9);
    wait(a, inner, 0);
    wait(a, outer, 0);
  });
}

// Of a change that nobody has asked the instance for.
SCENARIO(a_poll_of_an_instance_sleeps_on, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  if (a.is_server()) {
    add(a, epoll, fd, EPOLLIN);
    Thread polls(a, [&] {
      a.poll(epoll, POLLIN, 10'000);
      wait(a, epoll, 0);
    });
    Thread selects(a, [&] {
      fd_set in;
      FD_ZERO(&in);
      FD_SET(epoll, &in);
      timeval long_time{10, 0};
      a.result("select", ::select(epoll + 1, &in, nullptr, nullptr, &long_time));
      wait(a, epoll, 0);
    });
    polls.wait_asleep();
    selects.wait_asleep();
    a.shutdown(fd, SHUT_WR);
    ::usleep(50'000);
    polls.wait_asleep();
    selects.wait_asleep();
    a.sync();
    polls.join();
    selects.join();
  } else {
    a.sync();
    a.send(fd, "x");
  }
  a.sync();
}

SCENARIO(epoll_inside_poll, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] { add(a, epoll, fd, EPOLLIN); a.poll(epoll, POLLIN); });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.poll(epoll, POLLIN, kSoon);
    wait(a, epoll, 0);
    a.poll(epoll, POLLIN);
    a.recv(fd, 9);
    wait(a, epoll, 0);
    a.poll(epoll, POLLIN);
  });
  a.client([&] { a.send(fd, "y"); });
  a.server([&] {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(epoll, &in);
    timeval soon{2, 0};
    a.result("select", ::select(epoll + 1, &in, nullptr, nullptr, &soon));
    wait(a, epoll, 0);
  });
}

}  // namespace ringroad::test
