#include "rsocket-core/net/address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include "rsocket-core/net/endpoint.h"

namespace ringroad {
namespace {

sockaddr_in6 ipv6_name(const char* text, std::uint16_t port) {
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  name.sin6_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET6, text, &name.sin6_addr), 1) << text;
  return name;
}

sockaddr_in ipv4_name(const char* text, std::uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, text, &name.sin_addr), 1) << text;
  return name;
}

template <typename Name>
std::optional<Endpoint> from(const Name& name, std::size_t length = sizeof(Name)) {
  Endpoint endpoint;
  const auto* of = reinterpret_cast<const sockaddr*>(&name);
  if (!Endpoint::from_sockaddr(of, static_cast<socklen_t>(length), endpoint)) return std::nullopt;
  return endpoint;
}

TEST(Address, ParsesAndPrintsBothFamilies) {
  for (const char* text : {"0.0.0.0", "10.9.1.255", "::", "::1", "fd00:100::42", "2001:db8::"}) {
    const std::optional<Address> address = Address::parse(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->to_string(), text);
  }
  EXPECT_EQ(Address::parse("10.0.0.1")->bits(), 32U);
  EXPECT_EQ(Address::parse("::1")->bits(), 128U);
}

TEST(Address, RefusesWhatIsNotAStrictNumericAddress) {
  for (const char* text : {"", "10.0.0", "10.0.0.256", "010.0.0.1", "0x0a000001", " 10.0.0.1",
                           "10.0.0.1 ", "localhost", "fe80::1%eth0", "[::1]", ":::", "1::2::3"}) {
    EXPECT_FALSE(Address::parse(text)) << text;
  }
  EXPECT_FALSE(Address::parse(std::string_view("10.0.0.1\0", 9)));
  EXPECT_FALSE(Address::parse(std::string(1000, '1')));
}

TEST(Address, TurnsMappedAddressesIntoIpv4) {
  EXPECT_EQ(Address::parse("::ffff:10.9.1.1"), Address::parse("10.9.1.1"));
  EXPECT_EQ(Address::parse("::ffff:0a09:0101"), Address::parse("10.9.1.1"));
  EXPECT_NE(Address::parse("::fffe:10.9.1.1"), Address::parse("10.9.1.1"));
  EXPECT_NE(Address::parse("::10.9.1.1"), Address::parse("10.9.1.1"));
  EXPECT_EQ(from(ipv6_name("::ffff:10.9.1.1", 3306)), from(ipv4_name("10.9.1.1", 3306)));
}

TEST(Endpoint, ReadsSocketNamesOfBothFamilies) {
  EXPECT_EQ(from(ipv4_name("10.9.1.1", 3306)), Endpoint::parse("10.9.1.1:3306"));
  EXPECT_EQ(from(ipv6_name("fd00::1", 4567)), Endpoint::parse("[fd00::1]:4567"));
}

TEST(Endpoint, TheScopeOfASocketNameIsNoPartOfItsAddress) {
  sockaddr_in6 name = ipv6_name("fe80::1", 1);
  name.sin6_scope_id = 7;
  name.sin6_flowinfo = 9;
  EXPECT_EQ(from(name)->addr, Address::parse("fe80::1"));
  EXPECT_EQ(from(name)->scope, 7U);
  EXPECT_EQ(from(name, offsetof(sockaddr_in6, sin6_scope_id)), Endpoint::parse("[fe80::1]:1"));
}

TEST(Endpoint, RefusesShortAndForeignSocketNames) {
  const sockaddr_in ipv4 = ipv4_name("10.9.1.1", 3306);
  for (std::size_t length = 0; length < sizeof(ipv4); ++length) {
    EXPECT_FALSE(from(ipv4, length)) << length;
  }
  const sockaddr_in6 ipv6 = ipv6_name("fd00::1", 3306);
  for (std::size_t length = 0; length < offsetof(sockaddr_in6, sin6_scope_id); ++length) {
    EXPECT_FALSE(from(ipv6, length)) << length;
  }
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  EXPECT_FALSE(from(local));
}

TEST(Endpoint, ParsesAndPrintsAddressAndPort) {
  for (const char* text : {"10.9.1.1:3306", "[fd00::1]:65535", "0.0.0.0:0"}) {
    const std::optional<Endpoint> parsed = Endpoint::parse(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(parsed->to_string(), text);
  }
  EXPECT_EQ(Endpoint::parse("[::ffff:10.9.1.1]:3306")->to_string(), "10.9.1.1:3306");
}

TEST(Endpoint, RefusesWhatIsNotAnAddressAndPort) {
  for (const char* text : {"", ":", "10.9.1.1", "10.9.1.1:", "10.9.1.1:65536", "10.9.1.1:-1",
                           "10.9.1.1:+1", "10.9.1.1:3306x", "fd00::1:3306", "[fd00::1]3306",
                           "[fd00::1]", "[10.9.1.1]:3306", "host:3306", "[]:1", "[:1"}) {
    EXPECT_FALSE(Endpoint::parse(text)) << text;
  }
}

}  // namespace
}  // namespace ringroad
