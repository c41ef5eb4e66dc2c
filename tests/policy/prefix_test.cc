#include "policy/prefix.h"

#include <gtest/gtest.h>

namespace ringroad::policy {
namespace {

TEST(Prefix, ContainsExactlyTheAddressesThatShareItsBits) {
  const Prefix prefix{*Address::parse("10.9.128.0"), 17};
  EXPECT_TRUE(prefix.contains(*Address::parse("10.9.128.0")));
  EXPECT_TRUE(prefix.contains(*Address::parse("10.9.255.255")));
  EXPECT_FALSE(prefix.contains(*Address::parse("10.9.127.255")));
  EXPECT_FALSE(prefix.contains(*Address::parse("10.10.128.0")));
  EXPECT_FALSE(prefix.contains(*Address::parse("a09:8000::")));
  EXPECT_EQ(prefix.to_string(), "10.9.128.0/17");

  const Prefix everything{*Address::parse("::"), 0};
  EXPECT_TRUE(everything.contains(*Address::parse("ffff::")));
  EXPECT_FALSE(everything.contains(*Address::parse("::ffff:1.2.3.4")));
}

TEST(Prefix, ContainsTheLongerPrefixesInsideIt) {
  const Prefix outer{*Address::parse("10.0.0.0"), 8};
  const Prefix inner{*Address::parse("10.1.0.0"), 16};
  EXPECT_TRUE(outer.contains(inner));
  EXPECT_TRUE(outer.contains(outer));
  EXPECT_FALSE(inner.contains(outer));
  EXPECT_FALSE(inner.contains(Prefix{*Address::parse("10.2.0.0"), 16}));
}

// On the way to its first bits an IPv6 address may look like an IPv4-mapped one, and may end as one.
TEST(Prefix, OfAnIpv6AddressStaysOne) {
  const Address almost_mapped = *Address::parse("::1:ffff:1.2.3.4");
  EXPECT_EQ(Prefix::of(almost_mapped, 79).to_string(), "::/79");
  EXPECT_EQ(Prefix::of(almost_mapped, 80).to_string(), "::1:0:0:0/80");
  EXPECT_EQ(Prefix::of(*Address::parse("8000::ffff:0:1"), 0).to_string(), "::/0");
  EXPECT_EQ(Prefix::of(*Address::parse("::fffe:0:0"), 96).to_string(), "::fffe:0:0/96");
  EXPECT_EQ(Prefix::of(*Address::parse("10.9.255.255"), 17).to_string(), "10.9.128.0/17");
}

}  // namespace
}  // namespace ringroad::policy
