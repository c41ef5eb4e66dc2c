// Lengths and numbers that no call can do with: the kernel's answers, and nothing beyond them is touched.
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

// So much memory, and none behind it. Not on the stack: that may be so near the end of all addresses
// that the kernel refuses 2 GiB there.
char* at_an_edge(std::size_t n) {
  constexpr std::size_t kPage = 4096;
  auto* pages = static_cast<char*>(
      ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ::mprotect(pages + kPage, kPage, PROT_NONE);
  return pages + kPage - n;
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
    a.result("sendfile of nothing",
             ::sendfile(fd, file, nullptr, told(std::numeric_limits<std::size_t>::max())));
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
