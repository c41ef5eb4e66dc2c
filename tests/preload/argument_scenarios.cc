// Arguments that no call can do with: the kernel's answers, and nothing beyond them is touched.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

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

}  // namespace ringroad::test
