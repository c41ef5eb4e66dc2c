// The side of ShmTransport that asks.
#include <cerrno>
#include <utility>

#include "rsocket-core/base/deferred_close.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_transport.h"

namespace ringroad {

void ShmTransport::connect(PromotionId id, const ConnectParams& params) noexcept {
  const Reason why = start(id, params);
  if (why == Reason::kNone) {
    set_timer();
  } else {
    events_.on_refused(*this, id, why, Reason::kNone);
  }
}

Reason ShmTransport::reach(int fd, const ConnectParams& params) noexcept {
  const Endpoint& peer = params.tuple.remote;
  // Its answer could not be believed.
  if (params.by_path && (directory_ == nullptr || !params.key.present)) return Reason::kOtherNamespace;
  int error = ECONNREFUSED;
  for (const ShmName kind : {ShmName::kExact, ShmName::kAny4, ShmName::kAny6}) {
    if (kind != ShmName::kExact && (params.redirected || params.by_path)) break;
    if (kind == ShmName::kAny4 && !peer.is_v4()) continue;
    sockaddr_un name;
    const socklen_t length = params.redirected
                                 ? make_shm_process_name(params.rendezvous.token, name)
                                 : make_shm_name(kind, peer, name);
    sockaddr_un path;
    if (!params.by_path) {
      error = sys::connect(fd, reinterpret_cast<const sockaddr*>(&name), length) == 0 ? 0 : errno;
    } else if (shm_directory::path_of(directory_, name, path)) {
      error = shm_directory::connect(fd, path);
    }
    if (error == 0) return Reason::kNone;
    // Nobody under this name, or something that is not ours.
    if (error != ECONNREFUSED && error != EPROTOTYPE) break;
  }
  if (error == EAGAIN) return Reason::kBusy;
  if (error != ECONNREFUSED && error != EPROTOTYPE) return shm_reason_of(error);
  if (params.by_path) return Reason::kOtherNamespace;
  // Nobody can be asked here for a connection whose other end is elsewhere.
  uid_t owner;
  return owner_of_(params.tuple.reversed(), owner) == SocketOwner::kNotHere ? Reason::kOtherNamespace
                                                                            : Reason::kPeerHasNoRingroad;
}

Reason ShmTransport::start(PromotionId id, const ConnectParams& params) noexcept {
  if (!valid_ring_bytes(params.ring_bytes)) return Reason::kBadRequest;
  if (foreign_closes_under_way() >= kMaxForeignCloses) return Reason::kNoDescriptors;
  int fd = sys::open_high(
      [&] { return sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (fd < 0) return shm_reason_of(errno);
  if (const Reason why = reach(fd, params); why != Reason::kNone) {
    close_own(fd);
    return why;
  }

  Handshake* handshake = add(Stage::kConnecting, fd);
  if (handshake == nullptr) return shm_reason_of(errno);
  const auto it = handshakes_.find(last_key_);
  Reason why = Reason::kNone;
  handshake->id = id;
  handshake->ring_bytes = params.ring_bytes;
  handshake->tuple = params.tuple;
  handshake->by_path = params.by_path;
  handshake->deadline_ns = sys::now_ns() + kAnswerNs;
  handshake->memory = ShmMemory::create(params.ring_bytes, handshake->memfd, why);
  if (handshake->memory == nullptr) {
    drop(it);
    return why;
  }
  handshake->own_event = make_wake_event();
  if (handshake->own_event < 0) {
    why = shm_reason_of(errno);
    drop(it);
    return why;
  }
  ProvenShmHello message;
  ShmHello& hello = message.hello;
  hello.hello.tcp_port = params.tuple.local.port;
  hello.hello.ring_bytes = params.ring_bytes;
  hello.hello.nonce = params.nonce;
  hello.connector = ShmAddress::from(params.tuple.local);
  hello.listener = ShmAddress::from(params.tuple.remote);
  const int fds[2] = {handshake->memfd, handshake->own_event};
  // Without /proc the peer's eventfd could not be told from anything else.
  const unsigned count = adopt_wake_event(handshake->own_event) ? 2 : 1;
  handshake->key = params.key;
  handshake->connector = hello.hello;
  message.proof = make_proof(params.key, ProofOf::kRequest, hello.hello, {}, params.tuple);
  const int error = send_shm_packet(fd, &message, message.proof != 0 ? sizeof message : sizeof hello, fds,
                          count);
  close_own(handshake->memfd);
  if (error == 0) return Reason::kNone;
  drop(it);
  if (error == EPIPE || error == ECONNRESET) return Reason::kPeerGone;
  return error == ETOOMANYREFS ? Reason::kNoDescriptors : shm_reason_of(error);
}

void ShmTransport::on_answer(Handshakes::iterator it) noexcept {
  Handshake& handshake = it->second;
  ShmPacket packet;
  const ShmPacket::Got got = packet.receive(handshake.fd);
  if (got == ShmPacket::Got::kNothing) return;
  if (got == ShmPacket::Got::kEnd) {
    drop_and_report(it, Reason::kPeerGone, Reason::kNone);
    return;
  }
  if (packet.size() == sizeof(Refusal) && packet.descriptors() == 0) {
    drop_and_report(it, Reason::kPeerRefused, parse_refusal(packet.data(), packet.size()));
    return;
  }
  Rendezvous where;
  if (packet.size() == sizeof(Redirect) && packet.descriptors() == 0 &&
      parse_redirect(packet.data(), packet.size(), where) && where.has_shm()) {
    const PromotionId id = handshake.id;
    drop(it);
    events_.on_redirect(*this, id, where);
    return;
  }
  Reason why = check_answer(handshake, packet);
  // Before the channel takes the socket over.
  const std::uint32_t socket = handshake.by_path ? unix_peer_inode(handshake.fd) : 0;
  if (why == Reason::kNone && handshake.by_path && socket == 0) why = Reason::kOtherNamespace;
  if (why == Reason::kNone) why = build(handshake, ShmSideIndex::kConnector);
  if (why == Reason::kNone) {
    const Hello& ours = handshake.connector;
    const Proof wanted = answer_proof(handshake, handshake.key, handshake.answer, socket);
    const Proof said = proof_behind(packet.data(), packet.size(), sizeof(Hello));
    if (!same_proof(said, wanted)) why = Reason::kWrongKey;
    handshake.channel->set_agreement(agreement_with(handshake.answer));
    handshake.channel->set_switch_proof(
        make_proof(handshake.key, ProofOf::kSwitch, ours, handshake.answer, handshake.tuple));
  }
  // Only now, so that the answerer is told by the channel's end if it is not believed.
  if (why == Reason::kNone) why = check_sender(handshake, packet);
  if (why == Reason::kNone) {
    hand_over(it);
  } else {
    drop_and_report(it, why, Reason::kNone);
  }
}

Reason ShmTransport::check_answer(Handshake& handshake, ShmPacket& packet) noexcept {
  Hello hello;
  const Reason header = parse_hello(packet.data(), packet.size(), hello);
  if (header != Reason::kNone) return header;
  if (packet.truncated() && packet.size() <= sizeof(ProvenHello) && packet.descriptors() == 0) {
    return Reason::kNoDescriptors;
  }
  const bool sized = packet.size() == sizeof hello || packet.size() == sizeof(ProvenHello);
  if (packet.truncated() || !sized || packet.descriptors() > 1 ||
      hello.tcp_port != handshake.tuple.remote.port || hello.ring_bytes != handshake.ring_bytes) {
    return Reason::kBadRequest;
  }
  if (packet.descriptors() == 1) {
    if (!packet.from_same_user()) return Reason::kBadRequest;
    handshake.peer_event = packet.take_descriptor(0);
    if (!adopt_wake_event(handshake.peer_event)) {
      close_foreign(std::exchange(handshake.peer_event, -1));
      return Reason::kBadRequest;
    }
  }
  handshake.peer_nonce = hello.nonce;
  handshake.answer = hello;
  return Reason::kNone;
}

// A listener answers for connections that it has accepted, so their sockets have a user by now. Between
// network namespaces it has proved a key.
Reason ShmTransport::check_sender(const Handshake& handshake, const ShmPacket& packet) noexcept {
  if (handshake.by_path) return Reason::kNone;
  uid_t owner;
  switch (owner_of_(handshake.tuple.reversed(), owner)) {
    case SocketOwner::kNamed:
      return packet.proves_user(owner);
    case SocketOwner::kUnnamed:
      return Reason::kPeerUnproven;
    case SocketOwner::kNotHere:
      break;
  }
  return Reason::kOtherNamespace;
}

// The promotion is given up here. If the listener has its channel already, that must end now, and
// not when its own patience does: build our end, which then tells it by being destroyed.
void ShmTransport::take_back_hello(Handshake& handshake) noexcept {
  ShmPacket packet;
  if (packet.receive(handshake.fd) == ShmPacket::Got::kPacket &&
      check_answer(handshake, packet) == Reason::kNone) {
    build(handshake, ShmSideIndex::kConnector);
  }
  // And if it has not taken the hello yet, it finds the end there.
  if (handshake.memory != nullptr) {
    handshake.memory->header().side[0].closed.store(1, std::memory_order_seq_cst);
  }
}

}  // namespace ringroad
