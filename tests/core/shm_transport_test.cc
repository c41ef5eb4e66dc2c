#include "rsocket-core/channel/shm/shm_transport.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>
#include <utility>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/core/open_descriptors.h"
#include "tests/core/shm_node.h"
#include "tests/core/wake_ups.h"

namespace ringroad::shm_test {
namespace {

// ---- Names

std::string name_of(ShmName kind, const Endpoint& endpoint) {
  sockaddr_un name;
  const socklen_t length = make_shm_name(kind, endpoint, name);
  EXPECT_EQ(name.sun_path[0], '\0');
  return std::string(name.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
}

TEST(ShmNameTest, SpellsAddressesCanonically) {
  EXPECT_EQ(name_of(ShmName::kExact, v4(0x0a090001, 3306)), "ringroad/1/10.9.0.1:3306");
  EXPECT_EQ(name_of(ShmName::kExact, v6(in6addr_loopback, 80)), "ringroad/1/[::1]:80");
  EXPECT_EQ(name_of(ShmName::kAny4, v4(0x0a090001, 1)), "ringroad/1/any4:1");
  EXPECT_EQ(name_of(ShmName::kAny6, v4(0x0a090001, 65535)), "ringroad/1/any6:65535");
  Endpoint link_local = v6(in6addr_loopback, 80);
  link_local.addr.bytes[0] = 0xfe;
  link_local.addr.bytes[1] = 0x80;
  link_local.scope = 2;
  EXPECT_EQ(name_of(ShmName::kExact, link_local), "ringroad/1/[fe80::1%2]:80");
}

TEST(ShmNameTest, DistinguishesTheWildcardsOfTheFamilies) {
  EXPECT_EQ(shm_name_of_listener(v4(INADDR_ANY, 1)), ShmName::kAny4);
  EXPECT_EQ(shm_name_of_listener(v6(in6addr_any, 1)), ShmName::kAny6);
  EXPECT_EQ(shm_name_of_listener(v6(in6addr_loopback, 1)), ShmName::kExact);
}

// ---- The happy path

TEST(ShmTransportTest, BuildsAChannelAtBothEnds) {
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const PromotionId id = client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.has_outcome() && host.agent.has_outcome();
  }));
  ASSERT_EQ(client.agent.channel_ids, std::vector<PromotionId>{id});
  ASSERT_EQ(host.agent.channel_ids, host.agent.request_ids);
  EXPECT_EQ(client.agent.nonces.back(), nonce_of(0xbb));
  EXPECT_EQ(host.agent.nonces.back(), nonce_of(0xaa));
  const PromotionRequest& request = host.agent.requests.back();
  EXPECT_EQ(request.tuple, (FourTuple{server(), kClient}));
  EXPECT_EQ(request.peer_nonce, nonce_of(0xaa));
  EXPECT_EQ(request.ring_bytes, kRing);
  EXPECT_EQ(client.agent.channel().ring_bytes(), kRing);
  EXPECT_TRUE(says(client.agent.channel(), host.agent.channel(), "hello"));
  EXPECT_TRUE(says(host.agent.channel(), client.agent.channel(), "world"));
  EXPECT_TRUE(client.agent.channel().agreement().has(Feature::kGivenBack));
  EXPECT_TRUE(host.agent.channel().agreement().has(Feature::kGivenBack));
}

TEST(ShmTransportTest, KeepsOneDescriptorAChannelAndNothingElse) {
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const int before = open_descriptors();
  client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.has_outcome() && host.agent.has_outcome();
  }));
  EXPECT_EQ(open_descriptors(), before + 2);
  client.agent.channels.clear();
  host.agent.channels.clear();
  EXPECT_EQ(open_descriptors(), before);
}

// ---- Families

TEST(ShmFamilyTest, ARedirectLeadsToTheProcessThatHasTheConnection) {
  Node client, listener, holder;
  holder.accept_everything();
  Rendezvous where;
  int fd = -1;
  ASSERT_EQ(holder.transport->listen_alone(where, fd), Reason::kNone);
  EXPECT_GE(fd, 0);
  ASSERT_TRUE(where.has_shm());
  listener.agent.answer = [&](Transport& on, PromotionId id) { on.redirect(id, where); };
  ASSERT_EQ(listener.transport->listen(server()), Reason::kNone);
  const PromotionId id = client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), listener.transport.get()},
                        [&] { return !client.agent.redirected.empty(); }));
  EXPECT_EQ(client.agent.redirected.back().first, id);
  EXPECT_EQ(client.agent.redirected.back().second.token, where.token);
  EXPECT_FALSE(client.agent.has_outcome());
  client.connect(server(), kClient, &where);
  ASSERT_TRUE(run_until({client.transport.get(), holder.transport.get()}, [&] {
    return client.agent.has_outcome() && holder.agent.has_outcome();
  }));
  EXPECT_EQ(holder.agent.requests.back().tuple, (FourTuple{server(), kClient}));
  EXPECT_TRUE(says(client.agent.channel(), holder.agent.channel(), "hello"));
}

TEST(ShmFamilyTest, NoTwoProcessesAnswerUnderOneName) {
  Node one, other;
  Rendezvous first, second;
  int fd = -1;
  ASSERT_EQ(one.transport->listen_alone(first, fd), Reason::kNone);
  ASSERT_EQ(other.transport->listen_alone(second, fd), Reason::kNone);
  EXPECT_NE(first.token, second.token);
}

TEST(ShmFamilyTest, AProcessThatHadTheConnectionAndEndedIsNotThere) {
  Node client;
  Rendezvous where;
  {
    Node holder;
    int fd = -1;
    ASSERT_EQ(holder.transport->listen_alone(where, fd), Reason::kNone);
  }
  client.connect(server(), kClient, &where);
  ASSERT_EQ(client.agent.refused.size(), 1u);
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerHasNoRingroad);
}

TEST(ShmFamilyTest, AnHeirAnswersWhatWasAskedBeforeItDid) {
  Node client, heir;
  heir.accept_everything();
  auto first = std::make_unique<Node>();
  ASSERT_EQ(first->transport->listen(server()), Reason::kNone);
  // As fork leaves it to a child.
  const int inherited = sys::move_high(
      sys::fcntl(first->transport->rendezvous_of(server()), F_DUPFD_CLOEXEC, 0));
  ASSERT_GE(inherited, 0);
  first->transport->leave_to_others(server());
  EXPECT_EQ(first->transport->rendezvous_of(server()), -1);
  first.reset();
  client.connect(server());
  EXPECT_TRUE(client.agent.refused.empty()) << "the name is still there";
  ASSERT_EQ(heir.transport->adopt(server(), inherited), Reason::kNone);
  EXPECT_EQ(heir.transport->rendezvous_of(server()), inherited);
  ASSERT_TRUE(run_until({client.transport.get(), heir.transport.get()}, [&] {
    return client.agent.has_outcome() && heir.agent.has_outcome();
  }));
  EXPECT_TRUE(says(client.agent.channel(), heir.agent.channel(), "hello"));
}

TEST(ShmTransportTest, FindsWildcardListenersOfBothFamilies) {
  const Endpoint any4 = v4(INADDR_ANY, test_port());
  const Endpoint any6 = v6(in6addr_any, test_port());
  const Endpoint server6 = v6(in6addr_loopback, test_port());
  const struct {
    Endpoint bound, peer;
    bool found;
  } cases[] = {
      {any4, server(), true}, {any6, server(), true},  {any6, server6, true},
      {any4, server6, false}, {server(), server6, false},
  };
  for (const auto& c : cases) {
    Node client, host;
    host.accept_everything();
    ASSERT_EQ(host.transport->listen(c.bound), Reason::kNone);
    client.connect(c.peer);
    if (!c.found) {
      ASSERT_EQ(client.agent.refused.size(), 1u);
      EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerHasNoRingroad);
      continue;
    }
    ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
      return client.agent.has_outcome() && host.agent.has_outcome();
    }));
    EXPECT_EQ(client.agent.channels.size(), 1u) << c.bound.to_string();
    EXPECT_EQ(host.agent.requests.back().tuple.local, c.peer);
  }
}

TEST(ShmTransportTest, PrefersTheExactAddressOverTheWildcard) {
  Node client, exact, wildcard;
  ASSERT_EQ(wildcard.transport->listen(v4(INADDR_ANY, test_port())), Reason::kNone);
  ASSERT_EQ(exact.transport->listen(server()), Reason::kNone);
  client.connect(server());
  ASSERT_TRUE(run_until({exact.transport.get()}, [&] { return !exact.agent.requests.empty(); }));
}

TEST(ShmTransportTest, LetsTheAgentThinkBeforeItAccepts) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
  EXPECT_FALSE(client.agent.has_outcome());
  host.transport->accept(host.agent.request_ids.back(), AcceptParams{});
  EXPECT_FALSE(host.agent.has_outcome()) << "not from inside the agent's own call";
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.has_outcome() && host.agent.has_outcome();
  }));
  EXPECT_TRUE(says(client.agent.channel(), host.agent.channel(), "late"));
}

TEST(ShmTransportTest, ConnectsATransportWithItself) {
  Node node;
  node.accept_everything();
  ASSERT_EQ(node.transport->listen(server()), Reason::kNone);
  node.connect(server());
  ASSERT_TRUE(run_until({node.transport.get()}, [&] { return node.agent.channels.size() == 2; }));
  EXPECT_TRUE(says(*node.agent.channels[0], *node.agent.channels[1], "myself"));
}

TEST(ShmTransportTest, BuildsManyChannelsAtOnce) {
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  for (std::uint16_t i = 0; i < 60; ++i) {
    client.connect(server(), v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(20'000 + i)));
  }
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.channels.size() == 60 && host.agent.channels.size() == 60;
  }));
  EXPECT_TRUE(client.agent.refused.empty());
}

// ---- Refusals

TEST(ShmTransportTest, SaysAtOnceThatNobodyAnswers) {
  Node client;
  const PromotionId id = client.connect(server());
  ASSERT_EQ(client.agent.refused.size(), 1u);
  EXPECT_EQ(client.agent.refused.back().id, id);
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerHasNoRingroad);
}

TEST(ShmTransportTest, CarriesTheReasonOfARefusal) {
  Node client, host;
  host.agent.answer = [](Transport& on, PromotionId id) { on.refuse(id, Reason::kUntrackedIo); };
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const int before = open_descriptors();
  client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()},
                        [&] { return client.agent.has_outcome(); }));
  ASSERT_EQ(client.agent.refused.size(), 1u);
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerRefused);
  EXPECT_EQ(client.agent.refused.back().peer_reason, Reason::kUntrackedIo);
  EXPECT_FALSE(host.agent.has_outcome());
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ShmTransportTest, CountsListenersAndFreesTheNameWithTheLast) {
  Node client, host, other;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  EXPECT_EQ(other.transport->listen(server()), Reason::kBusy);
  host.transport->unlisten(server());
  EXPECT_EQ(other.transport->listen(server()), Reason::kBusy);
  host.transport->unlisten(server());
  EXPECT_EQ(other.transport->listen(server()), Reason::kNone);
  other.transport->unlisten(server());
  client.connect(server());
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerHasNoRingroad);
}

TEST(ShmTransportTest, TellsConnectorsThatWaitInAListenersQueueThatItIsGone) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  host.transport->unlisten(server());
  ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerGone);
}

TEST(ShmTransportTest, ReportsARequestThatIsWithdrawn) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const PromotionId id = client.connect(server());
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
  client.transport->cancel(id);
  EXPECT_FALSE(client.agent.has_outcome());
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  ASSERT_EQ(host.agent.refused.size(), 1u);
  EXPECT_EQ(host.agent.refused.back().id, host.agent.request_ids.back());
  EXPECT_EQ(host.agent.refused.back().reason, Reason::kPeerGone);
}

TEST(ShmTransportTest, AcceptingARequestThatWasWithdrawnIsReportedToo) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const PromotionId id = client.connect(server());
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
  client.transport->cancel(id);
  host.transport->accept(host.agent.request_ids.back(), AcceptParams{});
  ASSERT_EQ(host.agent.refused.size(), 1u);
  EXPECT_EQ(host.agent.refused.back().reason, Reason::kPeerGone);
}

TEST(ShmTransportTest, EndsTheListenersChannelWhenTheConnectorGivesUpAfterTheAnswer) {
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const PromotionId id = client.connect(server());
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  Channel& channel = host.agent.channel();
  WakeUps wake_ups(channel);
  ASSERT_TRUE(channel.arm());
  client.transport->cancel(id);
  EXPECT_TRUE(wake_ups.told()) << "a sleeper is woken";
  channel.progress();
  EXPECT_EQ(channel.failure(), Reason::kPeerGone);
}

TEST(ShmTransportTest, ForgetsARequestThatTheListenerCancels) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
  host.transport->cancel(host.agent.request_ids.back());
  ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerGone);
  EXPECT_FALSE(host.agent.has_outcome());
}

TEST(ShmTransportTest, GivesUpOnAListenerThatDoesNotAnswer) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const std::int64_t start = sys::now_ns();
  client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kTimeout);
  EXPECT_GE(sys::now_ns() - start, ShmTransport::kAnswerNs);
}

TEST(ShmTransportTest, StaysQuietWhenNothingHappens) {
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.has_outcome() && host.agent.has_outcome();
  }));
  for (Transport* transport : {client.transport.get(), host.transport.get()}) {
    transport->dispatch();
    pollfd fd{transport->event_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&fd, 1, 0), 0);
  }
}

// ---- Keys

const SharedKey kOtherKey = SharedKey::of("other secret, long enough", 25);

TEST(ShmTransportKeys, APeerThatHasTheSameGetsAChannelAndAProofForTheSwitch) {
  Node client;
  Node host;
  client.key = host.key = kOneKey;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()},
                        [&] { return client.agent.has_outcome() && host.agent.has_outcome(); }));
  ASSERT_EQ(client.agent.channels.size(), 1U);
  ASSERT_EQ(host.agent.channels.size(), 1U);
  EXPECT_NE(client.agent.channel().switch_proof(), 0U);
  EXPECT_EQ(client.agent.channel().switch_proof(), host.agent.channel().switch_proof());
}

class WrongKey : public testing::TestWithParam<std::pair<SharedKey, SharedKey>> {};

TEST_P(WrongKey, IsRefusedWithItsReasonAtBothEnds) {
  Node client;
  Node host;
  std::tie(client.key, host.key) = GetParam();
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()},
                        [&] { return client.agent.has_outcome() && host.agent.has_outcome(); }));
  ASSERT_EQ(client.agent.refused.size(), 1U);
  EXPECT_EQ(client.agent.refused[0].reason, Reason::kPeerRefused);
  EXPECT_EQ(client.agent.refused[0].peer_reason, Reason::kWrongKey);
  ASSERT_EQ(host.agent.refused.size(), 1U);
  EXPECT_EQ(host.agent.refused[0].reason, Reason::kWrongKey);
  EXPECT_TRUE(client.agent.channels.empty());
  EXPECT_TRUE(host.agent.channels.empty());
}

INSTANTIATE_TEST_SUITE_P(AnotherOrNone, WrongKey,
                         testing::Values(std::pair{kOneKey, kOtherKey},
                                         std::pair{kOneKey, SharedKey{}},
                                         std::pair{SharedKey{}, kOtherKey}));

}  // namespace
}  // namespace ringroad::shm_test
