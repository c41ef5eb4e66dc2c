// What a stream is told when it is made, and what it asks of the agent.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "rsocket-core/net/role.h"
#include "rsocket-core/protocol/proof.h"

namespace ringroad {

class Stream;
using StreamPtr = std::shared_ptr<Stream>;

// What the policy rule says about one connection.
struct StreamConfig {
  char rule[64] = {};
  bool via_shm = false;
  bool via_rdma = false;
  char device[32] = {};
  SharedKey key;
  bool has_traffic_class = false;
  std::uint8_t traffic_class = 0;
  std::int64_t detect_ns = 500'000'000;  // RDMA: a peer that acknowledges nothing for so long is gone
  std::uint32_t ring_bytes = 256 * 1024;
  std::int64_t spin_ns = 50'000;  // longest polling before a sleep
  std::int64_t wait_ns = 0;       // how long connect and accept may wait for the promotion
  std::int64_t idle_ns = 0;       // not used for so long, it gives its channel back; 0: never
  // Promotion starts once either is reached; max() = not given.
  std::uint64_t promote_messages = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t promote_bytes = std::numeric_limits<std::uint64_t>::max();
};

// What a stream asks of the agent. Callable with the stream's locks held.
class StreamHost {
 public:
  // The agent thread is to call service() soon.
  virtual void attend(Stream& stream) noexcept = 0;
  // The threshold is passed: build a channel.
  virtual void start_promotion(Stream& stream) noexcept = 0;
  // The number of the TCP descriptor changes: stop watching the old one before it is closed.
  virtual void unwatch(Stream& stream, int old_fd) noexcept = 0;
  // No other process has the descriptor, as far as its family knows (process_group.h).
  virtual bool holds_alone(const Stream&) noexcept { return true; }
  // The stream is at its end, and so is this process' hold on what Stream::share() named.
  virtual void release_share(std::uint64_t) noexcept {}
  // A process that is not of the family has the descriptor.
  virtual void keep_share(std::uint64_t) noexcept {}
  // Whether the preloaded library sees all calls of libc that the program makes. If not, a wait that was not
  // seen proves nothing.
  virtual bool sees_waits() noexcept { return false; }
  // Whether the program waits for the stream by means that were not seen, or nobody can tell. Of one that is
  // `awaited`, whether a thread surely waits so now.
  virtual bool waits_past(const Stream&, bool /*awaited*/) noexcept { return false; }

 protected:
  ~StreamHost() = default;
};

}  // namespace ringroad
