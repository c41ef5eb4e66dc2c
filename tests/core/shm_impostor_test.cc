// Listeners that are impostors, and what the kernel says of the asker and the answerer.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/core/open_descriptors.h"
#include "tests/core/shm_node.h"

namespace ringroad::shm_test {
namespace {
class Impostor {
 public:
  explicit Impostor(const Endpoint& at) {
    listener_ = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un name;
    const socklen_t length = make_shm_name(ShmName::kExact, at, name);
    EXPECT_EQ(sys::bind(listener_, reinterpret_cast<const sockaddr*>(&name), length), 0);
    EXPECT_EQ(sys::listen(listener_, 4), 0);
  }
  ~Impostor() {
    hang_up();
    sys::close_quietly(listener_);
  }
  // Takes the hello of the connector that waits.
  void take() {
    fd_ = sys::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(fd_, 0);
    ASSERT_TRUE(receive_credentials(fd_));
    ShmPacket packet;
    ASSERT_EQ(packet.receive(fd_), ShmPacket::Got::kPacket);
    proof_ = proof_behind(packet.data(), packet.size(), sizeof(ShmHello));
    ASSERT_EQ(packet.size(), proof_ != 0 ? sizeof(ProvenShmHello) : sizeof(ShmHello));
    EXPECT_EQ(packet.descriptors(), 2u);
    EXPECT_TRUE(packet.from_same_user());
  }
  void hang_up() {
    if (fd_ >= 0) sys::close_quietly(fd_);
    fd_ = -1;
  }
  int fd() const { return fd_; }
  Proof proof() const { return proof_; }

 private:
  int listener_ = -1;
  int fd_ = -1;
  Proof proof_ = 0;
};

// What the transport says of a request when the kernel says that of the connections.
void expect_refusal(Reason at_connector, Reason at_peer) {
  Node client;
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()},
                        [&] { return client.agent.has_outcome(); }));
  ASSERT_EQ(client.agent.refused.size(), 1u);
  EXPECT_EQ(client.agent.refused[0].reason, at_connector);
  EXPECT_EQ(client.agent.refused[0].peer_reason, at_peer);
}

struct OwnerSaid {
  OwnerSaid(SocketOwner known, uid_t said) {
    owner_said = known;
    owner = said;
  }
  ~OwnerSaid() {
    owner_said = SocketOwner::kNamed;
    owner = geteuid();
  }
};

TEST(ShmTransportHostile, ARequestByAnotherUserThanTheConnectionsIsRefused) {
  const OwnerSaid said(SocketOwner::kNamed, geteuid() + 1);
  expect_refusal(Reason::kPeerRefused, Reason::kForged);
}

TEST(ShmTransportHostile, AnAnswerIsNotBelievedWhenTheKernelNamesNoOwner) {
  const OwnerSaid said(SocketOwner::kUnnamed, 0);
  expect_refusal(Reason::kPeerUnproven, Reason::kNone);
}

TEST(ShmTransportHostile, AnAnswerIsNotBelievedWhenTheOtherEndIsInAnotherNamespace) {
  const OwnerSaid said(SocketOwner::kNotHere, 0);
  expect_refusal(Reason::kOtherNamespace, Reason::kNone);
}

TEST(ShmTransportHostile, AnAnswerByAnotherUserThanTheConnectionsIsNotBelieved) {
  Node client;
  Impostor impostor(server());
  client.connect(server());
  impostor.take();
  Hello hello;
  hello.tcp_port = server().port;
  hello.ring_bytes = kRing;
  ASSERT_EQ(send_shm_packet(impostor.fd(), &hello, sizeof hello, nullptr, 0), 0);
  const OwnerSaid said(SocketOwner::kNamed, geteuid() + 1);
  ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
  ASSERT_EQ(client.agent.refused.size(), 1u);
  EXPECT_EQ(client.agent.refused[0].reason, Reason::kForged);
}

// By a process that has seen the request go by, but has no key: without a proof, and with the request's own.
TEST(ShmTransportHostile, AnAnswerThatDoesNotProveTheKeyIsNotBelieved) {
  for (const bool reflected : {false, true}) {
    Node client;
    client.key = kOneKey;
    Impostor impostor(server());
    client.connect(server());
    impostor.take();
    ASSERT_NE(impostor.proof(), 0U);
    ProvenHello answer;
    answer.hello.tcp_port = server().port;
    answer.hello.ring_bytes = kRing;
    if (reflected) answer.proof = impostor.proof();
    ASSERT_EQ(send_shm_packet(impostor.fd(), &answer,
                              reflected ? sizeof answer : sizeof answer.hello, nullptr, 0),
              0);
    ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
    ASSERT_EQ(client.agent.refused.size(), 1u) << reflected;
    EXPECT_EQ(client.agent.refused[0].reason, Reason::kWrongKey) << reflected;
  }
}

TEST(ShmTransportVersions, AListenerFromBeforeRangesGetsAChannelWithoutWhatItMayNotKnow) {
  Node client;
  Impostor impostor(server());
  Descriptors d;
  client.connect(server());
  impostor.take();
  Hello answer;
  answer.tcp_port = server().port;
  answer.ring_bytes = kRing;
  answer.features = 0;
  answer.highest = 0;
  ASSERT_EQ(send_shm_packet(impostor.fd(), &answer, sizeof answer, &d.event, 1), 0);
  ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
  ASSERT_EQ(client.agent.channels.size(), 1U);
  EXPECT_EQ(client.agent.channel().agreement().version, 1);
  EXPECT_FALSE(client.agent.channel().agreement().has(Feature::kGivenBack));
}

TEST(ShmTransportHostile, RefusesMalformedAnswersAndKeepsNoDescriptor) {
  Node client;
  Impostor impostor(server());
  Descriptors d;
  struct Case {
    const char* what;
    Reason expected;
    std::vector<int> fds;
    std::function<void(Hello&)> spoil;
    std::size_t size = sizeof(Hello);
  };
  const auto nothing = [](Hello&) {};
  const std::vector<Case> cases = {
      {"the answer that the others are made from", Reason::kNone, {d.event}, nothing},
      {"magic", Reason::kBadRequest, {d.event}, [](Hello& h) { h.magic = 0; }},
      {"version", Reason::kVersion, {d.event}, [](Hello& h) { h.version = h.highest = 9; }},
      {"no range of versions", Reason::kBadRequest, {d.event}, [](Hello& h) { h.version = 9; }},
      {"port", Reason::kBadRequest, {d.event}, [](Hello& h) { ++h.tcp_port; }},
      {"ring size", Reason::kBadRequest, {d.event}, [](Hello& h) { h.ring_bytes *= 2; }},
      {"short", Reason::kBadRequest, {d.event}, nothing, sizeof(Hello) - 1},
      {"two descriptors", Reason::kBadRequest, {d.event, d.event}, nothing},
      {"a pipe for the event", Reason::kBadRequest, {d.pipe[1]}, nothing},
      {"a memfd for the event", Reason::kBadRequest, {d.memfd}, nothing},
  };
  for (const Case& c : cases) {
    const int before = open_descriptors();
    client.connect(server());
    impostor.take();
    Hello answer;
    answer.tcp_port = server().port;
    answer.ring_bytes = kRing;
    c.spoil(answer);
    ASSERT_EQ(send_shm_packet(impostor.fd(), &answer, c.size, c.fds.data(),
                              static_cast<unsigned>(c.fds.size())),
              0);
    ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
    if (c.expected == Reason::kNone) {
      EXPECT_EQ(client.agent.channels.size(), 1u) << c.what;
    } else {
      ASSERT_EQ(client.agent.refused.size(), 1u) << c.what;
      EXPECT_EQ(client.agent.refused.back().reason, c.expected) << c.what;
    }
    client.agent.channels.clear();
    client.agent.refused.clear();
    impostor.hang_up();
    EXPECT_EQ(open_descriptors(), before) << c.what;
  }
}

TEST(ShmTransportHostile, TakesAnEndWithoutAnAnswerForAGonePeer) {
  Node client;
  Impostor impostor(server());
  client.connect(server());
  impostor.take();
  impostor.hang_up();
  ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerGone);
}

}  // namespace
}  // namespace ringroad::shm_test
