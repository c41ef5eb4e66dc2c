#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_hello.h"
#include "rsocket-core/channel/shm/shm_transport.h"
#include "tests/fuzz/target.h"

namespace ringroad::fuzz {
namespace {

constexpr std::uint32_t kRing = 4096;

PromotionId next_id() noexcept {
  static PromotionId last = 0;
  return ++last;
}

SocketOwner this_user(const FourTuple&, uid_t& owner) noexcept {
  owner = geteuid();
  return SocketOwner::kNamed;
}

// Accepts whatever it is asked, and notes what came of it.
class Agent final : public TransportEvents {
 public:
  void on_request(Transport& transport, PromotionId id,
                  const PromotionRequest& request) noexcept override {
    if (!valid_ring_bytes(request.ring_bytes) || request.tuple.remote.port == 0) odd = true;
    AcceptParams params;
    params.nonce.fill(7);
    params.key = key;
    transport.accept(id, params);
  }
  void on_channel(Transport&, PromotionId, const Nonce&,
                  std::unique_ptr<Channel> made) noexcept override {
    channel = std::move(made);
    ++outcomes;
  }
  void on_refused(Transport&, PromotionId, Reason reason, Reason peer_reason) noexcept override {
    if (reason >= Reason::kCount || peer_reason >= Reason::kCount) odd = true;
    ++outcomes;
  }
  void on_redirect(Transport&, PromotionId, const Rendezvous& where) noexcept override {
    if (!where.has_shm()) odd = true;
    ++outcomes;
  }
  void on_channel_event(Transport&, PromotionId) noexcept override {}

  SharedKey key;  // which no input knows
  std::unique_ptr<Channel> channel;
  int outcomes = 0;
  bool odd = false;
};

Endpoint endpoint(std::uint16_t port) {
  Endpoint out;
  out.addr.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  out.port = port;
  return out;
}

struct Fixture {
  Agent agent;
  std::unique_ptr<Transport> transport;
  // Abstract names are the network namespace's: of a process there is one.
  Endpoint server = endpoint(static_cast<std::uint16_t>(10'000 + getpid() % 50'000));
  Endpoint impostor = endpoint(static_cast<std::uint16_t>(server.port + 1));
  Endpoint client = endpoint(55'555);
  int listener = -1;     // where the impostor waits for hellos
  std::vector<int> gifts;  // descriptors that a peer may send: good ones, and others

  Fixture() {
    Reason why = Reason::kNone;
    transport.reset(make_shm_transport(agent, next_id, why, this_user));
    if (transport == nullptr || transport->listen(server) != Reason::kNone) std::abort();
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un name;
    const socklen_t length = make_shm_name(shm_name_of_listener(impostor), impostor, name);
    if (bind(listener, reinterpret_cast<sockaddr*>(&name), length) != 0 ||
        ::listen(listener, 16) != 0) {
      std::abort();
    }
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) std::abort();
    const int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ftruncate(loose, static_cast<off_t>(shm_file_bytes(kRing))) != 0) std::abort();
    gifts = {create_sealed_memfd("good", shm_file_bytes(kRing)),
             eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
             create_sealed_memfd("small", shm_file_bytes(kRing) - 4096), loose, pipe_ends[0],
             pipe_ends[1]};
  }
};

// The first byte: how many descriptors, and whether those of an honest peer; the second: which others.
std::vector<int> take_gifts(Fixture& fixture, Reader& reader, bool hello) {
  const unsigned head = reader.byte();
  const unsigned choice = reader.byte();
  std::vector<int> out;
  if ((head & 0x80) == 0) {
    if (hello) out.push_back(fixture.gifts[0]);
    if ((head & 1) == 0) out.push_back(fixture.gifts[1]);
    return out;
  }
  for (unsigned i = 0; i < head % 6; ++i) {
    out.push_back(fixture.gifts[(choice >> i) % fixture.gifts.size()]);
  }
  return out;
}

void send_packet(int socket, Bytes bytes, const std::vector<int>& fds) {
  iovec piece{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
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
  sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// What is right, altered by the input: its length, then pairs of a place and what is xor'ed there.
template <typename Packet>
std::vector<std::uint8_t> altered(const Packet& right, Reader& reader) {
  std::vector<std::uint8_t> bytes(sizeof right);
  std::memcpy(bytes.data(), static_cast<const void*>(&right), sizeof right);
  const unsigned length = reader.byte();
  if (length != 0) bytes.resize(length % 128);
  while (!reader.empty()) {
    const std::size_t at = reader.byte();
    const std::uint8_t flip = reader.byte();
    if (at < bytes.size()) bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ flip);
  }
  return bytes;
}

// A connector says anything to a listener.
void ask(Fixture& fixture, Reader& reader) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un name;
  const socklen_t length = make_shm_name(shm_name_of_listener(fixture.server), fixture.server, name);
  if (connect(fd, reinterpret_cast<sockaddr*>(&name), length) != 0) std::abort();
  const std::vector<int> gifts = take_gifts(fixture, reader, true);
  ShmHello hello;
  hello.hello.tcp_port = fixture.client.port;
  hello.hello.ring_bytes = kRing;
  hello.connector = ShmAddress::from(fixture.client);
  hello.listener = ShmAddress::from(fixture.server);
  send_packet(fd, altered(hello, reader), gifts);
  for (int i = 0; i < 2; ++i) fixture.transport->dispatch();
  close(fd);
  fixture.transport->dispatch();
}

// A listener answers anything to a connector.
void answer(Fixture& fixture, Reader& reader) {
  ConnectParams params;
  params.tuple = {fixture.client, fixture.impostor};
  params.ring_bytes = kRing;
  params.key = fixture.agent.key;
  fixture.transport->connect(next_id(), params);
  const int fd = accept4(fixture.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) std::abort();
  const unsigned what = reader.byte();
  const std::vector<int> gifts = take_gifts(fixture, reader, false);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  if (what % 4 == 0) {
    Refusal refusal;
    refusal.reason = static_cast<std::uint8_t>(Reason::kPolicy);
    send_packet(fd, altered(refusal, reader), gifts);
  } else if (what % 4 == 1) {
    Rendezvous where;
    where.token[0] = 1;
    send_packet(fd, altered(make_redirect(where), reader), gifts);
  } else {
    Hello hello;
    hello.tcp_port = fixture.impostor.port;
    hello.ring_bytes = kRing;
    send_packet(fd, altered(hello, reader), gifts);
  }
  fixture.transport->dispatch();
  close(fd);
  fixture.transport->dispatch();
}

}  // namespace

std::string try_promotion(Bytes input) {
  static Fixture fixture;
  // Waits for strange descriptors to be closed, too: while that are too many nobody is asked.
  const DescriptorWatch descriptors;
  Reader reader(input);
  const unsigned head = reader.byte();
  const bool asks = head % 2 == 0;
  fixture.agent.key = (head & 2) != 0 ? SharedKey::of("nobody knows this", 17) : SharedKey{};
  fixture.agent.outcomes = 0;
  fixture.agent.odd = false;
  if (asks) {
    ask(fixture, reader);
  } else {
    answer(fixture, reader);
  }
  if (fixture.agent.odd) return "something impossible is handed to the agent";
  if (fixture.agent.outcomes > 1) return "more than one outcome";
  if (!asks && fixture.agent.outcomes != 1) return "a connector is not told";
  if (fixture.agent.channel != nullptr) {
    if (fixture.agent.key.present) return "a channel for one that has not proved the key";
    const Agreement& agreement = fixture.agent.channel->agreement();
    if (agreement.version < kLowestVersion || agreement.version > kHighestVersion ||
        (agreement.features & ~kFeatures) != 0) {
      return "something is agreed on that this end does not know";
    }
    if (fixture.agent.channel->ring_bytes() != kRing) return "rings of another size";
    fixture.agent.channel->progress();
    fixture.agent.channel->rx_view();
    fixture.agent.channel.reset();
  }
  return descriptors.complaint();
}

}  // namespace ringroad::fuzz
