// The end of a connection: what the peer can still read, and how it learns of the end.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/epoll_calls.h"

namespace ringroad::test {
namespace {

constexpr short kAll = POLLIN | POLLOUT | POLLRDHUP | POLLPRI;

void cut_on_close(int fd) {
  const linger cut{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
}

// How many connections wait at that local port, once no other is on its way there.
std::size_t left_in_time_wait(std::uint16_t port) {
  constexpr unsigned kTimeWait = 6;
  constexpr unsigned kListen = 10;
  constexpr int kQuietReads = 3;
  // The kernel shows its table in pieces: where others open and close meanwhile, a line comes twice
  // or is left out.
  std::set<unsigned> waiting;
  int quiet = 0;
  for (int tries = 0; tries < 200 && quiet < kQuietReads; ++tries) {
    std::ifstream table("/proc/net/tcp");
    const std::size_t before = waiting.size();
    bool others = false;
    for (std::string line; std::getline(table, line);) {
      unsigned local = 0;
      unsigned remote = 0;
      unsigned state = 0;
      if (std::sscanf(line.c_str(), " %*d: %*8x:%x %*8x:%x %x", &local, &remote, &state) != 3)
        continue;
      if (local != port || state == kListen) continue;
      if (state == kTimeWait) {
        waiting.insert(remote);
      } else {
        others = true;
      }
    }
    quiet = others || waiting.size() != before ? 0 : quiet + 1;
    if (quiet < kQuietReads) ::usleep(10'000);
  }
  return waiting.size();
}

// The kernel of one host tells the sender of a closed peer at once; a network, or a channel, later.
void send_until_refused(Actor& a, int fd, int flags) {
  ssize_t n = 0;
  for (int i = 0; i < 2000 && n >= 0; ++i) {
    n = ::send(fd, "more", 4, flags);
    if (n >= 0) ::usleep(1000);
  }
  a.result("send in the end", n);
}

}  // namespace

SCENARIO(close_right_after_sending, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "all of it"); a.close(fd); });
  a.server([&] { a.recv(fd, 3); a.recv(fd, 20); a.recv(fd, 20); a.recv(fd, 20); a.error(fd); });
}

SCENARIO(close_after_much, 0) {
  const int fd = a.stream();
  if (a.is_client()) {
    a.send_pattern(fd, 0, 3'000'000, 300'000);
    a.close(fd);
  } else {
    a.drain_to_end(fd);
  }
  a.sync();
}

SCENARIO(close_with_the_ring_full, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    a.set_nonblocking(fd);
    std::uint64_t sent = 0;
    for (;;) {
      const std::string bytes = patterned(sent, 50'000);
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), 0);
      if (n <= 0) break;
      sent += static_cast<std::uint64_t>(n);
    }
    a.close(fd);
  });
  a.server([&] {
    // How much there is differs from run to run; that it ends well does not.
    std::uint64_t got = 0;
    bool good = true;
    char buffer[16384];
    ssize_t n;
    while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
      for (ssize_t i = 0; i < n; ++i) {
        good = good && buffer[i] == pattern(got + static_cast<std::uint64_t>(i));
      }
      got += static_cast<std::uint64_t>(n);
    }
    a.result("the last recv", n);
    a.log("good %d, a good deal %d", good, got > 100'000);
  });
}

SCENARIO(close_with_unread_bytes_resets, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "never read"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.send(fd, "read before"); a.close(fd); });
  a.client([&] {
    a.settle(fd, kAll, POLLERR | POLLHUP);
    a.recv(fd, 20);
    a.recv(fd, 20);
    a.recv(fd, 20);
    a.send(fd, "x", MSG_NOSIGNAL);
    a.poll(fd, kAll);
  });
}

SCENARIO(a_reset_behind_bytes_is_told_after_them, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "never read"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.send(fd, "read before"); a.close(fd); });
  a.client([&] {
    a.settle(fd, kAll, POLLERR | POLLHUP);
    a.recv(fd, 100, MSG_WAITALL);
    a.recv(fd, 100, MSG_WAITALL);
    a.recv(fd, 100, MSG_WAITALL);
  });
}

SCENARIO(a_reset_is_told_after_our_shutdown, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "never read"); ::shutdown(fd, SHUT_RD); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.close(fd); });
  a.client([&] {
    a.settle(fd, kAll, POLLERR | POLLHUP);
    a.recv(fd, 20);
    a.recv(fd, 20);
  });
}

// The next two also where the reset ends a switch of the carrier: a caller that took the error from the
// kernel then has to tell it.
SCENARIO(a_reset_is_told_to_a_poll_that_asks_for_nothing, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] { a.send(fd, "never read"); });
  a.client([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.send(fd, "abc");
  });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 1);
  });
  a.client([&] {
    a.send(fd, "de");
    a.close(fd);
  });
  a.server([&] {
    a.settle(fd, kAll, POLLHUP);
    a.recv(fd, 0);
    a.recv(fd, 17, MSG_WAITALL);
    a.recv(fd, 0, MSG_WAITALL);
    a.recv(fd, 0);
    a.poll(fd, kAll);
    a.recv(fd, 1);
  });
}

SCENARIO(epoll_one_shot_tells_a_reset_whole, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  const auto shoot = [&](std::uint32_t events) {
    modify(a, epoll, fd, events | EPOLLONESHOT);
    wait(a, epoll, kSoon);
    wait(a, epoll, 0);
  };
  a.client([&] { a.send(fd, "some bytes"); });
  a.server([&] {
    add(a, epoll, fd, EPOLLOUT);
    wait(a, epoll, kSoon);
    a.settle(fd, POLLIN, POLLIN);
    a.send(fd, "never read");
    modify(a, epoll, fd, EPOLLPRI | EPOLLRDHUP | EPOLLONESHOT);
  });
  a.client([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.close(fd);
  });
  a.server([&] {
    a.settle(fd, kAll, POLLHUP);
    wait(a, epoll, kSoon);
    shoot(EPOLLPRI | EPOLLRDHUP);
    shoot(EPOLLIN | EPOLLOUT);
    a.recv(fd, 100, MSG_WAITALL);
    shoot(EPOLLPRI | EPOLLRDHUP);
    a.recv(fd, 100, MSG_WAITALL);
    shoot(EPOLLPRI | EPOLLRDHUP);
  });
}

SCENARIO(close_with_linger_zero_resets, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] { a.send(fd, "before"); });
  a.server([&] { cut_on_close(fd); a.close(fd); });
  a.client([&] {
    a.settle(fd, kAll, POLLERR | POLLHUP);
    a.recv(fd, 20);
    a.error(fd);
    a.recv(fd, 20);
    a.send(fd, "x", MSG_NOSIGNAL);
  });
}

// Over TCP, where nobody reads what is left to send.
SCENARIO(a_close_that_lingers_holds_no_other_up, 0) {
  const int fd = a.stream();
  const int other = a.stream();
  a.client([&] {
    const int on = 1;
    a.result("SO_OOBINLINE", ::setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
  });
  if (a.is_client()) {
    const std::string much(1 << 20, 'x');
    while (::send(fd, much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
    const linger patient{1, 10};
    a.result("SO_LINGER", ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &patient, sizeof patient));
    Thread closer(a, [&] { a.close(fd); });
    closer.wait_asleep();
    a.timed(0, [&] { a.close(other); });
    a.sync();
    closer.join();
  } else {
    a.sync();
    a.close(fd);
    a.recv(other, 1);
  }
  a.sync();
}

SCENARIO(reset_wakes_the_sleepers, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    Thread reader(a, [&] { a.recv(fd, 20); });
    reader.wait_asleep();
    a.sync();
    reader.join();
    a.recv(fd, 20);
  } else {
    cut_on_close(fd);
    a.sync();
    a.close(fd);
  }
  a.sync();
}

SCENARIO(close_wakes_a_receiver_at_the_other_end, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    Thread reader(a, [&] { a.recv(fd, 20); a.recv(fd, 20); });
    reader.wait_asleep();
    a.sync();
    reader.join();
  } else {
    a.sync();
    a.close(fd);
  }
  a.sync();
}

SCENARIO(sending_to_the_closed, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] { a.close(fd); });
  a.client([&] {
    a.settle(fd, kAll, POLLRDHUP);
    a.recv(fd, 10);
    a.send(fd, "first", MSG_NOSIGNAL);
    send_until_refused(a, fd, MSG_NOSIGNAL);
    a.send(fd, "again", MSG_NOSIGNAL);
    a.settle(fd, kAll, POLLHUP);
    a.recv(fd, 10);
    a.error(fd);
    a.shutdown(fd, SHUT_WR);
  });
}

SCENARIO(sigpipe_is_raised, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] { a.close(fd); });
  a.client([&] {
    count_signal(SIGPIPE, true);
    a.settle(fd, kAll, POLLRDHUP);
    send_until_refused(a, fd, 0);
    a.log("%d SIGPIPE", signals_seen());
    a.send(fd, "x");
    a.log("%d SIGPIPE", signals_seen());
    a.send(fd, "x", MSG_NOSIGNAL);
    a.log("%d SIGPIPE", signals_seen());
    a.write(fd, "x");
    a.log("%d SIGPIPE", signals_seen());
    signal(SIGPIPE, SIG_IGN);
    a.write(fd, "x");
  });
}

SCENARIO(sigpipe_after_own_shutdown, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    count_signal(SIGPIPE, true);
    a.shutdown(fd, SHUT_WR);
    a.write(fd, "x");
    a.log("%d SIGPIPE", signals_seen());
    a.send(fd, "x", MSG_NOSIGNAL);
    a.log("%d SIGPIPE", signals_seen());
    signal(SIGPIPE, SIG_IGN);
  });
}

SCENARIO(close_while_another_thread_receives, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    Thread reader(a, [&] { a.recv(fd, 20); });
    reader.wait_asleep();
    a.close(fd);
    a.recv(fd, 1);
    reader.wait_asleep();  // the call holds the file
    a.sync();
    reader.join();
  } else {
    a.sync();
    a.send(fd, "still heard");
    a.settle(fd, kAll, POLLRDHUP);
    a.recv(fd, 10);
  }
  a.sync();
}

// It has received before, and the number is another file's by the time it receives again.
SCENARIO(close_while_another_thread_receives_again, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "first"); });
  if (a.is_server()) {
    a.recv(fd, 20);
    Thread reader(a, [&] { a.recv(fd, 20); });
    reader.wait_asleep();
    a.close(fd);
    const int other = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    a.log("the number is free: %d", other == fd);
    a.sync();
    reader.join();
    ::close(other);
  } else {
    a.sync();
    a.send(fd, "still heard");
  }
  a.sync();
}

SCENARIO(both_close_at_once, 0) {
  for (int i = 0; i < 20; ++i) {
    const int fd = a.stream();
    a.both([&] { ::close(fd); });
  }
  a.log("done");
}

SCENARIO(close_and_the_number_is_free, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    a.send(fd, "unread yet");
    a.close(fd);
    a.recv(fd, 1);
    a.send(fd, "x", MSG_NOSIGNAL);
    a.poll(fd, POLLIN);
    a.close(fd);
    int ends[2];
    if (::pipe(ends) != 0) return;
    a.log("the number is used again: %d", ends[0] == fd || ends[1] == fd);
    a.write(ends[1], "a pipe");
    a.read(ends[0], 10);
    a.recv(ends[0], 1);
  });
  a.client([&] { a.recv(fd, 20); a.recv(fd, 20); });
}

SCENARIO(the_end_that_closes_first_keeps_the_port, kStaysOnChannel) {
  a.meet();
  for (int i = 0; i < 40; ++i) {
    const int fd = a.stream();
    a.client([&] { a.send(fd, "a request"); });
    a.server([&] { a.recv(fd, 9); a.send(fd, "an answer"); });
    a.client([&] { a.recv(fd, 9); });
    // The other side waits for the end that it then answers.
    const bool first = a.is_client() == (i % 4 != 0);
    if (!first) a.recv(fd, 1);
    if (first && i % 2 == 0) a.shutdown(fd, SHUT_RDWR);
    a.close(fd);
    a.sync();
  }
  a.server([&] {
    a.log("%zu connections in TIME_WAIT at the service's port", left_in_time_wait(a.port()));
  });
}

}  // namespace ringroad::test
