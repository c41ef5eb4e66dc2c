// Connectors that say what they like.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <vector>

#include "rsocket-core/base/deferred_close.h"
#include "rsocket-core/base/sys.h"
#include "tests/core/open_descriptors.h"
#include "tests/core/shm_node.h"

namespace ringroad::shm_test {
namespace {

// ---- Hostile connectors

class Intruder {
 public:
  explicit Intruder(const Endpoint& to) {
    fd_ = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un name;
    const socklen_t length = make_shm_name(shm_name_of_listener(to), to, name);
    connected_ = sys::connect(fd_, reinterpret_cast<const sockaddr*>(&name), length) == 0;
  }
  ~Intruder() { sys::close_quietly(fd_); }

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  // Plain sendmsg(2): any number of descriptors, no credentials.
  void send(const void* data, std::size_t size, const std::vector<int>& fds) const {
    iovec piece{const_cast<void*>(data), size};
    alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(part), fds.data(), fds.size() * sizeof(int));
    }
    EXPECT_EQ(sys::sendmsg(fd_, &message, MSG_NOSIGNAL), static_cast<ssize_t>(size));
  }
  // What the listener said: its refusal, kNone for an answer, kPeerGone for the end.
  Reason verdict() const {
    std::uint8_t bytes[256];
    pollfd poll_fd{fd_, POLLIN, 0};
    if (::poll(&poll_fd, 1, kHungMs) != 1) return Reason::kTimeout;
    ssize_t n = sys::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
    // Of what it has sent and nobody has taken, which it is told once.
    if (n < 0 && errno == ECONNRESET) n = sys::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0) return Reason::kPeerGone;
    return n == sizeof(Refusal) ? parse_refusal(bytes, sizeof(Refusal)) : Reason::kNone;
  }

 private:
  int fd_;
  bool connected_;
};

ShmHello good_hello() {
  ShmHello hello;
  hello.hello.tcp_port = kClient.port;
  hello.hello.ring_bytes = kRing;
  hello.connector = ShmAddress::from(kClient);
  hello.listener = ShmAddress::from(server());
  return hello;
}

TEST(ShmTransportHostile, AcceptsTheHelloThatTheOthersAreMadeFrom) {
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  Descriptors d;
  const ShmHello hello = good_hello();
  for (const std::vector<int>& fds : {std::vector<int>{d.memfd, d.event}, {d.memfd}}) {
    Intruder intruder(server());
    intruder.send(&hello, sizeof hello, fds);
    host.agent.channels.clear();
    ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
    EXPECT_EQ(intruder.verdict(), Reason::kNone);
  }
}

// A peer that says nothing of versions and features is of a build that knows of none.
TEST(ShmTransportVersions, AConnectorFromBeforeRangesGetsAChannelWithoutWhatItMayNotKnow) {
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  Descriptors d;
  ShmHello hello = good_hello();
  hello.hello.features = 0;
  hello.hello.highest = 0;
  Intruder intruder(server());
  intruder.send(&hello, sizeof hello, {d.memfd, d.event});
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  ASSERT_EQ(host.agent.channels.size(), 1U);
  EXPECT_EQ(host.agent.channel().agreement().version, 1);
  EXPECT_FALSE(host.agent.channel().agreement().has(Feature::kGivenBack));
}

TEST(ShmTransportHostile, RefusesMalformedHellosAndKeepsNoDescriptor) {
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  Descriptors d;
  struct Case {
    const char* what;
    Reason expected;
    std::vector<int> fds;
    std::function<void(ShmHello&)> spoil;
    std::size_t size = sizeof(ShmHello);
  };
  const std::vector<int> good{d.memfd, d.event};
  const auto nothing = [](ShmHello&) {};
  const std::vector<Case> cases = {
      {"magic", Reason::kBadRequest, good, [](ShmHello& h) { h.hello.magic ^= 1; }},
      {"version", Reason::kVersion, good,
       [](ShmHello& h) { h.hello.version = h.hello.highest = kHighestVersion + 1; }},
      {"no range of versions", Reason::kBadRequest, good,
       [](ShmHello& h) { h.hello.version = kHighestVersion + 1; }},
      {"no port", Reason::kBadRequest, good, [](ShmHello& h) { h.hello.tcp_port = 0; }},
      {"other port", Reason::kBadRequest, good, [](ShmHello& h) { ++h.hello.tcp_port; }},
      {"ring size", Reason::kBadRequest, good, [](ShmHello& h) { h.hello.ring_bytes = 12345; }},
      {"huge ring", Reason::kBadRequest, good, [](ShmHello& h) { h.hello.ring_bytes = 1u << 31; }},
      {"ring of another file", Reason::kBadRequest, good,
       [](ShmHello& h) { h.hello.ring_bytes *= 2; }},
      {"listener's port", Reason::kAddressMismatch, good, [](ShmHello& h) { ++h.listener.port; }},
      {"listener's address", Reason::kAddressMismatch, good,
       [](ShmHello& h) { ++h.listener.addr[15]; }},
      {"empty", Reason::kBadRequest, good, nothing, 1},
      {"short", Reason::kBadRequest, good, nothing, sizeof(ShmHello) - 1},
      {"hello of wire.h alone", Reason::kBadRequest, good, nothing, sizeof(Hello)},
      {"no descriptors", Reason::kBadRequest, {}, nothing},
      {"three descriptors", Reason::kBadRequest, {d.memfd, d.event, d.event}, nothing},
      {"sixteen descriptors", Reason::kBadRequest, std::vector<int>(16, d.memfd), nothing},
      {"wrong order", Reason::kBadRequest, {d.event, d.memfd}, nothing},
      {"not sealed", Reason::kBadRequest, {d.loose, d.event}, nothing},
      {"wrong size", Reason::kBadRequest, {d.small, d.event}, nothing},
      {"a pipe for memory", Reason::kBadRequest, {d.pipe[0], d.event}, nothing},
  };
  for (const Case& c : cases) {
    const int before = open_descriptors();
    {
      Intruder intruder(server());
      ShmHello hello = good_hello();
      c.spoil(hello);
      intruder.send(&hello, c.size, c.fds);
      pollfd verdict{intruder.fd(), POLLIN, 0};
      ASSERT_TRUE(run_until({host.transport.get()}, [&] { return ::poll(&verdict, 1, 0) == 1; }));
      EXPECT_EQ(intruder.verdict(), c.expected) << c.what;
      EXPECT_EQ(intruder.verdict(), Reason::kPeerGone) << c.what;
    }
    EXPECT_TRUE(host.agent.requests.empty()) << c.what;
    EXPECT_EQ(open_descriptors(), before) << c.what;
  }
}

TEST(ShmTransportHostile, AListenerAtEveryAddressIsNotAskedForOneOfAnotherPort) {
  Node host;
  host.accept_everything();
  const Endpoint any = v4(INADDR_ANY, test_port());
  ASSERT_EQ(host.transport->listen(any), Reason::kNone);
  Descriptors d;
  for (const int other : {1, 0}) {
    ShmHello hello = good_hello();
    hello.listener.port = static_cast<std::uint16_t>(hello.listener.port + other);
    Intruder intruder(any);
    intruder.send(&hello, sizeof hello, {d.memfd, d.event});
    pollfd verdict{intruder.fd(), POLLIN, 0};
    ASSERT_TRUE(run_until({host.transport.get()}, [&] { return ::poll(&verdict, 1, 0) == 1; }));
    EXPECT_EQ(intruder.verdict() == Reason::kAddressMismatch, other != 0);
    EXPECT_EQ(host.agent.requests.empty(), other != 0);
  }
}

TEST(ShmTransportHostile, SleepsOnItsOwnSocketWhenTheEventIsNone) {
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  Descriptors d;
  const ShmHello hello = good_hello();
  Intruder intruder(server());
  intruder.send(&hello, sizeof hello, {d.memfd, d.pipe[1]});
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  ASSERT_EQ(host.agent.channels.size(), 1u);
  Channel& channel = host.agent.channel();
  ASSERT_TRUE(channel.arm());
  const char byte = 0;
  ASSERT_EQ(sys::send(intruder.fd(), &byte, 1, MSG_NOSIGNAL), 1);
  pollfd fd{channel.wait_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 1);
}

TEST(ShmTransportHostile, DropsAPeerThatTalksWhenItShouldWait) {
  Node host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  Descriptors d;
  const ShmHello hello = good_hello();
  Intruder intruder(server());
  intruder.send(&hello, sizeof hello, {d.memfd, d.event});
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
  intruder.send(&hello, sizeof hello, {d.memfd, d.event});
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  EXPECT_EQ(host.agent.refused.back().reason, Reason::kBadRequest);
}

TEST(ShmTransportHostile, DropsSilentConnectionsAfterASecond) {
  Node host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const std::int64_t start = sys::now_ns();
  Intruder intruder(server());
  pollfd fd{intruder.fd(), POLLIN, 0};
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return ::poll(&fd, 1, 0) == 1; }));
  EXPECT_EQ(intruder.verdict(), Reason::kPeerGone);
  EXPECT_GE(sys::now_ns() - start, ShmTransport::kSilenceNs);
}

TEST(ShmTransportHostile, LetsAnHonestConnectorPastAnyNumberOfSilentOnes) {
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  std::vector<std::unique_ptr<Intruder>> crowd;
  const int before = open_descriptors();
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(std::make_unique<Intruder>(server()));
    ASSERT_TRUE(crowd.back()->connected());
    host.transport->dispatch();
  }
  EXPECT_LE(open_descriptors() - before, 200 + static_cast<int>(ShmTransport::kMaxSilent));
  EXPECT_EQ(crowd.front()->verdict(), Reason::kPeerGone) << "the oldest goes first";
  client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.has_outcome() && host.agent.has_outcome();
  }, 900));
  EXPECT_EQ(client.agent.channels.size(), 1u);
}

// As when a pool of connections is made: the listener has no time for any before all have asked.
TEST(ShmTransportHostile, NobodyOfACrowdThatAsksAtOnceIsRefused) {
  constexpr std::size_t kCrowd = 200;
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  for (std::size_t i = 0; i < kCrowd; ++i) client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.channels.size() + client.agent.refused.size() == kCrowd;
  }));
  EXPECT_EQ(client.agent.channels.size(), kCrowd);
}

TEST(ShmTransportHostile, BoundsTheRequestsThatWait) {
  Node host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  Descriptors d;
  const ShmHello hello = good_hello();
  std::vector<std::unique_ptr<Intruder>> crowd;
  for (unsigned i = 0; i <= ShmTransport::kMaxRequests; ++i) {
    crowd.push_back(std::make_unique<Intruder>(server()));
    crowd.back()->send(&hello, sizeof hello, {d.memfd});
    host.transport->dispatch();
  }
  EXPECT_EQ(host.agent.requests.size(), ShmTransport::kMaxRequests);
  EXPECT_EQ(crowd.back()->verdict(), Reason::kBusy);
}

TEST(ShmTransportHostile, SurvivesRandomHellos) {
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  Descriptors d;
  const int pool[] = {d.memfd, d.small, d.loose, d.event, d.pipe[0], d.pipe[1]};
  std::mt19937 random(1);
  unsigned answered = 0;
  const int before = open_descriptors();
  for (int round = 0; round < 3000; ++round) {
    ShmHello hello = good_hello();
    auto* bytes = reinterpret_cast<std::uint8_t*>(&hello);
    for (std::size_t i = random() % 3; i > 0; --i) {
      bytes[random() % sizeof hello] = static_cast<std::uint8_t>(random());
    }
    std::vector<int> fds{d.memfd, d.event};
    if (random() % 4 == 0) fds.resize(random() % 3);
    if (random() % 4 == 0) fds.resize(random() % 8, d.pipe[0]);
    for (int& fd : fds) {
      if (random() % 8 == 0) fd = pool[random() % std::size(pool)];
    }
    Intruder intruder(server());
    const std::size_t size = random() % 8 == 0 ? 1 + random() % sizeof hello : sizeof hello;
    intruder.send(&hello, size, fds);
    ASSERT_TRUE(run_until({host.transport.get()}, [&] {
      pollfd fd{intruder.fd(), POLLIN, 0};
      return ::poll(&fd, 1, 0) == 1;
    }));
    host.transport->dispatch();
    answered += intruder.verdict() == Reason::kNone ? 1u : 0u;
    host.agent.channels.clear();
  }
  EXPECT_GT(answered, 100u);
  EXPECT_LT(answered, 2900u);
  EXPECT_EQ(open_descriptors(), before);
}

// A TCP socket whose bytes nobody takes makes its last close(2) wait for as long as it says.
int lingering_socket(int& listener, int& other_end) {
  listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  socklen_t length = sizeof at;
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length), 0);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  other_end = ::accept(listener, nullptr, nullptr);
  const std::vector<char> bytes(1 << 16);
  while (::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  const linger wait{1, 30};
  EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
  return fd;
}

TEST(ShmTransportHostile, IsNotHeldUpByADescriptorThatIsSlowToClose) {
  const int before = open_descriptors();
  for (const bool read_it : {true, false}) {
    Node host;
    ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
    int listener, other_end;
    const int slow = lingering_socket(listener, other_end);
    const std::int64_t start = sys::now_ns();
    {
      Intruder intruder(server());
      const ShmHello hello = good_hello();
      if (!read_it) {
        Descriptors d;
        intruder.send(&hello, sizeof hello, {d.memfd});
        host.transport->dispatch();
        ASSERT_EQ(host.agent.request_ids.size(), 1u);
      }
      intruder.send(&hello, sizeof hello, {slow, slow});
      sys::close_quietly(slow);  // now the message holds the only references
      if (read_it) {
        host.transport->dispatch();
      } else {
        host.transport->refuse(host.agent.request_ids.back(), Reason::kPolicy);
      }
    }
    EXPECT_LT(sys::now_ns() - start, 5'000'000'000);
    sys::close_quietly(other_end);  // a reset: the lingering close ends
    sys::close_quietly(listener);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ShmTransportHostile, WakeSocketTakesNoDescriptors) {
  const int probe = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const int off = 0;
  constexpr int kSoPassRights = 83;
  const bool supported =
      ::setsockopt(probe, SOL_SOCKET, kSoPassRights, &off, sizeof off) == 0;
  sys::close_quietly(probe);
  if (!supported) GTEST_SKIP() << "this kernel has no SO_PASSRIGHTS (Linux 6.16)";

  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  Descriptors d;
  const ShmHello hello = good_hello();
  Intruder intruder(server());
  intruder.send(&hello, sizeof hello, {d.memfd});
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  const char byte = 0;
  EXPECT_EQ(send_shm_packet(intruder.fd(), &byte, 1, &d.event, 1), EPERM);
}

// Whether a packet is the user nobody's, for a receiver in the initial user namespace, or in one that has no
// names.
bool is_nobodys_packet(bool without_names) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
  const pid_t sender = ::fork();
  if (sender == 0) {
    ::close(pair[1]);
    // Of this thread: libc would ask all, and a sanitizer has one of its own.
    const bool becomes = without_names || ::syscall(SYS_setuid, 65534) == 0;
    char byte = 0;
    // Once the receiver is ready.
    const bool ready = becomes && ::recv(pair[0], &byte, 1, 0) == 1;
    ::_exit(ready && ::send(pair[0], "x", 1, 0) == 1 ? 0 : 1);
  }
  ::close(pair[0]);
  // Not by unshare: it refuses a process that has more threads, such as a sanitizer's.
  const long receiver =
      ::syscall(SYS_clone, SIGCHLD | (without_names ? CLONE_NEWUSER : 0), nullptr, nullptr, nullptr, nullptr);
  if (receiver == 0) {
    if (!receive_credentials(pair[1]) || ::send(pair[1], "x", 1, 0) != 1) ::_exit(3);
    pollfd arrived{pair[1], POLLIN, 0};
    ::poll(&arrived, 1, -1);
    ShmPacket packet;
    if (packet.receive(pair[1]) != ShmPacket::Got::kPacket) ::_exit(4);
    const bool named = packet.from_user(65534);
    const Reason expected = named ? Reason::kNone : Reason::kOtherUserNamespace;
    if (packet.proves_user(65534) != expected || packet.proves_user(1) != Reason::kForged) ::_exit(5);
    ::_exit(named ? 1 : 0);
  }
  ::close(pair[1]);
  int status = 0;
  ::waitpid(static_cast<pid_t>(receiver), &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) <= 1) << status;
  int sent = 0;
  ::waitpid(sender, &sent, 0);
  EXPECT_EQ(sent, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

TEST(ShmPacket, TheUserNobodyIsOneUserOnlyWhereAllUsersHaveNames) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  unsigned first = 1;
  unsigned outside = 1;
  unsigned count = 0;
  std::ifstream("/proc/self/uid_map") >> first >> outside >> count;
  EXPECT_EQ(is_nobodys_packet(false), count == ~0U);
  const long child = ::syscall(SYS_clone, SIGCHLD | CLONE_NEWUSER, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) ::_exit(0);
  if (child < 0) GTEST_SKIP() << "no user namespace here, as below chroot(2): " << std::strerror(errno);
  ::waitpid(static_cast<pid_t>(child), nullptr, 0);
  EXPECT_FALSE(is_nobodys_packet(true));
}

}  // namespace
}  // namespace ringroad::shm_test
