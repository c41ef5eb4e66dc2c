// A channel over a queue pair: RDMA WRITE WITH IMMEDIATE into the peer's receive ring for data,
// 32-byte SENDs for control, flow control as in flow.h.
//
// Two locks, taken in this order and never held across a call that waits in the kernel:
//   receive_mutex_  the receive completion queue, reposting, what the peer has acknowledged
//   send_mutex_     the send queue and its completion queue, what the peer has been told
// The stream's own TX and RX locks stand outside both. A progress() that finds receive_mutex_ taken
// leaves a mark on it and returns; the holder of the lock finds the mark when it lets go, and looks
// again.
//
// Failure comes in two steps, so that what arrived before it is not lost: a reason is *requested*
// (by an error completion, by the CM, by fail()), which stops the queue pair, and it takes effect
// once the receive completion queue has been emptied. A peer that breaks the protocol is believed
// nothing more: then it takes effect at once.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "rsocket-core/base/mutex.h"
#include "rsocket-core/channel/channel.h"
#include "rsocket-core/channel/verbs/channel_registry.h"
#include "rsocket-core/channel/verbs/flow.h"
#include "rsocket-core/channel/verbs/queue_pair.h"

namespace ringroad {

class VerbsChannel final : public Channel {
 public:
  // Null with a reason. `id` stays the caller's until established().
  static std::unique_ptr<VerbsChannel> create(const VerbsHost& host,
                                              std::shared_ptr<EventChannel> events,
                                              std::shared_ptr<ChannelRegistry> registry,
                                              PromotionId promotion, rdma_cm_id* id,
                                              std::shared_ptr<ProtectionDomain> domain,
                                              std::size_t ring_bytes, Reason& why) noexcept;
  ~VerbsChannel() override;

  // Fills in what the peer must know of this end's ring.
  void describe(Hello& hello) const noexcept;
  // kNone when `hello` is one that this channel can work with.
  Reason check_peer(const Hello& hello) const noexcept;
  // Both ends are connected. REQUIRES: check_peer(peer) gave kNone. Takes `id` over, and enters the
  // registry (false: out of memory).
  bool established(CmId id, const Hello& peer) noexcept;
  const ibv_context* device() const noexcept { return queues_.qp()->context; }
  // The connection manager or the device says that it is over. Any thread; returns when failed().
  void end(Reason reason) noexcept RR_EXCLUDES(receive_mutex_, send_mutex_);

  View tx_view() noexcept override;
  void commit(std::size_t n) noexcept override RR_EXCLUDES(send_mutex_);
  bool send_control(const ControlMessage& message) noexcept override RR_EXCLUDES(send_mutex_);
  void flush() noexcept override RR_EXCLUDES(send_mutex_);
  View tx_replay(std::uint64_t offset) noexcept override;

  View rx_view() noexcept override;
  void consume(std::size_t n) noexcept override RR_EXCLUDES(send_mutex_);

  bool put(const void* from, std::size_t n) noexcept override RR_EXCLUDES(send_mutex_);
  std::size_t take(void* to, std::size_t n) noexcept override RR_EXCLUDES(send_mutex_);

  std::uint64_t tx_head() const noexcept override { return tx_head_.load(kAcquire); }
  std::uint64_t tx_posted() const noexcept override { return tx_posted_.load(kAcquire); }
  std::uint64_t tx_consumed() const noexcept override { return tx_consumed_.load(kAcquire); }
  std::uint64_t rx_head() const noexcept override { return rx_head_.load(kAcquire); }
  std::uint64_t rx_consumed() const noexcept override { return rx_consumed_.load(kAcquire); }

  void progress() noexcept override RR_EXCLUDES(receive_mutex_, send_mutex_);
  bool control_pending() const noexcept override {
    return controls_waiting_.load(std::memory_order_relaxed) != 0;
  }
  bool take_control(ControlMessage& out) noexcept override RR_EXCLUDES(control_mutex_);
  int wait_fd() const noexcept override { return queues_.completions()->fd; }
  bool arm() noexcept override RR_EXCLUDES(receive_mutex_, send_mutex_);
  void drain() noexcept override RR_EXCLUDES(receive_mutex_);
  bool delivered() noexcept override RR_EXCLUDES(send_mutex_);
  bool failed() const noexcept override { return failure() != Reason::kNone; }
  Reason failure() const noexcept override { return failure_.load(kAcquire); }
  void fail(Reason reason) noexcept override { end(reason); }
  void info(ChannelInfo& out) const noexcept override;

 private:
  static constexpr auto kAcquire = std::memory_order_acquire;
  static constexpr auto kRelease = std::memory_order_release;
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};

  VerbsChannel(const VerbsHost& host, std::shared_ptr<EventChannel> events,
               std::shared_ptr<ChannelRegistry> registry, PromotionId promotion,
               std::size_t ring_bytes) noexcept;

  // ---- verbs_send.cc
  [[gnu::always_inline]] bool send_slot_free(std::uint32_t reserve) noexcept
      RR_REQUIRES(send_mutex_);
  [[gnu::noinline]] void collect_sends() noexcept RR_REQUIRES(send_mutex_);
  // What it is made of, all but whether it asks for a completion.
  [[gnu::always_inline]] void fill_in_message(const std::byte* at, std::uint64_t from,
                                              std::uint64_t n) noexcept RR_REQUIRES(send_mutex_);
  bool post_message(std::uint64_t from, std::uint64_t n) noexcept RR_REQUIRES(send_mutex_);
  // What is filled in, and too long for an entry of the queue.
  [[gnu::noinline]] bool post_by_reference() noexcept RR_REQUIRES(send_mutex_);
  [[gnu::noinline]] bool hear_of_credit() noexcept RR_EXCLUDES(receive_mutex_, send_mutex_);
  [[gnu::noinline]] bool find_room(std::uint64_t head, std::size_t n) noexcept;
  [[gnu::noinline]] bool put_closely(std::uint64_t head, std::size_t n) noexcept
      RR_EXCLUDES(send_mutex_);
  void post_data() noexcept RR_REQUIRES(send_mutex_);
  void post_owed_credit() noexcept RR_REQUIRES(send_mutex_);
  bool post_control(ControlMessage message, bool signalled) noexcept RR_REQUIRES(send_mutex_);
  bool post(ibv_send_wr& request, bool signalled) noexcept RR_REQUIRES(send_mutex_);
  [[gnu::always_inline]] FlowCounts counts() const noexcept {
    return {reposted_.load(kAcquire), rx_consumed_.load(kAcquire)};
  }
  [[gnu::always_inline]] FlowCounts told() const noexcept {
    return {told_reposted_.load(std::memory_order_relaxed), told_consumed()};
  }
  std::uint64_t told_consumed() const noexcept {
    return tell_at_.load(std::memory_order_relaxed) - quarter_;
  }
  [[gnu::always_inline]] void set_told(const FlowCounts& counts) noexcept RR_REQUIRES(send_mutex_);
  // A stale view of what was told can only be too low: the counts are looked at again under the
  // lock.
  [[gnu::always_inline]] bool owes() const noexcept {
    return owes_credit(counts(), told(), ring_bytes()) || owes_end();
  }
  // A peer that has closed waits to hear that everything was consumed.
  [[gnu::always_inline]] bool owes_end() const noexcept {
    const std::uint64_t consumed = rx_consumed_.load(kAcquire);
    return consumed == peer_end_.load(kAcquire) && consumed != told_consumed();
  }

  // ---- verbs_receive.cc
  bool poll_receives() noexcept RR_REQUIRES(receive_mutex_) RR_EXCLUDES(send_mutex_);
  // The half of it that takes in what has come; what the peer is owed for it is left. True:
  // something has come.
  bool take_arrivals() noexcept RR_REQUIRES(receive_mutex_);
  // What most looks find: one message of data, and behind it an empty queue. False: it is not that,
  // and nothing was done; take_more() is next.
  [[gnu::always_inline]] bool take_one(const ibv_wc& first, int n, std::uint64_t consumed) noexcept
      RR_REQUIRES(receive_mutex_);
  // All the rest: `first` has been polled already, and there may be more.
  [[gnu::noinline]] bool take_more(const ibv_wc* first, int n) noexcept RR_REQUIRES(receive_mutex_);
  // False: the peer has broken the protocol.
  bool take_batch(const ibv_wc* done, int n) noexcept RR_REQUIRES(receive_mutex_);
  // The next one, whose number is `used`.
  [[gnu::always_inline]] void slot_used(std::uint32_t used) noexcept RR_REQUIRES(receive_mutex_);
  void answer() noexcept RR_EXCLUDES(send_mutex_);
  [[gnu::noinline]] void repost() noexcept RR_REQUIRES(receive_mutex_);
  [[gnu::always_inline]] bool take_in(const ibv_wc& completion) noexcept
      RR_REQUIRES(receive_mutex_);
  [[gnu::noinline]] bool take_counts(__be32 immediate) noexcept RR_REQUIRES(receive_mutex_)
      RR_EXCLUDES(send_mutex_);
  [[gnu::always_inline]] bool take_data(std::uint32_t bytes, __be32 immediate,
                                        std::uint64_t consumed) noexcept
      RR_REQUIRES(receive_mutex_);
  [[gnu::noinline]] bool take_message(const ControlMessage& message) noexcept
      RR_REQUIRES(receive_mutex_);
  // For a thread that has let go of receive_mutex_, and was told of `left`. True: something has come.
  bool look_again(std::uint32_t left) noexcept RR_EXCLUDES(receive_mutex_, send_mutex_) {
    return (left & Mutex::kMarked) != 0 && look();
  }
  bool look() noexcept RR_EXCLUDES(receive_mutex_, send_mutex_);
  [[gnu::noinline]] void settle_owed() noexcept RR_EXCLUDES(send_mutex_);
  // Any thread, with or without the locks.
  [[gnu::cold]] void request_failure(Reason reason) noexcept;

  const std::shared_ptr<ChannelRegistry> registry_;
  const PromotionId promotion_;
  const unsigned shift_;
  const std::uint64_t quarter_ = ring_bytes() / 4;
  QueuePair queues_;
  bool registered_ = false;
  std::uint64_t peer_ring_ = 0;
  std::uint64_t to_peer_ =
      0;  // from an address in the transmit ring to its place in the peer's, modulo 2^64
  std::uint32_t peer_rkey_ = 0;
  ChannelInfo info_;

  // Each line is written by one side and read by others.
  alignas(64) std::atomic<std::uint64_t> tx_head_{0};    // TX
  std::uint64_t room_until_ = 0;  // TX: so far the ring was seen to be free, and does not end
  std::atomic<std::uint64_t> tx_posted_{0};              // send_mutex_
  alignas(64) std::atomic<std::uint64_t> rx_head_{0};    // receive_mutex_
  std::atomic<std::uint64_t> tx_consumed_{0};            // receive_mutex_
  std::atomic<std::uint32_t> reposted_{0};               // receive_mutex_
  std::atomic<std::uint64_t> peer_end_{kNoEnd};          // receive_mutex_: what the peer's kFin says
  alignas(64) std::atomic<std::uint64_t> rx_consumed_{0};  // RX

  alignas(64) MarkedMutex receive_mutex_ RR_RANK(channel_receive)
      RR_ACQUIRED_BEFORE(send_mutex_, control_mutex_);
  // What the peer is owed depends on more than the bytes that are consumed: see owes(). Read relaxed: a
  // thread that reads the last bytes and misses the peer's end here did so before Stream::on_control() has
  // its lock, and looks again.
  std::atomic<bool> look_closer_{false};  // receive_mutex_
  // An event of the receive or the send completion queue was asked for and has not been drained.
  bool armed_ RR_GUARDED_BY(receive_mutex_) = false;
  bool send_armed_ RR_GUARDED_BY(receive_mutex_) = false;
  static constexpr int kPollBatch = 16;
  // A queue pair uses receives in the order in which they were posted (IBTA, chapter 10). Those
  // that are not posted again yet are from unposted_slot_ on, before the next; where they are a
  // batch, or the slots are at their end, the next is a multiple of kRepostBatch.
  std::uint32_t next_slot_ RR_GUARDED_BY(receive_mutex_) = 0;
  std::uint32_t unposted_slot_ RR_GUARDED_BY(receive_mutex_) = 0;
  // The last immediate, as it came, of which counts are known since; none, if a control message has told
  // more.
  static constexpr std::uint64_t kNoImmediate = ~std::uint64_t{0};
  std::uint64_t last_immediate_ RR_GUARDED_BY(receive_mutex_) = kNoImmediate;

  alignas(64) Mutex send_mutex_ RR_RANK(channel_send);
  SendWindow window_;
  // Of data: all but what is each message's own is filled in once.
  ibv_sge data_bytes_ RR_GUARDED_BY(send_mutex_){};
  ibv_send_wr data_request_ RR_GUARDED_BY(send_mutex_){};
  std::uint64_t posted_sends_ RR_GUARDED_BY(send_mutex_) = 0;     // work requests, ever
  // Data may be posted until they are so many: nothing waits before it, there is credit and room in
  // the queue for it, and none of it is to ask for a completion.
  std::uint64_t plain_until_ RR_GUARDED_BY(send_mutex_) = 0;
  std::uint64_t completed_sends_ RR_GUARDED_BY(send_mutex_) = 0;  // known to be complete
  std::uint64_t last_signalled_ RR_GUARDED_BY(send_mutex_) = 0;   // posted_sends_ after it
  std::uint64_t last_stream_send_ RR_GUARDED_BY(send_mutex_) = 0;  // data or the stream's control
  std::atomic<bool> awaits_send_{false};  // somebody waits for a send's completion
  std::atomic<std::uint32_t> told_reposted_{0};                    // send_mutex_
  // Bytes consumed of which the peer is told by a message of its own: a quarter of the ring more
  // than it was told.
  std::atomic<std::uint64_t> tell_at_{quarter_};  // send_mutex_

  Mutex control_mutex_ RR_RANK(channel_control);
  std::array<ControlMessage, kStreamReserve> controls_ RR_GUARDED_BY(control_mutex_);
  std::uint32_t controls_taken_ RR_GUARDED_BY(control_mutex_) = 0;
  std::atomic<std::uint32_t> controls_waiting_{0};

  std::atomic<Reason> requested_failure_{Reason::kNone};
  std::atomic<Reason> failure_{Reason::kNone};
};

}  // namespace ringroad
