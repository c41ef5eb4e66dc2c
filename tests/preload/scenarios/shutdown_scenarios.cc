// shutdown(), also by another thread while one sleeps.
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

// One thread sleeps in `call`; the other shuts down `how`.
void shut_a_sleeper(Actor& a, int how, const std::function<void(int)>& call) {
  const int fd = a.stream();
  if (a.is_server()) {
    Thread sleeper(a, [&] { call(fd); });
    sleeper.wait_asleep();
    a.shutdown(fd, how);
    if (how == SHUT_WR) {
      // Reading goes on.
      sleeper.wait_asleep();
      a.sync();
    }
    sleeper.join();
  } else if (how == SHUT_WR) {
    a.sync();
    a.send(fd, "wake up");
  }
  a.sync();
  a.client([&] {
    if (how != SHUT_RD) {
      a.settle(fd, POLLIN | POLLRDHUP, POLLRDHUP);
      a.recv(fd, 10);
    } else {
      a.recv(fd, 10, MSG_DONTWAIT);
    }
  });
}

}  // namespace

SCENARIO(shutdown_rd_wakes_a_receiver, kStaysOnChannel) {
  shut_a_sleeper(a, SHUT_RD, [&](int fd) { a.recv(fd, 10); a.recv(fd, 10); });
}

SCENARIO(shutdown_wr_lets_a_receiver_sleep, kStaysOnChannel) {
  shut_a_sleeper(a, SHUT_WR, [&](int fd) { a.recv(fd, 10); });
}

SCENARIO(shutdown_rdwr_wakes_a_receiver, kStaysOnChannel) {
  shut_a_sleeper(a, SHUT_RDWR, [&](int fd) {
    a.recv(fd, 10);
    a.send(fd, "x", MSG_NOSIGNAL);
    a.recv(fd, 10);
  });
}

SCENARIO(shutdown_rd_wakes_a_poller, kStaysOnChannel) {
  shut_a_sleeper(a, SHUT_RD, [&](int fd) { a.poll(fd, POLLIN | POLLRDHUP, 10'000); });
}

SCENARIO(shutdown_rdwr_wakes_a_poller, kStaysOnChannel) {
  shut_a_sleeper(a, SHUT_RDWR, [&](int fd) {
    a.poll(fd, POLLIN | POLLPRI, 10'000);
    a.recv(fd, 10);
    a.send(fd, "x", MSG_NOSIGNAL);
  });
}

SCENARIO(shutdown_wakes_a_sender, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    const std::string bytes = patterned(0, 32 << 20);
    Thread sender(a, [&] {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      a.log("a part was sent: %d", n > 0 && n < static_cast<ssize_t>(bytes.size()));
      a.send(fd, "more", MSG_NOSIGNAL);
    });
    sender.wait_asleep();
    a.shutdown(fd, SHUT_WR);
    sender.join();
    a.sync();
  } else {
    a.sync();
    std::uint64_t got = 0;
    char buffer[65536];
    ssize_t n;
    bool good = true;
    while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
      for (ssize_t i = 0; i < n; ++i) {
        good = good && buffer[i] == pattern(got + static_cast<std::uint64_t>(i));
      }
      got += static_cast<std::uint64_t>(n);
    }
    a.log("ended with %zd, good %d", n, good);
  }
  a.sync();
}

SCENARIO(shutdown_as_a_kill_does_it, kStaysOnChannel) {
  // MariaDB's KILL: RDWR, then RD, from another thread, while the worker sleeps in poll.
  const int fd = a.stream();
  if (a.is_server()) {
    Thread worker(a, [&] {
      a.poll(fd, POLLIN | POLLPRI, 28'800'000);
      a.recv(fd, 4, MSG_DONTWAIT);
      a.send(fd, "gone", MSG_DONTWAIT | MSG_NOSIGNAL);
    });
    worker.wait_asleep();
    a.shutdown(fd, SHUT_RDWR);
    a.shutdown(fd, SHUT_RD);
    worker.join();
    a.close(fd);
  }
  a.sync();
  a.client([&] { a.settle(fd, POLLIN | POLLRDHUP, POLLRDHUP); a.recv(fd, 4); });
}

SCENARIO(half_close_and_answer, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send_pattern(fd, 0, 200'000, 1000); a.shutdown(fd, SHUT_WR); });
  a.server([&] { a.drain_to_end(fd); a.recv(fd, 1); a.send_pattern(fd, 0, 200'000, 5000); });
  a.client([&] {
    a.recv_pattern(fd, 0, 200'000, 4096);
    a.send(fd, "too late", MSG_NOSIGNAL);
    a.recv(fd, 1, MSG_DONTWAIT);
  });
  a.server([&] { a.shutdown(fd, SHUT_WR); });
  a.client([&] { a.recv(fd, 1); a.recv(fd, 1); });
}

SCENARIO(shutdown_twice, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] { a.shutdown(fd, 7); });
  a.client([&] {
    a.shutdown(fd, SHUT_WR);
    a.shutdown(fd, SHUT_WR);
    a.shutdown(fd, SHUT_RD);
    a.shutdown(fd, SHUT_RDWR);
  });
  a.server([&] {
    a.settle(fd, POLLRDHUP, POLLRDHUP);
    a.shutdown(fd, SHUT_RD);
    a.shutdown(fd, SHUT_WR);
  });
  a.both([&] { a.settle(fd, POLLRDHUP, POLLHUP); a.shutdown(fd, SHUT_RDWR); });
}

SCENARIO(shutdown_of_the_unconnected, 0) {
  if (a.is_server()) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.shutdown(fd, SHUT_RDWR);
    a.recv(fd, 1);
    a.send(fd, "x", MSG_NOSIGNAL);
    a.close(fd);
    a.close(fd);
    a.shutdown(fd, SHUT_RDWR);
  }
  a.sync();
}

SCENARIO(shutdown_of_a_listener_wakes_accept, 0) {
  a.meet();
  if (a.is_server()) {
    Thread acceptor(a, [&] { a.result("accept", ::accept(a.listening(), nullptr, nullptr)); });
    acceptor.wait_asleep();
    a.shutdown(a.listening(), SHUT_RDWR);
    acceptor.join();
  }
  a.sync();
}

}  // namespace ringroad::test
