// Finds the other end of a TCP connection on this host, and builds a shared-memory channel with it.
//
//   connector                                         listener
//   connect() to "\0ringroad/1/<listener's address>"  accept4()
//   hello, memfd, eventfd          ---------------->  checks; on_request()
//   builds its end; on_channel()   <----------------  accept(): builds its end; answer, eventfd
//                                                     on_channel()
//
// Between processes of one user the Unix socket is closed then, by path when the connector has closed it;
// between users the channel keeps it, to wake the peer with (shm_wake.h says why).
//
// What is to be known about trust:
//   - Abstract names have no permissions: anybody in the network namespace may ask a listener for a
//     channel, or stand under a name before its owner does. PromotionRequest::tuple is the peer's
//     claim here; a Unix socket carries no address to compare it with. So both sides ask the kernel
//     whose the other end of the TCP connection is, and want the packet to come from that user: the
//     connector, which writes the first token, insists on an answer. Among processes of one user it
//     is the tokens in the TCP stream that tell: only the process at the far end of the connection
//     can write one, and no data flows over the channel, in either direction, before it was seen.
//   - So nothing that is received is used unchecked: sizes, ports, addresses, that the file is a
//     sealed memfd of the right size, that the event is an eventfd. Descriptors that are something
//     else are closed on another thread (deferred_close.h).
//   - A connection that does not say hello is dropped after kSilenceNs, or earlier, the oldest
//     first, when a listener has kMaxSilent of them; a request beyond kMaxRequests is refused with
//     kBusy. Requests wait for accept() or refuse() without a time limit of the transport's.
//   - A connector waits kAnswerNs for its answer; then kTimeout.
//   - Between network namespaces the kernel tells neither end which user holds the other. There the Unix
//     socket is one of the rendezvous directory (shm_directory.h), and the ends prove a key: the answer for
//     the very socket that it comes by, so that no process between the ends can pass it on. Without a key
//     both say kOtherNamespace.
//
// Thread rule: transport.h's. In a forked child nothing of it may be called, nor destroyed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "rsocket-core/channel/shm/shm_channel.h"
#include "rsocket-core/channel/shm/shm_directory.h"
#include "rsocket-core/channel/shm/shm_hello.h"
#include "rsocket-core/channel/transport.h"
#include "rsocket-core/net/socket_owner.h"

namespace ringroad {

class ShmTransport final : public Transport {
 public:
  static constexpr std::int64_t kSilenceNs = 1'000'000'000;
  static constexpr std::int64_t kAnswerNs = 3'000'000'000;
  static constexpr std::int64_t kPauseNs = 100'000'000;  // after accept4() found no descriptor
  static constexpr unsigned kMaxSilent = 64;
  // A connector that finds it full is told kBusy by the kernel: a pool of connections is made all at once.
  static constexpr int kBacklog = 1024;
  static constexpr unsigned kMaxRequests = 256;

  // Takes both descriptors over. Use make_shm_transport().
  ShmTransport(TransportEvents& events, PromotionId (*next_id)() noexcept, OwnerOf owner_of,
               const char* directory, int epoll_fd, int timer_fd) noexcept;
  ~ShmTransport() override;

  Carrier carrier() const noexcept override { return Carrier::kShm; }
  int event_fd() const noexcept override { return epoll_fd_; }
  void dispatch() noexcept override;
  // kBusy when another process has the name: ask again when it may have ended.
  Reason listen(const Endpoint& local) noexcept override;
  Reason listen_by_path(const Endpoint& local, const ListenerFacts& facts) noexcept override;
  void look_at_paths() noexcept override;
  void unlisten(const Endpoint& local) noexcept override { end_listener(local, false); }
  int rendezvous_of(const Endpoint& local) const noexcept override;
  Reason adopt(const Endpoint& local, int fd) noexcept override;
  void leave_to_others(const Endpoint& local) noexcept override { end_listener(local, true); }
  Reason listen_alone(Rendezvous& out, int& fd) noexcept override;
  void connect(PromotionId id, const ConnectParams& params) noexcept override;
  void accept(PromotionId id, const AcceptParams& params) noexcept override;
  void refuse(PromotionId id, Reason reason) noexcept override;
  void redirect(PromotionId id, const Rendezvous& where) noexcept override;
  void cancel(PromotionId id) noexcept override;

 private:
  // Names a listener or a handshake to epoll: an event that was fetched before its subject went away
  // finds nothing. 0 is the timer.
  using Key = std::uint64_t;

  struct Listener {
    Endpoint at;
    int fd = -1;
    unsigned count = 1;
    bool paused = false;
    bool any_address = false;  // answers for what this process holds, not for a listener
    bool has_paths = false;    // listen_by_path() was called, with these facts
    ListenerFacts facts;
    Endpoint of;               // by path: what the program listens at
    sockaddr_un path{};        // of the rendezvous directory
    shm_directory::File file;

    bool by_path() const noexcept { return path.sun_family != 0; }
  };

  enum class Stage : std::uint8_t {
    kSilent,      // accepted, no hello yet
    kRequested,   // the agent was asked
    kAnswered,    // the answer is sent; the channel is handed over by the next dispatch()
    kHeld,        // by path: the connector has the channel, and looks at this end of the socket yet
    kConnecting,  // the hello is sent
  };

  struct Handshake {
    Handshake() noexcept = default;
    ~Handshake();
    Handshake(const Handshake&) = delete;
    Handshake& operator=(const Handshake&) = delete;

    Stage stage = Stage::kSilent;
    PromotionId id = 0;
    Key listener = 0;
    int fd = -1;
    std::int64_t deadline_ns = 0;  // CLOCK_MONOTONIC; 0: none
    Nonce peer_nonce{};
    std::uint32_t ring_bytes = 0;
    FourTuple tuple;
    bool by_path = false;
    Hello connector;     // as sent
    Hello answer;        // the listener's
    Proof request = 0;   // listener: what the connector said
    SharedKey key;       // connector
    int memfd = -1;
    int own_event = -1;
    int peer_event = -1;
    std::shared_ptr<ShmMemory> memory;
    std::unique_ptr<Channel> channel;
  };
  using Handshakes = std::map<Key, Handshake>;

  Handshake* add(Stage stage, int fd) noexcept;
  Handshakes::iterator find(PromotionId id) noexcept;
  void drop(Handshakes::iterator it) noexcept;
  void drop_and_report(Handshakes::iterator it, Reason reason, Reason peer_reason) noexcept;
  unsigned count(Stage stage, Key listener) const noexcept;

  Reason begin_listener(const Listener& listener, const sockaddr_un* name,
                        socklen_t length) noexcept;
  // The same in the rendezvous directory, under the path that stands for `abstract_name`.
  Reason begin_by_path(Listener listener, const sockaddr_un& abstract_name) noexcept;
  // Makes and ends paths until there is one for each endpoint that `listener` is reached at.
  Reason have_paths(const Listener& listener) noexcept;
  void end_listener(const Endpoint& local, bool leave_to_others) noexcept;
  void end_listener(std::map<Key, Listener>::iterator it, bool leave_to_others) noexcept;
  // Whether the program has another listener there, with which `path` ends from now on.
  bool leave_to_another_listener(Listener& path) noexcept;
  void accept_some(Key key) noexcept;
  void make_room_for_silent(Key listener) noexcept;
  void on_listener_side(Handshakes::iterator it) noexcept;
  void on_hello(Handshakes::iterator it, ShmPacket& packet) noexcept;
  Reason check_hello(Handshake& handshake, ShmPacket& packet, PromotionRequest& request) noexcept;
  bool waits_already(const Nonce& nonce) const noexcept;
  Reason answer(Handshake& handshake, const AcceptParams& params) noexcept;
  void say_no(PromotionId id, const void* packet, std::size_t size) noexcept;

  Reason start(PromotionId id, const ConnectParams& params) noexcept;
  // Connects `fd` to the socket that answers for the peer, under one name after the other.
  Reason reach(int fd, const ConnectParams& params) noexcept;
  // What the answer proves, as the connector is to find it.
  Proof answer_proof(const Handshake& handshake, const SharedKey& key, const Hello& answer,
                     std::uint32_t socket) noexcept;
  void on_answer(Handshakes::iterator it) noexcept;
  Reason check_answer(Handshake& handshake, ShmPacket& packet) noexcept;
  Reason check_sender(const Handshake& handshake, const ShmPacket& packet) noexcept;
  void take_back_hello(Handshake& handshake) noexcept;
  Reason build(Handshake& handshake, ShmSideIndex side) noexcept;
  void hand_over(Handshakes::iterator it) noexcept;
  // Keeps the listener's end of a handshake that is over, until the connector has closed its own. False: it
  // need not be kept, or cannot.
  bool hold(Key key, Handshake& handshake) noexcept;

  void expire(std::int64_t now_ns) noexcept;
  void set_timer() noexcept;
  bool watch(int op, int fd, Key key, std::uint32_t events) noexcept;
  void unwatch(int fd) noexcept;

  TransportEvents& events_;
  PromotionId (*const next_id_)() noexcept;
  const OwnerOf owner_of_;
  const char* const directory_;  // null: none
  const int epoll_fd_;
  const int timer_fd_;
  Key last_key_ = 0;
  std::map<Key, Listener> listeners_;
  Handshakes handshakes_;
  std::int64_t resume_ns_ = 0;  // when paused listeners go on; 0: none is paused
  std::int64_t timer_ns_ = 0;   // what timer_fd_ is set to; 0: off
};

// Null and a reason when there are no descriptors or no memory. `events` outlives the transport;
// `next_id` gives ids for incoming requests. `owner_of` is another one only where a test has no TCP
// connections. `directory`, the rendezvous directory, outlives the transport; null: there is none.
Transport* make_shm_transport(TransportEvents& events, PromotionId (*next_id)() noexcept,
                              Reason& why, OwnerOf owner_of = tcp_socket_owner,
                              const char* directory = nullptr) noexcept;

}  // namespace ringroad
