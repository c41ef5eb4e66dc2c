// What the words of a filter choose, and what is said of those that choose nothing.

#include "cli/stream_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

using testing::HasSubstr;

class Filter : public testing::Test {
 protected:
  Filter() {
    process_.pid = 4711;
    process_.program = "mariadbd";
    stream_.fd = 5;
    stream_.role = Role::kAccept;
    stream_.local = endpoint("10.9.1.1", 3306);
    stream_.remote = endpoint("10.9.200.7", 40000);
    stream_.rule = "galera-replication";
    stream_.state = State::kOnTcp;
    stream_.reason = Reason::kPeerRefused;
    stream_.peer_reason = Reason::kMemlock;
    stream_.traffic = {{1000, 3 << 20, 10, 20}, {24, 0, 1, 0}};
    stream_.measures.stalls = 7;
    std::snprintf(stream_.channel.device, sizeof stream_.channel.device, "mlx5_0");
  }

  // Whether it chooses the stream.
  bool chooses(const std::vector<std::string>& words) {
    std::string why;
    const auto filter = parse_filter(words, why);
    EXPECT_TRUE(filter) << why;
    return filter && (*filter)(process_, stream_);
  }
  static std::string complaint(const std::vector<std::string>& words) {
    std::string why;
    EXPECT_FALSE(parse_filter(words, why)) << testing::PrintToString(words);
    return why;
  }

  ProcessReport process_;
  StreamReport stream_;
};

TEST_F(Filter, NoWordsChooseEveryStream) { EXPECT_TRUE(chooses({})); }

TEST_F(Filter, EachConditionLooksAtItsField) {
  for (const char* yes : {"state on_tcp",
                          "state = ON_TCP",
                          "state != closed",
                          "carrier tcp",
                          "reason peer_refused",
                          "peer-reason memlock",
                          "role accept",
                          "src 10.9.1.1",
                          "dst 10.9.200.7",
                          "dst 10.9.0.0/16",
                          "dst 10.9.192.0/18",
                          "src 10.9.1.1:3306",
                          "src :3306",
                          "dst *:40000",
                          "dst 0.0.0.0/0",
                          "dst 10.9.200.7:*",
                          "sport = :3306",
                          "sport 3306",
                          "sport eq 3306",
                          "dport > 39999",
                          "dport ge :40000",
                          "pid 4711",
                          "pid = 4711",
                          "fd < 6",
                          "program mariadbd",
                          "program 'maria*'",
                          "program != mysqld",
                          "rule *repl*",
                          "rule g[!b]lera*",
                          "device mlx5_?",
                          "tx = 1K",
                          "rx >= 3M",
                          "rx <= 3M",
                          "tx-msgs 11",
                          "rx-msgs 20",
                          "stalls != 0",
                          "promotions 0",
                          "resumptions lt 1"}) {
    std::string words = yes;
    std::erase(words, '\'');
    EXPECT_TRUE(chooses({words})) << yes;
    EXPECT_FALSE(chooses({"not " + words})) << yes;
  }
  for (const char* no :
       {"state on_channel", "carrier rdma", "reason memlock", "peer-reason none", "role connect",
        "src 10.9.1.2", "dst 10.9.0.0/17", "dst :3306", "src 10.9.1.1:3307", "src fd00::/8",
        "sport != 3306", "sport lt 3306", "pid 4712", "program maria", "rule galera", "rx > 3M",
        "stalls > 7", "dst ::/1"}) {
    EXPECT_FALSE(chooses({no})) << no;
  }
}

TEST_F(Filter, AddressesOfBothFamilies) {
  EXPECT_TRUE(chooses({"dst ::ffff:10.9.200.7"}));
  EXPECT_TRUE(chooses({"dst ::ffff:10.9.0.0/112"}));
  stream_.remote = endpoint("fd00:100::7", 443);
  for (const char* yes :
       {"dst fd00:100::7", "dst fd00:100::/64", "dst [fd00:100::7]:443", "dst [fd00:100::7]",
        "dst [fd00::/16]:443", "dst [fd00::]/16:443", "dst ::/0", "dst :443", "dst *:443"}) {
    EXPECT_TRUE(chooses({yes})) << yes;
  }
  for (const char* no :
       {"dst 0.0.0.0/0", "dst [fd00:100::7]:444", "dst fd00:100::8", "dst fd01::/16"}) {
    EXPECT_FALSE(chooses({no})) << no;
  }
}

TEST_F(Filter, WordsMayComeInOneOrInManyArguments) {
  EXPECT_TRUE(chooses({"sport", "=", ":3306"}));
  EXPECT_TRUE(chooses({"sport=:3306"}));
  EXPECT_TRUE(chooses({"sport=3306", "dport>=40000"}));
  EXPECT_TRUE(chooses({"(sport=3306)and(not(state closed))"}));
  EXPECT_TRUE(chooses({"!state closed&&sport 3306"}));
}

TEST_F(Filter, AndBindsCloserThanOrAndNotCloserThanBoth) {
  EXPECT_TRUE(chooses({"pid 1 and pid 2 or pid 4711"}));
  EXPECT_TRUE(chooses({"pid 4711 or pid 1 and pid 2"}));
  EXPECT_FALSE(chooses({"(pid 4711 or pid 1) and pid 2"}));
  EXPECT_FALSE(chooses({"pid 4711 pid 2"}));
  EXPECT_FALSE(chooses({"not pid 4711 or pid 2"}));
  EXPECT_TRUE(chooses({"not (pid 4711 and pid 2)"}));
  EXPECT_TRUE(chooses({"not not pid 4711"}));
  EXPECT_TRUE(chooses({"pid 1 || pid 4711 && sport 3306"}));
}

TEST_F(Filter, AWrongWordIsNamedWithWhatThereIs) {
  EXPECT_THAT(complaint({"stat", "on_tcp"}),
              HasSubstr("\"stat\" is no condition; there are state,"));
  EXPECT_THAT(complaint({"stat", "on_tcp"}), HasSubstr("resumptions"));
  EXPECT_THAT(complaint({"state", "open"}), HasSubstr("\"open\" is no state; there are on_tcp, "));
  EXPECT_THAT(complaint({"carrier pigeon"}), HasSubstr("there are tcp, shm, rdma"));
  EXPECT_THAT(complaint({"reason why"}),
              HasSubstr("\"why\" is no reason; there are none, pending"));
  EXPECT_THAT(complaint({"role server"}), HasSubstr("there are connect, accept"));
  EXPECT_THAT(complaint({"sport = http"}), HasSubstr("\"http\" is no port; write :3306"));
  EXPECT_THAT(complaint({"sport = 65536"}), HasSubstr("\"65536\" is no port"));
  EXPECT_THAT(complaint({"sport = 1K"}), HasSubstr("\"1K\" is no port"));
  EXPECT_THAT(complaint({"rx > lots"}), HasSubstr("\"lots\" is no number"));
  EXPECT_THAT(complaint({"rx > 99999999999T"}), HasSubstr("is no number"));
  EXPECT_THAT(complaint({"rx >> 1"}), HasSubstr("\">\" is no number"));
  for (const char* address :
       {"10.9", "10.9.0.0/33", "fd00::/129", "10.9.0.1:x", "[fd00::1", "[fd00::1]x",
        "[fd00::1]:", "host", "10.9.0.0/", ":", "10.9.0.1:70000"}) {
    EXPECT_THAT(complaint({"dst", address}), HasSubstr("is no address; write 10.9.0.1")) << address;
  }
}

TEST_F(Filter, WhatIsNotFinishedIsSaidToBe) {
  EXPECT_EQ(complaint({"state"}), "after \"state\" a state is missing");
  EXPECT_EQ(complaint({"dport", ">"}), "after \"dport\" a number is missing");
  EXPECT_EQ(complaint({"pid 1 and"}), "after \"and\" a condition is missing");
  EXPECT_EQ(complaint({"(pid 1"}), "a \")\" is missing at the end");
  EXPECT_EQ(complaint({"pid 1 )"}), "\")\" has no \"(\" before it");
  EXPECT_EQ(complaint({" "}), "the filter is empty");
  EXPECT_EQ(complaint({std::string(9000, '(')}), "the filter is nested too deeply");
  EXPECT_EQ(complaint({std::string(9000, '!')}), "the filter is nested too deeply");
}

TEST_F(Filter, AComplaintDoesNotSteerTheTerminal) {
  EXPECT_THAT(complaint({"a\x1b[2J"}), HasSubstr("\"a?[2J\" is no condition"));
}

TEST_F(Filter, AVeryLongFilterIsNoTrouble) {
  std::string words = "pid 4711";
  for (int i = 0; i < 2000; ++i) words += " and pid 4711";
  EXPECT_TRUE(chooses({words}));
  for (int i = 0; i < 2000; ++i) words += " and pid 4711";
  EXPECT_THAT(complaint({words}), HasSubstr("the filter is too long"));
}

}  // namespace
}  // namespace ringroad::cli
