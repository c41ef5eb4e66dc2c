#include "rsocket-core/shm_transport.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rsocket-core/foreign_fd.h"
#include "rsocket-core/sys.h"
#include "tests/core/open_descriptors.h"

namespace ringroad {
namespace {

constexpr std::uint32_t kRing = 16384;
constexpr int kHungMs = 20'000;

std::atomic<PromotionId> last_id{0};
PromotionId next_id() noexcept { return ++last_id; }

// Names are shared by the whole network namespace, and tests run side by side. A child of a test
// keeps its parent's.
std::uint16_t test_port() {
  static const auto port = static_cast<std::uint16_t>(10'000 + getpid() % 50'000);
  return port;
}

Endpoint v4(std::uint32_t address, std::uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(address);
  in.sin_port = htons(port);
  Endpoint out;
  EXPECT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<const sockaddr*>(&in), sizeof in, out));
  return out;
}

Endpoint v6(const in6_addr& address, std::uint16_t port) {
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_addr = address;
  in.sin6_port = htons(port);
  Endpoint out;
  EXPECT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<const sockaddr*>(&in), sizeof in, out));
  return out;
}

const Endpoint kClient = v4(INADDR_LOOPBACK, 55'555);
Endpoint server() { return v4(INADDR_LOOPBACK, test_port()); }

Nonce nonce_of(std::uint8_t fill) {
  Nonce nonce;
  nonce.fill(fill);
  return nonce;
}

// An agent that remembers what it was told. Answers each request as `answer` says, if that is set.
struct Agent final : TransportEvents {
  struct Refused {
    PromotionId id;
    Reason reason;
    Reason peer_reason;
  };

  void on_request(Transport& transport, PromotionId id,
                  const PromotionRequest& request) noexcept override {
    requests.push_back(request);
    request_ids.push_back(id);
    if (answer) answer(transport, id);
  }
  void on_channel(Transport&, PromotionId id, const Nonce& peer_nonce,
                  std::unique_ptr<Channel> made) noexcept override {
    channel_ids.push_back(id);
    nonces.push_back(peer_nonce);
    channels.push_back(std::move(made));
  }
  void on_refused(Transport&, PromotionId id, Reason reason, Reason peer_reason) noexcept override {
    refused.push_back({id, reason, peer_reason});
  }
  void on_redirect(Transport&, PromotionId id, const Rendezvous& where) noexcept override {
    redirected.emplace_back(id, where);
  }
  void on_channel_event(Transport&, PromotionId) noexcept override {
    ADD_FAILURE() << "shared memory reports to its stream alone";
  }

  Channel& channel() { return *channels.back(); }
  bool has_outcome() const { return !channels.empty() || !refused.empty(); }

  std::function<void(Transport&, PromotionId)> answer;
  std::vector<PromotionRequest> requests;
  std::vector<PromotionId> request_ids;
  std::vector<PromotionId> channel_ids;
  std::vector<Nonce> nonces;
  std::vector<std::unique_ptr<Channel>> channels;
  std::vector<Refused> refused;
  std::vector<std::pair<PromotionId, Rendezvous>> redirected;
};

// There are no TCP connections here; this is what the kernel would say of them.
uid_t owner = geteuid();
bool owner_is_known = true;
bool said_owner(const FourTuple&, uid_t& out) noexcept {
  if (owner_is_known) out = owner;
  return owner_is_known;
}

// A transport and its agent.
struct Node {
  Node() {
    Reason why = Reason::kNone;
    transport.reset(make_shm_transport(agent, next_id, why, said_owner));
    EXPECT_NE(transport, nullptr) << reason_name(why);
  }

  void accept_everything(std::uint8_t nonce = 0xbb) {
    agent.answer = [this, nonce](Transport& on, PromotionId id) {
      AcceptParams params;
      params.key = key;
      params.nonce = nonce_of(nonce);
      on.accept(id, params);
    };
  }
  PromotionId connect(const Endpoint& to, const Endpoint& from = kClient,
                      const Rendezvous* where = nullptr) {
    ConnectParams params;
    params.key = key;
    if (where != nullptr) {
      params.redirected = true;
      params.rendezvous = *where;
    }
    params.tuple = {from, to};
    params.nonce = nonce_of(0xaa);
    params.ring_bytes = kRing;
    const PromotionId id = next_id();
    transport->connect(id, params);
    return id;
  }

  Agent agent;
  std::unique_ptr<Transport> transport;
  SharedKey key;
};

// Dispatches what is ready until `done`, which must come to pass.
bool run_until(std::initializer_list<Transport*> transports, const std::function<bool()>& done,
               int limit_ms = kHungMs) {
  const std::int64_t until = sys::now_ns() + std::int64_t{limit_ms} * 1'000'000;
  while (!done()) {
    std::vector<pollfd> fds;
    for (Transport* transport : transports) fds.push_back({transport->event_fd(), POLLIN, 0});
    const int left = static_cast<int>((until - sys::now_ns()) / 1'000'000);
    if (left <= 0 || ::poll(fds.data(), fds.size(), left) <= 0) return false;
    std::size_t i = 0;
    for (Transport* transport : transports) {
      if (fds[i++].revents != 0) transport->dispatch();
    }
  }
  return true;
}

bool says(Channel& from, Channel& to, std::string_view text) {
  std::memcpy(from.tx_view().data, text.data(), text.size());
  from.commit(text.size());
  to.progress();
  const Channel::View view = to.rx_view();
  const bool same = view.size == text.size() && std::memcmp(view.data, text.data(), view.size) == 0;
  to.consume(view.size);
  return same;
}

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
  link_local.addr[0] = 0xfe;
  link_local.addr[1] = 0x80;
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
}

TEST(ShmTransportTest, KeepsTwoDescriptorsAChannelAndNothingElse) {
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const int before = open_descriptors();
  client.connect(server());
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.has_outcome() && host.agent.has_outcome();
  }));
  EXPECT_EQ(open_descriptors(), before + 4);
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

TEST(ShmFamilyTest, WhoeverHadTheConnectionAndEndedIsNotThere) {
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
  ASSERT_TRUE(channel.arm());
  client.transport->cancel(id);
  pollfd fd{channel.wait_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 1) << "a sleeper is woken";
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

const SharedKey kOneKey = SharedKey::of("one secret, long enough", 23);
const SharedKey kOtherKey = SharedKey::of("other secret, long enough", 25);

TEST(ShmTransportKeys, WhoHasTheSameGetsAChannelAndAProofForTheSwitch) {
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
    const ssize_t n = sys::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
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

struct Descriptors {
  Descriptors() {
    memfd = create_sealed_memfd("good", shm_file_bytes(kRing));
    small = create_sealed_memfd("small", shm_file_bytes(kRing) - 4096);
    loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(loose, static_cast<off_t>(shm_file_bytes(kRing))), 0);
    event = sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    EXPECT_EQ(pipe2(pipe, O_CLOEXEC), 0);
  }
  ~Descriptors() {
    for (const int fd : {memfd, small, loose, event, pipe[0], pipe[1]}) sys::close_quietly(fd);
  }
  int memfd, small, loose, event;
  int pipe[2];
};

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
      {"version", Reason::kVersion, good, [](ShmHello& h) { ++h.hello.version; }},
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

// ---- Hostile listeners

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
  OwnerSaid(bool known, uid_t said) {
    owner_is_known = known;
    owner = said;
  }
  ~OwnerSaid() {
    owner_is_known = true;
    owner = geteuid();
  }
};

TEST(ShmTransportHostile, ARequestByAnotherUserThanTheConnectionsIsRefused) {
  const OwnerSaid said(true, geteuid() + 1);
  expect_refusal(Reason::kPeerRefused, Reason::kForged);
}

TEST(ShmTransportHostile, AnAnswerIsNotBelievedWhenTheKernelNamesNoOwner) {
  const OwnerSaid said(false, 0);
  expect_refusal(Reason::kPeerUnproven, Reason::kNone);
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
  const OwnerSaid said(true, geteuid() + 1);
  ASSERT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
  ASSERT_EQ(client.agent.refused.size(), 1u);
  EXPECT_EQ(client.agent.refused[0].reason, Reason::kForged);
}

// By somebody who has seen the request go by, but has no key: without a proof, and with the request's own.
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
      {"version", Reason::kVersion, {d.event}, [](Hello& h) { h.version = 9; }},
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

// ---- Scarcity

class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit now{limit, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

TEST(ShmTransportScarcity, SaysThatDescriptorsAreOutAtEveryStepOfAConnector) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const int before = open_descriptors();
  for (const std::size_t spare : {0u, 1u, 2u}) {
    std::vector<int> filler;
    {
      DescriptorLimit limit(1024);
      for (int fd; (fd = ::dup(STDIN_FILENO)) >= 0;) filler.push_back(fd);
      for (std::size_t i = 0; i < spare; ++i) {
        sys::close_quietly(filler.back());
        filler.pop_back();
      }
      client.connect(server());
    }
    for (const int fd : filler) sys::close_quietly(fd);
    ASSERT_EQ(client.agent.refused.size(), 1u) << spare;
    EXPECT_EQ(client.agent.refused.back().reason, Reason::kNoDescriptors) << spare;
    client.agent.refused.clear();
    host.transport->dispatch();
    EXPECT_EQ(open_descriptors(), before) << spare;
  }
}

TEST(ShmTransportScarcity, AcceptsAgainWhenDescriptorsComeBack) {
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  {
    DescriptorLimit limit(3);
    host.transport->dispatch();
    pollfd fd{host.transport->event_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&fd, 1, 0), 0) << "it must not spin";
  }
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.has_outcome() && host.agent.has_outcome();
  }));
  EXPECT_EQ(client.agent.channels.size(), 1u);
}

// ---- Two processes

// In the child: connects as user `uid`, answers each byte with the next until it is told to stop.
[[noreturn]] void echo_child(uid_t uid) {
  owner = geteuid();
  if (uid != 0 && (setgid(uid) != 0 || setuid(uid) != 0)) _exit(10);
  Node client;
  client.connect(server());
  if (!run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); })) _exit(11);
  if (client.agent.channels.empty()) _exit(12);
  Channel& channel = client.agent.channel();
  for (;;) {
    channel.progress();
    const Channel::View view = channel.rx_view();
    if (view.size > 0) {
      const std::uint8_t value = static_cast<std::uint8_t>(view.data[0]);
      channel.consume(1);
      if (value == 255) break;
      channel.tx_view().data[0] = std::byte{static_cast<std::uint8_t>(value + 1)};
      channel.commit(1);
      continue;
    }
    if (!channel.arm()) continue;
    pollfd fd{channel.wait_fd(), POLLIN, 0};
    if (::poll(&fd, 1, kHungMs) != 1) _exit(13);
    channel.drain();
  }
  client.agent.channels.clear();
  _exit(0);
}

bool wait_for_byte(Channel& channel) {
  for (;;) {
    channel.progress();
    if (channel.rx_view().size > 0) return true;
    if (channel.failed()) return false;
    if (!channel.arm()) continue;
    pollfd fd{channel.wait_fd(), POLLIN, 0};
    if (::poll(&fd, 1, kHungMs) != 1) return false;
    channel.drain();
  }
}

std::string kind_of(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  char target[64] = {};
  return readlink(path.c_str(), target, sizeof target - 1) < 0 ? std::string() : target;
}

void talk_with_child(uid_t uid, const char* expected_wait_fd) {
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const pid_t child = fork();
  if (child == 0) echo_child(uid);
  const uid_t before = std::exchange(owner, uid);
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  owner = before;
  ASSERT_EQ(host.agent.channels.size(), 1u);
  Channel& channel = host.agent.channel();
  EXPECT_EQ(kind_of(channel.wait_fd()), expected_wait_fd);
  for (int i = 0; i < 2000; ++i) {
    channel.tx_view().data[0] = std::byte{static_cast<std::uint8_t>(i % 100)};
    channel.commit(1);
    ASSERT_TRUE(wait_for_byte(channel));
    ASSERT_EQ(channel.rx_view().data[0], std::byte{static_cast<std::uint8_t>(i % 100 + 1)});
    channel.consume(1);
  }
  channel.tx_view().data[0] = std::byte{255};
  channel.commit(1);
  EXPECT_FALSE(wait_for_byte(channel));
  EXPECT_EQ(channel.failure(), Reason::kPeerGone);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ShmTransportProcesses, ProcessesOfOneUserTalkAndWakeEachOtherByEventfd) {
  talk_with_child(0, "anon_inode:[eventfd]");
}

TEST(ShmTransportProcesses, ProcessesOfTwoUsersTalkAndShareNoEventfd) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  talk_with_child(12'345, "anon_inode:[eventpoll]");
}

TEST(ShmTransportProcesses, KeepsWhatAKilledPeerHadSent) {
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const pid_t child = fork();
  if (child == 0) {
    Node client;
    client.connect(server());
    run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); });
    Channel& channel = client.agent.channel();
    std::memcpy(channel.tx_view().data, "last words", 10);
    channel.commit(10);
    kill(sys::getpid(), SIGKILL);
    _exit(1);
  }
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  Channel& channel = host.agent.channel();
  channel.progress();
  ASSERT_EQ(channel.rx_view().size, 10u);
  EXPECT_EQ(std::memcmp(channel.rx_view().data, "last words", 10), 0);
  const std::vector<std::byte> more(channel.tx_view().size);
  channel.commit(more.size());
  EXPECT_FALSE(channel.failed()) << "TCP tells; the channel cannot";
}

TEST(ShmTransportProcesses, ReportsARequestWhoseProcessIsKilled) {
  Node host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const pid_t child = fork();
  if (child == 0) {
    Node client;
    client.connect(server());
    ::pause();
    _exit(0);
  }
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  EXPECT_EQ(host.agent.refused.back().reason, Reason::kPeerGone);
}

// A forked child holds a copy of every descriptor: that must not keep the name or a connection up.
TEST(ShmTransportProcesses, AForkedChildDoesNotAnswerForItsParent) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
  const pid_t child = fork();
  if (child == 0) {
    ::pause();
    _exit(0);
  }
  host.transport->refuse(host.agent.request_ids.back(), Reason::kPolicy);
  host.transport->unlisten(server());
  EXPECT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
  client.agent.refused.clear();
  client.connect(server());
  ASSERT_EQ(client.agent.refused.size(), 1u);
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerHasNoRingroad);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace ringroad
