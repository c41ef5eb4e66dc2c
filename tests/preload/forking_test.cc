// Servers that fork: who has the connection is found, and is promoted when nobody else has it.
#include <gtest/gtest.h>
#include <netinet/in.h>
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

#include "cli/segment_reader.h"
#include "rsocket-core/control.h"
#include "tests/preload/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 20'000;
using Clock = std::chrono::steady_clock;

int number_after(const std::string& text, const std::string& word) {
  const std::size_t at = text.rfind(word);
  return at == std::string::npos ? -1 : std::stoi(text.substr(at + word.size()));
}

class ForkingTest : public testing::Test {
 protected:
  explicit ForkingTest(const std::string& policy = policy_after_messages(3))
      : policy_(directory_.write("policy.toml", policy)),
        environment_(environment_with({"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy_,
                                       "RINGROAD_RUNTIME_DIR=" + directory_.path() + "/run"})) {}

  std::unique_ptr<Program> start_server(const std::vector<std::string>& words, bool forks_at_once = true) {
    std::vector<std::string> argv{RINGROAD_FORKING};
    argv.insert(argv.end(), words.begin(), words.end());
    auto server = std::make_unique<Program>(argv, environment_);
    EXPECT_TRUE(server->wait_for("port ", kTimeoutMs));
    const bool prefork = words.size() > 1 && forks_at_once;
    EXPECT_TRUE(!prefork || server->wait_for("master ", kTimeoutMs));
    port_ = std::to_string(number_after(server->out(), "port "));
    return server;
  }

  // A client that says lines and reads them back.
  struct Client {
    std::unique_ptr<Program> program;
    std::string port;  // its own
    std::string said;
    unsigned lines = 0;

    bool say(unsigned count) {
      for (unsigned i = 0; i < count; ++i) {
        ++lines;
        const std::string line = "line " + std::to_string(lines) + ", " +
                                 std::string(lines * 37 % 800, static_cast<char>('a' + lines % 26)) +
                                 "\n";
        said += line;
        program->write(line);
        // Back, and in order.
        if (!program->wait_for(said, kTimeoutMs)) return false;
      }
      return true;
    }
  };

  Client connect() {
    Client client;
    client.program = std::make_unique<Program>(
        std::vector<std::string>{RINGROAD_ECHO, "connect", port_}, environment_);
    EXPECT_TRUE(client.program->wait_for(".\n", kTimeoutMs));
    client.port = std::to_string(number_after(client.program->out(), "port "));
    EXPECT_TRUE(client.say(2));
    return client;
  }

  // A client without the library. -1: there is no connection.
  int connect_plainly() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port_)));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
    ::close(fd);
    return -1;
  }

  pid_t server_of(Program& server, const Client& client) {
    const std::string line = " serves " + client.port + ".";
    EXPECT_TRUE(server.wait_for(line, kTimeoutMs));
    const std::size_t end = server.out().find(line);
    const std::size_t begin = server.out().rfind('\n', end) + 1;
    return std::stoi(server.out().substr(begin, end - begin));
  }

  // What `process` says of the connection; null: it has none.
  std::unique_ptr<cli::StreamReport> report(pid_t process, const Client& client) {
    const cli::Snapshot all = cli::read_segments(directory_.path() + "/run");
    for (const cli::ProcessReport& one : all.processes) {
      if (one.pid != process) continue;
      for (const cli::StreamReport& stream : one.streams) {
        const bool ours = std::to_string(stream.local.port) == client.port ||
                          std::to_string(stream.remote.port) == client.port;
        if (ours) return std::make_unique<cli::StreamReport>(stream);
      }
    }
    return nullptr;
  }
  bool on_channel(pid_t process, const Client& client) {
    const auto stream = report(process, client);
    return stream != nullptr && stream->state == State::kOnChannel;
  }

  // Talks until the server's end is on its channel, then once more over it.
  bool promoted(pid_t server, Client& client) {
    const auto until = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
    while (!on_channel(server, client)) {
      if (Clock::now() > until || !client.say(1)) return false;
    }
    return client.say(10) && on_channel(client.program->pid(), client);
  }

  // Waits until the server's end says why it is on TCP.
  bool says(pid_t server, Client& client, Reason reason) {
    const auto until = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
    for (;;) {
      const auto stream = report(server, client);
      if (stream != nullptr && stream->reason == reason) return stream->state == State::kOnTcp;
      if (Clock::now() > until || !client.say(1)) return false;
    }
  }

  TemporaryDirectory directory_;
  const std::string policy_;
  const std::vector<std::string> environment_;
  std::string port_;
};

class EagerForkingTest : public ForkingTest {
 protected:
  EagerForkingTest() : ForkingTest(policy_after_messages(1)) {}
};

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
  // What there is to do ends some time, and a second after that the last look at a channel; then nothing may begin by
  // itself.
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

// ---- Streams that are on a channel when their process forks

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
  const std::set<std::string> both = {std::to_string(process),
                                      std::to_string(client.program->pid())};
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
  control::Request request;
  request.mode = static_cast<std::uint16_t>(control::Mode::kTcp);
  request.serial = 1;
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const std::string path =
      directory_.path() + "/run/" + std::to_string(client.pid()) + control::kSuffix;
  ASSERT_LT(path.size(), sizeof to.sun_path);
  path.copy(to.sun_path, path.size());
  ASSERT_EQ(::sendto(socket, &request, sizeof request, 0, reinterpret_cast<sockaddr*>(&to), sizeof to),
            static_cast<ssize_t>(sizeof request));
  ::close(socket);
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
