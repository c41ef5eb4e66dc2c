// One TCP connection that the policy lets off the kernel: the program's descriptor stays the real, connected
// socket, and each direction is carried by the kernel or by a channel. docs/protocol.md describes the
// exchange; stream_core.h has the classes that this one stands on.
//
// This is the program's face of a stream. The agent's is AgentStream (agent_stream.h).
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>

#include "rsocket-core/base/deferred_use.h"
#include "rsocket-core/stream/stream_readiness.h"

namespace ringroad {

class Stream : public StreamReadiness, public std::enable_shared_from_this<Stream> {
 public:
  // ---- The program's calls (stream_io.cc, stream_recv.cc, stream_sockopts.cc). As recv(2),
  // send(2): the result, or -1 and errno, which may be ERESTART: the caller looks the number up and makes the
  // call anew. SIGPIPE is raised here unless MSG_NOSIGNAL is given.
  // Cancellation points, but for a send whose sleep is not to be one: -1 and ECANCELED when the thread is
  // ended, whatever has been transferred.
  ssize_t send(const iovec* iov, int count, int flags, Sleep sleep = Sleep::kCancellable) noexcept;
  ssize_t recv(const iovec* iov, int count, int flags) noexcept;
  // The same of one piece, without flags, if that is possible in a few instructions (stream_fastpath.h).
  // -1: it is not, and nothing has been done.
  ssize_t send_short(const void* from, std::size_t n) noexcept;
  ssize_t recv_short(void* to, std::size_t n) noexcept;
  int shutdown(int how) noexcept;
  int take_error() noexcept;    // SO_ERROR
  int unread_bytes() noexcept;  // FIONREAD
  int unsent_bytes() noexcept;  // SIOCOUTQ
  // TCP_INFO's state: that of the kernel, which hears of no end that goes by the channel.
  std::uint8_t tcp_state(std::uint8_t of_kernel) noexcept;
  // For the program's calls about TCP_NODELAY, which has another value while a frame is written.
  template <typename Call>
  auto between_frames(Call call) noexcept {
    MutexLock lock(tx_mutex_);
    return call();
  }
  // What TCP_INQ tells after a receive: unread bytes, and one for the peer's end; -1 without it.
  int unread_to_tell() noexcept;

  // ---- Life of the descriptor
  // The program sees the connection established (0 bytes), or has sent or received a message of
  // `bytes`. Starts promotion when the rule's threshold is passed.
  void note_use(std::size_t messages, std::size_t bytes) noexcept;
  // One of DeferredUse::in_flight_calls has returned, and has transferred so many bytes, or none.
  void on_deferred_call_returned(bool sent, std::size_t bytes) noexcept;
  // Keeps the stream on TCP for good, bringing it back if it is on a channel, and sleeps until it
  // is there or `timeout_ns` is over. True when it is. `can_be_woken`: false in a vfork child, whose
  // descriptors have other numbers than those of the threads that would wake it.
  bool demote_for_good(Reason reason, std::int64_t timeout_ns, bool can_be_woken = true) noexcept;
  // The program closed its last descriptor `fd`; `busy` if another thread is inside a call. True:
  // close it now. False: the stream has taken a private duplicate, and finishes by itself.
  bool close_by_program(bool busy) noexcept;
  // The number names this socket no longer, nor does any other: close_by_program() will not touch it.
  void descriptor_is_gone() noexcept;
  // Another number for the same open file (the program closed the first of several).
  void renumber(int new_fd) noexcept;

  // ---- A program without the library may read on (unread_return.cc)
  // Whether the kernel has all that the program has not read, and nothing else.
  bool kernel_can_serve() noexcept;
  // Where it has not, and will not: each process that has the descriptor is told of a reset, never of an end.
  void cut_unless_served() noexcept;

  // ---- fork(2) (stream_fork.cc)
  // What the process' family calls the connection (ProcessGroup::ConnectionId); 0: it is not entered there.
  std::uint64_t share() const noexcept { return share_.load(std::memory_order_relaxed); }
  void set_share(std::uint64_t share) noexcept { share_.store(share, std::memory_order_relaxed); }
  std::uint64_t take_share() noexcept { return share_.exchange(0, std::memory_order_relaxed); }
  // Whether a child can go on with it by itself: it is on TCP, and nothing of an exchange or of the
  // program's keeps it there. Cancels a channel that is being built.
  bool can_be_shared() noexcept;
  // From now on a child has it too. False: can_be_shared() no longer.
  bool become_shared() noexcept;

 protected:
  // See AgentStream.
  Stream(StreamHost* host, stats::Segment* segment, std::uint64_t id, int fd, Role role,
         const FourTuple& tuple, const StreamConfig& config, bool nonblocking,
         const DeferredUse& early) noexcept;
  ~Stream();

 private:
  enum class Step : std::uint8_t { kDone, kWouldBlock, kError, kService };
  struct IoResult {
    Step step = Step::kWouldBlock;
    std::size_t bytes = 0;
    int error = 0;
    bool more_elsewhere = false;    // the next bytes come from the channel
    bool between_carriers = false;  // nothing, until the next frame has been found
  };

  // stream_io.cc
  ssize_t send_long(const iovec* iov, int count, int flags, Sleep sleep) noexcept;
  IoResult try_send(const iovec* iov, int count, std::size_t skip, int flags) noexcept RR_REQUIRES(tx_mutex_);
  int tell_error(std::size_t done) noexcept;
  IoResult kernel_refused(std::size_t done) noexcept;
  // A call of libc's has transferred so many bytes.
  void count_early(bool sent, std::size_t bytes) noexcept;
  // stream_recv.cc
  ssize_t recv_long(const iovec* iov, int count, int flags) noexcept;
  IoResult try_recv(const iovec* iov, int count, std::size_t skip, int flags) noexcept
      RR_REQUIRES(rx_mutex_);
  IoResult recv_tcp(const iovec* iov, int count, std::size_t skip, int flags) noexcept
      RR_REQUIRES(rx_mutex_);
  IoResult recv_ring(const iovec* iov, int count, std::size_t skip, int flags) noexcept
      RR_REQUIRES(rx_mutex_);
  IoResult recv_again(const iovec* iov, int count, std::size_t skip, int flags) noexcept
      RR_REQUIRES(rx_mutex_);
  ssize_t peek_over_frames(const iovec* iov, int count, std::size_t skip, std::size_t limit,
                           int flags) noexcept RR_REQUIRES(rx_mutex_);
  // stream_peek.cc. As recv() with MSG_PEEK and MSG_WAITALL, of a call that may sleep.
  ssize_t peek_all(const iovec* iov, int count, int flags) noexcept;
  bool nothing_follows() noexcept;

  std::atomic<bool> sent_last_{false};  // on TCP: nothing was received since
  std::atomic<std::uint64_t> share_{0};
};

}  // namespace ringroad
