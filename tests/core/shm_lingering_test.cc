// Descriptors whose last close waits, which any user sends that can connect.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/core/shm_node.h"

namespace ringroad::shm_test {
namespace {

// A TCP connection that lingers, with bytes that its other end never takes.
class Lingering {
 public:
  Lingering() {
    const int listener = sys::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&at), length), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length);
    fd = sys::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    other_ = sys::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    sys::close_quietly(listener);
    const linger long_time{1, 60};
    EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time), 0);
    const std::vector<char> bytes(1 << 20);
    while (::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
  }
  ~Lingering() { sys::close_quietly(other_); }  // with bytes unread, which ends the lingering
  int fd = -1;

 private:
  int other_ = -1;
};

TEST(ShmTransportLingering, DescriptorsForWhichAMessageHasNoRoomDoNotHoldItUp) {
  Node host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const Lingering sent[3];
  const int to_host = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un name;
  const socklen_t length = make_shm_name(ShmName::kExact, server(), name);
  ASSERT_EQ(sys::connect(to_host, reinterpret_cast<const sockaddr*>(&name), length), 0);
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(3 * sizeof(int));
  const int fds[] = {sent[0].fd, sent[1].fd, sent[2].fd};
  std::memcpy(CMSG_DATA(rights), fds, sizeof fds);
  ASSERT_EQ(::sendmsg(to_host, &message, 0), 1);
  for (const int fd : fds) sys::close_quietly(fd);  // the message has the last copies
  const std::int64_t began = sys::now_ns();
  ASSERT_TRUE(run_until({host.transport.get()}, [&] {
    char answer[8];
    return ::recv(to_host, answer, sizeof answer, MSG_DONTWAIT) >= 0;
  }));
  EXPECT_LT(sys::now_ns() - began, 20'000'000'000);
  sys::close_quietly(to_host);
}

}  // namespace
}  // namespace ringroad::shm_test
