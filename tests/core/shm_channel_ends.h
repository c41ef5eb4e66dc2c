// The two ends of a channel over shared memory in one process, and what a test does with them.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rsocket-core/channel/shm/shm_channel.h"
#include "tests/core/wake_ups.h"

namespace ringroad::shm_channel_test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowdown = 10;
#else
inline constexpr int kSlowdown = 1;
#endif
inline constexpr int kHungMs = 20'000;

using Pair = std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>>;

// What stands at an offset of a direction: depends on both, so that a byte in a wrong place shows.
inline std::uint8_t byte_at(std::uint64_t offset, unsigned direction) {
  return static_cast<std::uint8_t>((offset * 0x9E3779B97F4A7C15u >> 32) + direction * 101);
}

inline void fill(Channel::View view, std::size_t n, std::uint64_t offset, unsigned direction) {
  for (std::size_t i = 0; i < n; ++i) view.data[i] = std::byte{byte_at(offset + i, direction)};
}

inline bool matches(Channel::View view, std::size_t n, std::uint64_t offset, unsigned direction) {
  for (std::size_t i = 0; i < n; ++i) {
    if (view.data[i] != std::byte{byte_at(offset + i, direction)}) return false;
  }
  return true;
}

inline void send(Channel& channel, std::string_view text) {
  const Channel::View view = channel.tx_view();
  ASSERT_GE(view.size, text.size());
  std::memcpy(view.data, text.data(), text.size());
  channel.commit(text.size());
}

inline std::string receive_all(Channel& channel) {
  channel.progress();
  const Channel::View view = channel.rx_view();
  std::string text(reinterpret_cast<const char*>(view.data), view.size);
  channel.consume(view.size);
  return text;
}

inline bool readable(int fd, int timeout_ms = 0) {
  pollfd poll_fd{fd, POLLIN, 0};
  return ::poll(&poll_fd, 1, timeout_ms) == 1;
}

// Sleeps until there is news. False: none came, so a wake-up was lost.
inline bool sleep_for_news(Channel& channel, WakeUps& wake_ups) {
  if (channel.arm()) {
    if (!wake_ups.told(kHungMs)) return false;
    channel.drain();
  }
  channel.progress();
  return true;
}

inline ControlMessage control(ControlType type, std::uint64_t value) {
  ControlMessage message;
  message.type = static_cast<std::uint8_t>(type);
  message.value = value;
  return message;
}

class ShmChannelTest : public testing::TestWithParam<ShmWakeKind> {
 protected:
  Pair make(std::uint32_t ring_bytes = 4096) {
    Pair pair = make_shm_pair(ring_bytes, GetParam());
    for (const Channel* end : {pair.first.get(), pair.second.get()}) {
      wake_ups_.erase(end);
      wake_ups_.try_emplace(end, *end);
    }
    return pair;
  }
  WakeUps& wake_ups(const Channel& end) { return wake_ups_.at(&end); }
  bool told(const Channel& end) { return wake_ups(end).told(); }

 private:
  std::map<const Channel*, WakeUps> wake_ups_;
};

}  // namespace ringroad::shm_channel_test
