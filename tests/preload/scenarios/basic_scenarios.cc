// Connections, small messages and the flags of a receive.
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {

SCENARIO(echo, kStaysOnChannel) {
  const int fd = a.stream();
  for (int i = 0; i < 3; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] { a.recv(fd, 16); a.send(fd, "pong!"); });
    a.client([&] { a.recv(fd, 16); });
  }
}

SCENARIO(server_speaks_first, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] { a.write(fd, "greeting"); });
  a.client([&] { a.read(fd, 4); a.read(fd, 64); a.write(fd, "thanks"); });
  a.server([&] { a.read(fd, 64); });
}

SCENARIO(a_blocked_receive_gets_what_comes, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    Thread reader(a, [&] { a.recv(fd, 64); a.recv(fd, 64); });
    reader.wait_asleep();
    a.sync();
    a.sync();
    reader.wait_asleep();
    a.sync();
    reader.join();
  } else {
    a.sync();
    a.send(fd, "first");
    a.sync();
    a.sync();
    a.send(fd, "second");
  }
  a.sync();
}

SCENARIO(reads_in_pieces_and_writes_run_together, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "ab"); a.send(fd, "cdef"); a.send(fd, "g"); });
  a.server([&] {
    a.settle_unread(fd, 7);
    a.recv(fd, 1);
    a.recv(fd, 3);
    a.recv(fd, 100);
    a.recv(fd, 1, MSG_DONTWAIT);
  });
}

SCENARIO(nonblocking_connect, kStaysOnChannel) {
  a.meet();
  int fd = -1;
  if (a.is_client()) {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    auto* address = reinterpret_cast<sockaddr*>(&to);
    a.poll(fd, POLLIN | POLLOUT);  // fresh: HUP
    a.result("connect", ::connect(fd, address, length));
    a.settle(fd, POLLOUT, POLLOUT);
    a.error(fd);
    a.result("connect again", ::connect(fd, address, length));
    a.result("and again", ::connect(fd, address, length));
    a.recv(fd, 10);
    a.send(fd, "hello");
  } else {
    fd = a.accept_blocking();
  }
  a.sync();
  a.server([&] { a.recv(fd, 10); a.send(fd, "answer"); });
  a.client([&] { a.settle(fd, POLLIN, POLLIN); a.recv(fd, 10); a.recv(fd, 10); });
}

SCENARIO(connect_refused, 0) {
  if (a.is_client()) {
    // A port that nobody listens on: bound, but not listening.
    const int bound = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof to;
    auto* address = reinterpret_cast<sockaddr*>(&to);
    ::bind(bound, address, length);
    ::getsockname(bound, address, &length);
    int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.result("connect", ::connect(fd, address, length));
    a.send(fd, "x", MSG_NOSIGNAL);
    a.close(fd);
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    a.result("connect", ::connect(fd, address, length));
    a.settle(fd, POLLIN | POLLOUT, POLLHUP);
    a.error(fd);
    a.error(fd);
    a.close(fd);
    ::close(bound);
  }
  a.sync();
}

// Before it is used, and behind a use of either kind.
SCENARIO(accepted_without_blocking, kStaysOnChannel) {
  a.meet();
  int fd = -1;
  if (a.is_client()) {
    fd = a.connect_blocking();
  } else {
    fd = ::accept4(a.listening(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    a.log("accept4: %d", fd >= 0);
  }
  a.sync();
  a.server([&] {
    a.recv(fd, 10);
    a.send(fd, "greeting");
    a.recv(fd, 10);
  });
  a.client([&] { a.recv(fd, 10); a.send(fd, "asks"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 10);
    a.recv(fd, 10);
    a.send(fd, "answer");
    a.recv(fd, 10);
  });
  a.client([&] { a.recv(fd, 10); });
}

SCENARIO(connect_when_connected, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    socklen_t length = 0;
    sockaddr_storage at = a.address(AF_INET, length);
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&at), length));
    a.send(fd, "still");
  });
  a.server([&] { a.recv(fd, 10); });
}

SCENARIO(connect_anew_after_disconnect, 0) {
  int fd = a.stream();
  a.client([&] { a.send(fd, "one"); });
  a.server([&] { a.recv(fd, 10); });
  a.client([&] {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    a.result("disconnect", ::connect(fd, &none, sizeof none));
    a.recv(fd, 10, MSG_DONTWAIT);
  });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.recv(fd, 10); a.close(fd); });
  if (a.is_client()) {
    socklen_t length = 0;
    sockaddr_storage at = a.address(AF_INET, length);
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&at), length));
    a.send(fd, "two");
  } else {
    fd = a.accept_blocking();
    a.recv(fd, 10);
    a.send(fd, "back");
  }
  a.sync();
  a.client([&] { a.recv(fd, 10); });
}

SCENARIO(nothing_there, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    a.recv(fd, 10, MSG_DONTWAIT);
    a.recv(fd, 10, MSG_DONTWAIT | MSG_PEEK);
    a.unread(fd);
    a.set_nonblocking(fd);
    a.recv(fd, 10);
    a.read(fd, 10);
    a.recv(fd, 10, MSG_WAITALL);
    a.set_nonblocking(fd, false);
    a.recv(fd, 10, MSG_DONTWAIT);
  });
  a.client([&] { a.send(fd, "now"); });
  a.server([&] { a.recv(fd, 10, MSG_DONTWAIT); a.recv(fd, 10, MSG_DONTWAIT); });
}

SCENARIO(peek_leaves_the_bytes, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "abcdefgh"); });
  a.server([&] {
    a.recv(fd, 1, MSG_PEEK);
    a.recv(fd, 20, MSG_PEEK | MSG_DONTWAIT);
    a.recv(fd, 3);
    a.recv(fd, 20, MSG_PEEK);
    a.unread(fd);
    a.recv(fd, 20);
    a.recv(fd, 20, MSG_PEEK | MSG_DONTWAIT);
  });
}

SCENARIO(waitall_fills_the_buffer, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    Thread reader(a, [&] { a.recv(fd, 8, MSG_WAITALL); a.recv(fd, 8, MSG_WAITALL); });
    reader.wait_asleep();
    a.sync();
    a.sync();
    reader.wait_asleep();
    a.sync();
    a.sync();
    reader.join();
  } else {
    a.sync();
    a.send(fd, "abc");
    a.sync();
    a.sync();
    a.send(fd, "defghij");
    a.shutdown(fd, SHUT_WR);
    a.sync();
  }
  a.sync();
}

SCENARIO(waitall_with_peek_waits_too, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "abc"); });
  if (a.is_server()) {
    Thread reader(a, [&] { a.recv(fd, 6, MSG_WAITALL | MSG_PEEK); a.recv(fd, 6); });
    reader.wait_asleep();
    a.sync();
    reader.join();
  } else {
    a.sync();
    a.send(fd, "def");
  }
  a.sync();
}

SCENARIO(waitall_with_peek_ends_with_less, kStaysOnChannel) {
  constexpr int kFlags = MSG_WAITALL | MSG_PEEK;
  const int fd = a.stream();
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 6, kFlags | MSG_DONTWAIT);
    a.recv(fd, 3, kFlags);
    a.set_nonblocking(fd);
    a.recv(fd, 6, kFlags);
    a.set_nonblocking(fd, false);
    a.set_timeout(fd, SO_RCVTIMEO, 100);
    a.timed(100, [&] { a.recv(fd, 6, kFlags); });
    a.set_timeout(fd, SO_RCVTIMEO, 0);
  });
  if (a.is_server()) {
    count_signal(SIGUSR1, true);
    Thread reader(a, [&] { a.recv(fd, 6, kFlags); });
    reader.wait_asleep();
    reader.signal(SIGUSR1);
    reader.join();
    Thread last(a, [&] { a.recv(fd, 6, kFlags); });
    last.wait_asleep();
    a.sync();
    last.join();
  } else {
    a.sync();
    a.shutdown(fd, SHUT_WR);
  }
  a.server([&] {
    a.recv(fd, 6, kFlags);
    a.recv(fd, 6);
    a.recv(fd, 6, kFlags);
  });
}

SCENARIO(waitall_with_peek_of_more_than_a_ring, kComesBack) {
  constexpr std::size_t kBytes = 300'000;
  a.meet();
  const int room = 212'992;  // and the kernel doubles it
  if (a.is_server()) ::setsockopt(a.listening(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
  a.sync();
  const int fd = a.stream();
  if (a.is_client()) {
    a.send_pattern(fd, 0, kBytes, 10'000);
  } else {
    std::string bytes(kBytes, '-');
    a.result("recv", ::recv(fd, bytes.data(), kBytes, MSG_WAITALL | MSG_PEEK));
    a.log("as it was sent: %d", bytes == patterned(0, kBytes));
    a.recv_pattern(fd, 0, kBytes, kBytes);
  }
  a.sync();
}

SCENARIO(trunc_discards, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "abcdefgh"); });
  a.server([&] {
    char buffer[8] = "-------";
    a.result("recv(3, TRUNC)", ::recv(fd, buffer, 3, MSG_TRUNC));
    a.log("buffer %s", buffer);
    a.result("recv(2, TRUNC|PEEK)", ::recv(fd, buffer, 2, MSG_TRUNC | MSG_PEEK));
    a.log("buffer %s", buffer);
    a.result("recv(null, 2, TRUNC)", ::recv(fd, nullptr, 2, MSG_TRUNC));
    a.recv(fd, 20);
  });
}

SCENARIO(nothing_is_asked_for, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    a.set_nonblocking(fd);
    a.read(fd, 0);
    a.recv(fd, 0);
    a.send(fd, "");
    a.write(fd, "");
    a.recv(fd, 0, MSG_DONTWAIT);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.read(fd, 0);
    a.recv(fd, 0);
    a.recv(fd, 0, MSG_PEEK);
    a.recv(fd, 5);
  });
  a.client([&] { a.shutdown(fd, SHUT_WR); a.send(fd, "", MSG_NOSIGNAL); a.write(fd, ""); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.read(fd, 0); a.recv(fd, 0); a.recv(fd, 1); });
}

SCENARIO(connecting_to_oneself, 0) {
  a.meet();
  if (a.is_server()) {
    const int listening = a.listening();
    // As Galera does to break its own accept().
    const int out = a.connect_blocking();
    const int in = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    a.send(out, "to myself");
    a.recv(in, 20);
    a.send(in, "and back");
    a.recv(out, 20);
    a.close(out);
    a.settle(in, POLLIN | POLLRDHUP, POLLRDHUP);
    a.recv(in, 20);
    a.close(in);
  }
  a.sync();
}

SCENARIO(the_same_number_again_and_again, 0) {
  int same = 0;
  int first = -1;
  for (int i = 0; i < 100; ++i) {
    const int fd = a.stream();
    if (i == 0) first = fd;
    same += fd == first ? 1 : 0;
    const std::string text = "round " + std::to_string(i);
    char buffer[32] = {};
    if (a.is_client()) {
      ::send(fd, text.data(), text.size(), 0);
      if (::recv(fd, buffer, sizeof buffer, 0) != 2) a.log("no answer in round %d", i);
    } else {
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (text != std::string_view(buffer, n < 0 ? 0 : static_cast<std::size_t>(n))) {
        a.log("wrong bytes in round %d: %zd", i, n);
      }
      ::send(fd, "ok", 2, 0);
    }
    ::close(fd);
    a.sync();
  }
  // Each of the library's own descriptors stands for a moment at the lowest free number.
  a.log("almost always the same number: %d", same >= 90);
}

}  // namespace ringroad::test
