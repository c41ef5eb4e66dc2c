// Streams that are on a channel when their process forks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/operator_request.h"
#include "cli/segment_reader.h"
#include "rsocket-core/process/control_socket.h"
#include "tests/file_name_here.h"
#include "tests/preload/drivers/forking_fixture.h"

namespace ringroad::test {
namespace {

TEST_F(ForkingTest, AStreamThatWasOnAChannelAtTheForkReturnsToOneWhenTheChildHasEnded) {
  const auto server = start_server({"helper"});
  Client client = connect();
  const pid_t process = server_of(*server, client);
  ASSERT_TRUE(promoted(process, client));
  const auto times = [&] { return report(process, client)->measures.promotions; };
  const std::uint64_t before = times();
  server->write("\n");
  ASSERT_TRUE(server->wait_for("forked.\n", kTimeoutMs));
  EXPECT_TRUE(says(process, client, Reason::kFork));
  EXPECT_TRUE(client.say(20));
  EXPECT_EQ(times(), before);
  server->write("\n");
  ASSERT_TRUE(server->wait_for("alone.\n", kTimeoutMs));
  EXPECT_TRUE(promoted(process, client));
  EXPECT_GT(times(), before);
}

// How a server waits by epoll.
class EpollForkingTest : public ForkingTest, public testing::WithParamInterface<const char*> {
 public:
  static std::string name(const testing::TestParamInfo<const char*>& info) { return info.param; }
};

TEST_P(EpollForkingTest, TheStreamOfAnInstanceIsBackOnAChannelWhenEachChildHasEnded) {
  const auto server = start_server({"helper", GetParam()}, false);
  Client client = connect();
  const pid_t process = server_of(*server, client);
  ASSERT_TRUE(promoted(process, client));
  for (int child = 0; child < 3; ++child) {
    const std::size_t said = server->out().size();
    server->write("\n");
    ASSERT_TRUE(server->wait_for("forked.\n", kTimeoutMs, said)) << child;
    ASSERT_TRUE(says(process, client, Reason::kFork)) << child;
    ASSERT_TRUE(client.say(20)) << child;
    server->write("\n");
    ASSERT_TRUE(server->wait_for("alone.\n", kTimeoutMs, said)) << child;
    ASSERT_TRUE(promoted(process, client)) << child;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, EpollForkingTest, testing::Values("level", "edge", "oneshot"),
                         EpollForkingTest::name);

TEST_F(ForkingTest, AChildThatHasOnlyTheInstanceKeepsTheStreamOnTcp) {
  const auto server = start_server({"helper", "keeper"}, false);
  Client client = connect();
  const pid_t process = server_of(*server, client);
  ASSERT_TRUE(promoted(process, client));
  server->write("\n");
  ASSERT_TRUE(server->wait_for("forked.\n", kTimeoutMs));
  // The client asks again after 0.25 s, and then after 0.5 s more.
  const auto until = Clock::now() + std::chrono::milliseconds(1000);
  while (Clock::now() < until) {
    ASSERT_TRUE(client.say(1));
    ASSERT_FALSE(on_channel(process, client));
  }
  server->write("\n");
  ASSERT_TRUE(server->wait_for("alone.\n", kTimeoutMs));
  EXPECT_TRUE(promoted(process, client));
}

TEST_F(ForkingTest, AChildThatUsesNoConnectionMakesNoStatisticsFile) {
  const auto server = start_server({"helper"});
  Client client = connect();
  const pid_t process = server_of(*server, client);
  ASSERT_TRUE(promoted(process, client));
  const auto files = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path() + "/run")) {
      if (entry.is_regular_file()) names.insert(entry.path().filename());
    }
    return names;
  };
  const std::set<std::string> both = {file_name_here(process),
                                      file_name_here(client.program->pid())};
  EXPECT_EQ(files(), both);
  server->write("\n");
  ASSERT_TRUE(server->wait_for("forked.\n", kTimeoutMs));
  EXPECT_TRUE(client.say(3));
  EXPECT_EQ(files(), both);  // the child lives
  server->write("\n");
  ASSERT_TRUE(server->wait_for("alone.\n", kTimeoutMs));
}

TEST_F(ForkingTest, AnExecThatFailsIsNoFarewellToTheChannel) {
  const auto server = start_server({"failing"});
  Client client = connect();
  const pid_t process = server_of(*server, client);
  ASSERT_TRUE(promoted(process, client));
  const std::uint64_t before = report(process, client)->measures.promotions;
  server->write("\n");
  ASSERT_TRUE(server->wait_for("still here.\n", kTimeoutMs));
  EXPECT_TRUE(promoted(process, client));
  EXPECT_GT(report(process, client)->measures.promotions, before);
}

TEST_F(EagerForkingTest, WhatAnOperatorAskedForHoldsForTheProgramThatTheProcessBecomes) {
  Program server({RINGROAD_ECHO, "serve"}, environment_);
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Program client({RINGROAD_FORKING, "becoming", std::to_string(number_after(server.out(), "port "))},
                 environment_);
  ASSERT_TRUE(client.wait_for("connected.\n", kTimeoutMs));
  const auto ours = [&](const auto& look) {
    const cli::Snapshot all = cli::read_segments(directory_.path() + "/run");
    for (const cli::ProcessReport& one : all.processes) {
      if (one.pid == client.pid() && !one.streams.empty()) return look(one.streams[0]);
    }
    return false;
  };
  std::string said;
  const auto talk_until = [&](const auto& look) {
    const auto until = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
    while (!ours(look)) {
      const std::string line = "line " + std::to_string(said.size()) + "\n";
      said += line;
      client.write(line);
      if (Clock::now() > until || !client.wait_for(line, kTimeoutMs)) return false;
    }
    return true;
  };
  ASSERT_TRUE(talk_until([](const auto& s) { return s.state == State::kOnChannel; }));
  std::string why;
  ASSERT_TRUE(cli::ask(directory_.path() + "/run", client.pid(), control::Mode::kTcp, 1, why)) << why;
  const auto kept = [](const auto& s) { return s.reason == Reason::kOperator; };
  ASSERT_TRUE(talk_until(kept));
  client.write("become\n");
  ASSERT_TRUE(client.wait_for("connected.\n" + said + "connected.\n", kTimeoutMs));
  EXPECT_TRUE(talk_until(kept));
  EXPECT_TRUE(ours([](const auto& s) { return s.measures.promotions == 0; }));
}

TEST_F(ForkingTest, AClientsChildIsPromotedWhenTheClientHasEnded) {
  Program server({RINGROAD_ECHO, "serve"}, environment_);
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Program client({RINGROAD_FORKING, "connect", std::to_string(number_after(server.out(), "port "))},
                 environment_);
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  const pid_t child = number_after(client.out(), "child ");
  const auto until = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
  const auto promotions = [&] {
    const cli::Snapshot all = cli::read_segments(directory_.path() + "/run");
    for (const cli::ProcessReport& one : all.processes) {
      if (one.pid == child && !one.streams.empty()) return one.streams[0].measures.promotions;
    }
    return std::uint64_t{0};
  };
  for (unsigned i = 0; promotions() == 0; ++i) {
    ASSERT_LT(Clock::now(), until);
    const std::string line = "line " + std::to_string(i) + "\n";
    client.write(line);
    ASSERT_TRUE(client.wait_for(line, kTimeoutMs));
  }
  client.write("over the channel\n");
  EXPECT_TRUE(client.wait_for("over the channel\n", kTimeoutMs));
}

}  // namespace
}  // namespace ringroad::test
