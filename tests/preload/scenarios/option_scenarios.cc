// Names, options and the questions of ioctl().
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

int option(Actor& a, int fd, const char* name, int level, int number) {
  int value = -1;
  socklen_t length = sizeof value;
  if (::getsockopt(fd, level, number, &value, &length) != 0) {
    a.result(name, -1);
    return -1;
  }
  a.log("%s = %d (%u)", name, value, length);
  return value;
}

void set(Actor& a, int fd, const char* name, int level, int number, int value) {
  a.result(("set " + std::string(name)).c_str(),
           ::setsockopt(fd, level, number, &value, sizeof value));
}

// What TCP_INFO tells of the connection's state, once it is that.
void settle_state(Actor& a, int fd, int awaited) {
  tcp_info info{};
  for (int i = 0; i < 200; ++i) {
    socklen_t length = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) break;
    if (info.tcpi_state == awaited) break;
    ::usleep(10'000);
  }
  a.log("state %d", info.tcpi_state);
}

using Turn = void (Actor::*)(const std::function<void()>& turn);

void ask_and_be_answered(Actor& a, int fd, Turn asker, Turn other) {
  for (int i = 0; i < 6; ++i) {
    (a.*asker)([&] { a.send(fd, "ask"); });
    (a.*other)([&] {
      a.recv(fd, 3);
      a.send(fd, "answer");
    });
    (a.*asker)([&] { a.recv(fd, 6); });
  }
}

}  // namespace

SCENARIO(names, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.recv(fd, 1); });
  a.both([&] {
    sockaddr_in own{};
    sockaddr_in peer{};
    socklen_t length = sizeof own;
    a.result("getsockname", ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length));
    a.log("length %u, family %d, address %s", length, own.sin_family, inet_ntoa(own.sin_addr));
    length = sizeof peer;
    a.result("getpeername", ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length));
    a.log("length %u, address %s", length, inet_ntoa(peer.sin_addr));
    const std::uint16_t service = ntohs(a.is_server() ? own.sin_port : peer.sin_port);
    a.log("the service's port: %d", service == a.port());
    struct stat st {};
    a.result("fstat", ::fstat(fd, &st));
    a.log("a socket: %d", S_ISSOCK(st.st_mode));
    a.result("lseek", ::lseek(fd, 0, SEEK_CUR));
    char byte;
    a.result("pread", ::pread(fd, &byte, 1, 0));
    a.result("pwrite", ::pwrite(fd, "x", 1, 0));
    a.result("fsync", ::fsync(fd));
    a.result("ftruncate", ::ftruncate(fd, 0));
    a.result("accept", ::accept(fd, nullptr, nullptr));
    a.result("listen", ::listen(fd, 5));
  });
}

SCENARIO(socket_options, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.recv(fd, 1); });
  a.both([&] {
    option(a, fd, "SO_TYPE", SOL_SOCKET, SO_TYPE);
    option(a, fd, "SO_DOMAIN", SOL_SOCKET, SO_DOMAIN);
    option(a, fd, "SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL);
    option(a, fd, "SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN);
    option(a, fd, "SO_ERROR", SOL_SOCKET, SO_ERROR);
    option(a, fd, "SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE);
    set(a, fd, "SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, 1);
    option(a, fd, "SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE);
    option(a, fd, "TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY);
    set(a, fd, "TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY, 1);
    option(a, fd, "TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY);
    set(a, fd, "TCP_CORK", IPPROTO_TCP, TCP_CORK, 1);
    option(a, fd, "TCP_CORK", IPPROTO_TCP, TCP_CORK);
    a.send(fd, "corked");
    set(a, fd, "TCP_CORK", IPPROTO_TCP, TCP_CORK, 0);
    set(a, fd, "TCP_QUICKACK", IPPROTO_TCP, TCP_QUICKACK, 1);
    set(a, fd, "SO_SNDBUF", SOL_SOCKET, SO_SNDBUF, 100'000);
    option(a, fd, "SO_SNDBUF", SOL_SOCKET, SO_SNDBUF);
    set(a, fd, "SO_RCVBUF", SOL_SOCKET, SO_RCVBUF, 100'000);
    option(a, fd, "SO_RCVBUF", SOL_SOCKET, SO_RCVBUF);
    set(a, fd, "TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
    option(a, fd, "TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT);
    set(a, fd, "IP_TOS", IPPROTO_IP, IP_TOS, 0x10);
    option(a, fd, "IP_TOS", IPPROTO_IP, IP_TOS);
    set(a, fd, "nonsense", SOL_SOCKET, 9999, 1);
    option(a, fd, "nonsense", IPPROTO_TCP, 9999);
    socklen_t length = 2;
    char little[2];
    a.result("SO_ERROR into 2 bytes", ::getsockopt(fd, SOL_SOCKET, SO_ERROR, little, &length));
    a.log("length %u", length);
    linger l{};
    length = sizeof l;
    a.result("SO_LINGER", ::getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &length));
    a.log("%d %d", l.l_onoff, l.l_linger);
    tcp_info info{};
    length = sizeof info;
    a.result("TCP_INFO", ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    a.log("established: %d", info.tcpi_state == TCP_ESTABLISHED);
  });
  a.both([&] { a.recv(fd, 10); });
}

SCENARIO(nodelay_is_kept, 0) {
  // Set right after the connection was made, when the library may be at work on it.
  int kept = 0;
  for (int i = 0; i < 200; ++i) {
    const int fd = a.stream();
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (int k = 0; k < 5; ++k) {
      char byte = 'x';
      if (a.is_client()) {
        ::send(fd, &byte, 1, 0);
        ::recv(fd, &byte, 1, 0);
      } else {
        ::recv(fd, &byte, 1, 0);
        ::send(fd, &byte, 1, 0);
      }
    }
    int value = 0;
    socklen_t length = sizeof value;
    ::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length);
    kept += value != 0 ? 1 : 0;
    ::close(fd);
  }
  a.log("kept %d times of 200", kept);
  a.sync();
}

SCENARIO(unread_bytes_are_counted, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] { a.unread(fd); });
  a.client([&] { a.send(fd, "12345"); a.send(fd, "678"); });
  a.server([&] {
    a.settle_unread(fd, 8);
    a.unread(fd);
    a.recv(fd, 2);
    a.unread(fd);
    a.recv(fd, 2, MSG_PEEK);
    a.unread(fd);
  });
  a.client([&] { a.send(fd, patterned(0, 30'000)); a.shutdown(fd, SHUT_WR); });
  a.server([&] {
    a.settle(fd, POLLRDHUP, POLLRDHUP);
    a.unread(fd);
    a.recv(fd, 6);
    a.recv_pattern(fd, 0, 30'000, 30'000);
    a.unread(fd);
    a.recv(fd, 1);
    a.unread(fd);
    int value = -1;
    a.result("FIONREAD nowhere", ::ioctl(fd, FIONREAD, nullptr));
    a.result("SIOCOUTQ", ::ioctl(fd, SIOCOUTQ, &value));
    a.log("%d unsent", value);
  });
  a.client([&] {
    pollfd none{-1, 0, 0};
    int value = -1;
    // Acknowledged in the end.
    for (int i = 0; i < 2000 && value != 0; ++i) {
      if (::ioctl(fd, SIOCOUTQ, &value) != 0) break;
      ::poll(&none, 1, 1);
    }
    a.log("%d unsent", value);
  });
}

SCENARIO(blocking_and_not, kComesBack) {
  const int fd = a.stream();
  const auto flags = [&] {
    const int value = ::fcntl(fd, F_GETFL);
    a.log("F_GETFL: access %d, nonblocking %d, async %d", value & O_ACCMODE,
          (value & O_NONBLOCK) != 0, (value & O_ASYNC) != 0);
  };
  a.both([&] {
    flags();
    int on = 1;
    a.result("FIONBIO 1", ::ioctl(fd, FIONBIO, &on));
    flags();
    a.recv(fd, 4);
    on = 0;
    a.result("FIONBIO 0", ::ioctl(fd, FIONBIO, &on));
    flags();
    // As some programs do it: without the access mode.
    a.result("F_SETFL", ::fcntl(fd, F_SETFL, O_RDONLY | O_NONBLOCK));
    flags();
    a.recv(fd, 4);
    a.read(fd, 4);
    a.result("F_SETFL", ::fcntl(fd, F_SETFL, 0));
    flags();
    a.result("F_GETFD", ::fcntl(fd, F_GETFD));
    a.result("F_SETFD", ::fcntl(fd, F_SETFD, 0));
    a.result("F_GETFD", ::fcntl(fd, F_GETFD));
    a.result("F_SETFD", ::fcntl(fd, F_SETFD, FD_CLOEXEC));
    a.result("F_GETOWN", ::fcntl(fd, F_GETOWN));
    a.result("fcntl nonsense", ::fcntl(fd, 9999, 0));
    a.result("ioctl nonsense", ::ioctl(fd, 0x1234, nullptr));
  });
  if (a.is_server()) {
    Thread sleeper(a, [&] { a.recv(fd, 10); });  // blocking again
    sleeper.wait_asleep();
    a.sync();
    sleeper.join();
  } else {
    a.sync();
    a.send(fd, "blocked");
  }
  a.sync();
}

// recv(2) wants as many bytes as SO_RCVLOWAT says, or as it has room for; poll(2) as many as that
// says.
SCENARIO(low_water_from_before_the_connection, 0) {
  a.meet();
  int fd = -1;
  if (a.is_server()) {
    fd = a.accept_blocking();
  } else {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    set(a, fd, "SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, 4096);
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&to), length));
  }
  ask_and_be_answered(a, fd, &Actor::client, &Actor::server);
}

SCENARIO(ends_are_in_the_state_of_tcp_info, kStaysOnChannel) {
  const int fd = a.stream();
  ask_and_be_answered(a, fd, &Actor::client, &Actor::server);
  a.both([&] { settle_state(a, fd, TCP_ESTABLISHED); });
  a.client([&] { a.shutdown(fd, SHUT_WR); });
  a.both([&] { settle_state(a, fd, a.is_client() ? TCP_FIN_WAIT2 : TCP_CLOSE_WAIT); });
  a.server([&] { a.shutdown(fd, SHUT_WR); });
  a.both([&] { settle_state(a, fd, TCP_CLOSE); });
}

SCENARIO(signals_asked_for_before_the_connection, 0) {
  a.meet();
  int fd = -1;
  if (a.is_server()) {
    fd = a.accept_blocking();
  } else {
    count_signal(SIGIO, true);
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.result("F_SETOWN", ::fcntl(fd, F_SETOWN, ::getpid()));
    a.result("O_ASYNC", ::fcntl(fd, F_SETFL, O_ASYNC));
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    a.result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&to), length));
  }
  ask_and_be_answered(a, fd, &Actor::client, &Actor::server);
  a.client([&] { signals_seen(); });
  a.server([&] { a.send(fd, "x"); });
  a.client([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.log("a signal came: %d", signals_seen() > 0);
    ::signal(SIGIO, SIG_IGN);
    a.recv(fd, 1);
  });
}

SCENARIO(low_water_of_a_listener, 0) {
  a.meet();
  if (a.is_server()) set(a, a.listening(), "SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, 4096);
  a.sync();
  const int fd = a.stream();
  ask_and_be_answered(a, fd, &Actor::server, &Actor::client);
}

SCENARIO(accept_of_a_connection_that_was_reset, 0) {
  a.meet();
  if (a.is_client()) {
    const int fd = a.connect_blocking();
    const linger cut{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
    a.close(fd);
  }
  a.sync();
  a.server([&] {
    pollfd ready{a.listening(), POLLIN, 0};
    a.result("poll", ::poll(&ready, 1, 2000));
    const auto before = std::chrono::steady_clock::now();
    const int fd = a.accept_blocking();
    a.log("at once: %d",
          std::chrono::steady_clock::now() - before < std::chrono::milliseconds(1500));
    a.recv(fd, 10);
  });
}

}  // namespace ringroad::test
