// What programs do that nobody here wrote, plain and preloaded, in all four mixes of a server and a client.
// The answers are the kernel's: the plain pair is held to the same table.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "tests/preload/drivers/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 60'000;

struct Expected {
  const char* probe;      // of `strangers`
  const char* client;     // what it prints
  const char* server;     // after its port
  bool over_a_channel;    // some of its bytes, where both are preloaded
};

constexpr Expected kExpected[] = {
    // Its registrations are not seen: on TCP, and not for ever asleep.
    {"own_epoll", "20 answers\n", "1 connections, 1280 bytes, 0 errors\n", false},
    {"plugin", "10 answers\n10 of the plug-in's\n10 answers\n", "1 connections, 1920 bytes, 0 errors\n",
     true},
    {"small_stacks",
     "10 answers\nsend and recv: done\nwritev and readv: done\nsendmsg and recvmsg: done\n"
     "poll: done\nselect: done\n"
     "epoll: done\nsendfile: done\nconnect and close: done\noptions and copies: done\nfork: done\n",
     "2 connections, 1216 bytes, 0 errors\n", true},
    {"poll_limit", "10 answers\n-1 entries: 1 \n0 entries: 1 \n1 entries: -1 EINVAL\n",
     "1 connections, 832 bytes, 0 errors\n", true},
    {"close_all", "10 answers\n0 refused, 10 answers\n", "1 connections, 1280 bytes, 0 errors\n", true},
    {"fork_beside", "10 of 10\n", "20 connections, 1280 bytes, 0 errors\n", false},
};

struct Case {
  Expected expected;
  bool server_is_preloaded;
  bool client_is_preloaded;
  bool from_the_first_byte;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Expected& expected : kExpected) {
    for (const bool server : {false, true}) {
      for (const bool client : {false, true}) {
        for (const bool first : {false, true}) {
          // Left out: a plug-in that receives just as the promotion is made, see docs/compatibility.md.
          const bool left_out = std::string(expected.probe) == "plugin" && server && client && !first;
          if ((first || server || client) && !left_out) all.push_back({expected, server, client, first});
        }
      }
    }
  }
  return all;
}

// A peer that has no library is not waited for as long as in other tests.
std::string policy_of(const Case& c) {
  return "version = 1\n[[rule]]\nname = \"strangers\"\nsubnet = [\"127.0.0.0/8\"]\nvia = \"shm\"\n" +
         std::string(c.from_the_first_byte ? "promote_after = { messages = 0 }\nwait = \"200ms\"\n"
                                           : "promote_after = { messages = 3 }\n");
}

class StrangersTest : public testing::TestWithParam<Case> {
 protected:
  std::vector<std::string> environment(bool preloaded) const {
    if (!preloaded) return environment_with({});
    return environment_with(
        {"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy_, "RINGROAD_RUNTIME_DIR=" + segments_});
  }

  TemporaryDirectory directory_;
  std::string policy_ = directory_.write("policy.toml", policy_of(GetParam()));
  std::string segments_ = directory_.path() + "/run";
};

TEST_P(StrangersTest, GetTheKernelsAnswers) {
  const Case& c = GetParam();
  Program server({STRANGERS, c.expected.probe, "serve"}, environment(c.server_is_preloaded));
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  const std::size_t end_of_port = server.out().find('.');
  const std::string port = server.out().substr(5, end_of_port - 5);
  Program client({STRANGERS, c.expected.probe, "connect", port}, environment(c.client_is_preloaded));
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
  EXPECT_EQ(client.out(), c.expected.client);
  EXPECT_EQ(client.err(), "");
  std::uint64_t crossed = 0;
  for (const cli::ProcessReport& process : cli::read_segments(segments_).processes) {
    crossed += process.totals().channel.rx_bytes;
  }
  EXPECT_EQ(server.finish(kTimeoutMs), 0);
  EXPECT_EQ(server.out().substr(end_of_port + 2), c.expected.server);
  EXPECT_EQ(server.err(), "");
  if (c.expected.over_a_channel && c.from_the_first_byte && c.server_is_preloaded && c.client_is_preloaded) {
    EXPECT_GT(crossed, 0U) << "nothing went over a channel";
  }
}

INSTANTIATE_TEST_SUITE_P(Table, StrangersTest, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           const Case& c = test.param;
                           return std::string(c.expected.probe) +
                                  (c.server_is_preloaded ? "_preloaded" : "_plain") +
                                  (c.client_is_preloaded ? "_preloaded" : "_plain") +
                                  (c.from_the_first_byte ? "_from_the_first_byte" : "_midway");
                         });

}  // namespace
}  // namespace ringroad::test
