// Duplicates of a descriptor, and numbers that change their meaning.
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

// The original goes, the copy lives; `copy` makes it.
void copy_and_close(Actor& a, const std::function<int(int)>& copy) {
  const int fd = a.stream();
  int other = -1;
  a.server([&] {
    other = copy(fd);
    a.log("copied: %d", other >= 0);
    a.send(other, "by the copy");
    a.close(fd);
    a.recv(fd, 1);
    a.send(other, ", still");
  });
  a.client([&] { a.recv(fd, 11); a.recv(fd, 7); a.send(fd, "answer"); });
  a.server([&] {
    a.settle(other, POLLIN, POLLIN);
    a.unread(other);
    a.recv(other, 10);
    a.close(other);
  });
  a.client([&] { a.recv(fd, 10); });
}

// Puts a copy of `file` on the lowest free number again and again for `ms`. How often that was refused,
// or something else stood there then.
int wrong_numbers(int file, int ms) {
  struct stat wanted {};
  ::fstat(file, &wanted);
  const int lowest = ::dup(file);
  ::close(lowest);
  int wrong = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (std::chrono::steady_clock::now() < end) {
    struct stat got {};
    const bool right = ::dup2(file, lowest) == lowest && ::fstat(lowest, &got) == 0 &&
                       got.st_dev == wanted.st_dev && got.st_ino == wanted.st_ino;
    wrong += right ? 0 : 1;
    ::close(lowest);
  }
  return wrong;
}

}  // namespace

SCENARIO(dup_outlives_the_original, kStaysOnChannel) {
  copy_and_close(a, [](int fd) { return ::dup(fd); });
}

SCENARIO(dup2_outlives_the_original, kStaysOnChannel) {
  copy_and_close(a, [](int fd) { return ::dup2(fd, 200); });
}

SCENARIO(dup3_outlives_the_original, kStaysOnChannel) {
  copy_and_close(a, [](int fd) { return ::dup3(fd, 201, O_CLOEXEC); });
}

SCENARIO(f_dupfd_outlives_the_original, kStaysOnChannel) {
  copy_and_close(a, [](int fd) { return ::fcntl(fd, F_DUPFD, 150); });
}

SCENARIO(f_dupfd_cloexec_outlives_the_original, kStaysOnChannel) {
  copy_and_close(a, [](int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 150); });
}

SCENARIO(the_original_outlives_its_copies, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    const int one = ::dup(fd);
    const int two = ::dup(one);
    a.set_nonblocking(two);  // of the open file: all share it
    a.recv(fd, 1);
    a.set_nonblocking(one, false);
    a.close(one);
    a.close(two);
    a.send(fd, "alive");
  });
  a.client([&] { a.recv(fd, 10); a.recv(fd, 10, MSG_DONTWAIT); });
}

SCENARIO(a_copy_made_while_the_original_sleeps, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    Thread reader(a, [&] { a.recv(fd, 10); });
    reader.wait_asleep();
    const int copy = ::dup(fd);
    a.close(fd);
    reader.wait_asleep();
    a.sync();
    reader.join();
    a.send(copy, "and back");
    a.close(copy);
  } else {
    a.sync();
    a.send(fd, "to both");
    a.recv(fd, 10);
    a.recv(fd, 10);
  }
  a.sync();
}

SCENARIO(dup2_over_a_stream_closes_it, kStaysOnChannel) {
  const int fd = a.stream();
  const int other = a.stream();
  a.server([&] {
    a.send(fd, "last words");
    a.log("dup2: %d", ::dup2(other, fd) == fd);
    a.send(fd, "another stream now");
  });
  a.client([&] {
    a.recv(fd, 20);
    a.recv(fd, 20);
    a.recv(other, 20);
    a.send(other, "yes");
  });
  a.server([&] { a.recv(fd, 1); a.recv(other, 10); a.close(other); a.send(fd, "again"); });
  a.client([&] { a.recv(other, 10); });
}

SCENARIO(dup2_of_a_marker_over_a_stream, kStaysOnChannel) {
  // As the JDK closes a socket that other threads may be using.
  const int fd = a.stream();
  if (a.is_server()) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
    ::close(pair[1]);
    Thread reader(a, [&] { a.recv(fd, 10); });
    reader.wait_asleep();
    a.shutdown(fd, SHUT_RDWR);
    reader.join();
    a.log("dup2: %d", ::dup2(pair[0], fd) == fd);
    a.recv(fd, 10);
    a.send(fd, "x", MSG_NOSIGNAL);
    a.close(fd);
  }
  a.sync();
  a.client([&] { a.settle(fd, POLLRDHUP, POLLRDHUP); a.recv(fd, 10); });
}

SCENARIO(dup2_that_fails_closes_nothing, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    const int closed = ::dup(0);
    ::close(closed);
    a.result("dup2 of a closed number", ::dup2(closed, fd));
    a.result("dup3 with wrong flags", ::dup3(0, fd, 0x1234));
    a.result("dup3 of itself", ::dup3(fd, fd, 0));
    a.log("dup2 of itself: %d", ::dup2(fd, fd) == fd);
    a.result("dup2 to -1", ::dup2(fd, -1));
    a.result("dup2 to a large number", ::dup2(fd, 1 << 30));
    a.result("F_DUPFD from a large number", ::fcntl(fd, F_DUPFD, 1 << 30));
    a.result("dup of -1", ::dup(-1));
    a.send(fd, "unharmed");
  });
  a.client([&] { a.recv(fd, 20); a.recv(fd, 1, MSG_DONTWAIT); });
}

SCENARIO(closing_a_range, kStaysOnChannel) {
  const int fd = a.stream();
  const int other = a.stream();
  a.server([&] {
    const int low = ::dup2(fd, 300);
    const int high = ::dup2(other, 302);
    a.close(fd);
    a.close(other);
    a.result("close_range with wrong flags", ::close_range(300, 302, 1 << 20));
    a.send(high, "open");
    a.result("close_range of one", ::close_range(301, 302, CLOSE_RANGE_UNSHARE));
    a.send(low, "left");
    a.send(high, "closed", MSG_NOSIGNAL);
    a.result("close_range the wrong way", ::close_range(10, 5, 0));
    ::closefrom(300);
    a.send(low, "closed", MSG_NOSIGNAL);
  });
  a.client([&] {
    a.recv(other, 4);
    a.recv(other, 10);
    a.recv(fd, 10);
    a.recv(fd, 10);
  });
}

SCENARIO(calls_on_wrong_descriptors, 0) {
  if (a.is_server()) {
    for (const int fd : {-1, 1 << 21, 999}) {
      char buffer[4];
      a.result("recv", ::recv(fd, buffer, 1, 0));
      a.result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      a.result("close", ::close(fd));
      a.result("dup", ::dup(fd));
      a.result("shutdown", ::shutdown(fd, SHUT_RDWR));
      a.result("fcntl", ::fcntl(fd, F_GETFL));
      a.poll(fd, POLLIN);
    }
    int ends[2];
    if (::pipe(ends) != 0) return;
    a.send(ends[1], "x");
    a.recv(ends[0], 1);
    a.shutdown(ends[0], SHUT_RDWR);
    a.error(ends[0]);
  }
  a.sync();
}

SCENARIO(descriptor_numbers_stay_low, kStaysOnChannel) {
  // The library's own descriptors do not take the numbers that the program counts on.
  const int before = ::dup(0);
  ::close(before);
  const int fd = a.stream();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.recv(fd, 1); a.send(fd, "y"); });
  a.client([&] { a.recv(fd, 1); });
  const int next = ::dup(0);
  a.log("from the first free number: %d descriptors", next - before);
  ::close(next);
  a.sync();
}

SCENARIO(numbers_taken_over_beside_promotions, 0) {
  // The library's own descriptors stand on the lowest number for a moment.
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  int wrong = 0;
  for (int i = 0; i < 20; ++i) {
    const int fd = a.stream();
    for (int message = 0; message < 4; ++message) {
      a.client([&] { a.send(fd, "x"); });
      a.server([&] { a.recv(fd, 1); });
    }
    a.both([&] { wrong += wrong_numbers(file, 10); });
    a.close(fd);
  }
  a.log("wrong: %d", wrong);
  ::close(file);
}

// As a server takes over its predecessor's listener.
SCENARIO(a_listener_that_was_given, kStaysOnChannel) {
  a.meet();
  int given = -1;
  a.server([&] {
    int pair[2];
    a.result("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    const int listener = a.listening();
    char byte = 'x';
    iovec piece{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof listener)] = {};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof listener);
    std::memcpy(CMSG_DATA(part), &listener, sizeof listener);
    a.result("sendmsg", ::sendmsg(pair[0], &message, 0));
    a.result("recvmsg", ::recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC));
    std::memcpy(&given, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof given);
    for (const int option : {SO_TYPE, SO_ACCEPTCONN}) {
      int value = -1;
      socklen_t length = sizeof value;
      a.result("getsockopt", ::getsockopt(given, SOL_SOCKET, option, &value, &length));
      a.log("%d", value);
    }
    errno = 0;
    a.result("getsockopt", ::getsockopt(given, SOL_SOCKET, SO_TYPE, nullptr, nullptr));
    for (const int end : pair) ::close(end);
  });
  for (int round = 0; round < 2; ++round) {
    int fd = -1;
    if (a.is_client()) {
      fd = a.connect_blocking();
    } else {
      fd = ::accept4(given, nullptr, nullptr, SOCK_CLOEXEC);
      a.log("accept4: %d", fd >= 0);
    }
    a.sync();
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] {
      a.recv(fd, 16);
      a.send(fd, "pong");
    });
    a.client([&] { a.recv(fd, 16); });
    a.both([&] { a.close(fd); });
  }
  a.server([&] { a.close(given); });
}

}  // namespace ringroad::test
