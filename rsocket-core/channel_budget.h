// How many channels a process may have at a time (the policy's max_channels), and who gives one back:
// a stream that has not been used for as long as its rule says, or, when another one needs a channel
// and there are no more, the one that has not been used for the longest time.
//
// Nothing on the data path tells when a stream was used. Its counters of messages are looked at
// instead, when it matters, so "not used since" is known as exactly as there were looks.
//
// Thread rule: the agent thread's. May throw std::bad_alloc from add().
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "rsocket-core/stats.h"
#include "rsocket-core/stream.h"

namespace ringroad {

class ChannelBudget {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  static constexpr unsigned kUsualLimit = 1024;
  // Who was used within this time is busy: nobody takes its channel.
  static constexpr std::int64_t kBusyNs = 200'000'000;
  // How often at most all streams are looked at because others ask.
  static constexpr std::int64_t kLookPauseNs = 10'000'000;
  // What an end that answers takes to leave its channel, and plenty: a channel that is not free by
  // then is not counted upon.
  static constexpr std::int64_t kLeavePatienceNs = 100'000'000;

  enum class Room : std::uint8_t {
    kFree,    // one more may be made
    kComing,  // a stream leaves its channel for the one that asks: ask again after a remove()
    kNone,    // all are busy
  };

  // Where the numbers of channels are told; null: nowhere. Not owned.
  void report_to(stats::Segment* segment) noexcept { segment_ = segment; }
  void set_limit(unsigned limit) noexcept;
  // `stream` has a channel now.
  void add(const StreamPtr& stream, std::int64_t now_ns);
  // It has none any more. True: it had one.
  bool remove(std::uint64_t id) noexcept;
  // `made`: channels that are being made. `waiting`: those who were told kComing before.
  Room room(std::size_t made, std::size_t waiting, std::int64_t now_ns) noexcept;
  // Brings back who was not used for long enough, and, where the limit was lowered, who was used
  // least lately.
  void expire(std::int64_t now_ns) noexcept;
  // When expire() is to be called next; CLOCK_MONOTONIC.
  std::int64_t deadline_ns() const noexcept { return deadline_ns_; }

 private:
  struct Entry {
    std::weak_ptr<Stream> stream;
    std::uint64_t messages = 0;         // as they stood at the last look
    std::int64_t used_ns = 0;           // the first look at which they stood so
    std::int64_t leaves_ns = kNever;    // since when it has been asked to leave
  };

  void look(std::int64_t now_ns) noexcept;
  bool send_away(Entry& entry, std::int64_t now_ns) noexcept;
  void publish() noexcept;

  stats::Segment* segment_ = nullptr;
  unsigned limit_ = kUsualLimit;
  std::map<std::uint64_t, Entry> entries_;  // by the stream's id
  // Who was idle at the last look, longest first from the back.
  std::vector<std::pair<std::int64_t, std::uint64_t>> idle_;
  std::int64_t next_look_ns_ = 0;
  std::int64_t deadline_ns_ = kNever;
};

}  // namespace ringroad
