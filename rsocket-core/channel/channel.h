// A channel carries one stream's bytes, both ways, beside its TCP connection: a queue pair with
// registered rings (verbs_channel.h) or shared memory (shm_channel.h).
//
// Offsets count the bytes of one direction from the switch on, run freely and compare by
// subtraction. Each end has a transmit ring and a receive ring of equal size:
//
//   transmit:  tx_consumed <= tx_posted <= tx_head <= tx_consumed + ring size
//              |  kept for replay until the peer reports it consumed  | room |
//   receive:   rx_consumed <= rx_head <= rx_consumed + ring size
//
// tx_posted can fall behind tx_head only while message credits are out (verbs); the bytes are then
// sent, coalesced, by the next progress() or flush().
//
// Thread rule. Calls are in four groups:
//   TX   one thread at a time (the stream's transmit lock)
//   RX   one thread at a time (the stream's receive lock)
//   ANY  any thread at any time, also concurrently with TX and RX
//   END  no other call may be running
// Nothing here blocks, throws, or touches a TCP socket. errno is unspecified after a call.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/protocol/wire.h"

namespace ringroad {

enum class Carrier : std::uint8_t { kTcp = 0, kShm = 1, kRdma = 2 };

// For `ringroad ss`. Strings are NUL-terminated and may be cut short.
struct ChannelInfo {
  Carrier carrier = Carrier::kTcp;
  char device[32] = {};
  char gid[48] = {};               // RDMA: the local GID in text form
  std::uint32_t qpn = 0;           // RDMA: the local queue pair number
  std::uint32_t peer_qpn = 0;
  std::uint8_t traffic_class = 0;  // RDMA
  std::uint32_t path_mtu = 0;      // RDMA, bytes
  std::uint64_t pinned_bytes = 0;  // registered (verbs) or shared (shm) memory of this channel
  std::uint32_t descriptors = 0;   // that this channel keeps open
};

class Channel {
 public:
  struct View {
    std::byte* data = nullptr;
    std::size_t size = 0;
  };

  // END. Releases everything at once; what is still in flight may be lost: see delivered().
  virtual ~Channel() = default;

  // ---- TX
  // Where the next bytes of the stream go, and how many fit (contiguous; ring size at most).
  virtual View tx_view() noexcept = 0;
  // `n` bytes at tx_view() belong to the stream now and are on their way as soon as credits allow.
  // REQUIRES: n <= the size of the last tx_view().
  virtual void commit(std::size_t n) noexcept = 0;
  // Ordered among control messages, but not with data: a message that needs such an order carries
  // an offset. False when the channel has failed or its control reserve is used up (which no
  // correct sequence of the stream's messages can cause).
  virtual bool send_control(const ControlMessage& message) noexcept = 0;
  // Sends deferred bytes (tx_posted < tx_head) if credits allow now.
  virtual void flush() noexcept = 0;
  // Committed bytes by offset, still in the ring. REQUIRES: tx_consumed() <= offset <= tx_head().
  // The view ends at tx_head(). Works on a failed channel (replay).
  virtual View tx_replay(std::uint64_t offset) noexcept = 0;

  // ---- RX
  // Bytes that have arrived and were not consumed yet.
  virtual View rx_view() noexcept = 0;
  // The first `n` bytes of rx_view() are taken; returns credit to the peer when enough is owed.
  virtual void consume(std::size_t n) noexcept = 0;

  // ---- The short way, for what most calls of a program are: all in one, where nothing is to be looked
  // at more closely (stream_fastpath.h). Keeps errno.
  static constexpr std::size_t kMaxPutBytes = 64 * 1024;
  // TX. As tx_view(), a copy of `n` bytes and commit(), all of them posted. False, and nothing
  // done: there may be no room, a control message, a failure. REQUIRES: 0 < n <= kMaxPutBytes.
  virtual bool put(const void*, std::size_t) noexcept { return false; }
  // RX. As rx_view(), a copy of at most `n` bytes, and consume(): how many. 0: nothing has come, or the
  // channel is to be asked in detail.
  virtual std::size_t take(void*, std::size_t) noexcept { return 0; }
  // A ShmChannel, whose short way is so short that a virtual call would be a good part of it.
  bool is_shm() const noexcept { return is_shm_; }

  // ---- ANY
  virtual std::uint64_t tx_head() const noexcept = 0;
  virtual std::uint64_t tx_posted() const noexcept = 0;
  virtual std::uint64_t tx_consumed() const noexcept = 0;
  virtual std::uint64_t rx_head() const noexcept = 0;
  virtual std::uint64_t rx_consumed() const noexcept = 0;
  std::size_t ring_bytes() const noexcept { return mask_ + 1; }
  // What the connector's SWITCH has to say: that it has the key. 0: there is none. Set by the transport,
  // before anybody else has the channel.
  Proof switch_proof() const noexcept { return switch_proof_; }
  void set_switch_proof(Proof proof) noexcept { switch_proof_ = proof; }
  // What the peer knows, too: nothing but version 1 until the transport says so, likewise.
  const Agreement& agreement() const noexcept { return agreement_; }
  void set_agreement(const Agreement& agreement) noexcept { agreement_ = agreement; }

  // Takes in what the peer has done: arrived data, credits, control messages, completions. A call
  // that finds another thread inside may return at once without effect only if that thread is bound
  // to look again; so after progress() everything that arrived before the call is visible to the
  // caller, or another thread is about to make it visible and then to wake sleepers on wait_fd().
  virtual void progress() noexcept = 0;

  // True when take_control() would give something; one relaxed load.
  virtual bool control_pending() const noexcept = 0;
  // The next control message from the peer, in the order sent. Malformed ones fail the channel
  // instead of appearing here.
  virtual bool take_control(ControlMessage& out) noexcept = 0;

  // Waiting. arm() asks that wait_fd() become readable at the next arrival (data, credit, control,
  // failure), and returns true if it is safe to sleep; false if something has arrived meanwhile:
  // call progress() and look again. Several threads may sleep on one wait_fd(). One that is woken
  // calls drain() and then progress().
  virtual int wait_fd() const noexcept = 0;
  // The event of epoll(7) by which wait_fd() tells. With EPOLLET: it is ready at all times, and only a thread
  // that watches it by edges is told.
  virtual std::uint32_t wait_events() const noexcept { return EPOLLIN; }
  virtual bool arm() noexcept = 0;
  virtual void drain() noexcept = 0;
  // Whether a waiter that is told of each wake-up, not of a descriptor that is readable (EPOLLET), has to
  // call drain() before it is told of the next. If not, each such waiter is told of each wake-up.
  virtual bool drains_by_edge() const noexcept { return true; }

  // Sleeping on a word of memory instead, by futex(2): `value` is the word's before arm_word(), which is like
  // arm(). What it asks for changes the word, and so does fail(). Null: there is none, or the peer knows of
  // none. The word outlives the channel as long as somebody holds it.
  struct WaitWord {
    std::shared_ptr<std::atomic<std::uint32_t>> word;
    std::uint32_t value = 0;
    explicit operator bool() const noexcept { return word != nullptr; }
  };
  virtual WaitWord wait_word() noexcept { return {}; }
  virtual bool arm_word() noexcept { return false; }

  // Everything committed, and every control message, is in the peer's memory: the process may end
  // and the peer can still read it.
  virtual bool delivered() noexcept = 0;

  // Whether all that the peer's program sent is here even if the peer's process is killed: then the
  // end of the TCP connection is the end of the stream, FIN or not.
  virtual bool outlives_peer() const noexcept { return false; }
  // TX. Whether the peer's program has consumed all that was committed, as exactly as can be known now.
  virtual bool all_consumed() noexcept { return tx_consumed() == tx_head(); }

  // ANY. A control message may have come that progress() has not taken in; as cheap as can be.
  virtual bool control_may_wait() const noexcept { return false; }

  // Of memory that a look and a receive touch: addresses for a prefetch, also when the channel is gone. 0:
  // none.
  using Near = std::array<std::uintptr_t, 3>;
  virtual Near near() const noexcept { return {}; }

  // Once true, stays true. Data that arrived before can still be read.
  virtual bool failed() const noexcept = 0;
  virtual Reason failure() const noexcept = 0;
  // Makes the channel fail for `reason` (kPeerGone when the TCP connection has ended, for example).
  virtual void fail(Reason reason) noexcept = 0;

  virtual void info(ChannelInfo& out) const noexcept = 0;

 protected:
  explicit Channel(std::size_t ring_bytes, bool is_shm = false) noexcept
      : mask_(ring_bytes - 1), is_shm_(is_shm) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  std::size_t mask() const noexcept { return mask_; }  // of an offset, in a ring

 private:
  const std::size_t mask_;
  Proof switch_proof_ = 0;
  Agreement agreement_;
  const bool is_shm_;  // last: what follows in a class made of this fills its line
};
static_assert(sizeof(Channel) <= 32, "the first line of a ShmChannel is full");

// Whether a send that waits for room goes on. As the kernel's sockets do, room is announced when there is a
// worthwhile amount of it.
template <typename Carrying>
bool has_room(const Carrying& channel) noexcept {
  const std::uint64_t used = channel.tx_head() - channel.tx_consumed();
  return used <= channel.ring_bytes() - channel.ring_bytes() / 4;
}

}  // namespace ringroad
