// Long transfers: nothing is lost, repeated or exchanged, whatever the sizes and the pace.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

bool waits_for_room(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return ::poll(&entry, 1, 5'000) == 1;
}

void result_by_poll(Actor& a, bool first) {
  const int fd = a.stream();
  a.server([&] {
    a.set_nonblocking(fd);
    std::uint64_t sent = 0;
    bool room = true;
    while (sent < kMiB && room) {
      if (first) room = waits_for_room(fd);
      const std::string bytes = patterned(sent, std::min<std::uint64_t>(16'384, kMiB - sent));
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<std::uint64_t>(n);
      else if (!first) room = waits_for_room(fd);
    }
    a.log("sent %llu", static_cast<unsigned long long>(sent));
  });
  a.client([&] { a.recv_pattern(fd, 0, kMiB, 65'536); a.send(fd, "thanks"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.recv(fd, 10); });
}

}  // namespace

SCENARIO(send_until_it_would_block, kStaysOnChannel) {
  const int fd = a.stream();
  a.keep_full_ring(fd);
  if (a.is_client()) {
    a.set_nonblocking(fd);
    std::uint64_t sent = 0;
    ssize_t n;
    pollfd room{fd, POLLOUT, 0};
    do {
      const std::string bytes = patterned(sent, 10'000);
      n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<std::uint64_t>(n);
      // A busy kernel moves some of it on to the other end a moment later.
    } while (n > 0 || ::poll(&room, 1, 100) > 0);
    a.result("send in the end", n);
    a.log("much was taken: %d", sent > 50'000);
    a.poll(fd, POLLOUT);
    a.send(fd, "");
    a.sync();  // the server reads
    a.settle(fd, POLLOUT, POLLOUT);
    a.set_nonblocking(fd, false);
    const std::string rest = patterned(sent, 16 * kMiB - sent);
    a.log("the rest is sent: %d", ::send(fd, rest.data(), rest.size(), 0) ==
                                      static_cast<ssize_t>(rest.size()));
    a.shutdown(fd, SHUT_WR);
  } else {
    a.sync();
    a.recv_pattern(fd, 0, 16 * kMiB, 70'000);
    a.recv(fd, 1);
  }
  a.sync();
}

SCENARIO(one_big_send_to_a_slow_reader, kStaysOnChannel) {
  const int fd = a.stream();
  a.keep_full_ring(fd);
  if (a.is_client()) {
    const std::string bytes = patterned(0, 4 * kMiB);
    Thread writer(a, [&] { a.result("send of 4 MiB", ::send(fd, bytes.data(), bytes.size(), 0)); });
    writer.wait_asleep();
    a.sync();
    writer.join();
  } else {
    a.sync();
    std::uint64_t from = 0;
    for (std::size_t chunk = 1; from < 4 * kMiB; chunk = chunk * 2 % 65'537 + 1) {
      const auto n = std::min<std::uint64_t>(chunk, 4 * kMiB - from);
      std::string buffer(static_cast<std::size_t>(n), '\0');
      const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), MSG_WAITALL);
      if (got != static_cast<ssize_t>(n) || buffer != patterned(from, buffer.size())) {
        a.log("wrong at %llu: %zd", static_cast<unsigned long long>(from), got);
        break;
      }
      from += n;
    }
    a.log("received %llu", static_cast<unsigned long long>(from));
  }
  a.sync();
}

// A result for a client that pauses: the socket holds it, and the server's limit on a write does not cut it.
SCENARIO(a_result_for_a_client_that_does_not_read, kComesBack) {
  const int fd = a.stream();
  a.server([&] {
    a.set_timeout(fd, SO_SNDTIMEO, 5'000);
    a.send_pattern(fd, 0, kMiB, 50'000);
  });
  a.client([&] { a.recv_pattern(fd, 0, kMiB, 65'536); a.send(fd, "thanks"); });
  a.server([&] { a.recv(fd, 10); });
}

SCENARIO(a_result_for_a_client_that_does_not_read_by_poll, kComesBack) { result_by_poll(a, false); }
SCENARIO(a_result_for_a_client_that_does_not_read_by_poll_first, kComesBack) { result_by_poll(a, true); }

SCENARIO(two_threads_two_directions, kStaysOnChannel) {
  const int fd = a.stream();
  const std::uint64_t out = a.is_client() ? 0 : 1'000'000'007;
  const std::uint64_t in = a.is_client() ? 1'000'000'007 : 0;
  Thread writer(a, [&] { a.send_pattern(fd, out, 24 * kMiB, 31'337); });
  Thread reader(a, [&] { a.recv_pattern(fd, in, 24 * kMiB, 65'536); });
  writer.join();
  reader.join();
  a.sync();
}

SCENARIO(many_tiny_messages, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      const char byte = pattern(i);
      if (::send(fd, &byte, 1, 0) != 1) {
        a.log("send %llu failed", static_cast<unsigned long long>(i));
        break;
      }
    }
    a.recv_pattern(fd, 7, 20'000, 9);
  } else {
    a.recv_pattern(fd, 0, 20'000, 13);
    a.send_pattern(fd, 7, 20'000, 1);
  }
  a.sync();
}

SCENARIO(requests_and_answers_of_every_size, kStaysOnChannel) {
  const int fd = a.stream();
  std::uint64_t offset = 0;
  std::size_t size = 1;
  bool good = true;
  for (int i = 0; i < 60 && good; ++i, size = size * 3 / 2 + 1) {
    if (size > 300'000) size = 1;
    std::string buffer(size, '\0');
    const std::string bytes = patterned(offset, size);
    const auto send = [&] {
      good = good && ::send(fd, bytes.data(), size, 0) == static_cast<ssize_t>(size);
    };
    const auto receive = [&] {
      good = good && ::recv(fd, buffer.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size) &&
             buffer == bytes;
    };
    if (a.is_client()) {
      send();
      receive();
    } else {
      receive();
      send();
    }
    offset += size;
  }
  a.log("all good: %d", good);
  a.sync();
}

SCENARIO(many_connections_at_once, kStaysOnChannel) {
  constexpr int kConnections = 64;
  a.meet();
  std::vector<int> fds;
  for (int i = 0; i < kConnections; ++i) fds.push_back(a.stream());
  if (a.is_client()) {
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = 0; i < fds.size(); ++i) {
        const std::string text = std::to_string(round) + "/" + std::to_string(i);
        if (::send(fds[i], text.data(), text.size(), 0) < 0) a.log("send failed");
      }
      int right = 0;
      for (std::size_t i = 0; i < fds.size(); ++i) {
        const std::string text = std::to_string(round) + "/" + std::to_string(i);
        char buffer[32] = {};
        const ssize_t n = ::recv(fds[i], buffer, sizeof buffer, 0);
        right += n > 0 && text == std::string_view(buffer, static_cast<std::size_t>(n)) ? 1 : 0;
      }
      a.log("round %d: %d right", round, right);
    }
  } else {
    // One poll() over all of them.
    std::vector<pollfd> set;
    for (const int fd : fds) set.push_back({fd, POLLIN, 0});
    int left = 20 * kConnections;
    while (left > 0) {
      if (::poll(set.data(), set.size(), 5000) <= 0) {
        a.log("poll has nothing to say, %d left", left);
        break;
      }
      for (pollfd& entry : set) {
        if ((entry.revents & POLLIN) == 0) continue;
        char buffer[32];
        const ssize_t n = ::recv(entry.fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (n > 0 && ::send(entry.fd, buffer, static_cast<std::size_t>(n), 0) == n) --left;
      }
    }
    a.log("%d echoes left", left);
  }
  a.sync();
  a.both([&] {
    for (const int fd : fds) ::close(fd);
  });
}

SCENARIO(connections_that_come_and_go, 0) {
  a.meet();
  int right = 0;
  for (int i = 0; i < 60; ++i) {
    const int fd = a.stream();
    const std::uint64_t size = static_cast<std::uint64_t>(i) * 5'003 + 1;
    if (a.is_client()) {
      const std::string bytes = patterned(0, size);
      right += ::send(fd, bytes.data(), size, 0) == static_cast<ssize_t>(size) ? 1 : 0;
    } else {
      std::uint64_t got = 0;
      bool good = true;
      char buffer[8192];
      ssize_t n;
      while ((n = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
        for (ssize_t k = 0; k < n; ++k) {
          good = good && buffer[k] == pattern(got + static_cast<std::uint64_t>(k));
        }
        got += static_cast<std::uint64_t>(n);
      }
      right += n == 0 && good && got == size ? 1 : 0;
    }
    ::close(fd);
    if (i % 8 == 0) a.sync();
  }
  a.log("%d of 60 right", right);
  a.sync();
}

}  // namespace ringroad::test
