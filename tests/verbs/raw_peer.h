// A peer that says what it likes: rdma_cm and verbs by hand, in blocking style, on a thread of its
// own while the test serves the other end.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad::verbs_test {

class RawPeer {
 public:
  RawPeer() = default;
  ~RawPeer();
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  // A Hello that is right for a ring of this size.
  static Hello good_hello(std::uint32_t ring_bytes);

  // Connects to the server's listener with these private data. True when it was accepted; else
  // refusal() says what the rejection carried.
  bool connect(const Hello& hello);
  Reason refusal() const { return refusal_; }
  // Listens on the server's address and port, and accepts one request with these private data.
  bool listen();
  bool accept(const Hello& hello);

  const Hello& peer() const { return peer_; }
  // An RDMA write with immediate of `n` bytes at `offset` of the peer's ring.
  void write(std::uint64_t offset, std::uint32_t n, std::uint32_t immediate);
  // An RDMA write of a few bytes into the ring that `other` describes, whosever it is: how it
  // ended. IBV_WC_GENERAL_ERR: not within ten seconds.
  ibv_wc_status write_into(const Hello& other);
  void send(const void* bytes, std::uint32_t n, bool with_immediate = false);
  void send(const ControlMessage& message) { send(&message, sizeof message); }

 private:
  bool make_queues(rdma_cm_id* id);
  void post(ibv_send_wr& request, std::uint32_t n);

  rdma_cm_id* listener_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::vector<std::uint8_t> memory_ = std::vector<std::uint8_t>(256 * 1024);
  Hello peer_;
  Reason refusal_ = Reason::kNone;
};

}  // namespace ringroad::verbs_test
