// Promotion by rdma_cm: a listener in RDMA_PS_TCP beside each TCP listener, and connections whose
// private data are Hello and Refusal (wire.h).
//
//   connector                                   listener
//   resolve address, resolve route
//   queue pair, receives posted
//   REQ{Hello} ───────────────────────────────▶ on_request()
//                                               accept(): queue pair, receives posted
//   on_channel()  ◀─────────────────────── REP{Hello}   or REJ{Refusal} ▶ on_refused()
//   RTU ──────────────────────────────────────▶ on_channel()
//
// Every step has a deadline of its own (one timerfd), since the CM's run to a minute. event_fd() is
// an epoll instance over the CM's events, the devices' asynchronous events and that timer.
//
// So many promotions to one listener are under way at once: kAtOnce, one more for each that is answered
// within kSoonNs, half as many after one that is not answered at all. The others wait for their turn, without
// a deadline. Were all begun at once, each would wait for all others' queue pairs, and where these take long,
// none would end in time. When kAtOnce in a row are not answered, those that wait are refused too.
//
// Descriptors of a process: 3 here (epoll, timer, CM), 4 a device and 1 for all of these, 1 a channel.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "rsocket-core/channel/transport.h"
#include "rsocket-core/channel/verbs/channel_registry.h"
#include "rsocket-core/channel/verbs/open_devices.h"
#include "rsocket-core/channel/verbs/queue_pair.h"
#include "rsocket-core/channel/verbs/verbs_channel.h"

namespace ringroad {

// To find the peer and to make a queue pair; from the connector's REQ to the answer; from accept() to the
// connector's RTU. The stream is on TCP meanwhile and goes on. The agents are two threads among all those
// that want to run, which may be dozens for each processor.
inline constexpr std::int64_t kPromotionNs = 5'000'000'000;
// How long a request waits for accept() or refuse(). Its connector has given up by then; the kernel
// does not tell of that (ucma drops the events of an identifier that was not accepted yet).
inline constexpr std::int64_t kRequestNs = kPromotionNs + 500'000'000;

class VerbsTransport final : public Transport {
 public:
  // Null with a reason when the host has nothing to offer.
  static std::unique_ptr<VerbsTransport> create(const VerbsHost& host, Reason& why) noexcept;
  ~VerbsTransport() override;

  Carrier carrier() const noexcept override { return Carrier::kRdma; }
  int event_fd() const noexcept override { return epoll_fd_; }
  void dispatch() noexcept override;
  Reason listen(const Endpoint& local) noexcept override;
  void unlisten(const Endpoint& local) noexcept override;
  Reason listen_alone(Rendezvous& out, int& fd) noexcept override;
  void connect(PromotionId id, const ConnectParams& params) noexcept override;
  void accept(PromotionId id, const AcceptParams& params) noexcept override;
  void refuse(PromotionId id, Reason reason) noexcept override;
  void redirect(PromotionId id, const Rendezvous& where) noexcept override;
  void cancel(PromotionId id) noexcept override;

 private:
  enum class Step : std::uint8_t {
    kResolvingAddress,
    kResolvingRoute,
    kConnecting,  // REQ sent; the last step of a connector, those below are a listener's
    kRequested,   // REQ received, not answered
    kAccepting,   // REP sent
  };
  // The channel is destroyed before the identifier that its queue pair was made on.
  struct Attempt {
    bool is_connector() const noexcept { return step <= Step::kConnecting; }

    CmId cm_id;
    Step step = Step::kResolvingAddress;
    std::int64_t deadline_ns = 0;
    ConnectParams params;  // connector
    Hello own;
    Hello peer;
    Proof request = 0;     // listener: what the connector said
    FourTuple tuple;       // listener: as the connector sees it
    std::uint16_t tcp_port = 0;  // listener: of its own end
    std::unique_ptr<VerbsChannel> channel;
  };
  using Attempts = std::map<PromotionId, Attempt>;
  static constexpr unsigned kAtOnce = 4;
  static constexpr std::int64_t kSoonNs = 500'000'000;
  // A listener, as its connector sees it.
  struct Peer {
    unsigned under_way = 0;
    unsigned at_once = kAtOnce;
    unsigned unanswered = 0;  // since the last answer
    std::map<PromotionId, ConnectParams> waiting;  // in their order
  };
  struct Listener {
    CmId cm_id;  // null: its device is gone, until there is one with its address again
    unsigned count = 0;
    std::int64_t again_ns = 0;  // when that is looked for next
    std::int64_t pause_ns = 0;
  };
  // An event of the CM, copied, because the original must be acknowledged before any identifier is
  // destroyed.
  struct CmEvent {
    rdma_cm_event_type type;
    int status;
    rdma_cm_id* cm_id;
    const ibv_context* device;
    PromotionId promotion;
    std::size_t private_bytes;
    std::uint8_t private_data[256];
  };

  explicit VerbsTransport(const VerbsHost& host) noexcept : host_(host) {}
  Reason open() noexcept;
  bool watch(int fd) noexcept;
  Reason make_listener(const Endpoint& at, CmId& out) noexcept;

  // ---- verbs_transport.cc
  bool take_cm_events() noexcept;
  void take_async_events() noexcept;
  void on_cm_event(const CmEvent& event) noexcept;
  void on_request_event(const CmEvent& event) noexcept;
  void on_removal(const CmEvent& event) noexcept;
  void leave_listener(const rdma_cm_id* listener) noexcept;
  void listen_again(std::int64_t now_ns) noexcept;
  void expire() noexcept;
  void set_timer() noexcept;
  // `device`: only if the channel is on it; null: in any case.
  void end_channel(PromotionId id, Reason reason, const ibv_context* device = nullptr) noexcept;
  void end_channels_on(const ibv_context* device) noexcept;

  // ---- verbs_promotion.cc
  void begin(PromotionId id, const ConnectParams& params) noexcept;
  Reason start(PromotionId id, const ConnectParams& params, Attempt& attempt) noexcept;
  void begin_waiting() noexcept;
  void refuse_waiting(Peer& peer, Reason reason) noexcept;
  // Takes the attempt out of the table, and its turn from it.
  Attempt end(Attempts::iterator attempt) noexcept;
  Peer& peer_of(const Attempt& connector) noexcept;
  void is_answered(const Attempt& connector) noexcept;
  void advance(Attempts::iterator attempt, const CmEvent& event) noexcept;
  Reason on_address(Attempt& attempt) noexcept;
  Reason on_route(PromotionId id, Attempt& attempt) noexcept;
  Reason answer(PromotionId id, Attempt& attempt, const AcceptParams& params) noexcept;
  void on_established(Attempts::iterator attempt, const CmEvent& event) noexcept;
  // Ends an attempt: reports, after everything of it is gone.
  void give_up(Attempts::iterator attempt, Reason reason, Reason peer_reason) noexcept;
  Reason make_channel(PromotionId id, Attempt& attempt, std::uint32_t ring_bytes) noexcept;

  const VerbsHost host_;
  std::shared_ptr<EventChannel> events_;
  std::shared_ptr<ChannelRegistry> registry_;
  ProtectionDomains domains_;
  std::optional<OpenDevices> devices_;  // from open() on
  std::map<Endpoint, Listener> listeners_;
  CmId alone_;  // listen_alone()
  Attempts attempts_;
  std::uint64_t made_ = 0;  // queue pairs
  std::map<Endpoint, Peer> peers_;
  int epoll_fd_ = -1;
  int timer_fd_ = -1;
  std::int64_t timer_at_ns_ = 0;  // what the timer is set to; 0: off
};

}  // namespace ringroad
