// The side of ShmTransport that answers.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/deferred_close.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_transport.h"

namespace ringroad {
namespace {

constexpr int kAcceptsPerEvent = 16;
constexpr unsigned kDeadLookedAt = 16;

}  // namespace

Reason ShmTransport::listen(const Endpoint& local) noexcept {
  for (auto& [key, listener] : listeners_) {
    if (listener.any_address || listener.by_path() || listener.at != local) continue;
    ++listener.count;
    return Reason::kNone;
  }
  sockaddr_un name;
  const socklen_t length = make_shm_name(shm_name_of_listener(local), local, name);
  Listener listener;
  listener.at = local;
  return begin_listener(listener, &name, length);
}

Reason ShmTransport::listen_by_path(const Endpoint& local, const ListenerFacts& facts) noexcept {
  if (directory_ == nullptr) return Reason::kNone;
  for (auto& [key, listener] : listeners_) {
    if (listener.any_address || listener.by_path() || listener.at != local) continue;
    listener.has_paths = true;
    listener.facts = facts;
    return have_paths(Listener(listener));
  }
  return Reason::kNone;
}

Reason ShmTransport::have_paths(const Listener& listener) noexcept {
  Reason why = Reason::kNone;
  try {
    std::vector<Endpoint> reached;
    // What the kernel has not told of may be there still.
    if (!shm_directory::reached_at(listener.at, listener.facts, reached)) return Reason::kNoDescriptors;
    for (auto it = listeners_.begin(); it != listeners_.end();) {
      const auto path = it++;
      const Listener& known = path->second;
      if (!known.by_path() || known.any_address || known.of != listener.at) continue;
      if (std::find(reached.begin(), reached.end(), known.at) == reached.end()) end_listener(path, false);
    }
    for (const Endpoint& at : reached) {
      const bool known = std::any_of(listeners_.begin(), listeners_.end(), [&](const auto& entry) {
        return entry.second.by_path() && !entry.second.any_address && entry.second.at == at;
      });
      if (known) continue;
      Listener made;
      made.at = at;
      made.of = listener.at;
      sockaddr_un name;
      make_shm_name(ShmName::kExact, at, name);
      const Reason failed = begin_by_path(made, name);
      // What may pass comes before what does not.
      if (failed != Reason::kNone && (why == Reason::kNone || failed == Reason::kBusy)) why = failed;
    }
  } catch (const std::bad_alloc&) {
    why = Reason::kNoMemory;
  }
  return why;
}

void ShmTransport::look_at_paths() noexcept {
  // Keys grow with time: those that are made here are not met.
  const Key last = last_key_;
  Key key = 0;
  for (auto it = listeners_.begin(); it != listeners_.end() && it->first <= last;
       it = listeners_.upper_bound(key)) {
    key = it->first;
    Listener again = it->second;
    if (!again.by_path() || shm_directory::stands_there(again.path, again.file)) continue;
    again.fd = -1;
    again.paused = false;
    const Reason why = begin_listener(again, &again.path, sizeof again.path);
    // A process' own is found by its name, which only this listener knows.
    if (why == Reason::kNone || !again.any_address) end_listener(it, false);
  }
  for (auto it = listeners_.begin(); it != listeners_.end() && it->first <= last;
       it = listeners_.upper_bound(key)) {
    key = it->first;
    if (it->second.has_paths) have_paths(Listener(it->second));  // may end any that is a path's
  }
}

Reason ShmTransport::begin_by_path(Listener listener, const sockaddr_un& abstract_name) noexcept {
  if (!shm_directory::path_of(directory_, abstract_name, listener.path)) return Reason::kOtherNamespace;
  return begin_listener(listener, &listener.path, sizeof listener.path);
}

Reason ShmTransport::adopt(const Endpoint& local, int fd) noexcept {
  Listener listener;
  listener.at = local;
  listener.fd = fd;
  return begin_listener(listener, nullptr, 0);
}

Reason ShmTransport::listen_alone(Rendezvous& out, int& fd) noexcept {
  Nonce random;
  if (!make_nonce(random)) return Reason::kNoMemory;
  std::copy(random.begin(), random.end(), out.token.begin());
  out.token.back() = 1;  // so that it is never zero
  sockaddr_un name;
  const socklen_t length = make_shm_process_name(out.token, name);
  Listener listener;
  listener.any_address = true;
  const Reason why = begin_listener(listener, &name, length);
  if (why != Reason::kNone) {
    out.token = {};
    return why;
  }
  fd = listeners_[last_key_].fd;
  if (directory_ != nullptr) {
    // Each process of a group that ended by a signal has left one.
    shm_directory::remove_dead(directory_, kDeadLookedAt);
    begin_by_path(listener, name);
  }
  return Reason::kNone;
}

int ShmTransport::rendezvous_of(const Endpoint& local) const noexcept {
  for (const auto& [key, listener] : listeners_) {
    if (!listener.any_address && !listener.by_path() && listener.at == local) return listener.fd;
  }
  return -1;
}

// Makes the socket if there is none. Leaves an inherited one alone if this fails.
Reason ShmTransport::begin_listener(const Listener& listener, const sockaddr_un* name,
                                    socklen_t length) noexcept {
  int fd = listener.fd;
  if (fd < 0) {
    fd = above_limit(sys::open_high(
        [&] { return sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }));
  }
  if (fd < 0) return shm_reason_of(errno);
  const Key key = last_key_ + 1;
  Reason why = Reason::kNone;
  shm_directory::File file;
  if (listener.by_path() && (why = shm_directory::bind(fd, listener.path, file)) != Reason::kNone) {
    close_own(fd);
    return why;
  }
  const bool binds = name != nullptr && !listener.by_path();
  if (binds && sys::bind(fd, reinterpret_cast<const sockaddr*>(name), length) != 0) {
    why = errno == EADDRINUSE ? Reason::kBusy : shm_reason_of(errno);
  } else if ((name != nullptr && sys::listen(fd, kBacklog) != 0) ||
             !watch(EPOLL_CTL_ADD, fd, key, EPOLLIN)) {
    why = shm_reason_of(errno);
  } else {
    try {
      Listener& made = listeners_[key];
      made = listener;
      made.fd = fd;
      made.file = file;
      last_key_ = key;
      return Reason::kNone;
    } catch (const std::bad_alloc&) {
      why = Reason::kNoMemory;
    }
  }
  unwatch(fd);
  if (listener.fd < 0) close_own(fd);
  if (listener.by_path()) shm_directory::remove(listener.path, file);
  return why;
}

void ShmTransport::end_listener(const Endpoint& local, bool leave_to_others) noexcept {
  const auto it = std::find_if(listeners_.begin(), listeners_.end(), [&](const auto& entry) {
    return !entry.second.any_address && !entry.second.by_path() && entry.second.at == local;
  });
  if (it == listeners_.end() || --it->second.count != 0) return;
  end_listener(it, leave_to_others);
  // No other process shares those of the rendezvous directory.
  for (auto path = listeners_.begin(); path != listeners_.end();) {
    const auto next = std::next(path);
    if (path->second.by_path() && !path->second.any_address && path->second.of == local &&
        !leave_to_another_listener(path->second)) {
      end_listener(path, false);
    }
    path = next;
  }
}

// As "0.0.0.0:80" and "[::]:80" are both reached at "10.0.0.2:80".
bool ShmTransport::leave_to_another_listener(Listener& path) noexcept {
  for (const auto& [key, other] : listeners_) {
    if (other.any_address || other.by_path() || other.at.port != path.at.port) continue;
    const bool any = other.at.is_any() && (path.at.is_v4() ? !other.facts.v6_only : !other.at.is_v4());
    if (!any && other.at != path.at) continue;
    path.of = other.at;
    return true;
  }
  return false;
}

void ShmTransport::end_listener(std::map<Key, Listener>::iterator it,
                                bool leave_to_others) noexcept {
  const Key key = it->first;
  for (auto handshake = handshakes_.begin(); handshake != handshakes_.end();) {
    const auto next = std::next(handshake);
    if (handshake->second.listener == key && handshake->second.stage == Stage::kSilent) {
      drop(handshake);
    }
    handshake = next;
  }
  unwatch(it->second.fd);
  // First, so that no more come.
  if (!leave_to_others) sys::shutdown(it->second.fd, SHUT_RDWR);
  // The connections that wait to be accepted go with it, and may hold anything. Others might have
  // answered them, but perhaps there are none.
  for (int i = 0; i <= kBacklog; ++i) {
    const int fd = sys::accept4(it->second.fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) break;
    receive_credentials(fd);
    close_foreign_socket(fd);
  }
  if (it->second.by_path()) shm_directory::remove(it->second.path, it->second.file);
  close_own(it->second.fd);
  listeners_.erase(it);
}

void ShmTransport::accept_some(Key key) noexcept {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    const auto it = listeners_.find(key);
    if (it == listeners_.end()) return;  // what the agent was asked led to that
    Listener& listener = it->second;
    int fd = -1;
    if (foreign_closes_under_way() >= kMaxForeignCloses) {
      errno = EMFILE;
    } else {
      fd = sys::open_high([&] {
        return sys::accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      });
    }
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      // The connections stay in the queue, and the descriptor readable: look again later.
      listener.paused = watch(EPOLL_CTL_MOD, listener.fd, key, 0);
      resume_ns_ = sys::now_ns() + kPauseNs;
      return;
    }
    make_room_for_silent(key);
    Handshake* handshake = add(Stage::kSilent, fd);
    if (handshake == nullptr) continue;
    handshake->listener = key;
    handshake->deadline_ns = sys::now_ns() + kSilenceNs;
    on_listener_side(handshakes_.find(last_key_));  // the hello is mostly there already
  }
}

void ShmTransport::make_room_for_silent(Key listener) noexcept {
  if (count(Stage::kSilent, listener) < kMaxSilent) return;
  // Keys grow with time.
  const auto oldest = std::find_if(handshakes_.begin(), handshakes_.end(), [&](const auto& entry) {
    return entry.second.stage == Stage::kSilent && entry.second.listener == listener;
  });
  drop(oldest);
}

void ShmTransport::on_listener_side(Handshakes::iterator it) noexcept {
  ShmPacket packet;
  const ShmPacket::Got got = packet.receive(it->second.fd);
  if (got == ShmPacket::Got::kNothing) return;
  if (it->second.stage == Stage::kSilent) {
    if (got == ShmPacket::Got::kPacket) {
      on_hello(it, packet);
    } else {
      drop(it);
    }
    return;
  }
  // It asked and has to wait for the answer.
  drop_and_report(
      it, got == ShmPacket::Got::kPacket ? Reason::kBadRequest : Reason::kPeerGone, Reason::kNone);
}

void ShmTransport::on_hello(Handshakes::iterator it, ShmPacket& packet) noexcept {
  Handshake& handshake = it->second;
  PromotionRequest request;
  Reason why_not = check_hello(handshake, packet, request);
  if (why_not == Reason::kNone && count(Stage::kRequested, handshake.listener) >= kMaxRequests) {
    why_not = Reason::kBusy;
  }
  handshake.stage = Stage::kRequested;
  handshake.id = next_id_();
  handshake.deadline_ns = 0;
  if (why_not != Reason::kNone) {
    refuse(handshake.id, why_not);
  } else {
    events_.on_request(*this, handshake.id, request);
  }
}

Reason ShmTransport::check_hello(Handshake& handshake, ShmPacket& packet,
                                 PromotionRequest& request) noexcept {
  ShmHello hello;
  const Reason header = parse_hello(packet.data(), packet.size(), hello.hello);
  if (header != Reason::kNone) return header;
  // A message is cut short when it is too long, or when no descriptor is free.
  const bool sized = packet.size() == sizeof hello || packet.size() == sizeof(ProvenShmHello);
  if (packet.truncated() && sized && packet.descriptors() < 2) return Reason::kNoDescriptors;
  if (packet.truncated() || !sized || packet.descriptors() == 0) {
    return Reason::kBadRequest;
  }
  std::memcpy(&hello, packet.data(), sizeof hello);
  const Endpoint connector = hello.connector.endpoint();
  const Endpoint listener = hello.listener.endpoint();
  const Listener& asked = listeners_.find(handshake.listener)->second;
  if (connector.port != hello.hello.tcp_port) return Reason::kBadRequest;
  if (!asked.any_address &&
      (listener.port != asked.at.port || (!asked.at.is_any() && listener != asked.at))) {
    return Reason::kAddressMismatch;
  }
  // Between network namespaces the request proves a key.
  handshake.by_path = asked.by_path();
  if (handshake.by_path && waits_already(hello.hello.nonce)) return Reason::kForged;
  uid_t owner;
  if (!handshake.by_path && owner_of_({connector, listener}, owner) == SocketOwner::kNamed) {
    if (const Reason why = packet.proves_user(owner); why != Reason::kNone) return why;
  }
  handshake.memfd = packet.take_descriptor(0);
  if (!is_sealed_memfd(handshake.memfd, shm_file_bytes(hello.hello.ring_bytes))) {
    close_foreign(std::exchange(handshake.memfd, -1));
    return Reason::kBadRequest;
  }
  reserved_fds::close_in_children(handshake.memfd);
  // Whatever is not kept here ends with the packet.
  if (packet.descriptors() == 2 && packet.from_same_user()) {
    handshake.peer_event = packet.take_descriptor(1);
    if (!adopt_wake_event(handshake.peer_event)) {
      close_foreign(std::exchange(handshake.peer_event, -1));
    }
  }
  handshake.peer_nonce = hello.hello.nonce;
  handshake.connector = hello.hello;
  handshake.request = proof_behind(packet.data(), packet.size(), sizeof hello);
  handshake.ring_bytes = hello.hello.ring_bytes;
  handshake.tuple = FourTuple{listener, connector};
  request.tuple = handshake.tuple;
  request.peer_nonce = hello.hello.nonce;
  request.ring_bytes = hello.hello.ring_bytes;
  request.by_path = handshake.by_path;
  request.connector = handshake.connector;
  request.proof = handshake.request;
  return Reason::kNone;
}

// Each promotion has a nonce of its own, so the request is a copy that somebody has seen pass.
bool ShmTransport::waits_already(const Nonce& nonce) const noexcept {
  return std::any_of(handshakes_.begin(), handshakes_.end(), [&](const auto& entry) {
    return entry.second.stage == Stage::kRequested && entry.second.peer_nonce == nonce;
  });
}

void ShmTransport::accept(PromotionId id, const AcceptParams& params) noexcept {
  const auto it = find(id);
  if (it == handshakes_.end() || it->second.stage != Stage::kRequested) {
    events_.on_refused(*this, id, Reason::kPeerGone, Reason::kNone);
    return;
  }
  const Reason why_not = answer(it->second, params);
  if (why_not == Reason::kNone) return;
  refuse(id, why_not);
  events_.on_refused(*this, id, why_not, Reason::kNone);
}

// Leaves the channel in the handshake: the agent is told from dispatch(), not from its own call.
// Everything that can fail for want of something is done before the answer goes.
Reason ShmTransport::answer(Handshake& handshake, const AcceptParams& params) noexcept {
  const FourTuple tuple = handshake.tuple.reversed();
  if (handshake.by_path && !params.key.present) return Reason::kOtherNamespace;
  const Proof wanted = make_proof(params.key, ProofOf::kRequest, handshake.connector, {}, tuple);
  if (!same_proof(handshake.request, wanted)) return Reason::kWrongKey;
  Reason why = Reason::kNone;
  handshake.memory = ShmMemory::map(handshake.memfd, handshake.ring_bytes, why);
  if (handshake.memory == nullptr) return why;
  close_own(handshake.memfd);
  const bool events = handshake.peer_event >= 0;
  if (events) {
    const bool one = agreement_with(handshake.connector).has(Feature::kOneEvent);
    handshake.own_event = one ? make_shared_event() : make_wake_event();
    if (handshake.own_event < 0) return shm_reason_of(errno);
  }
  const int socket = handshake.fd;  // which the channel may take over
  const std::uint32_t inode = handshake.by_path ? socket_inode(socket) : 0;
  why = build(handshake, ShmSideIndex::kListener);
  if (why != Reason::kNone) return why;

  ProvenHello message;
  Hello& hello = message.hello;
  hello.tcp_port = handshake.tuple.local.port;
  hello.ring_bytes = handshake.ring_bytes;
  hello.nonce = params.nonce;
  message.proof = answer_proof(handshake, params.key, hello, inode);
  handshake.channel->set_agreement(agreement_with(handshake.connector));
  handshake.channel->set_switch_proof(
      make_proof(params.key, ProofOf::kSwitch, handshake.connector, hello, tuple));
  const int event = events ? handshake.channel->wait_fd() : -1;
  const int error =
      send_shm_packet(socket, &message, message.proof != 0 ? sizeof message : sizeof hello, &event,
                      events ? 1 : 0);
  if (error == EPIPE || error == ECONNRESET) return Reason::kPeerGone;
  if (error == ETOOMANYREFS) return Reason::kNoDescriptors;
  if (error != 0) return shm_reason_of(error);
  handshake.stage = Stage::kAnswered;
  handshake.deadline_ns = 1;  // long past
  set_timer();
  return Reason::kNone;
}

void ShmTransport::refuse(PromotionId id, Reason reason) noexcept {
  Refusal refusal;
  refusal.reason = static_cast<std::uint8_t>(reason);
  say_no(id, &refusal, sizeof refusal);
}

void ShmTransport::redirect(PromotionId id, const Rendezvous& where) noexcept {
  const Redirect redirect = make_redirect(where);
  say_no(id, &redirect, sizeof redirect);
}

void ShmTransport::say_no(PromotionId id, const void* packet, std::size_t size) noexcept {
  const auto it = find(id);
  if (it == handshakes_.end()) return;
  if (it->second.stage == Stage::kRequested && it->second.fd >= 0) {
    // Best effort: a connector that does not get it sees the end of the connection.
    send_shm_packet(it->second.fd, packet, size, nullptr, 0);
  }
  drop(it);
}

}  // namespace ringroad
