// Descriptors whose last close waits, which any user sends that can connect.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "rsocket-core/base/deferred_close.h"
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
  Lingering(const Lingering&) = delete;
  Lingering& operator=(const Lingering&) = delete;
  ~Lingering() { sys::close_quietly(other_); }  // with bytes unread, which ends the lingering
  int fd = -1;

 private:
  int other_ = -1;
};

// A stranger that connects to the listener, and sends it one message with the last copies of descriptors.
class Stranger {
 public:
  explicit Stranger(unsigned count) : sent_(count) {
    fd_ = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un name;
    const socklen_t length = make_shm_name(ShmName::kExact, server(), name);
    EXPECT_EQ(sys::connect(fd_, reinterpret_cast<const sockaddr*>(&name), length), 0);
    char byte = 0;
    iovec piece{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    for (unsigned i = 0; i < count; ++i) {
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &sent_[i].fd, sizeof(int));
    }
    EXPECT_EQ(::sendmsg(fd_, &message, 0), 1);
    for (const Lingering& each : sent_) sys::close_quietly(each.fd);
  }
  ~Stranger() { sys::close_quietly(fd_); }
  // It is closed at least.
  bool is_answered() const {
    char answer[8];
    return ::recv(fd_, answer, sizeof answer, MSG_DONTWAIT) >= 0;
  }

 private:
  std::vector<Lingering> sent_;
  int fd_ = -1;
};

// Also of what other threads bring about.
template <typename Condition>
bool comes_true(Node& host, Condition condition) {
  const std::int64_t until = sys::now_ns() + kHungMs * 1'000'000LL;
  while (sys::now_ns() < until) {
    if (condition()) return true;
    host.transport->dispatch();
    std::this_thread::yield();
  }
  return false;
}

constexpr unsigned kReceived = ShmPacket::kMaxDescriptors;
constexpr unsigned kNoRoom = kReceived + 1;

TEST(ShmTransportLingering, DescriptorsForWhichAMessageHasNoRoomDoNotHoldItUp) {
  Node host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const Stranger stranger(kNoRoom);
  EXPECT_TRUE(comes_true(host, [&] { return stranger.is_answered(); }));
}

// Their other ends stay open all the time.
TEST(ShmTransportLingering, AnyNumberOfDescriptorsIsClosedAndAnHonestConnectorServed) {
  for (const unsigned count : {kReceived, kNoRoom}) {
    Node host;
    Node client;
    host.accept_everything();
    ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
    std::vector<std::unique_ptr<Stranger>> strangers;
    for (int i = 0; i < 2 * kMaxForeignCloses; ++i) {
      strangers.push_back(std::make_unique<Stranger>(count));
      ASSERT_TRUE(comes_true(host, [&] { return strangers.back()->is_answered(); })) << i;
    }
    EXPECT_TRUE(comes_true(host, [] { return foreign_closes_under_way() == 0; }));
    client.connect(server());
    ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()},
                          [&] { return client.agent.has_outcome() && host.agent.has_outcome(); }));
    EXPECT_EQ(client.agent.channels.size(), 1U);
  }
}

}  // namespace
}  // namespace ringroad::shm_test
