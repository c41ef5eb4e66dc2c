// Arguments that no call can do with: the kernel's answers, and nothing beyond them is touched.
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

#include "tests/preload/actor.h"

namespace ringroad::test {
namespace {

// The compiler is not to know them.
template <typename T>
T told(T value) {
  const volatile T hidden = value;
  return hidden;
}

// So much memory, and none behind it. Not on the stack: that may be so near the end of all addresses
// that the kernel refuses 2 GiB there.
char* at_an_edge(std::size_t n) {
  constexpr std::size_t kPage = 4096;
  auto* pages = static_cast<char*>(
      ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ::mprotect(pages + kPage, kPage, PROT_NONE);
  return pages + kPage - n;
}

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

long with_message(int fd, const msghdr& message, bool sends) {
  msghdr copy = message;
  return sends ? ::sendmsg(fd, &copy, MSG_NOSIGNAL | MSG_DONTWAIT) : ::recvmsg(fd, &copy, MSG_DONTWAIT);
}
msghdr message_of(iovec& piece) {
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  return message;
}

char letters[8] = {'b', 'y', 't', 'e', 's', '!', '!', '!'};
char taken[8];

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
    {"setsockopt of TCP", [](int fd, void* p) -> long { return ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, p, 4); }},
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
     [](int fd, void* p) -> long { return ::recvmmsg(fd, static_cast<mmsghdr*>(p), 1, MSG_DONTWAIT, nullptr); }},
    {"recvmmsg's time-out",
     [](int fd, void* p) -> long {
       mmsghdr message{};
       return p == nullptr ? 0 : ::syscall(SYS_recvmmsg, fd, &message, 1, MSG_DONTWAIT, p);
     }},
    {"sendmmsg", [](int fd, void* p) -> long { return ::sendmmsg(fd, static_cast<mmsghdr*>(p), 1, MSG_DONTWAIT); }},
    {"splice's offset",
     [](int fd, void* p) -> long {
       return p == nullptr ? 0 : ::splice(other_fd, static_cast<off64_t*>(p), fd, nullptr, 5, SPLICE_F_NONBLOCK);
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
      void* const pointer = reinterpret_cast<void*>(told(nowhere.address));  // NOLINT: that is what it is about
      a.result((std::string(wrong.name) + " of " + nowhere.name).c_str(), wrong.call(fd, pointer));
    }
  }
}

const std::size_t kLengths[] = {std::numeric_limits<std::size_t>::max(),
                                std::size_t{1} << 63, (std::size_t{1} << 63) - 1};

}  // namespace

SCENARIO(lengths_that_nothing_has, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    a.set_nonblocking(fd);
    char* const memory = at_an_edge(64);
    for (const std::size_t length : kLengths) {
      const std::size_t n = told(length);
      a.log("length %zx", n);
      a.result("write", ::write(fd, memory, n));
      a.result("read", ::read(fd, memory, n));
      iovec one{memory, n};
      iovec behind[2] = {{memory, 8}, {memory, n}};
      a.result("writev", ::writev(fd, &one, 1));
      a.result("writev of 8 and that", ::writev(fd, behind, 2));
      a.result("readv", ::readv(fd, &one, 1));
      a.result("readv of 8 and that", ::readv(fd, behind, 2));
      msghdr message{};
      message.msg_iov = behind;
      message.msg_iovlen = 2;
      a.result("sendmsg", ::sendmsg(fd, &message, MSG_NOSIGNAL));
      a.result("recvmsg", ::recvmsg(fd, &message, MSG_DONTWAIT));
    }
    iovec one{memory, 1};
    a.result("pwritev2 of -1", ::pwritev2(fd, &one, told(-1), -1, 0));
    a.result("preadv2 of -1", ::preadv2(fd, &one, told(-1), -1, 0));
    msghdr many{};
    many.msg_iov = &one;
    many.msg_iovlen = told(std::size_t{1025});
    a.result("sendmsg of 1025", ::sendmsg(fd, &many, MSG_NOSIGNAL));
    a.result("recvmsg of 1025", ::recvmsg(fd, &many, MSG_DONTWAIT));
  });
  // Nothing of all this has come.
  a.client([&] { a.send(fd, "what was meant"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 4096);
  });
}

SCENARIO(more_than_a_call_can_take, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "twelve bytes"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    char* const memory = at_an_edge(64);
    a.result("recv of -1", ::recv(fd, memory, told(std::numeric_limits<std::size_t>::max()), 0));
    a.log("%s", memory);
  });
  a.client([&] { a.send(fd, "twelve more!"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    char* const memory = at_an_edge(64);
    iovec both[2] = {{memory, 8}, {memory + 8, told(std::size_t{3} << 30)}};
    a.result("readv of 8 and 3 GiB", ::readv(fd, both, 2));
    a.log("%s", memory);
  });
}

SCENARIO(a_send_stops_at_memory_that_is_not_there, 0) {
  const int fd = a.stream();
  if (a.is_client()) {
    a.result("send of -1",
             ::send(fd, at_an_edge(4096), told(std::numeric_limits<std::size_t>::max()), MSG_NOSIGNAL));
    a.send(fd, "what was meant");
    a.shutdown(fd, SHUT_WR);
  } else {
    a.drain_to_end(fd);
  }
  a.sync();
}

SCENARIO(null_with_a_length, kStaysOnChannel) {
  const int fd = a.stream();
  char* const null = told(static_cast<char*>(nullptr));
  a.client([&] {
    char memory[8] = {};
    a.result("write", ::write(fd, null, 5));
    a.result("send", ::send(fd, null, 5, 0));
    a.result("sendto", ::sendto(fd, null, 5, 0, nullptr, 0));
    iovec vectors[2] = {{memory, 8}, {null, 5}};
    a.result("writev", ::writev(fd, vectors, 2));
    a.result("writev of null", ::writev(fd, vectors + 1, 1));
    a.result("writev from null", ::writev(fd, told(static_cast<iovec*>(nullptr)), 1));
    msghdr message{};
    message.msg_iov = vectors + 1;
    message.msg_iovlen = 1;
    a.result("sendmsg", ::sendmsg(fd, &message, 0));
    a.result("sendmsg of null", ::sendmsg(fd, told(static_cast<msghdr*>(nullptr)), 0));
    a.result("recv with nothing there", ::recv(fd, null, 5, MSG_DONTWAIT));
    a.send(fd, "all of it");
  });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.result("read", ::read(fd, null, 5));
    a.result("recv", ::recv(fd, null, 5, 0));
    a.result("recvfrom", ::recvfrom(fd, null, 5, 0, nullptr, nullptr));
    iovec vector{null, 5};
    a.result("readv", ::readv(fd, &vector, 1));
    a.result("recv of nothing", ::recv(fd, null, 0, 0));
    a.recv(fd, 3);
    char memory[8] = {};
    sockaddr_storage from{};
    socklen_t length = told(static_cast<socklen_t>(-1));
    auto* address = reinterpret_cast<sockaddr*>(&from);
    a.result("recvfrom without a length", ::recvfrom(fd, memory, 1, 0, address, nullptr));
    a.result("recvfrom with length -1", ::recvfrom(fd, memory, 1, 0, address, &length));
    a.recv(fd, 30);
  });
  a.both([&] {
    a.shutdown(fd, SHUT_WR);
    a.result("send on what is shut", ::send(fd, null, 5, MSG_NOSIGNAL));
    a.result("write of -1 on what is shut",
             ::write(fd, &fd, told(std::numeric_limits<std::size_t>::max())));
  });
}

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

SCENARIO(numbers_that_nothing_has, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    const int instance = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLOUT;
    a.result("add", ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event));
    for (const int most : {0, -1, std::numeric_limits<int>::min()}) {
      a.log("at most %d", most);
      a.result("epoll_wait", ::epoll_wait(instance, &event, told(most), 0));
      a.result("epoll_pwait", ::epoll_pwait(instance, &event, told(most), 0, nullptr));
    }
    a.result("epoll_wait of too many",
             ::epoll_wait(instance, &event, told(std::numeric_limits<int>::max()), 0));
    a.result("epoll_ctl of nothing", ::epoll_ctl(instance, told(7), fd, &event));
    a.result("epoll_ctl of itself", ::epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event));
    a.result("epoll_ctl in a stream", ::epoll_ctl(fd, EPOLL_CTL_ADD, instance, &event));
    a.result("epoll_wait on a stream", ::epoll_wait(fd, &event, 1, 0));
    ::close(instance);
    const sockaddr_storage address{};
    const auto* at = reinterpret_cast<const sockaddr*>(&address);
    iovec piece{letters, 8};
    iovec none{taken, 1};
    for (const unsigned length : {0x80000000U, 0xffffffffU, 129U, 1000U}) {
      a.log("length %x", length);
      a.result("connect", ::connect(fd, at, told(length)));
      a.result("sendto", ::sendto(fd, letters, 8, MSG_NOSIGNAL, at, told(length)));
      msghdr message = message_of(none);
      message.msg_name = const_cast<sockaddr_storage*>(&address);
      message.msg_namelen = told(length);
      if (static_cast<int>(length) < 0) {
        a.result("recvmsg", with_message(fd, message, false));
        message.msg_iov = &piece;
        a.result("sendmsg", with_message(fd, message, true));
      }
      socklen_t room = told(length);
      if (static_cast<int>(length) < 0) {
        a.result("getsockopt", ::getsockopt(fd, SOL_SOCKET, SO_ERROR, taken, &room));
        room = told(length);
        a.result("getsockopt of TCP", ::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, taken, &room));
        a.result("setsockopt", ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, taken, told(length)));
        a.result("setsockopt of TCP", ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, taken, told(length)));
      }
    }
    for (const unsigned length : {0U, 1U, 3U}) {
      a.log("length %u", length);
      socklen_t room = length;
      a.result("getsockopt", ::getsockopt(fd, SOL_SOCKET, SO_ERROR, taken, &room));
      a.log("got %u", room);
      a.result("setsockopt", ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, taken, length));
    }
    for (const int how : {-1, 3, 1000}) a.result("shutdown", ::shutdown(fd, told(how)));
    a.result("listen", ::listen(fd, 1));
    a.result("accept", ::accept(fd, nullptr, nullptr));
    a.result("dup2 to -1", ::dup2(fd, told(-1)));
    a.result("dup2 beyond", ::dup2(fd, told(std::numeric_limits<int>::max())));
    a.result("dup3 to itself", ::dup3(fd, told(fd), 0));
    a.result("dup3 with a flag", ::dup3(fd, 300, told(1)));
    a.result("fcntl F_DUPFD of -1", ::fcntl(fd, F_DUPFD, told(-1)));
    a.result("fcntl of nothing", ::fcntl(fd, told(4711), 0));
    a.result("ioctl of nothing", ::ioctl(fd, told(4711UL), taken));
    a.result("close_range the wrong way", ::close_range(9, told(8U), 0));
    a.result("close_range with a flag", ::close_range(1000, 1001, told(1 << 10)));
    a.result("poll of too many", ::poll(nullptr, told(std::numeric_limits<nfds_t>::max()), 0));
    timeval odd{0, -1};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    a.result("select for a time before", ::select(fd + 1, &in, nullptr, nullptr, &odd));
    timespec never{0, 1'000'000'000};
    a.result("pselect for what is no time", ::pselect(fd + 1, &in, nullptr, nullptr, &never, nullptr));
    pollfd entry{fd, POLLOUT, 0};
    a.result("ppoll for what is no time", ::ppoll(&entry, 1, &never, nullptr));
    a.result("select of -1", ::select(told(-1), &in, nullptr, nullptr, &odd));
    off_t before = -1;
    const int file = ::memfd_create("file", MFD_CLOEXEC);
    a.result("sendfile from -1", ::sendfile(fd, file, &before, 5));
    a.result("sendfile of no descriptor", ::sendfile(fd, told(-1), nullptr, 5));
    a.result("sendfile of nothing", ::sendfile(fd, file, nullptr, told(std::numeric_limits<std::size_t>::max())));
    constexpr std::size_t kLongest = std::numeric_limits<ssize_t>::max();
    off_t place = 0;
    a.result("sendfile of all that there is", ::sendfile(fd, file, &place, told(kLongest)));
    place = 5;
    a.result("sendfile beyond all that there is", ::sendfile(fd, file, &place, told(kLongest)));
    a.result("sendfile of as much", ::sendfile(fd, file, &place, told(kLongest - 5)));
    ::close(file);
  });
  a.client([&] { a.send(fd, "what was meant"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 4096);
  });
}

}  // namespace ringroad::test
