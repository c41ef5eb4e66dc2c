// Vectors, headers and addresses.
#include <netinet/in.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

// Vectors over one buffer, of the sizes given.
struct Vectors {
  std::string memory;
  std::vector<iovec> iov;

  explicit Vectors(const std::vector<std::size_t>& sizes, char fill = '-') {
    std::size_t total = 0;
    for (const std::size_t size : sizes) total += size;
    memory.assign(total, fill);
    std::size_t at = 0;
    for (const std::size_t size : sizes) {
      iov.push_back({memory.data() + at, size});
      at += size;
    }
  }
  int count() const { return static_cast<int>(iov.size()); }
};

}  // namespace

SCENARIO(vectors, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    Vectors out({1, 0, 3, 5, 0, 2, 4});
    out.memory = "abcdefghijklmno";
    std::size_t at = 0;
    for (iovec& v : out.iov) {
      v.iov_base = out.memory.data() + at;
      at += v.iov_len;
    }
    a.result("writev of 7", ::writev(fd, out.iov.data(), out.count()));
  });
  a.server([&] {
    Vectors in({2, 0, 3, 1, 4, 30});
    a.result("readv of 6", ::readv(fd, in.iov.data(), in.count()));
    a.log("%s", in.memory.c_str());
  });
  a.client([&] {
    for (int i = 0; i < 3; ++i) {
      Vectors out(std::vector<std::size_t>(100, 37));
      out.memory = patterned(static_cast<std::uint64_t>(i) * 3700, 3700);
      for (std::size_t k = 0; k < out.iov.size(); ++k) out.iov[k].iov_base = &out.memory[k * 37];
      a.result("writev of 100", ::writev(fd, out.iov.data(), out.count()));
    }
  });
  a.server([&] {
    Vectors in(std::vector<std::size_t>(111, 100));
    std::size_t got = 0;
    while (got < 11'100) {
      const ssize_t n = ::readv(fd, in.iov.data(), in.count());
      if (n <= 0) break;
      a.log("in order: %d", in.memory.substr(0, static_cast<std::size_t>(n)) ==
                                patterned(got, static_cast<std::size_t>(n)));
      got += static_cast<std::size_t>(n);
    }
    a.log("%zu bytes", got);
  });
}

SCENARIO(vectors_that_hold_nothing, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    a.set_nonblocking(fd);
    Vectors none({0, 0, 0});
    a.result("writev of nothing", ::writev(fd, none.iov.data(), 3));
    a.result("writev of none", ::writev(fd, none.iov.data(), 0));
    a.result("readv of nothing", ::readv(fd, none.iov.data(), 3));
    a.result("readv of none", ::readv(fd, none.iov.data(), 0));
    const volatile int negative = -1;  // the compiler would complain
    a.result("readv of -1", ::readv(fd, none.iov.data(), negative));
    a.result("writev of -1", ::writev(fd, none.iov.data(), negative));
    Vectors many(std::vector<std::size_t>(1025, 1));
    a.result("readv of 1024", ::readv(fd, many.iov.data(), 1024));
    a.result("readv of 1025", ::readv(fd, many.iov.data(), 1025));
    a.result("writev of 1025", ::writev(fd, many.iov.data(), 1025));
  });
  a.client([&] {
    Vectors many(std::vector<std::size_t>(1024, 2), 'x');
    a.result("writev of 1024", ::writev(fd, many.iov.data(), 1024));
  });
  a.server([&] { a.recv(fd, 4096); });
}

SCENARIO(large_vectors, kStaysOnChannel) {
  const int fd = a.stream();
  constexpr std::size_t kTotal = 5 * 700'001;
  if (a.is_client()) {
    std::string memory = patterned(0, kTotal);
    iovec iov[5];
    for (std::size_t i = 0; i < 5; ++i) iov[i] = {memory.data() + i * 700'001, 700'001};
    a.result("writev of 3.5 MB", ::writev(fd, iov, 5));
  } else {
    a.recv_pattern(fd, 0, kTotal, 123'456);
  }
  a.sync();
}

// Logs a receive into `room` bytes with room for so much beside them, and what stands there.
void receive_and_tell(Actor& a, int fd, std::size_t room, std::size_t control_room, int flags = 0) {
  Vectors in({room});
  char control[64];
  std::memset(control, 'c', sizeof control);
  msghdr msg{};
  msg.msg_iov = in.iov.data();
  msg.msg_iovlen = 1;
  msg.msg_control = control_room > 0 ? control : nullptr;
  msg.msg_controllen = control_room;
  const ssize_t n = ::recvmsg(fd, &msg, flags);
  a.result("recvmsg", n);
  if (n < 0) return;
  a.log("control %zu flags 0x%x", msg.msg_controllen, static_cast<unsigned>(msg.msg_flags));
  const cmsghdr* header = CMSG_FIRSTHDR(&msg);
  if (header == nullptr) return;
  int unread = -1;
  std::memcpy(&unread, CMSG_DATA(header), sizeof unread);
  a.log("%zu bytes of level %d, type %d: %d", header->cmsg_len, header->cmsg_level,
        header->cmsg_type, unread);
}

SCENARIO(unread_bytes_are_told_with_each_message, kStaysOnChannel) {
  constexpr int kTcpInq = 36;  // TCP_INQ of linux/tcp.h
  const int fd = a.stream();
  const auto set = [&](int value) {
    a.result("set TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, kTcpInq, &value, sizeof value));
  };
  a.server([&] {
    receive_and_tell(a, fd, 1, 64, MSG_DONTWAIT);
    set(2);
    set(1);
    receive_and_tell(a, fd, 1, 64, MSG_DONTWAIT);
  });
  a.client([&] { a.send(fd, std::string(1000, 'u')); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    // MSG_CTRUNC where it has no room.
    for (const std::size_t room : {0U, 8U, 15U, 16U, 18U, 20U, 22U, 24U, 64U}) {
      receive_and_tell(a, fd, 1, room);
    }
    receive_and_tell(a, fd, 91, 64);
    receive_and_tell(a, fd, 100, 64, MSG_PEEK);
    receive_and_tell(a, fd, 100, 64, MSG_TRUNC);
    receive_and_tell(a, fd, 0, 64);
    a.recv(fd, 100);
    set(0);
    receive_and_tell(a, fd, 1, 64);
    set(1);
    receive_and_tell(a, fd, 1, 64);
  });
  a.client([&] { a.shutdown(fd, SHUT_WR); });
  a.server([&] {
    a.settle(fd, POLLIN | POLLRDHUP, POLLRDHUP);
    for (const std::size_t size : {1U, 2000U, 10U}) receive_and_tell(a, fd, size, 64);
  });
}

SCENARIO(message_headers, kStaysOnChannel) {
  const int fd = a.stream();
  const auto send = [&](const char* what, msghdr& msg, int flags) {
    a.result(what, ::sendmsg(fd, &msg, flags));
  };
  const auto receive = [&](const char* what, msghdr& msg, int flags) {
    const ssize_t n = ::recvmsg(fd, &msg, flags);
    a.result(what, n);
    if (n >= 0) {
      a.log("name %u control %zu flags 0x%x", msg.msg_namelen, msg.msg_controllen,
            static_cast<unsigned>(msg.msg_flags));
    }
  };
  a.client([&] {
    Vectors out({3, 3, 3}, 'v');
    msghdr msg{};
    msg.msg_iov = out.iov.data();
    msg.msg_iovlen = 3;
    send("sendmsg", msg, 0);
    sockaddr_in elsewhere{};
    elsewhere.sin_family = AF_INET;
    elsewhere.sin_port = htons(9);
    elsewhere.sin_addr.s_addr = htonl(0x7f000009);
    msg.msg_name = &elsewhere;
    msg.msg_namelen = sizeof elsewhere;
    send("sendmsg with a name", msg, MSG_NOSIGNAL);
    msg.msg_iovlen = 0;
    send("sendmsg of nothing", msg, 0);
    msg.msg_iovlen = 1025;
    send("sendmsg of 1025 vectors", msg, 0);
    msg.msg_iovlen = 1;
    msg.msg_flags = MSG_OOB;  // ignored on the way in
    send("sendmsg with flags in it", msg, MSG_DONTWAIT);
  });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    Vectors in({1, 2, 3});
    char control[64];
    sockaddr_storage name{};
    msghdr msg{};
    msg.msg_iov = in.iov.data();
    msg.msg_iovlen = 3;
    msg.msg_namelen = 77;
    msg.msg_flags = 0x1234;
    receive("recvmsg", msg, 0);
    a.log("%s", in.memory.c_str());
    msg.msg_name = &name;
    msg.msg_namelen = sizeof name;
    msg.msg_control = control;
    msg.msg_controllen = sizeof control;
    receive("recvmsg with name and control", msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    msg.msg_controllen = sizeof control;
    receive("recvmsg peeking", msg, MSG_PEEK);
    msg.msg_iovlen = 0;
    receive("recvmsg into nothing", msg, MSG_DONTWAIT);
    msg.msg_iovlen = 1025;
    receive("recvmsg into 1025", msg, MSG_DONTWAIT);
    msg.msg_iovlen = 3;
    a.recv(fd, 100);
    msg.msg_namelen = sizeof name;
    msg.msg_controllen = sizeof control;
    receive("recvmsg of what is not there", msg, MSG_DONTWAIT);
  });
}

SCENARIO(addresses_of_a_stream, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    socklen_t length = 0;
    sockaddr_storage to = a.address(AF_INET, length);
    a.result("sendto", ::sendto(fd, "abc", 3, 0, reinterpret_cast<sockaddr*>(&to), length));
    a.result("sendto null", ::sendto(fd, "def", 3, 0, nullptr, 0));
    a.result("sendto null, 16", ::sendto(fd, "ghi", 3, 0, nullptr, 16));
  });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    sockaddr_storage from{};
    std::memset(&from, 0x5a, sizeof from);
    socklen_t length = sizeof from;
    char buffer[16] = {};
    auto* address = reinterpret_cast<sockaddr*>(&from);
    a.result("recvfrom", ::recvfrom(fd, buffer, 2, 0, address, &length));
    a.log("%s, length %u, address untouched %d", buffer, length, from.ss_family == 0x5a5a);
    a.result("recvfrom null", ::recvfrom(fd, buffer, 3, 0, nullptr, nullptr));
    a.log("%s", buffer);
    length = 5;
    a.result("recvfrom null, 5", ::recvfrom(fd, buffer, 3, 0, nullptr, &length));
    a.log("%s, length %u", buffer, length);
    length = 99;
    a.recv(fd, 20);
    a.result("recvfrom of what is not there",
             ::recvfrom(fd, buffer, 3, MSG_DONTWAIT, address, &length));
    a.log("length %u", length);
  });
}

SCENARIO(many_messages_in_one_call, kComesBack) {
  const int fd = a.stream();
  a.client([&] {
    Vectors out({5, 4, 3}, 'm');
    mmsghdr msgs[3] = {};
    for (std::size_t i = 0; i < 3; ++i) {
      msgs[i].msg_hdr.msg_iov = &out.iov[i];
      msgs[i].msg_hdr.msg_iovlen = 1;
    }
    a.result("sendmmsg", ::sendmmsg(fd, msgs, 3, 0));
    a.log("%u %u %u", msgs[0].msg_len, msgs[1].msg_len, msgs[2].msg_len);
  });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    while (true) {
      int unread = 0;
      char peeked[16];
      unread = static_cast<int>(::recv(fd, peeked, sizeof peeked, MSG_PEEK));
      if (unread >= 12) break;
    }
    Vectors in({6, 100}, '-');
    mmsghdr msgs[2] = {};
    for (std::size_t i = 0; i < 2; ++i) {
      msgs[i].msg_hdr.msg_iov = &in.iov[i];
      msgs[i].msg_hdr.msg_iovlen = 1;
    }
    a.result("recvmmsg", ::recvmmsg(fd, msgs, 2, MSG_DONTWAIT, nullptr));
    a.log("%u %u", msgs[0].msg_len, msgs[1].msg_len);
  });
}

SCENARIO(system_calls_by_number, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    a.result("SYS_write", ::syscall(SYS_write, fd, "by number", 9L));
    a.result("SYS_sendto", ::syscall(SYS_sendto, fd, "!", 1L, 0L, nullptr, 0L));
  });
  a.server([&] {
    char buffer[16] = {};
    a.settle(fd, POLLIN, POLLIN);
    a.result("SYS_read", ::syscall(SYS_read, fd, buffer, 2L));
    a.log("%s", buffer);
    pollfd entry{fd, POLLIN, 0};
    a.result("SYS_poll", ::syscall(SYS_poll, &entry, 1L, 0L));
    a.result("SYS_recvfrom", ::syscall(SYS_recvfrom, fd, buffer, 15L, 0L, nullptr, nullptr));
    a.log("%s", buffer);
    a.result("SYS_recvfrom", ::syscall(SYS_recvfrom, fd, buffer, 15L, MSG_DONTWAIT, nullptr, nullptr));
    const timespec nothing{0, 0};
    a.result("SYS_ppoll", ::syscall(SYS_ppoll, &entry, 1L, &nothing, nullptr, 8L));
    a.result("SYS_preadv", ::syscall(SYS_preadv, fd, nullptr, 0L, 0L, 0L));
    const int copy = static_cast<int>(::syscall(SYS_dup, fd));
    a.result("SYS_close", ::syscall(SYS_close, fd));
    a.result("SYS_read of the closed", ::syscall(SYS_read, fd, buffer, 2L));
    a.result("SYS_write by the copy", ::syscall(SYS_write, copy, "bye", 3L));
    a.result("SYS_shutdown", ::syscall(SYS_shutdown, copy, static_cast<long>(SHUT_WR)));
  });
  a.client([&] { a.recv(fd, 10); a.recv(fd, 10); });
}

}  // namespace ringroad::test
