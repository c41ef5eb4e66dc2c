#include "tests/verbs/raw_peer.h"

#include <endian.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/verbs/fixture.h"

namespace ringroad::verbs_test {
namespace {

constexpr std::uint32_t kDepth = 128;

rdma_conn_param parameters(const Hello& hello) {
  rdma_conn_param param{};
  param.private_data = &hello;
  param.private_data_len = sizeof hello;
  param.retry_count = 7;
  param.rnr_retry_count = 7;
  return param;
}

}  // namespace

RawPeer::~RawPeer() {
  if (id_ != nullptr) {
    if (id_->qp != nullptr) rdma_destroy_qp(id_);
    if (mr_ != nullptr) ibv_dereg_mr(mr_);
    rdma_destroy_id(id_);
  }
  if (listener_ != nullptr) rdma_destroy_id(listener_);
}

Hello RawPeer::good_hello(std::uint32_t ring_bytes) {
  Hello hello;
  hello.tcp_port = kClientTcpPort;
  hello.ring_addr = 0x10000;
  hello.ring_bytes = ring_bytes;
  hello.credits = 64;
  hello.nonce = nonce_of(1);
  return hello;
}

bool RawPeer::make_queues(rdma_cm_id* id) {
  ibv_qp_init_attr attr{};
  attr.qp_type = IBV_QPT_RC;
  attr.cap = {kDepth, kDepth, 1, 1, 0};
  attr.sq_sig_all = 0;
  if (rdma_create_qp(id, nullptr, &attr) != 0) return false;
  // A plain number: ibv_reg_mr is a macro that mixes it with another enumeration.
  constexpr int kAccess = static_cast<int>(IBV_ACCESS_LOCAL_WRITE);
  mr_ = ibv_reg_mr(id->pd, memory_.data(), memory_.size(), kAccess);
  return mr_ != nullptr;
}

bool RawPeer::connect(const Hello& hello) {
  sockaddr_storage from{}, to{};
  endpoint(client_address(), 0).to_sockaddr(from);
  endpoint(server_address(), kPort).to_sockaddr(to);
  if (rdma_create_id(nullptr, &id_, nullptr, RDMA_PS_TCP) != 0 ||
      rdma_resolve_addr(id_, reinterpret_cast<sockaddr*>(&from), reinterpret_cast<sockaddr*>(&to),
                        1000) != 0 ||
      rdma_resolve_route(id_, 1000) != 0 || !make_queues(id_)) {
    return false;
  }
  rdma_conn_param param = parameters(hello);
  const bool connected = rdma_connect(id_, &param) == 0;
  if (id_->event == nullptr) return false;
  const rdma_conn_param& answer = id_->event->param.conn;
  if (connected) {
    return parse_hello(answer.private_data, answer.private_data_len, peer_) == Reason::kNone;
  }
  refusal_ = parse_refusal(answer.private_data, answer.private_data_len);
  return false;
}

bool RawPeer::listen() {
  sockaddr_storage at{};
  endpoint(server_address(), kPort).to_sockaddr(at);
  return rdma_create_id(nullptr, &listener_, nullptr, RDMA_PS_TCP) == 0 &&
         rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&at)) == 0 &&
         rdma_listen(listener_, 1) == 0;
}

bool RawPeer::accept(const Hello& hello) {
  if (rdma_get_request(listener_, &id_) != 0 || !make_queues(id_)) return false;
  rdma_conn_param param = parameters(hello);
  return rdma_accept(id_, &param) == 0;
}

void RawPeer::post(ibv_send_wr& request, std::uint32_t n) {
  ibv_sge bytes{};
  bytes.addr = reinterpret_cast<std::uintptr_t>(memory_.data());
  bytes.length = n;
  bytes.lkey = mr_->lkey;
  request.sg_list = &bytes;
  request.num_sge = n == 0 ? 0 : 1;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(id_->qp, &request, &bad), 0);
}

void RawPeer::write(std::uint64_t offset, std::uint32_t n, std::uint32_t immediate) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htobe32(immediate);
  request.wr.rdma.remote_addr = peer_.ring_addr + offset;
  request.wr.rdma.rkey = peer_.rkey;
  post(request, n);
}

ibv_wc_status RawPeer::write_into(const Hello& other) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = other.ring_addr;
  request.wr.rdma.rkey = other.rkey;
  post(request, 8);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  ibv_wc completion{};
  while (ibv_poll_cq(id_->send_cq, 1, &completion) == 0) {
    if (std::chrono::steady_clock::now() > deadline) return IBV_WC_GENERAL_ERR;
    std::this_thread::yield();
  }
  return completion.status;
}

void RawPeer::send(const void* bytes, std::uint32_t n, bool with_immediate) {
  // The same place each time: a test that sends several sends the same.
  std::memcpy(memory_.data(), bytes, n);
  ibv_send_wr request{};
  request.opcode = with_immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
  post(request, n);
}

}  // namespace ringroad::verbs_test
