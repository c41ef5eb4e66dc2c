// Servers that fork: the process that has the connection is found, and is promoted when no other has it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "rsocket-core/process/control_socket.h"
#include "tests/preload/drivers/forking_fixture.h"

namespace ringroad::test {
namespace {

TEST_F(ForkingTest, TheChildThatServesAloneIsPromoted) {
  const auto server = start_server({"child"});
  Client first = connect();
  Client second = connect();
  const pid_t one = server_of(*server, first);
  const pid_t other = server_of(*server, second);
  EXPECT_NE(one, other);
  EXPECT_NE(one, server->pid());
  EXPECT_TRUE(promoted(one, first));
  EXPECT_TRUE(promoted(other, second));
  EXPECT_EQ(report(server->pid(), first), nullptr);
}

TEST_F(ForkingTest, TheGrandchildThatServesAloneIsPromoted) {
  const auto server = start_server({"grandchild"});
  Client client = connect();
  EXPECT_TRUE(promoted(server_of(*server, client), client));
}

TEST_F(EagerForkingTest, TheParentDoesNotTakeWhatItLeavesToAChild) {
  // The client asks with its first line, when the parent may have accepted and not forked yet.
  const auto server = start_server({"child"});
  const Client first = connect();  // nobody knows yet that this server forks
  for (int i = 0; i < 20; ++i) {
    Client client = connect();
    ASSERT_TRUE(promoted(server_of(*server, client), client)) << i;
  }
}

TEST_F(ForkingTest, TheChildIsPromotedWhenTheParentHasClosedItsCopy) {
  const auto server = start_server({"late"});
  Client client = connect();
  const pid_t child = server_of(*server, client);
  // The listener waits for a second for one of them to close it, and then says no.
  const auto until = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
  while (report(client.program->pid(), client)->peer_reason != Reason::kFork) {
    ASSERT_LT(Clock::now(), until);
    ASSERT_TRUE(client.say(1));
  }
  EXPECT_TRUE(says(child, client, Reason::kFork));
  EXPECT_TRUE(says(server->pid(), client, Reason::kFork));
  server->write("close\n");
  EXPECT_TRUE(promoted(child, client));
}

TEST_F(ForkingTest, AListenerFromBeforeAnExecIsAnsweredFor) {
  const auto server = start_server({"heir"});
  Client first = connect();  // the library knows of the listener from its accept() on
  EXPECT_EQ(server_of(*server, first), server->pid());
  EXPECT_TRUE(promoted(server->pid(), first));
}

TEST_F(ForkingTest, WorkersOfAnInheritedListenerAreAllFound) {
  const auto server = start_server({"heirs", "2"});
  Client first = connect();
  Client second = connect();
  const pid_t one = server_of(*server, first);
  const pid_t other = server_of(*server, second);
  EXPECT_NE(one, other);
  EXPECT_TRUE(promoted(one, first));
  EXPECT_TRUE(promoted(other, second));
}

TEST_F(ForkingTest, WhatTwoProcessesUseStaysOnTcp) {
  const auto server = start_server({"both"});
  Client client = connect();
  const pid_t child = server_of(*server, client);
  EXPECT_TRUE(client.say(300));
  EXPECT_TRUE(says(child, client, Reason::kFork));
  EXPECT_TRUE(says(server->pid(), client, Reason::kFork));
  EXPECT_TRUE(client.say(100));
  EXPECT_EQ(report(client.program->pid(), client)->measures.promotions, 0U);
}

TEST_F(ForkingTest, WhatAnotherProgramKeepsOpenStaysOnTcp) {
  const auto server = start_server({"exec"});
  Client client = connect();
  EXPECT_TRUE(client.say(300));
  EXPECT_TRUE(says(server->pid(), client, Reason::kFork));
  EXPECT_EQ(report(client.program->pid(), client)->measures.promotions, 0U);
}

TEST_F(ForkingTest, WhatAnotherProgramDoesNotKeepIsPromoted) {
  const auto server = start_server({"cloexec"});
  Client client = connect();
  EXPECT_TRUE(promoted(server->pid(), client));
}

TEST_F(ForkingTest, WhatWasPassedOnStaysOnTcpInTheChildToo) {
  const auto server = start_server({"passed"});
  Client client = connect();
  const pid_t child = server_of(*server, client);
  EXPECT_TRUE(client.say(10));
  server->write("close\n");
  EXPECT_TRUE(client.say(300));
  EXPECT_TRUE(says(child, client, Reason::kFork));
  EXPECT_EQ(report(client.program->pid(), client)->measures.promotions, 0U);
}

TEST_F(ForkingTest, WhatTheChildDoesPastTheLibraryIsNoticed) {
  const auto server = start_server({"stdio"});
  Client client = connect();
  EXPECT_TRUE(client.say(300));
  const auto until = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
  // By the number that it has, or else by the bytes.
  const auto noticed = [&] {
    const Reason why = report(client.program->pid(), client)->peer_reason;
    return why == Reason::kUntrackedIo || why == Reason::kDescriptorUse;
  };
  while (!noticed()) {
    ASSERT_LT(Clock::now(), until);
    ASSERT_TRUE(client.say(1));
  }
  EXPECT_EQ(report(client.program->pid(), client)->measures.promotions, 0U);
}

TEST_F(ForkingTest, AChildWhoseSystemCallsAreFilteredIsLeftAlone) {
  const auto server = start_server({"seccomp"});
  Client client = connect();
  EXPECT_TRUE(client.say(300));
  EXPECT_EQ(report(client.program->pid(), client)->measures.promotions, 0U);
}

TEST_F(EagerForkingTest, ChildrenDoNotKeepWhatTheirParentsLibraryHasOpen) {
  const auto server = start_server({"child"});
  std::vector<Client> clients;
  for (int i = 0; i < 8; ++i) {
    Client client;
    client.program = std::make_unique<Program>(
        std::vector<std::string>{RINGROAD_ECHO, "connect", port_}, environment_);
    clients.push_back(std::move(client));
  }
  for (Client& client : clients) {
    ASSERT_TRUE(client.program->wait_for(".\n", kTimeoutMs));
    client.port = std::to_string(number_after(client.program->out(), "port "));
  }
  // All ask at once, while the parent is about to fork for others.
  for (Client& client : clients) ASSERT_TRUE(client.say(2));
  for (Client& client : clients) {
    const pid_t child = server_of(*server, client);
    unsigned rings = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(child) + "/fd")) {
      std::error_code gone;
      rings += std::filesystem::read_symlink(entry.path(), gone).string().find("ringroad-shm") !=
               std::string::npos;
    }
    EXPECT_LE(rings, 1U);
  }
}

TEST_F(ForkingTest, WorkersThatShareAListenerAreAllPromoted) {
  for (const char* mode : {"prefork", "daemon"}) {
    const auto server = start_server({mode, "3"});
    std::vector<Client> clients;
    std::set<pid_t> workers;
    for (int i = 0; i < 3; ++i) {
      clients.push_back(connect());
      const pid_t worker = server_of(*server, clients.back());
      workers.insert(worker);
      EXPECT_TRUE(promoted(worker, clients.back())) << mode << i;
    }
    EXPECT_EQ(workers.size(), 3U);
    for (Client& client : clients) EXPECT_TRUE(client.say(10));
  }
}

TEST_F(ForkingTest, AWorkerIsKilledAndTheOthersGoOn) {
  const auto server = start_server({"prefork", "3"});
  std::vector<Client> clients;
  std::vector<pid_t> workers;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(connect());
    workers.push_back(server_of(*server, clients.back()));
    ASSERT_TRUE(promoted(workers.back(), clients.back()));
  }
  ASSERT_EQ(::kill(workers[0], SIGKILL), 0);
  EXPECT_TRUE(clients[1].say(50));
  EXPECT_TRUE(clients[2].say(50));
  EXPECT_TRUE(on_channel(workers[1], clients[1]) && on_channel(workers[2], clients[2]));
  Client client = connect();
  const pid_t worker = server_of(*server, client);
  EXPECT_NE(worker, workers[0]);
  EXPECT_TRUE(promoted(worker, client));
}

// A port that is looked at, by a monitor or a balancer: the library's thread begins with that one,
// and comes too late for it.
TEST_F(ForkingTest, AWorkerWhoseFirstConnectionIsOverAtOncePromotesTheNext) {
  const auto server = start_server({"prefork", "1"});
  for (int i = 0; i < 3; ++i) {
    const int fd = connect_plainly();
    ASSERT_GE(fd, 0);
    ::close(fd);
    Client client = connect();
    const pid_t worker = server_of(*server, client);
    ASSERT_TRUE(promoted(worker, client)) << i;
    ASSERT_EQ(::kill(worker, SIGKILL), 0);  // another one follows
  }
}

TEST_F(ForkingTest, SomebodyAnswersForTheListenerWhenItsFirstOwnerIsKilled) {
  const auto server = start_server({"prefork", "3"});
  Client before = connect();
  ASSERT_TRUE(promoted(server_of(*server, before), before));
  ASSERT_EQ(::kill(number_after(server->out(), "master "), SIGKILL), 0);
  Client after = connect();
  EXPECT_TRUE(promoted(server_of(*server, after), after));
  EXPECT_TRUE(before.say(10));
}

TEST_F(EagerForkingTest, AConnectionThatIsBeingMadeAtAForkStaysOnTcp) {
  Program server({RINGROAD_ECHO, "serve"}, environment_);
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Program client(
      {RINGROAD_FORKING, "connecting", std::to_string(number_after(server.out(), "port "))},
      environment_);
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  std::string said;
  for (unsigned i = 0; i < 300; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    said += line;
    client.write(line);
    ASSERT_TRUE(client.wait_for(said, kTimeoutMs)) << i;
  }
  for (const cli::ProcessReport& one : cli::read_segments(directory_.path() + "/run").processes) {
    for (const cli::StreamReport& stream : one.streams) EXPECT_EQ(stream.measures.promotions, 0U);
  }
}

TEST_F(ForkingTest, SomebodyAnswersForTheListenerWhenItsFirstOwnerHasClosedIt) {
  const auto server = start_server({"handover", "2"});
  Client before = connect();
  ASSERT_TRUE(promoted(server_of(*server, before), before));
  server->write("close\n");
  ASSERT_TRUE(server->wait_for("handed over.\n", kTimeoutMs));
  Client after = connect();
  EXPECT_TRUE(promoted(server_of(*server, after), after));
}

// How often the library's threads of these processes have gone to sleep.
std::uint64_t sleeps(const std::set<pid_t>& processes) {
  std::uint64_t sum = 0;
  for (const pid_t process : processes) {
    const std::string tasks = "/proc/" + std::to_string(process) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      std::ifstream status(task.path() / "status");
      bool ours = false;
      for (std::string line; std::getline(status, line);) {
        ours |= line == "Name:\tringroad";
        if (ours && line.starts_with("voluntary_ctxt_switches:")) {
          sum += std::stoull(line.substr(line.find(':') + 1));
        }
      }
    }
  }
  return sum;
}

TEST_F(ForkingTest, ProcessesThatHaveNothingToDoSleep) {
  const auto server = start_server({"prefork", "2"});
  std::vector<Client> clients;
  std::set<pid_t> processes{number_after(server->out(), "master ")};
  for (int i = 0; i < 2; ++i) {
    clients.push_back(connect());
    const pid_t worker = server_of(*server, clients.back());
    processes.insert(worker);
    ASSERT_TRUE(promoted(worker, clients.back()));
  }
  ASSERT_EQ(processes.size(), 3U);
  // What there is to do ends some time, and a second after that the last look at a channel; then nothing may
  // begin by itself.
  const auto pause = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  const auto until = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
  for (std::uint64_t before = 0, now = 1; before != now; now = sleeps(processes)) {
    ASSERT_LT(Clock::now(), until);
    before = now;
    pause(1500);
  }
  const std::uint64_t before = sleeps(processes);
  pause(2000);
  EXPECT_EQ(sleeps(processes), before);
}

// Its wake-ups would be half of what a short connection costs.
TEST_F(ForkingTest, ConnectionsThatStayOnTcpDoNotWakeTheLibrarysThread) {
  const auto server = start_server({"prefork", "1"});
  const auto serve_one = [&] {
    const int fd = connect_plainly();
    char byte = 0;
    const bool served = ::send(fd, "\n", 1, MSG_NOSIGNAL) == 1 && ::recv(fd, &byte, 1, 0) == 1;
    ::close(fd);
    return served;
  };
  constexpr unsigned kConnections = 200;
  ASSERT_TRUE(serve_one());  // for the first there is something to do
  ASSERT_TRUE(server->wait_for(" serves ", kTimeoutMs));
  const std::size_t line = server->out().rfind('\n', server->out().find(" serves ")) + 1;
  const std::set<pid_t> processes{std::stoi(server->out().substr(line))};
  const std::uint64_t before = sleeps(processes);
  for (unsigned i = 0; i < kConnections; ++i) ASSERT_TRUE(serve_one());
  EXPECT_LT(sleeps(processes) - before, kConnections / 4);
}

}  // namespace
}  // namespace ringroad::test
