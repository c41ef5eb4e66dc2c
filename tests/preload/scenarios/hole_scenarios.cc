// Memory that is there in part: the kernel's answers, and nothing is lost. The handlers: fault_scenarios.cc.
#include <fcntl.h>
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
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/arguments.h"
#include "tests/preload/scenarios/memory_hole.h"

namespace ringroad::test {
namespace {

char* read_only() {
  static auto* const page = static_cast<char*>(
      ::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  return page;
}

// A call with memory of which `there` bytes are there, and the rest of `n` is not.
struct Holed {
  const char* name;
  long (*call)(int fd, char* memory, std::size_t there, std::size_t n);
};

constexpr Holed kReceives[] = {
    {"read", [](int fd, char* p, std::size_t, std::size_t n) -> long { return ::read(fd, p, n); }},
    {"recv", [](int fd, char* p, std::size_t, std::size_t n) -> long { return ::recv(fd, p, n, 0); }},
    {"recv MSG_PEEK",
     [](int fd, char* p, std::size_t, std::size_t n) -> long { return ::recv(fd, p, n, MSG_PEEK); }},
    {"recvfrom",
     [](int fd, char* p, std::size_t, std::size_t n) -> long {
       return ::recvfrom(fd, p, n, MSG_DONTWAIT, nullptr, nullptr);
     }},
    {"readv",
     [](int fd, char* p, std::size_t there, std::size_t n) -> long {
       const iovec pieces[2] = {{p, there}, {p + there, n - there}};
       return ::readv(fd, pieces, 2);
     }},
    {"recvmsg",
     [](int fd, char* p, std::size_t, std::size_t n) -> long {
       iovec piece{p, n};
       return with_message(fd, message_of(piece), false);
     }},
};

constexpr Holed kSends[] = {
    {"write", [](int fd, char* p, std::size_t, std::size_t n) -> long { return ::write(fd, p, n); }},
    {"send",
     [](int fd, char* p, std::size_t, std::size_t n) -> long { return ::send(fd, p, n, MSG_NOSIGNAL); }},
    {"sendto",
     [](int fd, char* p, std::size_t, std::size_t n) -> long {
       return ::sendto(fd, p, n, MSG_NOSIGNAL, nullptr, 0);
     }},
    {"writev",
     [](int fd, char* p, std::size_t there, std::size_t n) -> long {
       const iovec pieces[2] = {{p, there}, {p + there, n - there}};
       return ::writev(fd, pieces, 2);
     }},
    {"sendmsg",
     [](int fd, char* p, std::size_t, std::size_t n) -> long {
       iovec piece{p, n};
       return with_message(fd, message_of(piece), true);
     }},
};

// Of each: what the library looks at itself, the bytes apart. `n` is not looked at.
constexpr Holed kStructures[] = {
    {"readv's vectors",
     [](int fd, char* p, std::size_t, std::size_t) -> long {
       return ::readv(fd, reinterpret_cast<iovec*>(p), 4);
     }},
    {"writev's vectors",
     [](int fd, char* p, std::size_t, std::size_t) -> long {
       return ::writev(fd, reinterpret_cast<iovec*>(p), 4);
     }},
    {"recvmsg's message",
     [](int fd, char* p, std::size_t, std::size_t) -> long {
       return ::recvmsg(fd, reinterpret_cast<msghdr*>(p), MSG_DONTWAIT);
     }},
    {"sendmsg's message",
     [](int fd, char* p, std::size_t, std::size_t) -> long {
       return ::sendmsg(fd, reinterpret_cast<msghdr*>(p), MSG_NOSIGNAL);
     }},
    {"recvmsg's vectors",
     [](int fd, char* p, std::size_t, std::size_t) -> long {
       msghdr message{};
       message.msg_iov = reinterpret_cast<iovec*>(p);
       message.msg_iovlen = 4;
       return with_message(fd, message, false);
     }},
    {"sendmsg's vectors",
     [](int fd, char* p, std::size_t, std::size_t) -> long {
       msghdr message{};
       message.msg_iov = reinterpret_cast<iovec*>(p);
       message.msg_iovlen = 4;
       return with_message(fd, message, true);
     }},
    {"getsockopt's length",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       return ::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, taken, reinterpret_cast<socklen_t*>(p + there));
     }},
    {"getsockopt's value",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       socklen_t length = sizeof(int);
       return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, p + there, &length);
     }},
    {"setsockopt's value",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       return ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, p + there - 2, sizeof(int));
     }},
    {"getsockname's address",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       socklen_t length = sizeof(sockaddr_in);
       return ::getsockname(fd, reinterpret_cast<sockaddr*>(p + there - 8), &length);
     }},
    {"connect's address",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       return ::connect(fd, reinterpret_cast<sockaddr*>(p + there - 8), sizeof(sockaddr_in));
     }},
    {"ioctl FIONREAD",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       return ::ioctl(fd, FIONREAD, p + there);
     }},
    {"epoll_ctl's event",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       const int instance = ::epoll_create1(EPOLL_CLOEXEC);
       const long result =
           ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, reinterpret_cast<epoll_event*>(p + there - 4));
       const int saved = errno;
       ::close(instance);
       errno = saved;
       return result;
     }},
    {"poll's entries",
     [](int fd, char* p, std::size_t, std::size_t) -> long {
       auto* entries = reinterpret_cast<pollfd*>(p);
       for (int i = 0; i < 4; ++i) entries[i] = {fd, POLLOUT, 0};
       return ::poll(entries, 8, 0);
     }},
    {"accept's length",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       sockaddr_storage address;
       return ::accept(fd, reinterpret_cast<sockaddr*>(&address),
                       reinterpret_cast<socklen_t*>(p + there));
     }},
    {"sendfile's offset",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       const int file = ::memfd_create("file", MFD_CLOEXEC);
       const long result = ::sendfile(fd, file, reinterpret_cast<off_t*>(p + there), 5);
       const int saved = errno;
       ::close(file);
       errno = saved;
       return result;
     }},
    {"sendmsg's control",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       iovec piece{letters, 8};
       msghdr message = message_of(piece);
       message.msg_control = p + there - 16;
       message.msg_controllen = 64;
       return with_message(fd, message, true);
     }},
    {"recvmmsg's messages",
     [](int fd, char* p, std::size_t, std::size_t) -> long {
       return ::recvmmsg(fd, reinterpret_cast<mmsghdr*>(p), 2, MSG_DONTWAIT, nullptr);
     }},
    {"sendmmsg's messages",
     [](int fd, char* p, std::size_t, std::size_t) -> long {
       return ::sendmmsg(fd, reinterpret_cast<mmsghdr*>(p), 2, MSG_DONTWAIT | MSG_NOSIGNAL);
     }},
    {"a receive by number",
     [](int fd, char* p, std::size_t there, std::size_t n) -> long {
       return ::syscall(SYS_recvfrom, fd, p + there - 8, n, MSG_DONTWAIT, nullptr, nullptr);
     }},
    {"a send by number",
     [](int fd, char* p, std::size_t, std::size_t n) -> long {
       return ::syscall(SYS_sendto, fd, p, n, MSG_NOSIGNAL, nullptr, 0);
     }},
};

// An instance with `fd`, which is ready, and what a wait there tells. `edge`: once.
long wait_in_epoll(int fd, std::uint32_t edge, epoll_event* events, int max) {
  const int instance = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{EPOLLIN | edge, {.u64 = 7}};
  ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &wanted);
  const long result = ::epoll_wait(instance, events, max, 0);
  const int saved = errno;
  epoll_event again{};
  const int found = ::epoll_wait(instance, &again, 1, 0);
  ::close(instance);
  errno = saved;
  const bool tells = found == 1 && again.data.u64 == 7;
  return result < 0 && tells ? -1 : result * 10 + (tells ? 1 : 0);
}

fd_set* set_with(int fd, char* at, std::size_t n) {
  std::memset(at, 0, n);
  at[fd / 8] = static_cast<char>(1 << fd % 8);
  return reinterpret_cast<fd_set*>(at);
}

// Of each: an array of a wait for `fd`, which can be read. `n` is not looked at.
constexpr Holed kWaits[] = {
    {"epoll_wait's events",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       return wait_in_epoll(fd, 0, reinterpret_cast<epoll_event*>(p + there - 4), 4);
     }},
    {"epoll_wait's events, told once",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       return wait_in_epoll(fd, EPOLLET, reinterpret_cast<epoll_event*>(p + there - 4), 4);
     }},
    {"epoll_wait's events behind the first",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       return wait_in_epoll(fd, 0, reinterpret_cast<epoll_event*>(p + there - sizeof(epoll_event)), 4);
     }},
    {"epoll_wait's events, read-only",
     [](int fd, char*, std::size_t, std::size_t) -> long {
       return wait_in_epoll(fd, 0, reinterpret_cast<epoll_event*>(read_only()), 4);
     }},
    {"epoll_wait's events, and none to tell",
     [](int, char* p, std::size_t there, std::size_t) -> long {
       int ends[2] = {};
       ::pipe2(ends, O_CLOEXEC);
       const long result = wait_in_epoll(ends[0], 0, reinterpret_cast<epoll_event*>(p + there - 4), 4);
       for (const int end : ends) ::close(end);
       return result;
     }},
    {"epoll_pwait's mask",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       const int instance = ::epoll_create1(EPOLL_CLOEXEC);
       epoll_event event{EPOLLIN, {.u64 = 7}};
       ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
       const long result =
           ::epoll_pwait(instance, &event, 1, 0, reinterpret_cast<sigset_t*>(p + there - 4));
       const int saved = errno;
       ::close(instance);
       errno = saved;
       return result;
     }},
    {"ppoll's mask",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       pollfd entry{fd, POLLIN, 0};
       const timespec at_once{};
       return ::ppoll(&entry, 1, &at_once, reinterpret_cast<sigset_t*>(p + there - 4));
     }},
    {"pselect's mask",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       fd_set in;
       FD_ZERO(&in);
       FD_SET(fd, &in);
       const timespec at_once{};
       return ::pselect(fd + 1, &in, nullptr, nullptr, &at_once, reinterpret_cast<sigset_t*>(p + there - 4));
     }},
    {"poll's entries, read-only",
     [](int fd, char*, std::size_t, std::size_t) -> long {
       static auto* const entry = static_cast<pollfd*>(
           ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
       *entry = {fd, POLLIN, 0};
       ::mprotect(entry, kPage, PROT_READ);
       return ::poll(entry, 1, 0);
     }},
    {"select's set of readers",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       timeval at_once{};
       return ::select(fd + 1, set_with(fd, p + there - 4, 4), nullptr, nullptr, &at_once);
     }},
    {"select's set of writers",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       timeval at_once{};
       fd_set in;
       FD_ZERO(&in);
       FD_SET(fd, &in);
       return ::select(fd + 1, &in, set_with(fd, p + there - 4, 4), nullptr, &at_once);
     }},
#ifdef SYS_select  // not of every processor
    {"select's time, by number",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       fd_set in;
       return ::syscall(SYS_select, fd + 1, set_with(fd, reinterpret_cast<char*>(&in), sizeof in), nullptr,
                        nullptr, p + there - 8);
     }},
    {"select's time, read-only, by number",
     [](int fd, char*, std::size_t, std::size_t) -> long {
       static const timeval kLong{1000, 0};
       fd_set in;
       return ::syscall(SYS_select, fd + 1, set_with(fd, reinterpret_cast<char*>(&in), sizeof in), nullptr,
                        nullptr, &kLong);
     }},
#endif
    {"select's set, all there",
     [](int fd, char* p, std::size_t there, std::size_t) -> long {
       timeval at_once{};
       return ::select(fd + 1, set_with(fd, p, there), nullptr, nullptr, &at_once);
     }},
    {"select's set, read-only",
     [](int fd, char*, std::size_t, std::size_t) -> long {
       static auto* const set = static_cast<char*>(
           ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
       set_with(fd, set, sizeof(fd_set));
       ::mprotect(set, kPage, PROT_READ);
       timeval at_once{};
       return ::select(fd + 1, reinterpret_cast<fd_set*>(set), nullptr, nullptr, &at_once);
     }},
    {"recvmsg's message, read-only",
     [](int fd, char*, std::size_t, std::size_t) -> long {
       static auto* const message = static_cast<msghdr*>(
           ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
       static iovec piece{letters, 1};
       *message = message_of(piece);
       ::mprotect(message, kPage, PROT_READ);
       return ::recvmsg(fd, message, MSG_DONTWAIT);
     }},
};

// Each size goes another way: registers, memcpy(3), several pieces.
constexpr std::size_t kSizes[] = {8, 16, 33, 64, 100, 3000};

}  // namespace

SCENARIO(receives_into_memory_that_is_there_in_part, kStaysOnChannel) {
  const int fd = a.stream();
  for (const std::size_t n : kSizes) {
    a.client([&] { a.send(fd, patterned(0, n)); });
    a.server([&] {
      a.settle(fd, POLLIN, POLLIN);
      a.settle_unread(fd, static_cast<int>(n));
      for (const Holed& holed : kReceives) {
        a.log("%zu bytes", n);
        a.result(holed.name, holed.call(fd, before_a_hole(n / 2), n / 2, n));
        a.result("none of it", holed.call(fd, before_a_hole(0), 0, n));
        a.result("read-only", holed.call(fd, read_only(), n / 2, n));
        a.log("left %d", a.unread(fd));
      }
      // More than there is may be asked for.
      a.result("with room for all", ::recv(fd, before_a_hole(n), 4 * n, MSG_PEEK));
      a.recv(fd, 4096);
    });
  }
}

SCENARIO(sends_of_memory_that_is_there_in_part, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    for (const std::size_t n : kSizes) {
      for (const Holed& holed : kSends) {
        a.log("%zu bytes", n);
        a.result(holed.name, holed.call(fd, before_a_hole(n / 2), n / 2, n));
        a.result("none of it", holed.call(fd, before_a_hole(0), 0, n));
      }
    }
    a.send(fd, "what was meant");
  });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 4096);
  });
}

SCENARIO(structures_that_are_there_in_part, 0) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "something is there to be read"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    for (const Holed& holed : kStructures) {
      char* const memory = before_a_hole(32);
      std::memset(memory, 0, 32);
      a.result(holed.name, holed.call(fd, memory, 32, 64));
    }
    a.send(fd, "what was meant");
    a.recv(fd, 4096);
  });
  a.client([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 4096);
  });
}

SCENARIO(waits_with_arrays_that_are_there_in_part, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "something is there to be read"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    for (const Holed& holed : kWaits) {
      a.result(holed.name, holed.call(fd, before_a_hole(128), 128, 0));
    }
    a.recv(fd, 4096);
  });
}

// What the first wait has not told is still the first.
SCENARIO(a_wait_without_memory_keeps_the_order, kStaysOnChannel) {
  const int fds[] = {a.stream(), a.stream()};
  a.client([&] {
    for (const int fd : fds) a.send(fd, "something is there to be read");
  });
  a.server([&] {
    const int instance = ::epoll_create1(EPOLL_CLOEXEC);
    for (const int fd : fds) {
      a.settle(fd, POLLIN, POLLIN);
      epoll_event event{EPOLLIN, {.fd = fd}};
      ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
    }
    auto* const events = reinterpret_cast<epoll_event*>(before_a_hole(sizeof(epoll_event)));
    for (int i = 0; i < 3; ++i) a.result("wait", ::epoll_wait(instance, events + 1, 2, 0));
    a.result("wait", ::epoll_wait(instance, events, 2, 0));
    a.log("the first: %d", events->data.fd == fds[0]);
    ::close(instance);
    for (const int fd : fds) a.recv(fd, 4096);
  });
}

SCENARIO(sends_of_no_memory_to_a_peer_that_has_closed, 0) {
  const int fd = a.stream();
  a.client([&] { ::close(fd); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    for (const Holed& holed : kSends) a.result(holed.name, holed.call(fd, before_a_hole(32), 32, 64));
    a.recv(fd, 100);
    a.send(fd, "what was meant");
  });
}

SCENARIO(a_wait_ends_with_efault, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    Thread receiver(a, [&a, fd] {
      a.result("recv", ::recv(fd, before_a_hole(8), 64, 0));
      a.recv(fd, 100);
    });
    receiver.wait_asleep();
    a.sync();
    receiver.join();
  } else {
    a.sync();
    a.send(fd, "sixteen letters and some");
  }
  a.sync();
}

}  // namespace ringroad::test
