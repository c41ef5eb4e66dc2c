#include "rsocket-core/channel/verbs/verbs_transport.h"

#include <dlfcn.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

constexpr int kBacklog = 128;
// From one look for a listener's device to the next.
constexpr std::int64_t kFirstListenPauseNs = 1'000'000'000;
constexpr std::int64_t kLongestListenPauseNs = 32'000'000'000;
// Where an identifier keeps the promotion it belongs to.
PromotionId promotion_of(const rdma_cm_id* id) noexcept {
  return reinterpret_cast<std::uintptr_t>(id->context);
}

// Before rdma-core 35 libibverbs cannot be asked, and the object must load beside such a one.
bool fork_is_to_be_prepared() noexcept {
  using Question = decltype(ibv_is_fork_initialized);
  auto* const is_initialized =
      reinterpret_cast<Question*>(dlsym(RTLD_DEFAULT, "ibv_is_fork_initialized"));
  return is_initialized == nullptr || is_initialized() == IBV_FORK_DISABLED;
}

}  // namespace

std::unique_ptr<VerbsTransport> VerbsTransport::create(const VerbsHost& host,
                                                       Reason& why) noexcept {
  why = check_host();
  if (why != Reason::kNone) return nullptr;
  // Before the first registration, or a fork would move the pages under the device. Kernels from
  // 5.12 copy pinned pages themselves, and the call does nothing there.
  if (fork_is_to_be_prepared()) ibv_fork_init();
  std::unique_ptr<VerbsTransport> transport(new (std::nothrow) VerbsTransport(host));
  why = transport == nullptr ? Reason::kNoMemory : transport->open();
  if (why != Reason::kNone) transport.reset();
  return transport;
}

Reason VerbsTransport::open() noexcept {
  int device_count = 0;
  ibv_device** devices = ibv_get_device_list(&device_count);
  if (devices != nullptr) ibv_free_device_list(devices);
  if (device_count == 0) return Reason::kNoRdmaDevice;
  try {
    events_ = std::make_shared<EventChannel>(host_);
    registry_ = std::make_shared<ChannelRegistry>();
  } catch (const std::bad_alloc&) {
    return Reason::kNoMemory;
  }
  if (events_->get() == nullptr) return reason_of_errno(errno, false);
  epoll_fd_ = sys::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0) return Reason::kNoDescriptors;
  epoll_fd_ = host_.adopt_fd(epoll_fd_);
  devices_.emplace(host_, epoll_fd_);
  timer_fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (timer_fd_ < 0) return Reason::kNoDescriptors;
  timer_fd_ = host_.adopt_fd(timer_fd_);
  return watch(timer_fd_) && watch(events_->fd()) ? Reason::kNone : Reason::kNoDescriptors;
}

VerbsTransport::~VerbsTransport() {
  attempts_.clear();
  listeners_.clear();
  alone_.reset();
  devices_.reset();
  for (const int fd : {timer_fd_, epoll_fd_}) {
    if (fd < 0) continue;
    host_.release_fd(fd);
    sys::close_quietly(fd);
  }
}

bool VerbsTransport::watch(int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return sys::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0;
}

Reason VerbsTransport::listen(const Endpoint& local) noexcept {
  if (const auto known = listeners_.find(local); known != listeners_.end()) {
    ++known->second.count;
    return Reason::kNone;
  }
  CmId id;
  if (const Reason why = make_listener(local, id); why != Reason::kNone) return why;
  try {
    listeners_.emplace(local, Listener{std::move(id), 1, 0, 0});
  } catch (const std::bad_alloc&) {
    return Reason::kNoMemory;
  }
  return Reason::kNone;
}

Reason VerbsTransport::make_listener(const Endpoint& at, CmId& out) noexcept {
  rdma_cm_id* raw = nullptr;
  if (rdma_create_id(events_->get(), &raw, nullptr, RDMA_PS_TCP) != 0) {
    return reason_of_errno(errno, false);
  }
  CmId id(raw);
  sockaddr_storage address{};
  at.to_sockaddr(address);
  // An IPv6 wildcard takes IPv4 requests too, as a dual-stack TCP listener does.
  if (rdma_bind_addr(raw, reinterpret_cast<sockaddr*>(&address)) != 0 ||
      rdma_listen(raw, kBacklog) != 0) {
    return errno == EADDRINUSE ? Reason::kBusy : reason_of_errno(errno, false);
  }
  if (const Reason why = devices_->know(raw->verbs); why != Reason::kNone) return why;
  out = std::move(id);
  return Reason::kNone;
}

// At a port of the CM's choice, on every address.
Reason VerbsTransport::listen_alone(Rendezvous& out, int& fd) noexcept {
  fd = -1;
  if (alone_ == nullptr) {
    const Endpoint anywhere;
    if (const Reason why = make_listener(anywhere, alone_); why != Reason::kNone) return why;
  }
  out.rdma_port = ntohs(rdma_get_src_port(alone_.get()));
  return Reason::kNone;
}

void VerbsTransport::unlisten(const Endpoint& local) noexcept {
  const auto known = listeners_.find(local);
  if (known != listeners_.end() && --known->second.count == 0) listeners_.erase(known);
}

void VerbsTransport::dispatch() noexcept {
  devices_->leave_removed([this](const ibv_context* own) { end_channels_on(own); });
  const bool took_all = take_cm_events();
  take_async_events();
  if (took_all) expire();  // an answer that is there is not late
  begin_waiting();
  set_timer();
}

// Until one of them has made a queue pair, which takes long: those with theirs are served before the next
// one. True: there are no more.
bool VerbsTransport::take_cm_events() noexcept {
  rdma_cm_event* raw = nullptr;
  const std::uint64_t made = made_;
  while (rdma_get_cm_event(events_->get(), &raw) == 0) {
    CmEvent event{};
    event.type = raw->event;
    event.status = raw->status;
    event.cm_id = raw->id;
    event.device = raw->id->verbs;
    event.promotion = promotion_of(raw->id);
    const rdma_conn_param& param = raw->param.conn;
    const bool carries_data = event.type == RDMA_CM_EVENT_CONNECT_REQUEST ||
                              event.type == RDMA_CM_EVENT_ESTABLISHED ||
                              event.type == RDMA_CM_EVENT_REJECTED;
    if (carries_data && param.private_data != nullptr) {
      event.private_bytes =
          std::min<std::size_t>(param.private_data_len, sizeof event.private_data);
      std::memcpy(event.private_data, param.private_data, event.private_bytes);
    }
    rdma_ack_cm_event(raw);
    on_cm_event(event);
    if (made_ != made) return false;
  }
  return true;
}

void VerbsTransport::on_cm_event(const CmEvent& event) noexcept {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    on_request_event(event);
    return;
  }
  if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
    on_removal(event);
    return;
  }
  if (event.promotion == 0) return;
  if (const auto attempt = attempts_.find(event.promotion); attempt != attempts_.end()) {
    advance(attempt, event);
    return;
  }
  if (event.type == RDMA_CM_EVENT_DISCONNECTED || event.type == RDMA_CM_EVENT_TIMEWAIT_EXIT) {
    end_channel(event.promotion, Reason::kPeerGone);
  }
}

void VerbsTransport::on_removal(const CmEvent& event) noexcept {
  if (const auto own = devices_->leave(event.device); own != nullptr) end_channels_on(own.get());
  if (event.promotion == 0) {
    leave_listener(event.cm_id);
  } else if (const auto attempt = attempts_.find(event.promotion); attempt != attempts_.end()) {
    give_up(attempt, Reason::kQpError, Reason::kNone);
  } else {
    end_channel(event.promotion, Reason::kQpError);
  }
}

// A listener at one address holds the device that has it: nobody could take that away while we do.
void VerbsTransport::leave_listener(const rdma_cm_id* listener) noexcept {
  for (auto& [local, known] : listeners_) {
    if (known.cm_id.get() != listener) continue;
    known.cm_id.reset();
    known.pause_ns = kFirstListenPauseNs;
    known.again_ns = sys::now_ns() + known.pause_ns;
  }
}

void VerbsTransport::listen_again(std::int64_t now_ns) noexcept {
  for (auto& [local, known] : listeners_) {
    if (known.cm_id != nullptr || known.again_ns > now_ns) continue;
    if (make_listener(local, known.cm_id) == Reason::kNone) continue;
    known.pause_ns = std::min(2 * known.pause_ns, kLongestListenPauseNs);
    known.again_ns = now_ns + known.pause_ns;
  }
}

void VerbsTransport::on_request_event(const CmEvent& event) noexcept {
  CmId id(event.cm_id);
  // It starts with the listener's context.
  id->context = nullptr;
  Attempt attempt;
  PromotionRequest request;
  Reason why = parse_hello(event.private_data, event.private_bytes, attempt.peer);
  if (why == Reason::kNone &&
      (!Endpoint::from_sockaddr(rdma_get_local_addr(id.get()), sizeof(sockaddr_storage),
                                request.tuple.local) ||
       !Endpoint::from_sockaddr(rdma_get_peer_addr(id.get()), sizeof(sockaddr_storage),
                                request.tuple.remote))) {
    why = Reason::kBadRequest;
  }
  if (why != Reason::kNone) {
    Refusal refusal;
    refusal.reason = static_cast<std::uint8_t>(why);
    rdma_reject(id.get(), &refusal, sizeof refusal);
    return;
  }
  // The CM port is a passing one; the TCP connection's is in the Hello.
  request.tuple.remote.port = attempt.peer.tcp_port;
  // So is the one that this process answers at for all that it holds.
  if (alone_ != nullptr && attempt.peer.listener_port != 0 &&
      request.tuple.local.port == ntohs(rdma_get_src_port(alone_.get()))) {
    request.tuple.local.port = attempt.peer.listener_port;
  }
  attempt.tcp_port = request.tuple.local.port;
  attempt.tuple = request.tuple.reversed();
  attempt.request = proof_behind(event.private_data, event.private_bytes, sizeof(Hello));
  request.peer_nonce = attempt.peer.nonce;
  request.ring_bytes = attempt.peer.ring_bytes;
  const PromotionId promotion = host_.next_id();
  id->context = reinterpret_cast<void*>(promotion);
  attempt.cm_id = std::move(id);
  attempt.step = Step::kRequested;
  attempt.deadline_ns = sys::now_ns() + kRequestNs;
  try {
    attempts_.emplace(promotion, std::move(attempt));
  } catch (const std::bad_alloc&) {
    return;  // destroying the identifier rejects the request
  }
  host_.events->on_request(*this, promotion, request);
}

void VerbsTransport::end_channel(PromotionId id, Reason reason,
                                 const ibv_context* device) noexcept {
  bool ended = false;
  registry_->with(id, [&](VerbsChannel& channel) noexcept {
    ended = !channel.failed() && (device == nullptr || device == channel.device());
    if (ended) channel.end(reason);
  });
  if (ended) host_.events->on_channel_event(*this, id);
}

void VerbsTransport::end_channels_on(const ibv_context* device) noexcept {
  for (const PromotionId id : registry_->ids()) end_channel(id, Reason::kQpError, device);
}

void VerbsTransport::take_async_events() noexcept {
  devices_->each([this](ibv_context* device) {
    ibv_async_event event{};
    while (ibv_get_async_event(device, &event) == 0) {
      PromotionId promotion = 0;
      bool fatal = false;
      switch (event.event_type) {
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_COMM_EST:
          promotion = reinterpret_cast<std::uintptr_t>(event.element.qp->qp_context);
          break;
        case IBV_EVENT_DEVICE_FATAL:
          fatal = true;
          break;
        default:
          break;
      }
      ibv_ack_async_event(&event);
      if (event.event_type == IBV_EVENT_COMM_EST) {
        // Data overtook, or outlived, the RTU that would establish the connection.
        const auto attempt = attempts_.find(promotion);
        if (attempt != attempts_.end() && attempt->second.step == Step::kAccepting) {
          rdma_notify(attempt->second.cm_id.get(), IBV_EVENT_COMM_EST);
        }
      } else if (promotion != 0) {
        end_channel(promotion, Reason::kQpError);
      } else if (fatal) {
        end_channels_on(device);
      }
    }
  });
}

void VerbsTransport::expire() noexcept {
  const std::int64_t now = sys::now_ns();
  if (timer_at_ns_ == 0 || now < timer_at_ns_) return;
  std::uint64_t expirations;
  const int saved = errno;
  while (sys::read(timer_fd_, &expirations, sizeof expirations) > 0) {
  }
  errno = saved;
  timer_at_ns_ = 0;
  listen_again(now);
  for (;;) {
    // From the start each time: what give_up() reports may change the table.
    const auto late = std::find_if(attempts_.begin(), attempts_.end(), [now](const auto& entry) {
      return entry.second.deadline_ns <= now;
    });
    if (late == attempts_.end()) return;
    const bool unanswered = late->second.step == Step::kRequested;
    give_up(late, unanswered ? Reason::kPeerGone : Reason::kTimeout, Reason::kNone);
  }
}

void VerbsTransport::set_timer() noexcept {
  std::int64_t next = std::numeric_limits<std::int64_t>::max();
  for (const auto& [id, attempt] : attempts_) next = std::min(next, attempt.deadline_ns);
  for (const auto& [local, known] : listeners_) {
    if (known.cm_id == nullptr) next = std::min(next, known.again_ns);
  }
  for (const auto& [listener, peer] : peers_) {
    const bool may_begin = !peer.waiting.empty() && peer.under_way < peer.at_once;
    if (may_begin || peer.under_way == 0) next = 1;  // long ago: begin_waiting() comes at once
  }
  if (next == std::numeric_limits<std::int64_t>::max()) next = 0;
  if (next == timer_at_ns_) return;
  itimerspec at{};
  at.it_value.tv_sec = next / 1'000'000'000;
  at.it_value.tv_nsec = next % 1'000'000'000;
  if (timerfd_settime(timer_fd_, TFD_TIMER_ABSTIME, &at, nullptr) == 0) timer_at_ns_ = next;
}

}  // namespace ringroad
