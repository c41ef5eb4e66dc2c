// Between network namespaces: sockets of a rendezvous directory, and processes there that are neither end.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/core/open_descriptors.h"
#include "tests/core/shm_node.h"

namespace ringroad::shm_test {
namespace {

// Each test program of its own port: the abstract names are all of one network namespace.
const Endpoint kServer = v4(0x0a010203, test_port());  // 10.1.2.3
const Endpoint kOther = v4(0x0a010204, 50'000);
const std::string kName = kServer.to_string();
// A listener of another namespace, whose addresses are not known here: these tests have no such address.
const ListenerFacts kElsewhere{.network = 1};

// A directory, and what the kernel says of a connection whose other end is in another namespace.
class ShmPath : public testing::Test {
 protected:
  ShmPath() { owner_said = SocketOwner::kNotHere; }
  ~ShmPath() override {
    owner_said = SocketOwner::kNamed;
    std::filesystem::remove_all(directory_);
    std::filesystem::remove_all(other_directory_);
  }
  static std::string make_directory() {
    char name[] = "/tmp/ringroad-path-XXXXXX";
    return mkdtemp(name);
  }
  static sockaddr_un at(const std::string& path) {
    sockaddr_un out{};
    out.sun_family = AF_UNIX;
    std::strcpy(out.sun_path, path.c_str());
    return out;
  }
  std::string path() const { return directory_ + "/" + kName; }
  bool has_outcome(Node& client, Node& host) const {
    return run_until({client.transport.get(), host.transport.get()},
                     [&] { return client.agent.has_outcome(); });
  }
  // Asks, and returns why not; kNone: both ends have the channel.
  Agent::Refused ask(Node& client, Node& host) const {
    client.connect(kServer, kOther);
    if (!has_outcome(client, host)) return {0, Reason::kTimeout, Reason::kNone};
    if (!client.agent.refused.empty()) return client.agent.refused.back();
    return {0, Reason::kNone, Reason::kNone};
  }

  const std::string directory_ = make_directory();
  const std::string other_directory_ = make_directory();
};

// A process that has a path's socket, and does with it what it likes.
class Squatter {
 public:
  explicit Squatter(const std::string& path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strcpy(name.sun_path, path.c_str());
    listener_ = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(sys::bind(listener_, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    EXPECT_EQ(sys::listen(listener_, 4), 0);
  }
  ~Squatter() {
    sys::close_quietly(listener_);
    if (fd_ >= 0) sys::close_quietly(fd_);
  }
  void take(ShmPacket& hello) {
    if (fd_ >= 0) sys::close_quietly(fd_);
    fd_ = sys::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(fd_, 0);
    ASSERT_EQ(hello.receive(fd_), ShmPacket::Got::kPacket);
    ASSERT_EQ(hello.size(), sizeof(ProvenShmHello));
  }
  int fd() const { return fd_; }

 private:
  int listener_ = -1;
  int fd_ = -1;
};

// Sends a packet on as it came.
void pass_on(ShmPacket& packet, int to) {
  int fds[ShmPacket::kMaxDescriptors] = {-1, -1};
  const unsigned count = packet.descriptors();
  for (unsigned i = 0; i < count; ++i) fds[i] = packet.take_descriptor(i);
  EXPECT_EQ(send_shm_packet(to, packet.data(), packet.size(), fds, count), 0);
  for (unsigned i = 0; i < count; ++i) sys::close_quietly(fds[i]);
}

TEST_F(ShmPath, TwoEndsThatProveOneKeyGetAChannel) {
  Node host(directory_.c_str());
  Node client(directory_.c_str());
  host.key = client.key = kOneKey;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  ASSERT_EQ(ask(client, host).reason, Reason::kNone);
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.channels.empty(); }));
  EXPECT_TRUE(says(client.agent.channel(), host.agent.channel(), "there"));
  EXPECT_TRUE(says(host.agent.channel(), client.agent.channel(), "and back"));
  const FourTuple expected{kServer, kOther};
  EXPECT_EQ(host.agent.requests.back().tuple, expected);
}

TEST_F(ShmPath, WithoutADirectoryNothingIsMadeAndNobodyIsAsked) {
  Node host;
  Node client;
  client.by_path = true;
  host.key = client.key = kOneKey;
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  EXPECT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  EXPECT_EQ(ask(client, host).reason, Reason::kOtherNamespace);
}

TEST_F(ShmPath, WithoutAKeyNeitherEndAnswersForTheOther) {
  Node host(directory_.c_str());
  Node client(directory_.c_str());
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  EXPECT_EQ(ask(client, host).reason, Reason::kOtherNamespace);
  EXPECT_TRUE(host.agent.requests.empty()) << "it was asked without a proof";
  Node with_key(directory_.c_str());
  with_key.key = kOneKey;
  const Agent::Refused refused = ask(with_key, host);
  EXPECT_EQ(refused.reason, Reason::kPeerRefused);
  EXPECT_EQ(refused.peer_reason, Reason::kOtherNamespace);
}

TEST_F(ShmPath, ARequestThatProvesAnotherKeyIsRefused) {
  Node host(directory_.c_str());
  Node client(directory_.c_str());
  host.key = SharedKey::of("another secret, long enough", 27);
  client.key = kOneKey;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  EXPECT_EQ(ask(client, host).peer_reason, Reason::kWrongKey);
  EXPECT_TRUE(host.agent.channels.empty());
}

TEST_F(ShmPath, AProcessThatHasThePathFirstIsNotBelievedAndKeepsItsPathOnly) {
  Squatter squatter(path());
  Node host(directory_.c_str());
  host.key = kOneKey;
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  EXPECT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kBusy);
  for (const bool reflected : {false, true}) {
    Node client(directory_.c_str());
    client.key = kOneKey;
    client.connect(kServer, kOther);
    ShmPacket hello;
    squatter.take(hello);
    ProvenHello answer;
    answer.hello.tcp_port = kServer.port;
    answer.hello.ring_bytes = kRing;
    if (reflected) answer.proof = proof_behind(hello.data(), hello.size(), sizeof(ShmHello));
    const std::size_t size = reflected ? sizeof answer : sizeof answer.hello;
    ASSERT_EQ(send_shm_packet(squatter.fd(), &answer, size, nullptr, 0), 0);
    ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
    ASSERT_EQ(client.agent.refused.size(), 1U);
    EXPECT_EQ(client.agent.refused[0].reason, Reason::kWrongKey);
    EXPECT_TRUE(client.agent.channels.empty());
  }
}

// It needs no key to hand on what both ends say, and would have the memory of the channel.
TEST_F(ShmPath, AnAnswerThatAProcessBetweenTheEndsPassesOnIsNotBelieved) {
  for (const bool between : {false, true}) {
    Node host(directory_.c_str());
    Node client(between ? other_directory_.c_str() : directory_.c_str());
    host.key = client.key = kOneKey;
    host.accept_everything();
    ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
    ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
    if (!between) {
      EXPECT_EQ(ask(client, host).reason, Reason::kNone) << "the same without it";
      continue;
    }
    Squatter squatter(other_directory_ + "/" + kName);
    client.connect(kServer, kOther);
    ShmPacket hello;
    squatter.take(hello);
    const int to_host = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const sockaddr_un name = at(path());
    ASSERT_EQ(sys::connect(to_host, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    pass_on(hello, to_host);
    ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
    ASSERT_EQ(host.agent.channels.size(), 1U) << "the proof of the request is right";
    ShmPacket answer;
    ASSERT_EQ(answer.receive(to_host), ShmPacket::Got::kPacket);
    pass_on(answer, squatter.fd());
    ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
    ASSERT_EQ(client.agent.refused.size(), 1U);
    EXPECT_EQ(client.agent.refused[0].reason, Reason::kWrongKey);
    host.agent.channel().progress();
    EXPECT_TRUE(host.agent.channel().failed()) << "the listener is told";
    sys::close_quietly(to_host);
  }
}

// The places of requests that wait for their connection are few.
TEST_F(ShmPath, ARequestThatIsReplayedTakesOnePlace) {
  Node host(directory_.c_str());
  Node client(other_directory_.c_str());
  host.key = client.key = kOneKey;
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  Squatter squatter(other_directory_ + "/" + kName);
  client.connect(kServer, kOther);
  ShmPacket hello;
  squatter.take(hello);
  const int memory = hello.take_descriptor(0);
  int replays[2];
  for (int& replay : replays) {
    replay = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const sockaddr_un name = at(path());
    ASSERT_EQ(sys::connect(replay, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    ASSERT_EQ(send_shm_packet(replay, hello.data(), hello.size(), &memory, 1), 0);
    ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
    host.transport->dispatch();
  }
  EXPECT_EQ(host.agent.requests.size(), 1U);
  ShmPacket answer;
  ASSERT_EQ(answer.receive(replays[1]), ShmPacket::Got::kPacket);
  EXPECT_EQ(parse_refusal(answer.data(), answer.size()), Reason::kForged);
  sys::close_quietly(memory);
  for (const int replay : replays) sys::close_quietly(replay);
}

TEST_F(ShmPath, ARequestForAnotherAddressThanThePathsIsRefused) {
  Node host(directory_.c_str());
  host.key = kOneKey;
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  const Endpoint other = v4(0x0a010209, kServer.port);
  // A name that leads to the same socket.
  ASSERT_EQ(::link(path().c_str(), (directory_ + "/" + other.to_string()).c_str()), 0);
  Node client(directory_.c_str());
  client.key = kOneKey;
  client.connect(other, kOther);
  ASSERT_TRUE(has_outcome(client, host));
  EXPECT_EQ(client.agent.refused.back().peer_reason, Reason::kAddressMismatch);
}

TEST_F(ShmPath, IsThereForEveryUserAndGoesWithItsListener) {
  const mode_t before = ::umask(077);
  Node host(directory_.c_str());
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone) << "once more";
  ::umask(before);
  struct stat facts{};
  ASSERT_EQ(::stat(path().c_str(), &facts), 0);
  EXPECT_TRUE(S_ISSOCK(facts.st_mode));
  EXPECT_EQ(facts.st_mode & 0777U, 0666U);
  host.transport->unlisten(kServer);
  EXPECT_NE(::stat(path().c_str(), &facts), 0);
}

TEST_F(ShmPath, WhatADeadProcessHasLeftIsReplaced) {
  { const Squatter dead(path()); }
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  Node host(directory_.c_str());
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  // One that is new may belong to a process that is about to listen.
  EXPECT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kBusy);
  ASSERT_EQ(::utimensat(AT_FDCWD, path().c_str(), long_ago, 0), 0);
  EXPECT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
}

// The host's clock was wrong when it was made, or its maker has chosen the time.
TEST_F(ShmPath, WhatADeadProcessHasLeftIsReplacedThoughItSaysThatItIsNewerThanNow) {
  { const Squatter dead(path()); }
  const time_t later = ::time(nullptr) + 3600;
  const timespec to_come[2] = {{later, 0}, {later, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path().c_str(), to_come, 0), 0);
  Node host(directory_.c_str());
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  EXPECT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
}

TEST_F(ShmPath, StaysForTheOtherListenerThatIsReachedThere) {
  const Endpoint any6 = v6(in6addr_any, test_port());
  const Endpoint any4 = v4(INADDR_ANY, test_port());
  std::vector<Endpoint> reached;
  ASSERT_TRUE(shm_directory::reached_at(any4, {}, reached));
  if (reached.empty()) GTEST_SKIP() << "no address but loopback";
  const std::string here = directory_ + "/" + reached.front().to_string();
  Node host(directory_.c_str());
  for (const Endpoint& at : {any6, any4}) {
    ASSERT_EQ(host.transport->listen(at), Reason::kNone);
    ASSERT_EQ(host.transport->listen_by_path(at, {}), Reason::kNone);
  }
  host.transport->unlisten(any6);
  EXPECT_TRUE(std::filesystem::exists(here));
  host.transport->unlisten(any4);
  EXPECT_FALSE(std::filesystem::exists(here));
}

// It can connect as fast as the agent's thread accepts.
TEST_F(ShmPath, EndsAlthoughAStrangerGoesOnConnecting) {
  Node host(directory_.c_str());
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  ASSERT_TRUE(std::filesystem::exists(path()));
  std::atomic<bool> ended{false};
  std::atomic<int> let_in{0};
  const sockaddr_un name = at(path());
  std::vector<std::thread> strangers;
  for (int i = 0; i < 3; ++i) {
    strangers.emplace_back([&] {
      while (!ended) {
        const int fd = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (sys::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) ++let_in;
        sys::close_quietly(fd);
      }
    });
  }
  while (let_in < ShmTransport::kBacklog) std::this_thread::yield();
  const int before = let_in;
  host.transport->unlisten(kServer);
  const int meanwhile = let_in - before;
  ended = true;
  for (std::thread& stranger : strangers) stranger.join();
  EXPECT_LT(meanwhile, 2 * ShmTransport::kBacklog);
}

TEST_F(ShmPath, ThatSomebodyRemovedComesBackAtTheNextLook) {
  Node host(directory_.c_str());
  Node client(directory_.c_str());
  host.key = client.key = kOneKey;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  Rendezvous where;
  int fd = -1;
  ASSERT_EQ(host.transport->listen_alone(where, fd), Reason::kNone);
  const int before = open_descriptors();
  std::filesystem::remove_all(directory_);
  host.transport->look_at_paths();  // there is nothing that takes a path
  EXPECT_EQ(ask(client, host).reason, Reason::kOtherNamespace);
  std::filesystem::create_directory(directory_);
  host.transport->look_at_paths();
  EXPECT_EQ(open_descriptors(), before);
  const auto paths = [&] {
    const std::filesystem::directory_iterator all(directory_);
    return std::distance(begin(all), end(all));
  };
  EXPECT_EQ(paths(), 2);
  Node late(directory_.c_str());
  late.key = kOneKey;
  EXPECT_EQ(ask(late, host).reason, Reason::kNone);
  Node led(directory_.c_str());
  led.key = kOneKey;
  led.connect(kServer, kOther, &where);
  ASSERT_TRUE(has_outcome(led, host));
  EXPECT_EQ(led.agent.channels.size(), 1U) << "the process' own";
  host.transport->unlisten(kServer);
  host.transport->look_at_paths();
  EXPECT_EQ(paths(), 1) << "it goes with its listener";
}

TEST_F(ShmPath, OfAnotherProcessIsLeftToItAtALook) {
  Node host(directory_.c_str());
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  std::filesystem::remove(path());
  struct stat before{};
  struct stat after{};
  {
    const Squatter squatter(path());
    ASSERT_EQ(::stat(path().c_str(), &before), 0);
    host.transport->look_at_paths();
    ASSERT_EQ(::stat(path().c_str(), &after), 0);
    EXPECT_EQ(before.st_ino, after.st_ino);
  }
  std::filesystem::remove(path());
  host.transport->look_at_paths();
  EXPECT_TRUE(std::filesystem::exists(path())) << "it has left";
}

// Between a look at what stands there and the removal another process may have put its own there.
TEST_F(ShmPath, OfALiveProcessIsNotTakenAwayInThePlaceOfTheOneThatWasLookedAt) {
  const auto file_of = [](const std::string& path) {
    struct stat facts{};
    EXPECT_EQ(::stat(path.c_str(), &facts), 0);
    return shm_directory::File{facts.st_dev, facts.st_ino};
  };
  const Squatter live(path());
  const auto live_file = file_of(path());
  const std::string other = directory_ + "/other";
  const Squatter dead(other);
  EXPECT_FALSE(shm_directory::take_away(at(path()), file_of(other)));
  EXPECT_EQ(file_of(path()), live_file);
  EXPECT_TRUE(shm_directory::take_away(at(path()), live_file));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(ShmPath, WhatIsNoSocketStays) {
  std::filesystem::create_directory(path());
  Node host(directory_.c_str());
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  EXPECT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kBusy);
  EXPECT_TRUE(std::filesystem::is_directory(path()));
}

TEST_F(ShmPath, ADirectoryThatTakesNoSocketLeavesOneReasonAtBothEnds) {
  const std::string missing = directory_ + "/missing";
  const std::string relative = "tmp";
  const std::string too_long = "/" + std::string(120, 'x');
  for (const std::string& directory : {missing, relative, too_long}) {
    Node host(directory.c_str());
    Node client(directory.c_str());
    host.key = client.key = kOneKey;
    ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
    EXPECT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kOtherNamespace) << directory;
    EXPECT_EQ(ask(client, host).reason, Reason::kOtherNamespace) << directory;
  }
}

TEST_F(ShmPath, ASymbolicLinkIsNotFollowed) {
  Node host(other_directory_.c_str());
  Node client(directory_.c_str());
  host.key = client.key = kOneKey;
  ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
  std::filesystem::create_symlink(other_directory_ + "/" + kName, path());
  EXPECT_EQ(ask(client, host).reason, Reason::kOtherNamespace);
  EXPECT_TRUE(host.agent.requests.empty());
}

TEST_F(ShmPath, OneProcessOfAGroupIsAskedThereToo) {
  Node host(directory_.c_str());
  Node client(directory_.c_str());
  host.key = client.key = kOneKey;
  host.accept_everything();
  Rendezvous where;
  int fd = -1;
  ASSERT_EQ(host.transport->listen_alone(where, fd), Reason::kNone);
  client.connect(kServer, kOther, &where);
  ASSERT_TRUE(has_outcome(client, host));
  EXPECT_EQ(client.agent.channels.size(), 1U);
}

TEST_F(ShmPath, SocketsOfDeadProcessesOfGroupsGo) {
  const std::string old_one = directory_ + "/process-00000000000000000000000000000001";
  const std::string live_one = directory_ + "/process-00000000000000000000000000000002";
  const std::string new_one = directory_ + "/process-00000000000000000000000000000003";
  { const Squatter dead(old_one), just_dead(new_one); }
  const Squatter live(live_one);
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  for (const std::string& path : {old_one, live_one}) {
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
  }
  Node host(directory_.c_str());
  Rendezvous where;
  int fd = -1;
  ASSERT_EQ(host.transport->listen_alone(where, fd), Reason::kNone);
  EXPECT_FALSE(std::filesystem::exists(old_one));
  EXPECT_TRUE(std::filesystem::exists(live_one));
  EXPECT_TRUE(std::filesystem::exists(new_one));
}

TEST_F(ShmPath, NoDescriptorIsLeftOpen) {
  const int before = open_descriptors();
  {
    Node host(directory_.c_str());
    Node client(directory_.c_str());
    host.key = client.key = kOneKey;
    host.accept_everything();
    ASSERT_EQ(host.transport->listen(kServer), Reason::kNone);
    ASSERT_EQ(host.transport->listen_by_path(kServer, kElsewhere), Reason::kNone);
    ASSERT_EQ(ask(client, host).reason, Reason::kNone);
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace ringroad::shm_test
