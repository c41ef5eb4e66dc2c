// Promotion asked for, or answered, by a process that does not hold the TCP connection.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include "cli/segment_reader.h"
#include "rsocket-core/channel/shm/shm_transport.h"
#include "tests/preload/drivers/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr int kTimeoutMs = 10'000;
using Clock = std::chrono::steady_clock;

PromotionId next_id() noexcept {
  static PromotionId last = 0;
  return ++last;
}

Endpoint loopback(std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Endpoint out;
  Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&at), sizeof at, out);
  return out;
}

std::uint16_t port_of(const Program& program) {
  return static_cast<std::uint16_t>(std::stoi(program.out().substr(5)));
}

// A forger does not ask: the programs are of the user who runs the test.
SocketOwner anybody(const FourTuple&, uid_t& owner) noexcept {
  owner = getuid();
  return SocketOwner::kNamed;
}

// A process that speaks the transport's protocol well, and has no business to.
class Forger final : public TransportEvents {
 public:
  Forger() {
    Reason why = Reason::kNone;
    transport_.reset(make_shm_transport(*this, next_id, why, anybody));
  }

  void on_request(Transport& transport, PromotionId id, const PromotionRequest&) noexcept override {
    ++requests;
    if (sends_on.has_shm()) {
      transport.redirect(id, sends_on);
      return;
    }
    AcceptParams params;
    params.nonce.fill('N');
    transport.accept(id, params);
  }
  void on_channel(Transport&, PromotionId, const Nonce&,
                  std::unique_ptr<Channel> made) noexcept override {
    channel = std::move(made);
  }
  void on_refused(Transport&, PromotionId, Reason why, Reason peer) noexcept override {
    refused = true;
    reason = why;
    peer_reason = peer;
  }
  void on_channel_event(Transport&, PromotionId) noexcept override {}

  Reason stand_under_the_name_of(std::uint16_t port) { return transport_->listen(loopback(port)); }

  void ask(std::uint16_t claimed, std::uint16_t service) {
    ConnectParams params;
    params.tuple = {loopback(claimed), loopback(service)};
    params.nonce.fill('N');
    params.ring_bytes = 256 * 1024;
    transport_->connect(next_id(), params);
  }

  template <typename Done>
  bool until(Done done) {
    const auto end = Clock::now() + std::chrono::seconds(8);
    while (!done()) {
      if (Clock::now() > end) return false;
      pollfd entry{transport_->event_fd(), POLLIN, 0};
      if (::poll(&entry, 1, 5) > 0) transport_->dispatch();
      if (channel != nullptr) channel->progress();
    }
    return true;
  }

  void stand_by_itself_too() {
    int fd = -1;
    ASSERT_EQ(transport_->listen_alone(sends_on, fd), Reason::kNone);
  }

  Rendezvous sends_on;  // every asker; none: it accepts
  std::unique_ptr<Channel> channel;
  int requests = 0;
  bool refused = false;
  Reason reason = Reason::kNone;
  Reason peer_reason = Reason::kNone;

 private:
  std::unique_ptr<Transport> transport_;
};

class ForgedPromotionTest : public testing::Test {
 protected:
  std::vector<std::string> preloaded() const {
    return environment_with({"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy_,
                             "RINGROAD_RUNTIME_DIR=" + segments_});
  }
  // One line there and back.
  static void converse(Program& client, const std::string& line) {
    const std::string before = client.out();
    client.write(line + "\n");
    client.wait_for(before + line + "\n", kTimeoutMs);
    EXPECT_EQ(client.out(), before + line + "\n");
  }
  std::uint64_t promoted() const {
    std::uint64_t sum = 0;
    for (const auto& process : cli::read_segments(segments_).processes) {
      sum += process.streams_promoted;
    }
    return sum;
  }

  cli::StreamReport stream_of(Program& program) const {
    for (const auto& process : cli::read_segments(segments_).processes) {
      if (process.pid == program.pid() && !process.streams.empty()) return process.streams[0];
    }
    return {};
  }

  TemporaryDirectory directory_;
  std::string policy_ = directory_.write("policy.toml", policy_after_messages(3));
  std::string segments_ = directory_.path() + "/run";
};

TEST_F(ForgedPromotionTest, AnUnknownConnectionIsRefused) {
  Program server({RINGROAD_ECHO, "serve"}, preloaded());
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Forger forger;
  forger.ask(9, port_of(server));
  ASSERT_TRUE(forger.until([&] { return forger.refused; }));
  EXPECT_EQ(forger.reason, Reason::kPeerRefused);
  EXPECT_EQ(forger.peer_reason, Reason::kUnknownConnection);
}

TEST_F(ForgedPromotionTest, ARequestForAnothersConnectionDoesNotDisturbIt) {
  Program server({RINGROAD_ECHO, "serve"}, preloaded());
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Program client({RINGROAD_ECHO, "connect", std::to_string(port_of(server))}, preloaded());
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  converse(client, "before");
  Forger forger;
  forger.ask(port_of(client), port_of(server));
  ASSERT_TRUE(forger.until([&] { return forger.channel != nullptr || forger.refused; }));
  ASSERT_NE(forger.channel, nullptr) << reason_name(forger.peer_reason);
  // The server has frozen its direction by now, and waits for an answer that does not come.
  converse(client, "during");
  forger.channel->progress();
  EXPECT_EQ(forger.channel->rx_head(), 0U) << "the forger got bytes of the stream";
  forger.channel.reset();
  for (int i = 0; i < 300 && promoted() < 2; ++i) converse(client, "line " + std::to_string(i));
  EXPECT_EQ(promoted(), 2U) << "the real promotion never came";
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
}

TEST_F(ForgedPromotionTest, ARequestForAPromotedConnectionIsRefused) {
  Program server({RINGROAD_ECHO, "serve"}, preloaded());
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Program client({RINGROAD_ECHO, "connect", std::to_string(port_of(server))}, preloaded());
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  for (int i = 0; i < 300 && promoted() < 2; ++i) converse(client, "line " + std::to_string(i));
  ASSERT_EQ(promoted(), 2U);
  Forger forger;
  forger.ask(port_of(client), port_of(server));
  ASSERT_TRUE(forger.until([&] { return forger.channel != nullptr || forger.refused; }));
  EXPECT_TRUE(forger.refused);
  EXPECT_EQ(forger.peer_reason, Reason::kBusy);
  converse(client, "after");
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
}

TEST_F(ForgedPromotionTest, AnImpostorUnderAListenersNameGetsNoByte) {
  Program server({RINGROAD_ECHO, "serve"}, environment_with({}));  // has no library
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Forger impostor;
  ASSERT_EQ(impostor.stand_under_the_name_of(port_of(server)), Reason::kNone);
  Program client({RINGROAD_ECHO, "connect", std::to_string(port_of(server))}, preloaded());
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  for (int i = 0; i < 5; ++i) converse(client, "line " + std::to_string(i));
  ASSERT_TRUE(impostor.until([&] { return impostor.requests > 0; }));
  impostor.until([&] { return impostor.channel != nullptr; });
  for (int i = 0; i < 5; ++i) converse(client, "more " + std::to_string(i));
  if (impostor.channel != nullptr) {
    impostor.channel->progress();
    EXPECT_EQ(impostor.channel->rx_head(), 0U) << "the impostor got bytes of the stream";
  }
  EXPECT_EQ(promoted(), 0U);
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
}

TEST_F(ForgedPromotionTest, AnAskerThatIsSentOnForEverGivesUp) {
  Program server({RINGROAD_ECHO, "serve"}, environment_with({}));
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Forger impostor;
  ASSERT_EQ(impostor.stand_under_the_name_of(port_of(server)), Reason::kNone);
  impostor.stand_by_itself_too();
  Program client({RINGROAD_ECHO, "connect", std::to_string(port_of(server))}, preloaded());
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  for (int i = 0; i < 5; ++i) converse(client, "line " + std::to_string(i));
  cli::StreamReport stream;
  ASSERT_TRUE(impostor.until([&] {
    stream = stream_of(client);
    return impostor.requests >= 4 || stream.peer_reason == Reason::kRedirect;
  }));
  EXPECT_EQ(impostor.requests, 3) << "the first one and two redirects";
  EXPECT_EQ(stream.reason, Reason::kPeerRefused);
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
}

TEST_F(ForgedPromotionTest, AnAskerThatIsSentToAProcessThatHasEndedAsksAgain) {
  Program server({RINGROAD_ECHO, "serve"}, environment_with({}));
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Forger impostor;
  ASSERT_EQ(impostor.stand_under_the_name_of(port_of(server)), Reason::kNone);
  impostor.sends_on.token.fill(1);
  Program client({RINGROAD_ECHO, "connect", std::to_string(port_of(server))}, preloaded());
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  for (int i = 0; i < 5; ++i) converse(client, "line " + std::to_string(i));
  ASSERT_TRUE(impostor.until([&] { return stream_of(client).reason == Reason::kPeerGone; }));
  EXPECT_EQ(impostor.requests, 1);
  for (int i = 0; i < 40; ++i) converse(client, "more " + std::to_string(i));
  EXPECT_TRUE(impostor.until([&] { return impostor.requests == 2; }));
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
}

void say(Forger& forger, ControlType type, std::uint64_t value) {
  ControlMessage m;
  m.type = static_cast<std::uint8_t>(type);
  m.value = value;
  ASSERT_TRUE(forger.channel->send_control(m));
}

TEST_F(ForgedPromotionTest, AForgerThatAnswersPutsNoByteIntoTheStream) {
  Program server({RINGROAD_ECHO, "serve"}, preloaded());
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Program client({RINGROAD_ECHO, "connect", std::to_string(port_of(server))}, environment_with({}));
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  converse(client, "before");
  Forger forger;
  forger.ask(port_of(client), port_of(server));
  ASSERT_TRUE(forger.until([&] { return forger.channel != nullptr || forger.refused; }));
  ASSERT_NE(forger.channel, nullptr) << reason_name(forger.peer_reason);
  // It knows how much the client has written, and goes as far as one can without the connection.
  say(forger, ControlType::kSwitch, std::string("before\n").size());
  ControlMessage m;
  ASSERT_TRUE(forger.until([&] { return forger.channel->take_control(m); }));
  EXPECT_EQ(m.type, static_cast<std::uint8_t>(ControlType::kSwitchAck));
  say(forger, ControlType::kSwitchAck, std::string("before\n").size());
  for (int i = 0; i < 5; ++i) converse(client, "after " + std::to_string(i));
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
}

// Of another user than the server: what one process may do to others of its user is not ours to stop.
TEST_F(ForgedPromotionTest, AnImpostorThatAnswersPutsNoByteIntoTheStream) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Program server({RINGROAD_ECHO, "serve"}, environment_with({}));
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Forger impostor;
  ASSERT_EQ(impostor.stand_under_the_name_of(port_of(server)), Reason::kNone);
  Program client({RINGROAD_ECHO, "connect", std::to_string(port_of(server))}, preloaded());
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  for (int i = 0; i < 5; ++i) converse(client, "line " + std::to_string(i));
  ASSERT_EQ(seteuid(1), 0);
  const bool answered = impostor.until([&] { return impostor.channel != nullptr; });
  // Takes its channel away at the latest when it has looked at the answer.
  const bool left = answered && impostor.until([&] {
    ControlMessage m;
    while (impostor.channel->take_control(m)) {
      if (m.type == static_cast<std::uint8_t>(ControlType::kSwitch)) {
        say(impostor, ControlType::kSwitchAck, m.value);
      }
    }
    return impostor.channel->failed();
  });
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_TRUE(answered);
  EXPECT_TRUE(left);
  for (int i = 0; i < 5; ++i) converse(client, "after " + std::to_string(i));
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
}

TEST_F(ForgedPromotionTest, AServerOfAnotherUserIsPromotedAllTheSame) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const auto as_daemon = [](std::vector<std::string> argv) {
    argv.insert(argv.begin(), {"setpriv", "--reuid=1", "--regid=1", "--clear-groups", "--"});
    return argv;
  };
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  Program probe(as_daemon({"test", "-r", RINGROAD_LIBRARY, "-a", "-x", RINGROAD_ECHO}),
                environment_with({}));
  if (probe.finish(kTimeoutMs) != 0) GTEST_SKIP() << "another user cannot read " RINGROAD_LIBRARY;
  Program server(as_daemon({RINGROAD_ECHO, "serve"}), preloaded());
  ASSERT_TRUE(server.wait_for(".\n", kTimeoutMs));
  Program client({RINGROAD_ECHO, "connect", std::to_string(port_of(server))}, preloaded());
  ASSERT_TRUE(client.wait_for(".\n", kTimeoutMs));
  for (int i = 0; i < 300 && promoted() < 1; ++i) converse(client, "line " + std::to_string(i));
  EXPECT_GE(promoted(), 1U);
  converse(client, "over the channel");
  EXPECT_EQ(client.finish(kTimeoutMs), 0);
}

}  // namespace
}  // namespace ringroad::test
