// Damaged policies: whatever the bytes, a policy loads or is refused with a place and a reason.

#include <gtest/gtest.h>

#include <array>

#include "tests/policy/fuzz_one.h"
#include "tests/policy/support.h"

namespace ringroad::policy {
namespace {

constexpr int kMutants = 30000 / kSlowdown;

constexpr std::array<std::string_view, 3> kSeeds = {
    R"(version = 1
[[rule]]
name    = "galera-replication"
subnet  = ["192.168.100.0/24", "fd00:100::/64"]   # the remote address
port    = ["4567-4568", 4444]
program = ["mariadbd", "mysqld"]
comm    = "maria*"
unit    = "mariadb.service"
cgroup  = "/system.slice"
label   = "app=mysql"
role    = "any"
via     = "rdma"
device  = "mlx5_0"
traffic_class = 106
ring    = "256KiB"
spin    = "20us"
promote_after = { messages = 4, bytes = "64KiB" }
wait    = "0ms"
)",
    R"(version = 1
rule = [ { subnet = "0.0.0.0/0", via = "tcp" }, { subnet = '::/0', port = 0x1f90 } ]
)",
    "version = 1\r\n[[rule]]\r\nsubnet = \"10.0.0.0/8\"\r\npromote_after.messages = 1\r\n"
    "promote_after.bytes = \"1B\"\r\n[[rule]]\r\n\"subnet\" = [\"::ffff:1.2.3.0/120\"]\r\n",
};

constexpr std::array<std::string_view, 29> kTokens = {
    "[[rule]]",   "[rule]", "rule",
    "\"",         "'''",    "\"\"\"",
    "=",          "{",      "}",
    "[",          "]",      ",",
    "\n",         ".",      "#",
    "\\u0000",    "\\",     "1e999",
    "nan",        "true",   "99999999999999999999",
    "-1",         "\xff",   "\xf0\x9f\x98\x80",
    "1979-05-27", "0x",     "/129",
    "a.b.c",      "[=]"};

std::string mutant(std::string text, Random& random) {
  for (std::size_t edits = 1 + random.below(4); edits > 0; --edits) {
    const std::size_t at = random.below(text.size() + 1);
    const std::size_t length = random.below(12);
    switch (random.below(6)) {
      case 0:
        text.insert(at, 1, static_cast<char>(random.below(256)));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, random.pick(kTokens));
        break;
      case 3:
        text.insert(at, text.substr(random.below(text.size() + 1), length * 8));
        break;
      case 4:
        text.resize(at);
        break;
      default:
        if (at < text.size()) {
          text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
        }
        break;
    }
  }
  return text;
}

TEST(Fuzz, DamagedPoliciesLoadOrAreRefusedWithAPlaceAndAReason) {
  Random random(test_seed());
  int valid = 0;
  for (int i = 0; i < kMutants; ++i) {
    const std::string text = mutant(std::string(random.pick(kSeeds)), random);
    ASSERT_EQ(complaint_about(text), "") << "for\n" << text;
    valid += Policy::load_text(text, "fuzz.toml") ? 1 : 0;
  }
  // Mutations that are never or always valid would test only half of the program.
  EXPECT_GT(valid, kMutants / 100);
  EXPECT_LT(valid, kMutants * 9 / 10);
}

TEST(Fuzz, EveryPrefixOfAPolicyLoadsOrIsRefusedWithAPlaceAndAReason) {
  for (const std::string_view seed : kSeeds) {
    for (std::size_t size = 0; size <= seed.size(); ++size) {
      ASSERT_EQ(complaint_about(seed.substr(0, size)), "") << seed.substr(0, size);
    }
  }
}

// Built to exhaust the stack or the time of a reader that recurses for each level.
TEST(Fuzz, NestingIsBoundedWhateverTheNotation) {
  const auto repeated = [](std::string_view piece, std::size_t times) {
    std::string text;
    for (std::size_t i = 0; i < times; ++i) {
      text += piece;
    }
    return text;
  };
  const std::size_t many = Policy::kLargestFileBytes / 8;
  const std::string start = "version = 1\n";
  for (const std::string& text :
       {start + repeated("a.", many) + "a = 1\n", start + "[" + repeated("a.", many) + "a]\n",
        start + "[[" + repeated("a.", many) + "a]]\n", start + "x = " + repeated("[", many),
        start + "x = " + repeated("{a=", many), start + "x = " + repeated("[{a.a.a.a=\n", many / 2),
        start + repeated("\"a\".", many) + "a = 1\n", start + repeated("'a' . ", many) + "a = 1\n",
        start + "x = \"\"\"\n\" \"\"\"\ny." + repeated("a.", many) + "a = 1\n",
        start + repeated("[a.b.c.d.e.f.g.h]\n", 8000)}) {
    EXPECT_EQ(complaint_about(text), "");
    EXPECT_FALSE(Policy::load_text(text, "fuzz.toml")) << text.substr(0, 60);
  }
}

}  // namespace
}  // namespace ringroad::policy
