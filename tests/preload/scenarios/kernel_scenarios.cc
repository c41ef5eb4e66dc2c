// What the library hands back to the kernel: the results are the kernel's, before and after.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

int add(Actor& a, int epoll, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = 0xabcdef;
  return static_cast<int>(a.result("epoll add", ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)));
}

void wait(Actor& a, int epoll, int timeout_ms) {
  epoll_event events[4] = {};
  const int n = ::epoll_wait(epoll, events, 4, timeout_ms);
  a.log("epoll_wait = %d: %s, data right %d", n,
        n > 0 ? poll_names(static_cast<short>(events[0].events)).c_str() : "nothing",
        n > 0 && events[0].data.u64 == 0xabcdef);
}

void converse(Actor& a, int fd, int epoll) {
  if (a.is_server()) wait(a, epoll, 0);
  a.sync();
  a.client([&] { a.send(fd, "one"); });
  a.server([&] { wait(a, epoll, 2000); wait(a, epoll, 0); a.recv(fd, 2); wait(a, epoll, 0); });
  a.client([&] { a.send(fd, "two"); });
  a.server([&] { wait(a, epoll, 2000); a.recv(fd, 10); wait(a, epoll, 0); a.send(fd, "answer"); });
  a.client([&] { a.recv(fd, 10); a.shutdown(fd, SHUT_WR); });
  a.server([&] { wait(a, epoll, 2000); a.recv(fd, 10); });
}

}  // namespace

SCENARIO(epoll_level_triggered, 0) {
  const int fd = a.stream();
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  a.server([&] { add(a, epoll, fd, EPOLLIN | EPOLLRDHUP); });
  converse(a, fd, epoll);
}

SCENARIO(epoll_edge_triggered, 0) {
  const int fd = a.stream();
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  a.server([&] { add(a, epoll, fd, EPOLLIN | EPOLLRDHUP | EPOLLET); });
  converse(a, fd, epoll);
}

SCENARIO(epoll_after_much_traffic, 0) {
  const int fd = a.stream();
  for (int i = 0; i < 10; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] { a.recv(fd, 10); a.send(fd, "pong"); });
    a.client([&] { a.recv(fd, 10); });
  }
  a.client([&] { a.send(fd, "left unread"); });
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    add(a, epoll, fd, EPOLLIN | EPOLLET);
    wait(a, epoll, 2000);
    a.recv(fd, 4);
    a.recv(fd, 20);
  });
  converse(a, fd, epoll);
}

SCENARIO(epoll_added_before_connect, 0) {
  a.meet();
  int fd = -1;
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  if (a.is_client()) {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    add(a, epoll, fd, EPOLLIN | EPOLLOUT | EPOLLET);
    wait(a, epoll, 0);
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&to), length));
    wait(a, epoll, 2000);
    a.error(fd);
    for (int i = 0; i < 5; ++i) a.send(fd, "x");
  } else {
    fd = a.accept_blocking();
    for (int i = 0; i < 5; ++i) a.recv(fd, 1);
  }
  a.sync();
  a.server([&] { a.send(fd, "hello"); });
  a.client([&] { wait(a, epoll, 2000); a.recv(fd, 10); });
}

// As PostgreSQL waits: the instance is closed with the descriptor in it, and no copy of it says so.
SCENARIO(epoll_made_for_each_wait, kStaysOnChannel) {
  a.meet();
  int fd = -1;
  const auto wait_once = [&](std::uint32_t events) {
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    add(a, epoll, fd, events);
    wait(a, epoll, 2000);
    ::close(epoll);
  };
  if (a.is_client()) {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    wait_once(EPOLLOUT);
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&to), length));
    wait_once(EPOLLOUT);
    wait_once(EPOLLOUT);
    a.error(fd);
  } else {
    fd = a.accept_blocking();
  }
  a.sync();
  for (int i = 0; i < 3; ++i) {
    a.server([&] { a.send(fd, "hello"); });
    a.client([&] {
      wait_once(EPOLLIN);
      a.recv(fd, 10);
    });
  }
}

// The copy of the instance is all that is left of it, and has the descriptor still.
SCENARIO(epoll_copied_before_connect, 0) {
  a.meet();
  int fd = -1;
  const int first = ::epoll_create1(EPOLL_CLOEXEC);
  int epoll = -1;
  if (a.is_client()) {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    add(a, first, fd, EPOLLIN | EPOLLOUT | EPOLLET);
    epoll = ::dup(first);
    ::close(first);
    wait(a, epoll, 0);
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&to), length));
    wait(a, epoll, 2000);
    a.error(fd);
  } else {
    fd = a.accept_blocking();
  }
  for (int i = 0; i < 3; ++i) {
    a.client([&] { a.send(fd, "question"); });
    a.server([&] {
      a.recv(fd, 10);
      a.send(fd, "answer");
    });
    a.client([&] {
      wait(a, epoll, 2000);
      a.recv(fd, 10);
    });
  }
}

SCENARIO(epoll_of_a_listener_and_its_streams, 0) {
  a.meet();
  int fd = -1;
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  a.server([&] { add(a, epoll, a.listening(), EPOLLIN); });
  a.client([&] {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&to), length));
  });
  a.server([&] {
    wait(a, epoll, 2000);
    fd = ::accept4(a.listening(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    wait(a, epoll, 0);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = 0xabcdef;
    a.result("del", ::epoll_ctl(epoll, EPOLL_CTL_DEL, a.listening(), &event));
    add(a, epoll, fd, EPOLLIN | EPOLLRDHUP);
    a.result("add again", ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
  });
  converse(a, fd, epoll);
  a.server([&] { a.close(fd); wait(a, epoll, 0); });
}

SCENARIO(select_on_a_stream, kStaysOnChannel) {
  const int fd = a.stream();
  const auto look = [&](const char* when, int ms) {
    fd_set in;
    fd_set out;
    fd_set except;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&except);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    FD_SET(fd, &except);
    timeval tv{ms / 1000, static_cast<suseconds_t>(ms % 1000) * 1000};
    const int n = ::select(fd + 1, &in, ms == 0 ? &out : nullptr, &except, &tv);
    a.log("%s: select = %d, in %d, out %d, except %d", when, n, FD_ISSET(fd, &in) != 0,
          ms == 0 && FD_ISSET(fd, &out), FD_ISSET(fd, &except) != 0);
  };
  a.both([&] { look("fresh", 0); a.timed(50, [&] { look("waiting", 50); }); });
  a.client([&] { a.send(fd, "data"); });
  a.server([&] { look("data", 2000); a.recv(fd, 10); look("taken", 0); a.send(fd, "back"); });
  a.client([&] { look("answer", 2000); a.recv(fd, 10); a.shutdown(fd, SHUT_WR); });
  a.server([&] { look("end", 2000); a.recv(fd, 10); });
}

SCENARIO(pselect_on_a_stream, kStaysOnChannel) {
  const int fd = a.stream();
  const auto look = [&](long ms, const sigset_t* mask) {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    const timespec timeout{ms / 1000, ms % 1000 * 1'000'000};
    a.result("pselect", ::pselect(fd + 1, &in, nullptr, nullptr, &timeout, mask));
  };
  a.server([&] {
    a.timed(80, [&] { look(80, nullptr); });
    count_signal(SIGUSR1, true);
    sigset_t none;
    sigset_t blocked;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    ::raise(SIGUSR1);
    look(1000, &none);
    a.log("signals %d", signals_seen());
    fd_set bad;
    FD_ZERO(&bad);
    FD_SET(fd, &bad);
    const int closed = ::dup(fd);
    ::close(closed);
    FD_SET(closed, &bad);
    const timespec zero{0, 0};
    a.result("a number that is not open",
             ::pselect(std::max(fd, closed) + 1, &bad, nullptr, nullptr, &zero, nullptr));
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { look(2000, nullptr); });
}

SCENARIO(sendfile_to_a_stream, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "before"); });
  if (a.is_client()) {
    const int file = ::memfd_create("content", MFD_CLOEXEC);
    const std::string bytes = patterned(0, 150'000);
    if (::write(file, bytes.data(), bytes.size()) != 150'000) a.log("cannot write the file");
    off_t offset = 0;
    while (offset < 150'000) {
      if (::sendfile(fd, file, &offset, static_cast<std::size_t>(150'000 - offset)) <= 0) break;
    }
    a.log("offset %ld", static_cast<long>(offset));
    a.send(fd, "after");
  } else {
    a.recv(fd, 6, MSG_WAITALL);
    a.recv_pattern(fd, 0, 150'000, 10'000);
    a.recv(fd, 5, MSG_WAITALL);
  }
  a.sync();
}

SCENARIO(sendfile_from_nothing, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    off_t offset = 0;
    a.result("sendfile", ::sendfile(fd, -1, nullptr, 10));
    a.result("sendfile at an offset", ::sendfile(fd, -1, &offset, 10));
    a.send(fd, "on its channel");
  });
  a.server([&] { a.recv(fd, 64); });
}

SCENARIO(sendfile_in_its_forms, 0) {
  const int fd = a.stream();
  if (a.is_client()) {
    const int file = ::memfd_create("content", MFD_CLOEXEC);
    if (::write(file, "0123456789", 10) != 10) a.log("cannot write the file");
    const auto position = [&] { a.log("position %ld", static_cast<long>(::lseek(file, 0, SEEK_CUR))); };
    ::lseek(file, 2, SEEK_SET);
    a.result("from its position", ::sendfile(fd, file, nullptr, 3));
    position();
    off_t offset = 8;
    a.result("over its end", ::sendfile(fd, file, &offset, 100));
    a.log("offset %ld", static_cast<long>(offset));
    position();
    a.result("behind its end", ::sendfile(fd, file, &offset, 100));
    a.result("nothing", ::sendfile(fd, file, nullptr, 0));
    offset = -1;
    a.result("a negative offset", ::sendfile(fd, file, &offset, 1));
    a.result("no file", ::sendfile(fd, 5000, nullptr, 1));
    a.result("no stream", ::sendfile(5000, file, nullptr, 1));
  } else {
    a.recv(fd, 5, MSG_WAITALL);
  }
  a.sync();
}

SCENARIO(stdio_on_a_stream, kComesBack) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "first line\n"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    std::FILE* file = ::fdopen(::dup(fd), "r+");
    char line[64] = {};
    a.log("fgets: %s", std::fgets(line, sizeof line, file) != nullptr ? line : "nothing");
    std::fprintf(file, "from stdio %d\n", 42);
    std::fflush(file);
    std::fclose(file);
    a.result("dprintf", ::dprintf(fd, "and %s\n", "dprintf"));
  });
  a.client([&] { a.recv(fd, 14, MSG_WAITALL); a.recv(fd, 12, MSG_WAITALL); a.send(fd, "ok"); });
  a.server([&] { a.recv(fd, 10); });
}

SCENARIO(a_number_that_fclose_freed, kComesBack) {
  const int fd = a.stream();
  const int next = a.stream();
  a.server([&] {
    std::FILE* file = ::fdopen(fd, "r+");
    std::fprintf(file, "x");
    std::fclose(file);
    a.log("the same number: %d", ::dup2(next, fd) == fd);
    a.send(fd, "another stream");
  });
  a.client([&] { a.recv(fd, 1); a.recv(fd, 1); a.recv(next, 20); });
}

namespace {

// `pass` sends the message from the first socket.
void pass_to_another_process(Actor& a, long (*pass)(int, msghdr&)) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "unread when passed"); });
  if (a.is_server()) {
    a.settle(fd, POLLIN, POLLIN);
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return;
    char byte = 'f';
    iovec iov{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&msg);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    a.result("passed", pass(pair[0], msg));
    a.close(fd);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::recvmsg(pair[1], &msg, 0) != 1) ::_exit(1);
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof passed);
      a.recv(passed, 40);
      a.send(passed, "by another process");
      a.recv(passed, 10);
      ::_exit(0);
    }
    ::close(pair[1]);
    a.sync();
    int status = -1;
    ::waitpid(child, &status, 0);
    a.log("child: %d", status);
  } else {
    a.sync();
    a.recv(fd, 40);
    a.shutdown(fd, SHUT_WR);
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 10);
  }
  a.sync();
}

}  // namespace

SCENARIO(a_stream_passed_to_another_process, kComesBack) {
  pass_to_another_process(a, [](int to, msghdr& msg) -> long { return ::sendmsg(to, &msg, 0); });
}

SCENARIO(a_stream_passed_by_number, kComesBack) {
  pass_to_another_process(a, [](int to, msghdr& msg) { return ::syscall(SYS_sendmsg, to, &msg, 0); });
}

SCENARIO(a_stream_passed_in_a_list_by_number, kComesBack) {
  pass_to_another_process(a, [](int to, msghdr& msg) {
    mmsghdr list{msg, 0};
    return ::syscall(SYS_sendmmsg, to, &list, 1, 0);
  });
}

SCENARIO(out_of_band, kComesBack) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "in"); });
  a.server([&] { a.recv(fd, 2); });
  a.client([&] { a.send(fd, "abc"); a.send(fd, "!", MSG_OOB); a.send(fd, "def"); });
  a.server([&] {
    a.settle(fd, POLLIN | POLLPRI, POLLPRI);
    a.recv(fd, 1, MSG_OOB);
    a.recv(fd, 10);
    a.recv(fd, 10);
    a.recv(fd, 1, MSG_OOB);
  });
}

SCENARIO(over_ipv6, kStaysOnChannel) {
  const int fd = a.stream(AF_INET6);
  a.client([&] { a.send(fd, "six"); });
  a.server([&] { a.recv(fd, 10); a.send(fd, "yes"); });
  a.client([&] { a.recv(fd, 10); a.close(fd); });
  a.server([&] { a.recv(fd, 10); });
}

SCENARIO(over_mapped_ipv4, kStaysOnChannel) {
  a.meet();
  int fd;
  if (a.is_client()) {
    fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(a.port());
    to.sin6_addr.s6_addr[10] = to.sin6_addr.s6_addr[11] = 0xff;
    to.sin6_addr.s6_addr[12] = 127;
    to.sin6_addr.s6_addr[15] = 1;
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to));
  } else {
    fd = a.accept_blocking();
  }
  a.sync();
  a.client([&] { a.send(fd, "mapped"); });
  a.server([&] { a.recv(fd, 10); a.send(fd, "yes"); });
  a.client([&] { a.recv(fd, 10); });
}

}  // namespace ringroad::test
