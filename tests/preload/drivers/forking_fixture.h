// A server that forks, and its clients, all with the library preloaded.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cli/segment_reader.h"
#include "tests/preload/drivers/scenario_run.h"

namespace ringroad::test {

inline constexpr int kTimeoutMs = 20'000;
using Clock = std::chrono::steady_clock;

inline int number_after(const std::string& text, const std::string& word) {
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
  testing::AssertionResult promoted(pid_t server, Client& client) {
    const auto until = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
    while (!on_channel(server, client)) {
      if (Clock::now() > until || !client.say(1)) return on_tcp(server, client);
    }
    if (client.say(10) && on_channel(client.program->pid(), client)) return testing::AssertionSuccess();
    return on_tcp(server, client);
  }

  // Why the two ends are where they are.
  testing::AssertionResult on_tcp(pid_t server, const Client& client) {
    testing::AssertionResult said = testing::AssertionFailure();
    for (const pid_t end : {server, client.program->pid()}) {
      const auto stream = report(end, client);
      said << (end == server ? "server: " : ", client: ");
      if (stream == nullptr) {
        said << "no such stream";
      } else {
        said << state_name(stream->state) << " " << reason_name(stream->reason) << " "
             << reason_name(stream->peer_reason);
      }
    }
    return said << ", after " << client.lines << " lines";
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

}  // namespace ringroad::test
