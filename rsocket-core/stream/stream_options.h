// Options of a stream's socket that the library has to know, each asked for when it is first needed.
#pragma once

#include <atomic>
#include <cstdint>

#include "rsocket-core/stream/stream_stats.h"

namespace ringroad {

class StreamOptions : public StreamStats {
 public:
  void set_nonblocking(bool on) noexcept { nonblocking_.store(on, std::memory_order_relaxed); }
  bool nonblocking() const noexcept;
  void set_options_changed() noexcept { known_options_.store(0, std::memory_order_release); }
  // SO_SNDTIMEO or SO_RCVTIMEO is set, `over` to less than 0: no call waits. The kernel reads that back as 0,
  // which is also no time-out.
  void set_time_out(bool sending, bool over) noexcept {
    (sending ? never_waits_to_send_ : never_waits_to_receive_).store(over, std::memory_order_relaxed);
  }
  // Another process may have the descriptor too: the stream stays on TCP while one does.
  bool shared() const noexcept { return shared_.load(std::memory_order_acquire); }

 protected:
  enum class Option : std::uint8_t {
    kRecvTimeout = 1, kSendTimeout = 2, kTellsUnread = 4, kUserTimeout = 8
  };

  StreamOptions(StreamHost* host, stats::Segment* segment, std::uint64_t id, int fd, Role role,
                const FourTuple& tuple, const StreamConfig& config, bool nonblocking) noexcept
      : StreamStats(host, segment, id, fd, role, tuple, config), nonblocking_(nonblocking) {}
  ~StreamOptions() = default;

  void learn(Option option) noexcept;
  // When a call that begins now gives up.
  std::int64_t io_deadline(bool sending) noexcept;

  std::atomic<bool> nonblocking_;
  std::atomic<bool> shared_{false};
  std::atomic<bool> tells_unread_{false};
  std::atomic<std::int64_t> user_timeout_ns_{0};  // TCP_USER_TIMEOUT; 0: none

 private:
  std::atomic<std::uint8_t> known_options_{0};    // Option: which of these
  std::atomic<std::int64_t> send_timeout_ns_{0};  // 0: none
  std::atomic<std::int64_t> recv_timeout_ns_{0};
  std::atomic<bool> never_waits_to_send_{false}, never_waits_to_receive_{false};
};

}  // namespace ringroad
