// What the kernel counts on a TCP socket, compared with what was written and read.
#include "rsocket-core/net/tcp_counters.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <cstring>
#include <string>
#include <thread>

#include "tests/core/stream_pair.h"

namespace ringroad {
namespace {

void say(int fd, const std::string& text) {
  ASSERT_EQ(::send(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
}

void hear(int fd, const std::string& text) {
  std::string got(text.size(), '\0');
  ASSERT_EQ(::recv(fd, got.data(), got.size(), MSG_WAITALL), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(got, text);
}

TEST(TcpCounters, AreTheBytesThatThisEndWroteAndRead) {
  const auto [connected, accepted] = test::tcp_pair();
  EXPECT_TRUE(tcp_counters_are(connected, true, 0, 0));
  EXPECT_TRUE(tcp_counters_are(accepted, false, 0, 0));
  say(connected, "question");
  EXPECT_TRUE(tcp_counters_are(connected, true, 8, 0));
  hear(accepted, "ques");
  say(accepted, "answer");
  EXPECT_TRUE(tcp_counters_are(accepted, false, 6, 4)) << "what is unread is not read";
  EXPECT_FALSE(tcp_counters_are(accepted, false, 6, 8));
  EXPECT_FALSE(tcp_counters_are(accepted, false, 5, 4));
  ::close(connected);
  ::close(accepted);
}

TEST(TcpCounters, CountWhatDoesNotFitIntoThePeersWindow) {
  const auto [connected, accepted] = test::tcp_pair();
  const std::string much(65536, 'm');
  std::uint64_t written = 0;
  for (ssize_t n = 0; n >= 0; written += static_cast<std::uint64_t>(n > 0 ? n : 0)) {
    n = ::send(connected, much.data(), much.size(), MSG_DONTWAIT);
  }
  ASSERT_GT(written, much.size());
  EXPECT_TRUE(tcp_counters_are(connected, true, written, 0));
  ::close(connected);
  ::close(accepted);
}

// In a network of the calling thread's own, in which an address can be taken away from a
// connection.
class Address {
 public:
  Address() : control_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    ifreq up{};
    std::strcpy(up.ifr_name, "lo");
    up.ifr_flags = IFF_UP;
    EXPECT_EQ(::ioctl(control_, SIOCSIFFLAGS, &up), 0);
  }
  ~Address() { ::close(control_); }

  // Of the interface; "0.0.0.0" is none.
  void be(const char* text) {
    ifreq request{};
    std::strcpy(request.ifr_name, "lo:1");
    auto* address = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
    address->sin_family = AF_INET;
    ASSERT_EQ(::inet_pton(AF_INET, text, &address->sin_addr), 1);
    ASSERT_EQ(::ioctl(control_, SIOCSIFADDR, &request), 0) << std::strerror(errno);
  }

 private:
  const int control_;
};

void lose_the_route_to_each_other() {
  Address address;
  address.be("192.0.2.1");
  const auto [connected, accepted] = test::tcp_pair("192.0.2.1");
  say(connected, "question");
  hear(accepted, "question");
  say(accepted, "answer");
  hear(connected, "answer");

  address.be("0.0.0.0");
  say(connected, "lost at first");
  say(accepted, "this too");
  EXPECT_TRUE(tcp_counters_are(connected, true, 21, 6));
  EXPECT_TRUE(tcp_counters_are(accepted, false, 14, 8));
  address.be("192.0.2.1");
  hear(accepted, "lost at first");
  hear(connected, "this too");
  EXPECT_TRUE(tcp_counters_are(connected, true, 21, 14));
  EXPECT_TRUE(tcp_counters_are(accepted, false, 14, 21));
  ::close(connected);
  ::close(accepted);
}

TEST(TcpCounters, CountOnceWhatCouldNotLeaveTheHostAtFirst) {
  bool own_network = false;
  std::thread([&own_network] {
    own_network = ::unshare(CLONE_NEWNET) == 0;
    if (own_network) lose_the_route_to_each_other();
  }).join();
  if (!own_network) GTEST_SKIP() << "may not have a network of its own";
}

}  // namespace
}  // namespace ringroad
