// What a network namespace has for addresses, and the paths of listeners that follow them.
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/own_addresses.h"
#include "tests/core/shm_node.h"

namespace ringroad::shm_test {
namespace {

constexpr std::uint16_t kPort = 3306;
// Of two networks: all of the loopback interface's network is local.
const Endpoint kFirst = v4(0xc0a80103, kPort);  // 192.168.1.3
const Endpoint kLater = v4(0xc0a80204, kPort);  // 192.168.2.4
const Endpoint kAny4 = v4(INADDR_ANY, kPort);
const Endpoint kAny6 = v6(in6addr_any, kPort);

std::vector<Endpoint> reached_at(const Endpoint& local, const ListenerFacts& facts = {}) {
  std::vector<Endpoint> out;
  EXPECT_TRUE(shm_directory::reached_at(local, facts, out));
  return out;
}

class OwnAddresses : public testing::Test {
 protected:
  ~OwnAddresses() override { std::filesystem::remove_all(directory_); }

  // Runs it in a thread with a network namespace of its own, which has the loopback interface alone. False:
  // this user may have none.
  static bool in_a_network_of_its_own(const std::function<void()>& run) {
    bool ran = false;
    std::thread([&] {
      if (::unshare(CLONE_NEWNET) != 0) return;
      ran = true;
      run();
    }).join();
    return ran;
  }
  // Replaces the interface's address.
  static void have_address(const Endpoint& to) {
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    sockaddr_storage address{};
    to.to_sockaddr(address);
    std::memcpy(&request.ifr_addr, &address, sizeof(sockaddr_in));
    EXPECT_EQ(::ioctl(fd, SIOCSIFADDR, &request), 0);
    request.ifr_flags = IFF_UP;
    EXPECT_EQ(::ioctl(fd, SIOCSIFFLAGS, &request), 0);
    ::close(fd);
  }
  bool has_path(const Endpoint& of) const {
    return std::filesystem::exists(directory_ + "/" + of.to_string());
  }

  const std::string directory_ = [] {
    char name[] = "/tmp/ringroad-own-XXXXXX";
    return std::string(mkdtemp(name));
  }();
};

TEST_F(OwnAddresses, AreThoseOfInterfacesAndNotThoseThatAProgramMayBindAllTheSame) {
  const bool ran = in_a_network_of_its_own([] {
    have_address(kFirst);
    for (const char* const may_bind : {"0", "1"}) {
      // Of the thread's own namespace.
      FILE* const setting = std::fopen("/proc/sys/net/ipv4/ip_nonlocal_bind", "w");
      if (setting != nullptr) {
        std::fputs(may_bind, setting);
        std::fclose(setting);
      }
      EXPECT_TRUE(is_own_address(kFirst)) << may_bind;
      EXPECT_FALSE(is_own_address(kLater)) << may_bind;
    }
  });
  if (!ran) GTEST_SKIP() << "needs root, for a network namespace";
}

TEST_F(OwnAddresses, AreWhereAListenerIsReachedButForLoopback) {
  const Endpoint exact = v4(0x0a010203, 3306);
  EXPECT_EQ(reached_at(exact, {.network = 1}), std::vector<Endpoint>{exact});
  EXPECT_TRUE(reached_at(v4(INADDR_LOOPBACK, 3306)).empty());
  std::vector<Endpoint> v4_expected;
  std::vector<Endpoint> all_expected;
  ifaddrs* list = nullptr;
  ASSERT_EQ(getifaddrs(&list), 0);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    Endpoint found;
    const bool is_v6 = entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET6;
    const socklen_t length = is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (entry->ifa_addr == nullptr || !Endpoint::from_sockaddr(entry->ifa_addr, length, found)) continue;
    found.port = 3306;
    if (found.is_loopback() || found.scope != 0) continue;
    all_expected.push_back(found);
    if (!is_v6) v4_expected.push_back(found);
  }
  freeifaddrs(list);
  const auto sorted = [](std::vector<Endpoint> of) {
    std::sort(of.begin(), of.end());
    return of;
  };
  EXPECT_EQ(sorted(reached_at(v4(INADDR_ANY, 3306))), sorted(v4_expected));
  EXPECT_EQ(sorted(reached_at(v6(in6addr_any, 3306))), sorted(all_expected));
}

TEST_F(OwnAddresses, HavePathsThatFollowThem) {
  const bool ran = in_a_network_of_its_own([&] {
    Node host(directory_.c_str());
    have_address(v4(INADDR_LOOPBACK, 0));
    for (const Endpoint& at : {kAny4, kLater}) {
      ASSERT_EQ(host.transport->listen(at), Reason::kNone);
      EXPECT_EQ(host.transport->listen_by_path(at, {}), Reason::kNone);
    }
    EXPECT_TRUE(std::filesystem::is_empty(directory_)) << "no path for an address of others";
    have_address(kFirst);
    host.transport->look_at_paths();
    EXPECT_TRUE(has_path(kFirst));
    EXPECT_FALSE(has_path(kLater));
    have_address(kLater);
    host.transport->look_at_paths();
    EXPECT_FALSE(has_path(kFirst)) << "another namespace may have it by now";
    EXPECT_TRUE(has_path(kLater));
  });
  if (!ran) GTEST_SKIP() << "needs root, for a network namespace";
}

TEST_F(OwnAddresses, OfIPv4HaveNoPathForAListenerOfIPv6Alone) {
  const bool ran = in_a_network_of_its_own([&] {
    have_address(kFirst);
    const ListenerFacts v6_only{.v6_only = true};
    Node one(directory_.c_str());
    Node other(directory_.c_str());
    ASSERT_EQ(one.transport->listen(kAny6), Reason::kNone);
    EXPECT_EQ(one.transport->listen_by_path(kAny6, v6_only), Reason::kNone);
    EXPECT_FALSE(has_path(kFirst));
    ASSERT_EQ(other.transport->listen(kAny4), Reason::kNone);
    EXPECT_EQ(other.transport->listen_by_path(kAny4, {}), Reason::kNone);
    EXPECT_TRUE(has_path(kFirst));
    // Both of one process: the path goes with the one that is reached there.
    ASSERT_EQ(one.transport->listen(kFirst), Reason::kNone);
    other.transport->unlisten(kAny4);
    ASSERT_EQ(one.transport->listen_by_path(kFirst, {}), Reason::kNone);
    EXPECT_TRUE(has_path(kFirst));
    one.transport->unlisten(kFirst);
    EXPECT_FALSE(has_path(kFirst));
    one.transport->look_at_paths();
    EXPECT_FALSE(has_path(kFirst));
  });
  if (!ran) GTEST_SKIP() << "needs root, for a network namespace";
}

TEST_F(OwnAddresses, HaveNoPathForAListenerOfAnotherNamespace) {
  const bool ran = in_a_network_of_its_own([&] {
    have_address(kFirst);
    const int here = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ListenerFacts facts{.network = network_of(here)};
    ::close(here);
    if (facts.network == 0) return;  // before Linux 5.14
    EXPECT_EQ(reached_at(kAny4, facts), std::vector<Endpoint>{kFirst});
    EXPECT_TRUE(reached_at(kLater, facts).empty());
    ++facts.network;
    EXPECT_TRUE(reached_at(kAny4, facts).empty());
    EXPECT_EQ(reached_at(kLater, facts), std::vector<Endpoint>{kLater}) << "it is bound to that";
  });
  if (!ran) GTEST_SKIP() << "needs root, for a network namespace";
}

}  // namespace
}  // namespace ringroad::shm_test
