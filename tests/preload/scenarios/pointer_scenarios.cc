// Pointers to nowhere in the place of each argument: the kernel's answers, and nothing beyond them is
// touched.
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/arguments.h"

namespace ringroad::test {
namespace {

// Pointers to what no program has.
struct Nowhere {
  const char* name;
  std::intptr_t address;
};
constexpr Nowhere kNowhere[] = {{"NULL", 0}, {"1", 1}, {"-1", -1}, {"-4000", -4000}};

// One call with such a pointer in the place of one of its arguments.
struct Wrong {
  const char* name;
  long (*call)(int fd, void* nowhere);
};

int other_fd = -1;  // of a call that wants another descriptor, too

long closed_behind(int fd, long result) {
  const int saved = errno;
  ::close(fd);
  errno = saved;
  return result;
}

// What a stream on a channel answers by itself, or asks the kernel for without a byte moving.
constexpr Wrong kWrong[] = {
    {"read", [](int fd, void* p) -> long { return ::read(fd, p, 5); }},
    {"readv", [](int fd, void* p) -> long { return ::readv(fd, static_cast<iovec*>(p), 2); }},
    {"readv into it",
     [](int fd, void* p) -> long {
       const iovec piece{p, 5};
       return ::readv(fd, &piece, 1);
     }},
    {"preadv2", [](int fd, void* p) -> long { return ::preadv2(fd, static_cast<iovec*>(p), 2, -1, 0); }},
    {"recv", [](int fd, void* p) -> long { return ::recv(fd, p, 5, 0); }},
    {"recvfrom", [](int fd, void* p) -> long { return ::recvfrom(fd, p, 5, 0, nullptr, nullptr); }},
    {"recvmsg", [](int fd, void* p) -> long { return ::recvmsg(fd, static_cast<msghdr*>(p), 0); }},
    {"recvmsg's vectors",
     [](int fd, void* p) -> long {
       msghdr message{};
       message.msg_iov = static_cast<iovec*>(p);
       message.msg_iovlen = 1;
       return with_message(fd, message, false);
     }},
    {"write", [](int fd, void* p) -> long { return ::write(fd, p, 5); }},
    {"writev", [](int fd, void* p) -> long { return ::writev(fd, static_cast<iovec*>(p), 2); }},
    {"writev of it and 8",
     [](int fd, void* p) -> long {
       const iovec pieces[2] = {{p, 5}, {letters, 8}};
       return ::writev(fd, pieces, 2);
     }},
    {"pwritev2", [](int fd, void* p) -> long { return ::pwritev2(fd, static_cast<iovec*>(p), 2, -1, 0); }},
    {"send", [](int fd, void* p) -> long { return ::send(fd, p, 5, MSG_NOSIGNAL); }},
    {"sendto", [](int fd, void* p) -> long { return ::sendto(fd, p, 5, MSG_NOSIGNAL, nullptr, 0); }},
    {"sendmsg", [](int fd, void* p) -> long { return ::sendmsg(fd, static_cast<msghdr*>(p), 0); }},
    {"sendmsg's vectors",
     [](int fd, void* p) -> long {
       msghdr message{};
       message.msg_iov = static_cast<iovec*>(p);
       message.msg_iovlen = 1;
       return with_message(fd, message, true);
     }},
    {"sendfile's offset",
     [](int fd, void* p) -> long {
       return p == nullptr ? 0 : ::sendfile(fd, other_fd, static_cast<off_t*>(p), 5);
     }},
    {"poll", [](int, void* p) -> long { return ::poll(static_cast<pollfd*>(p), 1, 0); }},
    {"ppoll",
     [](int, void* p) -> long {
       const timespec now{};
       return ::ppoll(static_cast<pollfd*>(p), 1, &now, nullptr);
     }},
    {"ppoll's mask",
     [](int fd, void* p) -> long {
       pollfd entry{fd, POLLOUT, 0};
       const timespec now{};
       return ::ppoll(&entry, 1, &now, static_cast<sigset_t*>(p));
     }},
    {"select's readers",
     [](int fd, void* p) -> long {
       timeval now{};
       fd_set out;
       FD_ZERO(&out);
       FD_SET(fd, &out);
       return ::select(fd + 1, static_cast<fd_set*>(p), &out, nullptr, &now);
     }},
    {"pselect's exceptions",
     [](int fd, void* p) -> long {
       const timespec now{};
       fd_set out;
       FD_ZERO(&out);
       FD_SET(fd, &out);
       return ::pselect(fd + 1, nullptr, &out, static_cast<fd_set*>(p), &now, nullptr);
     }},
    {"pselect's mask",
     [](int fd, void* p) -> long {
       const timespec now{};
       fd_set out;
       FD_ZERO(&out);
       FD_SET(fd, &out);
       return ::pselect(fd + 1, nullptr, &out, nullptr, &now, static_cast<sigset_t*>(p));
     }},
    {"epoll_ctl ADD",
     [](int fd, void* p) -> long {
       const int instance = ::epoll_create1(EPOLL_CLOEXEC);
       const long result = ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, static_cast<epoll_event*>(p));
       return closed_behind(instance, result);
     }},
    {"epoll_ctl MOD",
     [](int fd, void* p) -> long {
       const int instance = ::epoll_create1(EPOLL_CLOEXEC);
       epoll_event event{};
       ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
       const long result = ::epoll_ctl(instance, EPOLL_CTL_MOD, fd, static_cast<epoll_event*>(p));
       return closed_behind(instance, result);
     }},
    {"epoll_wait",
     [](int fd, void* p) -> long {
       const int instance = ::epoll_create1(EPOLL_CLOEXEC);
       epoll_event event{};
       ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);  // for nothing, so that there is nothing to tell
       const long result = ::epoll_wait(instance, static_cast<epoll_event*>(p), 1, 0);
       return closed_behind(instance, result);
     }},
    {"epoll_pwait's mask",
     [](int fd, void* p) -> long {
       const int instance = ::epoll_create1(EPOLL_CLOEXEC);
       epoll_event event{};
       event.events = EPOLLOUT;
       ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
       const long result = ::epoll_pwait(instance, &event, 1, 0, static_cast<sigset_t*>(p));
       return closed_behind(instance, result);
     }},
    {"epoll_pwait2's time-out",
     [](int fd, void* p) -> long {
       if (p == nullptr) return 0;  // it would wait for ever
       const int instance = ::epoll_create1(EPOLL_CLOEXEC);
       epoll_event event{};
       event.events = EPOLLOUT;
       ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
       const long result = ::syscall(SYS_epoll_pwait2, instance, &event, 1, p, nullptr, 8);
       return closed_behind(instance, result);
     }},
    {"getsockopt's value",
     [](int fd, void* p) -> long {
       socklen_t length = sizeof(int);
       return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, p, &length);
     }},
    {"getsockopt's length",
     [](int fd, void* p) -> long {
       return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, taken, static_cast<socklen_t*>(p));
     }},
    {"getsockopt's value of TCP",
     [](int fd, void* p) -> long {
       socklen_t length = sizeof(int);
       return ::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, p, &length);
     }},
    {"getsockopt's length of TCP",
     [](int fd, void* p) -> long {
       return ::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, taken, static_cast<socklen_t*>(p));
     }},
    {"setsockopt", [](int fd, void* p) -> long { return ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, p, 4); }},
    {"setsockopt of TCP",
     [](int fd, void* p) -> long { return ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, p, 4); }},
    {"setsockopt of SO_LINGER",
     [](int fd, void* p) -> long { return ::setsockopt(fd, SOL_SOCKET, SO_LINGER, p, sizeof(linger)); }},
    {"setsockopt of a time-out",
     [](int fd, void* p) -> long { return ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, p, sizeof(timeval)); }},
    {"getsockname's length",
     [](int fd, void* p) -> long {
       sockaddr_storage address;
       return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t*>(p));
     }},
    {"getpeername",
     [](int fd, void* p) -> long {
       socklen_t length = sizeof(sockaddr_in);
       return ::getpeername(fd, static_cast<sockaddr*>(p), &length);
     }},
    {"ioctl FIONREAD", [](int fd, void* p) -> long { return ::ioctl(fd, FIONREAD, p); }},
    {"ioctl SIOCOUTQ", [](int fd, void* p) -> long { return ::ioctl(fd, SIOCOUTQ, p); }},
    {"ioctl FIONBIO", [](int fd, void* p) -> long { return ::ioctl(fd, FIONBIO, p); }},
    {"fcntl F_GETOWN_EX", [](int fd, void* p) -> long { return ::fcntl(fd, F_GETOWN_EX, p); }},
    {"connect",
     [](int fd, void* p) -> long { return ::connect(fd, static_cast<sockaddr*>(p), sizeof(sockaddr_in)); }},
    {"accept", [](int fd, void* p) -> long { return ::accept(fd, static_cast<sockaddr*>(p), nullptr); }},
    {"accept's length",
     [](int fd, void* p) -> long {
       sockaddr_storage address;
       return ::accept4(fd, reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t*>(p), 0);
     }},
    {"ppoll's time-out by number",
     [](int fd, void* p) -> long {
       pollfd entry{fd, POLLOUT, 0};
       return ::syscall(SYS_ppoll, &entry, 1, p, nullptr, 8);
     }},
    {"pselect6's time-out by number",
     [](int fd, void* p) -> long {
       fd_set out;
       FD_ZERO(&out);
       FD_SET(fd, &out);
       return ::syscall(SYS_pselect6, fd + 1, nullptr, &out, nullptr, p, nullptr);
     }},
    {"a system call by number",
     [](int fd, void* p) -> long { return ::syscall(SYS_sendto, fd, p, 5, MSG_NOSIGNAL, nullptr, 0); }},
};

// By which a stream goes back to the kernel, whatever comes of them.
constexpr Wrong kWrongReturning[] = {
    {"recvmmsg",
     [](int fd, void* p) -> long {
       return ::recvmmsg(fd, static_cast<mmsghdr*>(p), 1, MSG_DONTWAIT, nullptr);
     }},
    {"recvmmsg's time-out",
     [](int fd, void* p) -> long {
       mmsghdr message{};
       return p == nullptr ? 0 : ::syscall(SYS_recvmmsg, fd, &message, 1, MSG_DONTWAIT, p);
     }},
    {"sendmmsg",
     [](int fd, void* p) -> long { return ::sendmmsg(fd, static_cast<mmsghdr*>(p), 1, MSG_DONTWAIT); }},
    {"splice's offset",
     [](int fd, void* p) -> long {
       return p == nullptr ? 0
                           : ::splice(other_fd, static_cast<off64_t*>(p), fd, nullptr, 5, SPLICE_F_NONBLOCK);
     }},
    {"sendmsg's control",
     [](int fd, void* p) -> long {
       iovec piece{letters, 8};
       msghdr message = message_of(piece);
       message.msg_control = p;
       message.msg_controllen = 64;
       return p == nullptr ? 0 : with_message(fd, message, true);
     }},
};

// Addresses, which TCP does not need but the kernel looks at.
constexpr Wrong kWrongAddress[] = {
    {"sendto's address",
     [](int fd, void* p) -> long {
       return p == nullptr ? 0 : ::sendto(fd, letters, 8, MSG_NOSIGNAL, static_cast<sockaddr*>(p), 16);
     }},
    {"sendmsg's address",
     [](int fd, void* p) -> long {
       iovec piece{letters, 8};
       msghdr message = message_of(piece);
       message.msg_name = p;
       message.msg_namelen = 16;
       return p == nullptr ? 0 : with_message(fd, message, true);
     }},
    {"recvfrom's length",
     [](int fd, void* p) -> long {
       sockaddr_storage from{};
       return ::recvfrom(fd, taken, 1, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from),
                         static_cast<socklen_t*>(p));
     }},
    {"recvfrom's address",
     [](int fd, void* p) -> long {
       socklen_t length = 16;
       return ::recvfrom(fd, taken, 1, MSG_DONTWAIT, static_cast<sockaddr*>(p), &length);
     }},
    {"recvmsg's address",
     [](int fd, void* p) -> long {
       iovec piece{taken, 1};
       msghdr message = message_of(piece);
       message.msg_name = p;
       message.msg_namelen = 16;
       return with_message(fd, message, false);
     }},
    {"recvmsg's control",
     [](int fd, void* p) -> long {
       iovec piece{taken, 1};
       msghdr message = message_of(piece);
       message.msg_control = p;
       message.msg_controllen = 64;
       return with_message(fd, message, false);
     }},
};

template <typename Table>
void try_all(Actor& a, const Table& table, int fd) {
  for (const Wrong& wrong : table) {
    for (const Nowhere& nowhere : kNowhere) {
      void* const pointer =
          reinterpret_cast<void*>(told(nowhere.address));  // NOLINT: that is what it is about
      a.result((std::string(wrong.name) + " of " + nowhere.name).c_str(), wrong.call(fd, pointer));
    }
  }
}

}  // namespace

SCENARIO(pointers_to_nowhere, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "something is there to be read, so that no call has to wait for it"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); });
  a.server([&] {
    other_fd = ::memfd_create("file", MFD_CLOEXEC);
    if (::write(other_fd, letters, sizeof letters) < 0) a.log("no file");
    try_all(a, kWrong, fd);
    try_all(a, kWrongAddress, fd);
    ::close(other_fd);
  });
  a.client([&] {
    a.settle(fd, POLLIN, 0);
    a.log("poll -> %s", poll_names(a.poll(fd, POLLIN)).c_str());
  });
  a.server([&] { a.send(fd, "what was meant"); });
  a.client([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 4096);
  });
  a.server([&] { a.recv(fd, 4096); });
}

// The same of what is no business of the library's, in a process that has a stream.
SCENARIO(pointers_to_nowhere_beside_a_stream, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    int ends[2];
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends);
    other_fd = ::memfd_create("file", MFD_CLOEXEC);
    if (::write(other_fd, letters, sizeof letters) < 0) a.log("no file");
    if (::write(ends[1], "some bytes", 10) < 0) a.log("nothing to read");
    try_all(a, kWrong, ends[0]);
    try_all(a, kWrongAddress, ends[0]);
    const int unconnected = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    try_all(a, kWrong, unconnected);
    a.log("a number that is closed");
    ::close(unconnected);
    try_all(a, kWrong, unconnected);
    for (const int end : {ends[0], ends[1], other_fd}) ::close(end);
    a.send(fd, "still here");
  });
  a.client([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 4096);
  });
}

SCENARIO(pointers_to_nowhere_that_go_back_to_the_kernel, kComesBack) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "something is there to be read"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); });
  a.server([&] {
    other_fd = ::memfd_create("file", MFD_CLOEXEC);
    try_all(a, kWrongReturning, fd);
    ::close(other_fd);
    a.recv(fd, 4096);
    a.send(fd, "what was meant");
  });
  a.client([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 4096);
  });
}

// With connections that wait: each is lost, as the kernel has it, or not.
SCENARIO(pointers_to_nowhere_for_accept, 0) {
  a.meet();
  a.server([&] {
    ::fcntl(a.listening(), F_SETFL, O_NONBLOCK);
    for (const Wrong& wrong : kWrong) {
      if (std::string(wrong.name).rfind("accept", 0) != 0) continue;
      for (const Nowhere& nowhere : kNowhere) {
        void* const pointer = reinterpret_cast<void*>(told(nowhere.address));  // NOLINT
        const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        socklen_t length;
        const sockaddr_storage address = a.address(AF_INET, length);
        ::fcntl(client, F_SETFL, O_NONBLOCK);
        ::connect(client, reinterpret_cast<const sockaddr*>(&address), length);
        pollfd waits{a.listening(), POLLIN, 0};
        ::poll(&waits, 1, 2000);
        const long accepted = wrong.call(a.listening(), pointer);
        const int saved = errno;
        if (accepted >= 0) ::close(static_cast<int>(accepted));
        errno = saved;
        a.result((std::string(wrong.name) + " of " + nowhere.name).c_str(), accepted < 0 ? -1 : 0);
        a.log("left: %d", ::poll(&waits, 1, 0));
        ::close(client);
      }
    }
    ::fcntl(a.listening(), F_SETFL, 0);
  });
  const int fd = a.stream();
  a.client([&] { a.send(fd, "and goes on"); });
  a.server([&] { a.recv(fd, 100); });
}

}  // namespace ringroad::test
