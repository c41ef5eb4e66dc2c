#include "rsocket-core/net/endpoint.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ringroad {
namespace {

Endpoint make(int family, const char* text, std::uint16_t port, std::uint32_t scope = 0) {
  sockaddr_storage storage{};
  socklen_t length = 0;
  if (family == AF_INET) {
    auto* in = reinterpret_cast<sockaddr_in*>(&storage);
    in->sin_family = AF_INET;
    in->sin_port = htons(port);
    EXPECT_EQ(inet_pton(AF_INET, text, &in->sin_addr), 1);
    length = sizeof *in;
  } else {
    auto* in = reinterpret_cast<sockaddr_in6*>(&storage);
    in->sin6_family = AF_INET6;
    in->sin6_port = htons(port);
    in->sin6_scope_id = scope;
    EXPECT_EQ(inet_pton(AF_INET6, text, &in->sin6_addr), 1);
    length = sizeof *in;
  }
  Endpoint out;
  EXPECT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&storage), length, out));
  return out;
}

TEST(EndpointTest, AnIPv4AddressHasOneNameInBothFamilies) {
  const Endpoint plain = make(AF_INET, "10.9.0.1", 3306);
  const Endpoint mapped = make(AF_INET6, "::ffff:10.9.0.1", 3306);
  EXPECT_EQ(plain, mapped);
  EXPECT_TRUE(plain.is_v4());
  EXPECT_EQ(plain.to_string(), "10.9.0.1:3306");
}

TEST(EndpointTest, PrintsIPv6InBrackets) {
  const Endpoint endpoint = make(AF_INET6, "fd00:0:0::1", 80);
  EXPECT_FALSE(endpoint.is_v4());
  EXPECT_EQ(endpoint.to_string(), "[fd00::1]:80");
}

TEST(EndpointTest, ConvertsToSockaddrAndBack) {
  const struct {
    Endpoint endpoint;
    int family;
    socklen_t length;
  } cases[] = {
      {make(AF_INET, "192.0.2.7", 65535), AF_INET, sizeof(sockaddr_in)},
      {make(AF_INET6, "::ffff:192.0.2.7", 1), AF_INET, sizeof(sockaddr_in)},
      {make(AF_INET6, "2001:db8::7", 443), AF_INET6, sizeof(sockaddr_in6)},
      {make(AF_INET6, "fe80::7", 443, 3), AF_INET6, sizeof(sockaddr_in6)},
  };
  for (const auto& c : cases) {
    sockaddr_storage storage;
    const socklen_t length = c.endpoint.to_sockaddr(storage);
    EXPECT_EQ(length, c.length);
    EXPECT_EQ(storage.ss_family, c.family);
    Endpoint back;
    ASSERT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&storage), length, back));
    EXPECT_EQ(back, c.endpoint) << c.endpoint.to_string();
  }
}

TEST(EndpointTest, KeepsTheScopeOfLinkLocalAddressesOnly) {
  EXPECT_EQ(make(AF_INET6, "fe80::1", 1, 7).scope, 7u);
  EXPECT_NE(make(AF_INET6, "fe80::1", 1, 7), make(AF_INET6, "fe80::1", 1, 8));
  EXPECT_EQ(make(AF_INET6, "fd00::1", 1, 7), make(AF_INET6, "fd00::1", 1, 0));
}

TEST(EndpointTest, KnowsWildcardAndLoopbackAddresses) {
  EXPECT_TRUE(make(AF_INET, "0.0.0.0", 1).is_any());
  EXPECT_TRUE(make(AF_INET6, "::", 1).is_any());
  EXPECT_FALSE(make(AF_INET, "0.0.0.1", 1).is_any());
  EXPECT_FALSE(make(AF_INET6, "::1", 1).is_any());
  EXPECT_TRUE(make(AF_INET, "127.0.0.1", 1).is_loopback());
  EXPECT_TRUE(make(AF_INET, "127.255.3.4", 1).is_loopback());
  EXPECT_TRUE(make(AF_INET6, "::1", 1).is_loopback());
  EXPECT_FALSE(make(AF_INET, "128.0.0.1", 1).is_loopback());
  EXPECT_FALSE(make(AF_INET6, "::2", 1).is_loopback());
}

TEST(EndpointTest, TheWildcardsOfTheFamiliesDiffer) {
  EXPECT_NE(make(AF_INET, "0.0.0.0", 1), make(AF_INET6, "::", 1));
}

TEST(EndpointTest, RefusesWhatIsNoInternetAddressAndLeavesTheOutputAlone) {
  const Endpoint before = make(AF_INET, "10.0.0.1", 5);
  Endpoint out = before;
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  EXPECT_FALSE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&local), sizeof local, out));
  sockaddr_in in{};
  in.sin_family = AF_INET;
  EXPECT_FALSE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&in), sizeof in - 1, out));
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  EXPECT_FALSE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&in6), 23, out));
  EXPECT_FALSE(Endpoint::from_sockaddr(nullptr, sizeof in, out));
  EXPECT_FALSE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&in), 1, out));
  EXPECT_EQ(out, before);
}

TEST(EndpointTest, TakesAnIPv6AddressWithoutScopeAndReadsNoFurther) {
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(9);
  in6.sin6_scope_id = 0xdead;
  ASSERT_EQ(inet_pton(AF_INET6, "fe80::9", &in6.sin6_addr), 1);
  Endpoint out;
  ASSERT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&in6), 24, out));
  EXPECT_EQ(out.scope, 0u);
  EXPECT_EQ(out.to_string(), "[fe80::9]:9");
}

TEST(EndpointTest, AsksTheKernelForBothEndsOfAConnection) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  const Endpoint loopback = make(AF_INET, "127.0.0.1", 0);
  sockaddr_storage storage;
  socklen_t length = loopback.to_sockaddr(storage);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&storage), length), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  Endpoint at;
  ASSERT_TRUE(Endpoint::local_of(listener, at));
  EXPECT_NE(at.port, 0);
  length = at.to_sockaddr(storage);
  const int connector = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(connector, reinterpret_cast<sockaddr*>(&storage), length), 0);
  const int accepted = ::accept(listener, nullptr, nullptr);
  FourTuple here, there;
  ASSERT_TRUE(Endpoint::local_of(connector, here.local) &&
              Endpoint::peer_of(connector, here.remote));
  ASSERT_TRUE(Endpoint::local_of(accepted, there.local) &&
              Endpoint::peer_of(accepted, there.remote));
  EXPECT_EQ(here.remote, at);
  EXPECT_EQ(here, there.reversed());
  Endpoint out;
  EXPECT_FALSE(Endpoint::peer_of(listener, out));
  EXPECT_FALSE(Endpoint::local_of(-1, out));
  for (const int fd : {listener, connector, accepted}) ::close(fd);
}

TEST(EndpointTest, OrdersByAddressThenPort) {
  EXPECT_LT(make(AF_INET, "10.0.0.1", 9), make(AF_INET, "10.0.0.2", 1));
  EXPECT_LT(make(AF_INET, "10.0.0.1", 1), make(AF_INET, "10.0.0.1", 2));
}

}  // namespace
}  // namespace ringroad
