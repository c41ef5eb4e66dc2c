// How two processes that share a TCP connection find each other and build a channel: rdma_cm
// (verbs_transport.h, in an object of its own) or a Unix socket (shm_transport.h).
//
// Thread rule: everything here runs on the agent thread, one call at a time, except the
// constructor and destructor. Nothing blocks for longer than a local system call.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "rsocket-core/channel/channel.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/protocol/proof.h"
#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad {

// Names one promotion at one transport, in either role. Never reused in a process.
using PromotionId = std::uint64_t;

struct ConnectParams {
  FourTuple tuple;                // as this end, the connector, sees the TCP connection
  Nonce nonce{};                  // ours
  std::uint32_t ring_bytes = 0;   // both rings
  char device[32] = {};           // empty: by route
  bool has_traffic_class = false;
  std::uint8_t traffic_class = 0; // DSCP << 2 | ECN (RFC 2474, RFC 3168)
  std::int64_t detect_ns = 500'000'000;  // after which a peer that acknowledges nothing is gone
  SharedKey key;
  // In another network namespace: by the rendezvous directory.
  bool by_path = false;
  // The listener has said that this one of its family has the connection.
  bool redirected = false;
  Rendezvous rendezvous;
};

struct AcceptParams {
  Nonce nonce{};
  char device[32] = {};           // empty: whichever the request came in on
  bool has_traffic_class = false;
  std::uint8_t traffic_class = 0;
  std::int64_t detect_ns = 500'000'000;
  SharedKey key;  // a request that does not prove it is refused with kWrongKey
};

struct PromotionRequest {
  FourTuple tuple;  // as this end, the listener, sees the TCP connection; addresses are those that
                    // the transport saw, not those that the peer claims
  Nonce peer_nonce{};
  std::uint32_t ring_bytes = 0;
  // Perhaps from another network namespace: it came by path, where nobody is known before a key is proved.
  bool by_path = false;
  Hello connector;  // by path, as sent
  Proof proof = 0;  // and what came behind it
};

class Transport;

// What a transport reports; implemented by the agent. Called from Transport::dispatch() and, for
// synchronous failures, from connect() and accept().
class TransportEvents {
 public:
  // A peer asks. Answer now or later with accept() or refuse(); the transport drops the request
  // and reports gone() when the peer does.
  virtual void on_request(Transport& transport, PromotionId id,
                          const PromotionRequest& request) noexcept = 0;
  // Both ends have the channel.
  virtual void on_channel(Transport& transport, PromotionId id, const Nonce& peer_nonce,
                          std::unique_ptr<Channel> channel) noexcept = 0;
  // Ended without a channel. `peer_reason` is what the peer's refusal said, else kNone.
  virtual void on_refused(Transport& transport, PromotionId id, Reason reason,
                          Reason peer_reason) noexcept = 0;
  // As on_refused(): the peer says which process should be asked.
  virtual void on_redirect(Transport& transport, PromotionId id, const Rendezvous&) noexcept {
    on_refused(transport, id, Reason::kPeerRefused, Reason::kRedirect);
  }
  // A channel handed over earlier has failed or was closed by the peer: its failed() is true, and
  // somebody should look at its stream. The channel may have been destroyed meanwhile.
  virtual void on_channel_event(Transport& transport, PromotionId id) noexcept = 0;

 protected:
  ~TransportEvents() = default;
};

// What a TCP listener is, beside the address that it is bound to.
struct ListenerFacts {
  bool v6_only = false;       // IPV6_V6ONLY
  std::uint64_t network = 0;  // its network namespace: net/own_addresses.h. 0: the kernel does not say

  friend bool operator==(const ListenerFacts&, const ListenerFacts&) = default;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual Carrier carrier() const noexcept = 0;
  // Readable when dispatch() has something to do. Owned by the transport.
  virtual int event_fd() const noexcept = 0;
  virtual void dispatch() noexcept = 0;

  // Answers promotion requests for the TCP listener bound to `local`. kNone or why not. Listening
  // twice at one endpoint is counted.
  virtual Reason listen(const Endpoint& local) noexcept = 0;
  virtual void unlisten(const Endpoint& local) noexcept = 0;

  // Answers for `local`, which it listens at, to connectors of other network namespaces too. kNone also where
  // no rendezvous directory is named.
  virtual Reason listen_by_path(const Endpoint&, const ListenerFacts&) noexcept { return Reason::kNone; }
  // Makes paths again that somebody has removed, and has them follow the namespace's addresses.
  virtual void look_at_paths() noexcept {}

  // ---- Families of processes (process_group.h), which share a listener
  // The descriptor that answers for `local`, which a child may inherit and adopt(); -1: none. Owned by
  // the transport.
  virtual int rendezvous_of(const Endpoint&) const noexcept { return -1; }
  // As listen(), with a descriptor that was inherited. Takes it over if kNone.
  virtual Reason adopt(const Endpoint&, int) noexcept { return Reason::kBusy; }
  // As unlisten(), while other processes may go on with the same descriptor.
  virtual void leave_to_others(const Endpoint& local) noexcept { unlisten(local); }
  // Answers, under a name of this process' own, for every connection that it holds. Fills in the part
  // of `out` that is this carrier's. Gives the descriptor that a child must close, or -1, in `fd`.
  virtual Reason listen_alone(Rendezvous& out, int& fd) noexcept = 0;

  // Starts, at once or when the peer has answered others; the outcome comes in any case, as on_channel(),
  // on_redirect() or on_refused() with this id.
  virtual void connect(PromotionId id, const ConnectParams& params) noexcept = 0;
  virtual void accept(PromotionId id, const AcceptParams& params) noexcept = 0;
  virtual void refuse(PromotionId id, Reason reason) noexcept = 0;
  virtual void redirect(PromotionId id, const Rendezvous& where) noexcept = 0;
  // Forgets a promotion that has no outcome yet; none will be reported.
  virtual void cancel(PromotionId id) noexcept = 0;

 protected:
  Transport() noexcept = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
};

// What the loadable verbs object exports: `ringroad_verbs_transport`. Gives null and a reason when
// the host has no usable RDMA device or libraries. `events` outlives the transport. `next_id` gives
// ids for incoming requests. `adopt_fd` is called for each descriptor that the transport or the
// libraries keep, and returns the number to use from then on (moved high); a forked child closes it.
// `share_fd` is the same for those that the libraries go on using in the child. `recover_also_by` is that of
// base/faults.h: the object has a table of its own.
struct VerbsHost {
  std::uint32_t abi;  // kVerbsAbi
  TransportEvents* events;
  PromotionId (*next_id)() noexcept;
  int (*adopt_fd)(int fd) noexcept;
  int (*share_fd)(int fd) noexcept;
  void (*release_fd)(int fd) noexcept;
  void (*recover_also_by)(bool (*recover)(const siginfo_t* info, void* context) noexcept) noexcept;
};
inline constexpr std::uint32_t kVerbsAbi = 11;
inline constexpr const char* kVerbsEntryPoint = "ringroad_verbs_transport";
using VerbsEntryPoint = Transport* (*)(const VerbsHost& host, Reason* why) noexcept;

}  // namespace ringroad
