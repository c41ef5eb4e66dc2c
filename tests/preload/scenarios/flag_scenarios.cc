// Flags, options and requests one by one: those that a stream answers itself, those that the kernel
// answers for the real socket, and those that take the stream back to it.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "tests/preload/drivers/actor.h"

// glibc names them only where time_t has 32 bits.
#ifndef SO_TIMESTAMP_NEW
#define SO_TIMESTAMP_NEW 63
#define SO_TIMESTAMPNS_NEW 64
#define SO_TIMESTAMPING_NEW 65
#endif

namespace ringroad::test {
namespace {

struct Named {
  const char* name;
  int level;
  int number;
  int value;
};

void set(Actor& a, int fd, const Named& option) {
  a.result(option.name,
           ::setsockopt(fd, option.level, option.number, &option.value, sizeof option.value));
}

void ask(Actor& a, int fd, const Named& option) {
  int value = -1;
  socklen_t length = sizeof value;
  if (a.result(option.name,
               ::getsockopt(fd, option.level, option.number, &value, &length)) == 0) {
    a.log("%d (%u)", value, length);
  }
}

// Both ways, with the bytes of one message in order.
void talk(Actor& a, int fd) {
  a.client([&] { a.send(fd, "ping"); });
  a.server([&] { a.recv(fd, 4, MSG_WAITALL); a.send(fd, "pong"); });
  a.client([&] { a.recv(fd, 4, MSG_WAITALL); });
}

// One receive by recvmsg(): whether a control message comes with it.
bool receives_with_control(int fd) {
  char bytes[4];
  alignas(cmsghdr) char control[256];
  iovec iov{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  return ::recvmsg(fd, &message, MSG_WAITALL) > 0 && CMSG_FIRSTHDR(&message) != nullptr;
}

}  // namespace

SCENARIO(flags_of_a_stream, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    a.send(fd, "a", MSG_MORE);
    a.send(fd, "b", MSG_EOR);
    a.send(fd, "c", MSG_CONFIRM);
    a.send(fd, "d", MSG_DONTROUTE);
    a.send(fd, "e", MSG_DONTWAIT | MSG_NOSIGNAL);
  });
  a.server([&] {
    a.recv(fd, 1, MSG_WAITALL);
    a.recv(fd, 1, MSG_NOSIGNAL);
    a.recv(fd, 1, MSG_CMSG_CLOEXEC);
    a.recv(fd, 1, MSG_WAITFORONE);
    a.recv(fd, 1, MSG_PEEK);
    a.recv(fd, 1, MSG_DONTWAIT);
    a.recv(fd, 1, MSG_DONTWAIT);
  });
}

SCENARIO(flags_that_are_the_kernels, kComesBack) {
  const Named receiving[] = {{"MSG_OOB", 0, MSG_OOB, 0}, {"MSG_ERRQUEUE", 0, MSG_ERRQUEUE, 0}};
  const Named sending[] = {{"MSG_ZEROCOPY", 0, MSG_ZEROCOPY, 0},
                           {"MSG_FASTOPEN", 0, MSG_FASTOPEN, 0}};
  for (const Named& flag : receiving) {
    const int fd = a.stream();
    talk(a, fd);
    a.server([&] { a.log("%s", flag.name); a.recv(fd, 4, flag.number | MSG_DONTWAIT); });
    talk(a, fd);
    a.both([&] { a.close(fd); });
  }
  for (const Named& flag : sending) {
    const int fd = a.stream();
    talk(a, fd);
    a.client([&] { a.log("%s", flag.name); a.send(fd, "four", flag.number | MSG_NOSIGNAL); });
    if (flag.number == MSG_ZEROCOPY) a.server([&] { a.recv(fd, 4, MSG_WAITALL); });
    talk(a, fd);
    a.both([&] { a.close(fd); });
  }
}

SCENARIO(timestamps_take_it_back, kComesBack) {
  const Named options[] = {
      {"SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP, 1},
      {"SO_TIMESTAMPNS", SOL_SOCKET, SO_TIMESTAMPNS, 1},
      {"SO_TIMESTAMPING", SOL_SOCKET, SO_TIMESTAMPING, 0x18},  // by software, of what is received
      {"SO_TIMESTAMP_NEW", SOL_SOCKET, SO_TIMESTAMP_NEW, 1},
      {"SO_TIMESTAMPNS_NEW", SOL_SOCKET, SO_TIMESTAMPNS_NEW, 1},
      {"SO_TIMESTAMPING_NEW", SOL_SOCKET, SO_TIMESTAMPING_NEW, 0x18},
  };
  for (const Named& option : options) {
    const int fd = a.stream();
    talk(a, fd);
    a.server([&] { set(a, fd, option); });
    // The kernel begins a moment later.
    int came = 0;
    for (int i = 0; i < 30; ++i) {
      if (a.is_client()) ::send(fd, "ping", 4, MSG_NOSIGNAL);
      if (a.is_server() && receives_with_control(fd)) ++came;
      a.sync();
      ::usleep(1000);
    }
    if (a.is_server()) a.log("a control message came: %d", came > 0);
    a.both([&] { a.close(fd); });
  }
}

SCENARIO(options_that_take_it_back, kComesBack) {
  const int fd = a.stream();
  talk(a, fd);
  const Named low{"SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, 3};
  a.server([&] { set(a, fd, low); ask(a, fd, low); });
  a.client([&] { a.send(fd, "ab"); });
  a.server([&] { a.poll(fd, POLLIN, 20); });
  a.client([&] { a.send(fd, "c"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.recv(fd, 3); });
  const Named options[] = {
      {"SO_PEEK_OFF", SOL_SOCKET, SO_PEEK_OFF, 0},
      {"SO_ATTACH_BPF", SOL_SOCKET, SO_ATTACH_BPF, -1},
      {"SO_ATTACH_REUSEPORT_CBPF", SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, 0},
      {"SO_ATTACH_REUSEPORT_EBPF", SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, -1},
      {"TCP_ULP", IPPROTO_TCP, TCP_ULP, 0x736c74},     // "tls"
      {"TCP_REPAIR", IPPROTO_TCP, TCP_REPAIR, 2},      // no such mode
  };
  for (const Named& option : options) {
    const int other = a.stream();
    talk(a, other);
    a.server([&] { set(a, other, option); });
    talk(a, other);
    a.both([&] { a.close(other); });
  }
}

SCENARIO(urgent_bytes_in_line, kComesBack) {
  const int fd = a.stream();
  talk(a, fd);
  a.server([&] { set(a, fd, {"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE, 1}); });
  a.client([&] { a.send(fd, "ab"); a.send(fd, "!", MSG_OOB); a.send(fd, "c"); });
  a.server([&] { a.settle(fd, POLLPRI, POLLPRI); a.recv(fd, 2); a.recv(fd, 2, MSG_WAITALL); });
}

SCENARIO(a_socket_filter_takes_it_back, kComesBack) {
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog filter{1, nothing};
  const int fd = a.stream();
  talk(a, fd);
  a.server([&] {
    a.result("SO_ATTACH_FILTER",
             ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
  });
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] {
    a.poll(fd, POLLIN, 50);
    set(a, fd, {"SO_DETACH_FILTER", SOL_SOCKET, SO_DETACH_FILTER, 0});
    a.recv(fd, 3, MSG_WAITALL);  // the kernel sends it again
  });
  talk(a, fd);
}

SCENARIO(options_that_are_the_kernels, kStaysOnChannel) {
  const int fd = a.stream();
  const Named options[] = {
      {"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, 1},
      {"SO_REUSEPORT", SOL_SOCKET, SO_REUSEPORT, 1},
      {"SO_BROADCAST", SOL_SOCKET, SO_BROADCAST, 1},
      {"SO_DONTROUTE", SOL_SOCKET, SO_DONTROUTE, 1},
      {"SO_PRIORITY", SOL_SOCKET, SO_PRIORITY, 4},
      {"SO_MAX_PACING_RATE", SOL_SOCKET, SO_MAX_PACING_RATE, 1 << 30},
      {"SO_BUSY_POLL", SOL_SOCKET, SO_BUSY_POLL, 50},
      {"SO_ZEROCOPY", SOL_SOCKET, SO_ZEROCOPY, 1},
      {"TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE, 100},
      {"TCP_KEEPINTVL", IPPROTO_TCP, TCP_KEEPINTVL, 10},
      {"TCP_KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT, 4},
      {"TCP_SYNCNT", IPPROTO_TCP, TCP_SYNCNT, 3},
      {"TCP_LINGER2", IPPROTO_TCP, TCP_LINGER2, 10},
      {"TCP_DEFER_ACCEPT", IPPROTO_TCP, TCP_DEFER_ACCEPT, 1},
      {"TCP_NOTSENT_LOWAT", IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16'384},
      {"TCP_THIN_LINEAR_TIMEOUTS", IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1},
      {"TCP_FASTOPEN", IPPROTO_TCP, TCP_FASTOPEN, 5},
      {"TCP_FASTOPEN_CONNECT", IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1},
      {"IP_TTL", IPPROTO_IP, IP_TTL, 33},
      {"IP_MTU_DISCOVER", IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO},
      {"IP_RECVERR", IPPROTO_IP, IP_RECVERR, 1},
      {"IP_FREEBIND", IPPROTO_IP, IP_FREEBIND, 1},
      {"IPV6_V6ONLY", IPPROTO_IPV6, IPV6_V6ONLY, 1},
  };
  a.both([&] {
    for (const Named& option : options) {
      set(a, fd, option);
      ask(a, fd, option);
    }
    // What the kernel says of these depends on what it has carried.
    set(a, fd, {"TCP_MAXSEG", IPPROTO_TCP, TCP_MAXSEG, 1000});
    set(a, fd, {"TCP_WINDOW_CLAMP", IPPROTO_TCP, TCP_WINDOW_CLAMP, 60'000});
    char name[16] = {};
    socklen_t length = sizeof name;
    a.result("TCP_CONGESTION", ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    a.result("TCP_CONGESTION",
             ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length));
    a.log("%s", name);
  });
  talk(a, fd);
}

SCENARIO(requests_that_take_it_back, kComesBack) {
  const int first = a.stream();
  talk(a, first);
  a.client([&] { a.send(first, "abc"); });
  a.server([&] {
    a.settle(first, POLLIN, POLLIN);
    int at_mark = -1;
    a.result("SIOCATMARK", ::ioctl(first, SIOCATMARK, &at_mark));
    a.log("%d", at_mark);
    a.recv(first, 3);
  });
  const int second = a.stream();
  talk(a, second);
  a.server([&] {
    count_signal(SIGIO, true);
    const int on = 1;
    a.result("F_SETOWN", ::fcntl(second, F_SETOWN, ::getpid()));
    a.log("F_GETOWN: %d", ::fcntl(second, F_GETOWN) == ::getpid());
    a.result("FIOASYNC", ::ioctl(second, FIOASYNC, &on));
  });
  a.client([&] { a.send(second, "abc"); });
  a.server([&] {
    a.settle(second, POLLIN, POLLIN);
    a.log("a signal came: %d", signals_seen() > 0);
    ::signal(SIGIO, SIG_IGN);
    a.recv(second, 3);
  });
  const int third = a.stream();
  talk(a, third);
  a.both([&] {
    ::signal(SIGIO, SIG_IGN);
    a.result("F_SETFL", ::fcntl(third, F_SETFL, ::fcntl(third, F_GETFL) | O_ASYNC));
    a.log("O_ASYNC: %d", (::fcntl(third, F_GETFL) & O_ASYNC) != 0);
  });
  talk(a, third);
}

SCENARIO(requests_that_are_the_kernels, kStaysOnChannel) {
  const int fd = a.stream();
  talk(a, fd);
  a.both([&] {
    int value = -1;
    a.result("SIOCOUTQNSD", ::ioctl(fd, SIOCOUTQNSD, &value));
    a.log("%d", value);
    a.result("F_SETSIG", ::fcntl(fd, F_SETSIG, SIGUSR2));
    a.result("F_GETSIG", ::fcntl(fd, F_GETSIG));
    a.result("F_GETPIPE_SZ", ::fcntl(fd, F_GETPIPE_SZ));
    a.log("F_GETFL: %d", (::fcntl(fd, F_GETFL) & (O_APPEND | O_NONBLOCK)) != 0);
    a.result("F_SETFL", ::fcntl(fd, F_SETFL, O_APPEND));
    a.log("F_GETFL: %d", (::fcntl(fd, F_GETFL) & O_APPEND) != 0);
    const unsigned number = static_cast<unsigned>(fd);
    a.result("close_range", ::close_range(number, number, CLOSE_RANGE_CLOEXEC));
    a.result("F_GETFD", ::fcntl(fd, F_GETFD));
    const int copy = ::dup3(fd, 400, O_CLOEXEC);
    a.result("F_GETFD", ::fcntl(copy, F_GETFD));
    a.close(copy);
  });
  talk(a, fd);
}

SCENARIO(a_program_that_filters_its_calls_by_number, kComesBack) {
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{1, nothing};
  const int fd = a.stream();
  talk(a, fd);
  a.server([&] {
    a.result("no_new_privs", ::syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L));
    a.result("a filter",
             ::syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0L, 0L));
  });
  talk(a, fd);
}

SCENARIO(a_program_that_filters_its_own_calls, kComesBack) {
  // It receives by recv(2), and has no use for poll(2).
  sock_filter no_polls[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, no_polls};
  const int fd = a.stream();
  talk(a, fd);
  a.server([&] {
    a.result("no_new_privs", ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    a.result("a filter", ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter));
  });
  if (a.is_client()) {
    ::usleep(50'000);
    a.send(fd, "later");
  } else {
    a.recv(fd, 5, MSG_WAITALL);
  }
  a.sync();
  a.server([&] {
    a.result("a mode that there is not", ::prctl(PR_SET_SECCOMP, 99, 0, 0, 0));
    a.result("strictly, with a flag", ::syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, nullptr));
  });
}

SCENARIO(a_program_that_lets_itself_read_and_write_only, kComesBack) {
  sock_filter no_others[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvfrom, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{5, no_others};
  const int fd = a.stream();
  a.client([&] { a.write(fd, "before"); });
  a.server([&] {
    a.read(fd, 20);
    a.result("no_new_privs", ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    a.result("a filter", ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter));
    a.write(fd, "answer");
  });
  a.client([&] { a.read(fd, 20); a.write(fd, "behind"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.read(fd, 20); });
}

SCENARIO(kinds_of_readiness, kStaysOnChannel) {
  const int fd = a.stream();
  const short kinds[] = {POLLIN,     POLLOUT,    POLLPRI,    POLLRDNORM, POLLWRNORM,
                         POLLRDBAND, POLLWRBAND, POLLRDHUP,  POLLMSG,    POLLNVAL,
                         POLLERR,    POLLHUP};
  const std::uint32_t in_epoll[] = {
      EPOLLIN,     EPOLLOUT,   EPOLLPRI, EPOLLRDNORM, EPOLLWRNORM,          EPOLLRDBAND,
      EPOLLWRBAND, EPOLLRDHUP, EPOLLMSG, EPOLLIN | EPOLLWAKEUP, EPOLLIN | EPOLLEXCLUSIVE,
      EPOLLERR,    EPOLLHUP};
  const auto all = [&] {
    for (const short kind : kinds) a.poll(fd, kind);
    for (const std::uint32_t kind : in_epoll) {
      const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{};
      event.events = kind;
      a.result("add", ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
      event.events = 0;
      const int n = ::epoll_wait(epoll, &event, 1, 0);
      a.log("%x: %d, %x", kind, n, n > 0 ? event.events : 0U);
      event.events = EPOLLOUT;
      a.result("mod", ::epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event));
      a.result("wait", ::epoll_wait(epoll, &event, 1, 0));
      a.result("del", ::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, nullptr));
      ::close(epoll);
    }
  };
  a.server(all);
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); all(); });
  a.client([&] { a.shutdown(fd, SHUT_WR); });
  a.server([&] { a.settle(fd, POLLRDHUP, POLLRDHUP); all(); a.recv(fd, 3); all(); });
  a.server([&] { a.shutdown(fd, SHUT_WR); });
  a.both([&] { a.settle(fd, POLLIN, POLLHUP); all(); });
}

}  // namespace ringroad::test
