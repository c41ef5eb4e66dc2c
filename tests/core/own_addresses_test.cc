// What a network namespace has for addresses, and the paths of listeners that follow them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <linux/if_addr.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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

in6_addr in6_of(const char* text) {
  in6_addr out{};
  EXPECT_EQ(::inet_pton(AF_INET6, text, &out), 1) << text;
  return out;
}

// What the kernel says of an address of this thread's namespace: 32 digits, as in the file.
unsigned flags_of(const std::string& digits) {
  std::ifstream file("/proc/self/task/" + std::to_string(::gettid()) + "/net/if_inet6");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(digits, 0) == 0) return static_cast<unsigned>(std::stoul(line.substr(42, 2), nullptr, 16));
  }
  return 0;
}

bool eventually(const std::function<bool()>& holds) {
  const std::int64_t until = sys::now_ns() + std::int64_t{kHungMs} * 1'000'000;
  while (!holds()) {
    if (sys::now_ns() > until) return false;
    ::poll(nullptr, 0, 20);
  }
  return true;
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
  // Whether iproute2's command has done it, in the calling thread's namespace.
  static bool ip(const std::string& words) {
    return std::system(("ip " + words + " >/dev/null 2>&1").c_str()) == 0;  // NOLINT
  }
  static bool write_to(const std::string& setting, const char* text) {
    std::FILE* const file = std::fopen(setting.c_str(), "w");
    if (file == nullptr) return false;
    const bool written = std::fputs(text, file) >= 0;
    return std::fclose(file) == 0 && written;
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
      write_to("/proc/sys/net/ipv4/ip_nonlocal_bind", may_bind);  // of the thread's own namespace
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
  Endpoint link_local = v6(in6_of("fe80::1"), 3306);
  link_local.scope = 1;
  EXPECT_TRUE(reached_at(link_local, {.network = 1}).empty());
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
    if (found.is_loopback() || found.scope != 0 || !is_own_address(found)) continue;
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

TEST_F(OwnAddresses, AreAllFoundHoweverManyThereAre) {
  constexpr std::uint32_t kMany = 300;
  std::string commands = directory_ + "/commands";
  const bool ran = in_a_network_of_its_own([&] {
    std::FILE* const file = std::fopen(commands.c_str(), "w");
    for (std::uint32_t i = 1; i <= kMany; ++i) {
      std::fprintf(file, "addr add 10.1.%u.%u/32 dev lo\n", i / 256, i % 256);
      std::fprintf(file, "addr add fd01::%x/128 dev lo\n", i);
    }
    std::fclose(file);
    if (!ip("-batch " + commands)) GTEST_SKIP() << "needs iproute2";
    EXPECT_EQ(reached_at(kAny4).size(), kMany);
    // The kernel makes them of use one after another.
    EXPECT_TRUE(eventually([&] { return reached_at(kAny6).size() == 2 * kMany; }));
  });
  if (!ran) GTEST_SKIP() << "needs root, for a network namespace";
}

// While another host may have it. Another namespace's kernel answers for it, as another host would.
TEST_F(OwnAddresses, ThatAreNotKnownToBeNobodyElsesHaveNoPath) {
  std::string skipped = "needs root, for a network namespace";
  in_a_network_of_its_own([&] {
    skipped = "needs iproute2, nsenter and a pair of virtual interfaces";
    if (!ip("link add rr0 type veth peer name rr1") || !ip("link set rr0 up")) return;
    const std::string here = "/proc/" + std::to_string(::getpid()) + "/task/" + std::to_string(::gettid());
    int there = -1;  // keeps the other namespace
    in_a_network_of_its_own([&] {
      const std::string tid = std::to_string(::gettid());
      const std::string move = "nsenter --net=" + here + "/ns/net ip link set rr1 netns " + tid;
      if (std::system(move.c_str()) != 0 || !ip("addr add fd01::2/64 dev rr1 nodad")) return;  // NOLINT
      if (!ip("link set rr1 up")) return;
      there = ::open(("/proc/self/task/" + tid + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC);
    });
    // A program may bind any address then.
    const std::string settings = "/proc/sys/net/ipv6/";
    for (const char* const setting : {"ip_nonlocal_bind", "conf/rr0/optimistic_dad"}) {
      if (!write_to(settings + setting, "1")) return;
    }
    const auto is_reached = [&](const char* address) {
      const Endpoint exact = v6(in6_of(address), kPort);
      const std::vector<Endpoint> any = reached_at(kAny6);
      const bool by_any = std::find(any.begin(), any.end(), exact) != any.end();
      EXPECT_EQ(by_any, !reached_at(exact).empty()) << address << ": bound to it, or to every address";
      return by_any;
    };
    if (there < 0 || !ip("addr add fd01::2/64 dev rr0") || !ip("addr add fd01::3/64 dev rr0")) return;
    skipped.clear();
    EXPECT_FALSE(is_reached("fd01::2")) << "asked for just now";
    EXPECT_TRUE(eventually([&] { return flags_of("fd010000000000000000000000000002") & IFA_F_DADFAILED; }));
    EXPECT_FALSE(is_reached("fd01::2")) << "the other has it";
    // The flag goes before the route comes.
    EXPECT_TRUE(eventually([] { return is_own_address(v6(in6_of("fd01::3"), kPort)); }));
    EXPECT_TRUE(is_reached("fd01::3")) << "nobody has answered";
    // Asks for ever, as good as.
    write_to(settings + "conf/rr0/dad_transmits", "1000");
    EXPECT_TRUE(ip("addr add fd01::4/64 dev rr0") && ip("addr add fd01::5/64 dev rr0 optimistic"));
    EXPECT_FALSE(is_reached("fd01::4")) << "asked for still";
    EXPECT_TRUE(eventually([] { return is_own_address(v6(in6_of("fd01::5"), kPort)); }));
    EXPECT_TRUE(is_reached("fd01::5")) << "in use meanwhile";
    ::close(there);
  });
  if (!skipped.empty()) GTEST_SKIP() << skipped;
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

TEST_F(OwnAddresses, HaveAPathThatIsLeftOnlyToAListenerThatIsReachedThere) {
  const bool ran = in_a_network_of_its_own([&] {
    have_address(kFirst);
    if (!ip("addr add fd01::1/128 dev lo")) GTEST_SKIP() << "needs iproute2";
    const Endpoint first6 = v6(in6_of("fd01::1"), kPort);
    ASSERT_TRUE(eventually([&] { return is_own_address(first6); }));
    Node host(directory_.c_str());
    for (const Endpoint& at : {kAny6, kAny4, v4(INADDR_ANY, kPort + 1), v6(in6addr_any, kPort + 1)}) {
      ASSERT_EQ(host.transport->listen(at), Reason::kNone);
      ASSERT_EQ(host.transport->listen_by_path(at, {}), Reason::kNone);
    }
    EXPECT_TRUE(has_path(kFirst) && has_path(first6));
    host.transport->unlisten(kAny6);
    EXPECT_TRUE(has_path(kFirst)) << "by the listener of IPv4";
    EXPECT_FALSE(has_path(first6)) << "nor by that, nor by one of another port";
    host.transport->unlisten(kAny4);
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
