#include "tests/verbs/device_double.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "rsocket-core/channel/verbs/verbs_channel.h"

namespace provider {
namespace {

// Indices run freely. REQUIRES: never more than kSize inside.
template <typename T>
struct Queue {
  static constexpr std::size_t kSize = 256;
  std::array<T, kSize> items{};
  std::size_t begin = 0;
  std::size_t end = 0;
  bool empty() const { return begin == end; }
  void push(const T& item) { items[end++ % kSize] = item; }
  const T& pop() { return items[begin++ % kSize]; }
};

struct CompletionQueue : ibv_cq {
  Queue<ibv_wc> done;
};

struct Receive {
  std::uint64_t wr_id = 0;
  std::uint64_t addr = 0;
};

struct QueuePair : ibv_qp {
  Queue<Receive> receives;
  QueuePair* peer = nullptr;
};

void copy(std::uint64_t to, const ibv_sge& from) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from.addr), from.length);
}

void complete(ibv_cq* cq, const ibv_wc& completion) {
  static_cast<CompletionQueue*>(cq)->done.push(completion);
}

int post_one(QueuePair& qp, const ibv_send_wr& wr) {
  ibv_wc at_peer{};
  at_peer.opcode = IBV_WC_RECV;
  if (wr.opcode != IBV_WR_SEND) {
    at_peer.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    at_peer.imm_data = wr.imm_data;
    if (wr.num_sge > 0) copy(wr.wr.rdma.remote_addr, *wr.sg_list);
  }
  if (wr.num_sge > 0) at_peer.byte_len = wr.sg_list->length;
  if (wr.opcode != IBV_WR_RDMA_WRITE) {
    if (qp.peer->receives.empty()) return ENOMEM;
    const Receive into = qp.peer->receives.pop();
    at_peer.wr_id = into.wr_id;
    if (wr.opcode == IBV_WR_SEND) copy(into.addr, *wr.sg_list);
    complete(qp.peer->recv_cq, at_peer);
  }
  if ((wr.send_flags & IBV_SEND_SIGNALED) != 0) {
    ibv_wc here{};
    here.wr_id = wr.wr_id;
    complete(qp.send_cq, here);
  }
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  for (; wr != nullptr; wr = wr->next) {
    if (const int error = post_one(*static_cast<QueuePair*>(qp), *wr); error != 0) {
      *bad = wr;
      return error;
    }
  }
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr**) {
  for (; wr != nullptr; wr = wr->next) {
    static_cast<QueuePair*>(qp)->receives.push({wr->wr_id, wr->sg_list->addr});
  }
  return 0;
}

int poll_cq(ibv_cq* cq, int most, ibv_wc* out) {
  Queue<ibv_wc>& done = static_cast<CompletionQueue*>(cq)->done;
  int n = 0;
  while (n < most && !done.empty()) out[n++] = done.pop();
  return n;
}

int req_notify_cq(ibv_cq*, int) { return 0; }

std::vector<int> vectors;
std::vector<unsigned> accesses;
bool refuses_optional_access = false;

ibv_context* context() {
  static ibv_context one = [] {
    ibv_context made{};
    made.num_comp_vectors = ringroad::test::kDoublesVectors;
    made.ops.post_send = post_send;
    made.ops.post_recv = post_recv;
    made.ops.poll_cq = poll_cq;
    made.ops.req_notify_cq = req_notify_cq;
    return made;
  }();
  return &one;
}

}  // namespace
}  // namespace provider

// What the channel calls of the libraries. Named in their headers, in that of ibv_reg_mr also as a macro.
#undef ibv_reg_mr
extern "C" {
ibv_pd* ibv_alloc_pd(ibv_context* context) { return new ibv_pd{context, 0}; }
int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}
ibv_mr* ibv_reg_mr(ibv_pd*, void*, std::size_t, int access) {
  provider::accesses.push_back(static_cast<unsigned>(access));
  return new ibv_mr{};
}
// Looked up by its name.
__attribute__((visibility("default"))) ibv_mr* ibv_reg_mr_iova2(ibv_pd*, void*, std::size_t, std::uint64_t,
                                                                unsigned access) {
  if (provider::refuses_optional_access && (access & IBV_ACCESS_OPTIONAL_RANGE) != 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  provider::accesses.push_back(access);
  return new ibv_mr{};
}
int ibv_dereg_mr(ibv_mr* mr) {
  delete mr;
  return 0;
}
ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  return new ibv_comp_channel{context, eventfd(0, EFD_CLOEXEC), 0};
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  close(channel->fd);
  delete channel;
  return 0;
}
ibv_cq* ibv_create_cq(ibv_context* context, int, void*, ibv_comp_channel*, int vector) {
  provider::vectors.push_back(vector);
  auto* cq = new provider::CompletionQueue{};
  cq->context = context;
  return cq;
}
int ibv_destroy_cq(ibv_cq* cq) {
  delete static_cast<provider::CompletionQueue*>(cq);
  return 0;
}
int ibv_destroy_qp(ibv_qp* qp) {
  delete static_cast<provider::QueuePair*>(qp);
  return 0;
}
int ibv_modify_qp(ibv_qp*, ibv_qp_attr*, int) { return 0; }
int ibv_query_qp(ibv_qp*, ibv_qp_attr*, int, ibv_qp_init_attr*) { return -1; }
int ibv_query_gid(ibv_context*, std::uint8_t, int, ibv_gid*) { return -1; }
const char* ibv_get_device_name(ibv_device*) { return "double"; }
int ibv_get_cq_event(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void ibv_ack_cq_events(ibv_cq*, unsigned) {}
rdma_event_channel* rdma_create_event_channel() {
  return new rdma_event_channel{eventfd(0, EFD_CLOEXEC)};
}
void rdma_destroy_event_channel(rdma_event_channel* channel) {
  close(channel->fd);
  delete channel;
}
int rdma_create_qp(rdma_cm_id* id, ibv_pd*, ibv_qp_init_attr* attr) {
  auto* qp = new provider::QueuePair{};
  qp->context = id->verbs;
  qp->send_cq = attr->send_cq;
  qp->recv_cq = attr->recv_cq;
  id->qp = qp;
  return 0;
}
int rdma_disconnect(rdma_cm_id*) { return 0; }
int rdma_destroy_id(rdma_cm_id* id) {
  delete id;
  return 0;
}
}

namespace ringroad::test {

std::vector<int> taken_vectors() { return std::exchange(provider::vectors, {}); }
std::vector<unsigned> taken_accesses() { return std::exchange(provider::accesses, {}); }
void refuse_optional_access(bool yes) { provider::refuses_optional_access = yes; }

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_verbs_pair(
    std::size_t ring_bytes) {
  VerbsHost host{};
  host.adopt_fd = [](int fd) noexcept { return fd; };
  host.release_fd = [](int) noexcept {};
  const auto events = std::make_shared<EventChannel>(host);
  const auto registry = std::make_shared<ChannelRegistry>();
  const std::shared_ptr<ibv_context> device(provider::context(), [](ibv_context*) {});
  const auto domain =
      std::make_shared<ProtectionDomain>(device, ibv_alloc_pd(provider::context()));
  CmId ids[2];
  std::unique_ptr<VerbsChannel> ends[2];
  Hello hellos[2];
  for (unsigned i = 0; i < 2; ++i) {
    ids[i].reset(new rdma_cm_id{});
    ids[i]->verbs = provider::context();
    Reason why = Reason::kNone;
    ends[i] = VerbsChannel::create(host, events, registry, i + 1, ids[i].get(), domain, ring_bytes,
                                   why);
    if (ends[i] == nullptr) return {};
    ends[i]->describe(hellos[i]);
  }
  auto* one = static_cast<provider::QueuePair*>(ids[0]->qp);
  auto* other = static_cast<provider::QueuePair*>(ids[1]->qp);
  one->peer = other;
  other->peer = one;
  for (unsigned i = 0; i < 2; ++i) {
    if (!ends[i]->established(std::move(ids[i]), hellos[1 - i])) return {};
  }
  return {std::move(ends[0]), std::move(ends[1])};
}

}  // namespace ringroad::test
