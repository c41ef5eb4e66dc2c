// How many channels a process may have at a time (the policy's max_channels), and which stream gives one
// back: a stream that has not been used for as long as its rule says. Or, when another stream needs a channel
// and none is free, the one that has not been used for the longest time.
//
// Nothing on the data path tells when a stream was used. The budget reads its counters of messages instead,
// when it matters. So it knows the time of the last use as exactly as it has looked.
//
// Thread rule: the agent thread's. add() may throw std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "rsocket-core/stats/stats.h"
#include "rsocket-core/stream/agent_stream.h"

namespace ringroad {

class ChannelBudget {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  static constexpr unsigned kUsualLimit = 1024;
  // A stream that was used within this time is busy and keeps its channel.
  static constexpr std::int64_t kBusyNs = 200'000'000;
  // At least so long between two looks at all streams that requests for a channel cause.
  static constexpr std::int64_t kLookPauseNs = 10'000'000;
  // More than a peer that answers takes to leave its channel. The budget does not count on a channel that
  // is not free by then.
  static constexpr std::int64_t kLeavePatienceNs = 100'000'000;

  enum class Quota : std::uint8_t {
    kFree,    // one more channel may be made
    kComing,  // a stream leaves its channel for the caller, which asks again after a remove()
    kNone,    // all are busy
  };

  // Where the budget writes the numbers of channels. Null: nowhere. Not owned.
  void report_to(stats::Segment* segment) noexcept { segment_ = segment; }
  void set_limit(unsigned limit) noexcept;
  // `stream` has a channel now.
  void add(const AgentStreamPtr& stream, std::int64_t now_ns);
  // The stream has none any more. True: it had one.
  bool remove(std::uint64_t id) noexcept;
  // Whether there is a channel for one more stream. `made`: channels that are being made. `waiting`:
  // callers that were told kComing before.
  Quota channel_quota(std::size_t made, std::size_t waiting, std::int64_t now_ns) noexcept;
  // Brings back each stream that was not used for as long as its rule says. Where the limit was lowered, also
  // those that were used least lately.
  void expire(std::int64_t now_ns) noexcept;
  // When expire() is to be called next; CLOCK_MONOTONIC.
  std::int64_t deadline_ns() const noexcept { return deadline_ns_; }

 private:
  struct Entry {
    std::weak_ptr<AgentStream> stream;
    std::uint64_t messages = 0;         // as they stood at the last look
    std::int64_t used_ns = 0;           // the first look at which they stood so
    std::int64_t leaves_ns = kNever;    // since when it has been asked to leave
  };

  // Finds out which streams were used since the last look, and drops those that have ended.
  void look(std::int64_t now_ns) noexcept;
  // Asks the stream to leave its channel. False: it cannot now, or was asked before.
  bool send_away(Entry& entry, std::int64_t now_ns) noexcept;
  void publish() noexcept;

  stats::Segment* segment_ = nullptr;
  unsigned limit_ = kUsualLimit;
  std::map<std::uint64_t, Entry> entries_;  // by the stream's id
  // Streams that were idle at the last look; the one that was idle for longest is the last.
  std::vector<std::pair<std::int64_t, std::uint64_t>> idle_;
  std::int64_t next_look_ns_ = 0;
  std::int64_t deadline_ns_ = kNever;
};

}  // namespace ringroad
