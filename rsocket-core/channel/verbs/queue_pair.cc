#include "rsocket-core/channel/verbs/queue_pair.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/verbs/uncancellable.h"

namespace ringroad {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kControlBytes =
    ((kPostedReceives + kSendSlots) * sizeof(ControlMessage) + kPage - 1) / kPage * kPage;

// Plain numbers, as the function takes them.
constexpr int kLocalAccess = static_cast<int>(IBV_ACCESS_LOCAL_WRITE);
constexpr int kReceiveAccess = kLocalAccess | static_cast<int>(IBV_ACCESS_REMOTE_WRITE);

bool make_nonblocking(int fd) noexcept {
  const int flags = sys::fcntl(fd, F_GETFL);
  return flags >= 0 && sys::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

// The device may write what the peer sends in any order (man ibv_reg_mr, IBV_ACCESS_RELAXED_ORDERING). All
// is there when the completion of a message is, and nothing is read before. Rdma-core passes over the flag
// where the kernel knows none, and before version 28 it has no such function.
ibv_mr* register_receive_ring(ibv_pd* pd, void* base, std::size_t bytes) noexcept {
  using Register = ibv_mr*(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned);
  static auto* const with_optional_flags =
      reinterpret_cast<Register*>(dlsym(RTLD_DEFAULT, "ibv_reg_mr_iova2"));
  if (with_optional_flags != nullptr) {
    constexpr auto kAccess = static_cast<unsigned>(kReceiveAccess) | IBV_ACCESS_RELAXED_ORDERING;
    ibv_mr* const mr =
        with_optional_flags(pd, base, bytes, reinterpret_cast<std::uintptr_t>(base), kAccess);
    if (mr != nullptr) return mr;
  }
  // In parentheses, for the macro of that name needs IBVERBS_1.8 where nothing is optimised.
  return (ibv_reg_mr)(pd, base, bytes, kReceiveAccess);
}

// A card is rung by a store. Soft-RoCE and SoftiWARP are rung by write(2).
bool makes_system_calls(decltype(ibv_context_ops::post_send) post_send) noexcept {
  Dl_info place{};
  const bool known = dladdr(reinterpret_cast<const void*>(post_send), &place) != 0;
  const char* const file = known && place.dli_fname != nullptr ? place.dli_fname : "";
  return std::strstr(file, "/librxe") != nullptr || std::strstr(file, "/libsiw") != nullptr;
}

int post_send_uncancellably(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  const Uncancellable as_a_whole;
  return ibv_post_send(qp, first, bad);
}

// The completion vector of the next queue pair: each vector interrupts a processor of its own, and all on the
// first would share one. In turns; processes with a connection each begin at different ones.
int next_vector(const ibv_context& device) noexcept {
  static std::atomic<unsigned> made{0};
  const auto vectors = static_cast<unsigned>(std::max(device.num_comp_vectors, 1));
  const unsigned turn = static_cast<unsigned>(sys::getpid()) + made.fetch_add(1, std::memory_order_relaxed);
  return static_cast<int>(turn % vectors);
}

}  // namespace

EventChannel::EventChannel(const VerbsHost& host) noexcept
    : host_(host), channel_(rdma_create_event_channel()) {
  if (channel_ == nullptr) return;
  channel_->fd = host_.adopt_fd(channel_->fd);
  if (channel_->fd >= 0 && make_nonblocking(channel_->fd)) return;
  const int error = errno;
  host_.release_fd(channel_->fd);
  rdma_destroy_event_channel(channel_);
  channel_ = nullptr;
  errno = error;
}

EventChannel::~EventChannel() {
  if (channel_ == nullptr) return;
  host_.release_fd(channel_->fd);
  rdma_destroy_event_channel(channel_);
}

QueuePair::~QueuePair() {
  const Uncancellable as_a_whole;
  // Tells the peer, which otherwise would find out by its next send.
  if (id_ != nullptr && qp_ != nullptr) rdma_disconnect(id_.get());
  if (qp_ != nullptr) ibv_destroy_qp(qp_);
  if (used_id_ != nullptr) used_id_->qp = nullptr;
  if (send_cq_ != nullptr) ibv_destroy_cq(send_cq_);
  if (receive_cq_ != nullptr) ibv_destroy_cq(receive_cq_);
  if (completions_ != nullptr) {
    host_.release_fd(completions_->fd);
    ibv_destroy_comp_channel(completions_);
  }
  for (ibv_mr* mr : {control_mr_, receive_mr_, transmit_mr_}) {
    if (mr != nullptr) ibv_dereg_mr(mr);
  }
  if (control_ != nullptr) munmap(control_, kControlBytes);
  domain_.reset();
  id_.reset();
  cm_events_.reset();
}

Reason QueuePair::create(rdma_cm_id* id, std::shared_ptr<ProtectionDomain> domain,
                         std::size_t ring_bytes, std::uint64_t token) noexcept {
  domain_ = std::move(domain);
  token_ = token;
  used_id_ = id;
  if (!transmit_.create(ring_bytes) || !receive_.create(ring_bytes)) {
    return reason_of_errno(errno, false);
  }
  void* control = mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
  if (control == MAP_FAILED) return reason_of_errno(errno, false);
  control_ = static_cast<ControlMessage*>(control);

  ibv_pd* pd = domain_->get();
  // In parentheses: see above.
  transmit_mr_ = (ibv_reg_mr)(pd, transmit_.base(), ring_bytes, 0);
  if (transmit_mr_ == nullptr) return reason_of_errno(errno, true);
  receive_mr_ = register_receive_ring(pd, receive_.base(), ring_bytes);
  if (receive_mr_ == nullptr) return reason_of_errno(errno, true);
  control_mr_ = (ibv_reg_mr)(pd, control_, kControlBytes, kLocalAccess);
  if (control_mr_ == nullptr) return reason_of_errno(errno, true);
  if (const Reason why = create_queues(id); why != Reason::kNone) return why;

  prepare_receives();
  return post_receives(0, kPostedReceives) ? Reason::kNone : Reason::kQpError;
}

void QueuePair::prepare_receives() noexcept {
  for (std::uint32_t i = 0; i < kPostedReceives; ++i) {
    receive_buffers_[i] = {reinterpret_cast<std::uintptr_t>(receive_slot(i)),
                           sizeof(ControlMessage), control_lkey()};
    receives_[i] = {i, &receives_[(i + 1) % kPostedReceives], &receive_buffers_[i], 1};
  }
}

Reason QueuePair::create_queues(rdma_cm_id* id) noexcept {
  completions_ = ibv_create_comp_channel(id->verbs);
  if (completions_ == nullptr) return reason_of_errno(errno, false);
  completions_->fd = host_.adopt_fd(completions_->fd);
  if (!make_nonblocking(completions_->fd)) return Reason::kNoDescriptors;
  const int vector = next_vector(*id->verbs);
  receive_cq_ = ibv_create_cq(id->verbs, kPostedReceives, nullptr, completions_, vector);
  if (receive_cq_ == nullptr) return reason_of_errno(errno, true);
  // Room for every send, signalled or not: in error all of them complete.
  send_cq_ = ibv_create_cq(id->verbs, kSendSlots, nullptr, completions_, vector);
  if (send_cq_ == nullptr) return reason_of_errno(errno, true);

  for (const std::uint32_t wanted : {kWantedInline, 0U}) {
    ibv_qp_init_attr attr{};
    attr.qp_context = reinterpret_cast<void*>(token_);
    attr.send_cq = send_cq_;
    attr.recv_cq = receive_cq_;
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = kSendSlots;
    attr.cap.max_recv_wr = kPostedReceives;
    attr.cap.max_send_sge = 1;
    attr.cap.max_recv_sge = 1;
    attr.cap.max_inline_data = wanted;
    if (rdma_create_qp(id, domain_->get(), &attr) == 0) {
      qp_ = id->qp;
      post_send_ = id->verbs->ops.post_send;
      if (makes_system_calls(post_send_)) post_send_ = post_send_uncancellably;
      max_inline_ = attr.cap.max_inline_data;
      return Reason::kNone;
    }
    if (errno != EINVAL) break;
  }
  return reason_of_errno(errno, true);
}

std::uint64_t QueuePair::pinned_bytes() const noexcept {
  return transmit_.size() + receive_.size() + kControlBytes;
}

bool QueuePair::post_receives(std::uint32_t first, std::uint32_t n) noexcept {
  assert(first + n <= kPostedReceives);
  if (n == 0) return true;
  ibv_recv_wr& last = receives_[first + n - 1];
  ibv_recv_wr* const behind = std::exchange(last.next, nullptr);
  ibv_recv_wr* bad = nullptr;
  const bool posted = ibv_post_recv(qp_, &receives_[first], &bad) == 0;
  last.next = behind;
  return posted;
}

void QueuePair::stop() noexcept {
  const Uncancellable as_a_whole;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(qp_, &attr, IBV_QP_STATE);
}

}  // namespace ringroad
