// Channels over shared memory: bytes both ways while several threads work and sleep.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "rsocket-core/channel/shm/shm_channel.h"
#include "tests/core/shm_channel_ends.h"

namespace ringroad::shm_channel_test {
namespace {

// One thread an end, both directions at once, sleeping when neither moves.
void run_duplex_end(Channel& channel, WakeUps& wake_ups, unsigned direction, std::uint64_t total,
                    bool& good) {
  std::mt19937_64 random(direction);
  std::uint64_t sent = 0, received = 0;
  bool peer_finished = false;
  good = false;
  while (sent < total || received < total || channel.tx_consumed() < total || !peer_finished) {
    bool moved = false;
    const std::uint64_t consumed_before = channel.tx_consumed();
    const Channel::View tx = channel.tx_view();
    std::size_t n = std::min<std::uint64_t>(tx.size, 1 + random() % 3000);
    n = std::min<std::uint64_t>(n, total - sent);
    if (n > 0) {
      fill(tx, n, sent, direction);
      channel.commit(n);
      sent += n;
      moved = true;
      if (sent == total && !channel.send_control(control(ControlType::kFin, total))) return;
    }
    const Channel::View rx = channel.rx_view();
    n = std::min<std::uint64_t>(rx.size, 1 + random() % 3000);
    if (n > 0) {
      if (!matches(rx, n, received, 1 - direction)) return;
      channel.consume(n);
      received += n;
      moved = true;
    }
    ControlMessage message;
    while (channel.take_control(message)) {
      if (message.value != total) return;
      peer_finished = moved = true;
    }
    // Any call above may have taken in the credit that this loop waits for, perhaps the last news.
    if (moved || channel.tx_consumed() != consumed_before) continue;
    if (channel.failed()) return;
    if (!sleep_for_news(channel, wake_ups)) return;
  }
  good = true;
}

TEST_P(ShmChannelTest, CarriesStreamsOfRandomPiecesBothWaysWhileBothEndsSleep) {
  for (const std::uint32_t ring : {4096u, 16384u, 262144u}) {
    auto [a, b] = make(ring);
    const std::uint64_t total = 16u * 1024 * 1024 / kSlowdown;
    bool good_a = false, good_b = false;
    std::thread peer([&, channel = b.get()] {
      run_duplex_end(*channel, wake_ups(*channel), 1, total, good_b);
    });
    run_duplex_end(*a, wake_ups(*a), 0, total, good_a);
    peer.join();
    EXPECT_TRUE(good_a && good_b) << "ring " << ring;
  }
}

// Four threads, spinning: a sender, a receiver and an idle prober share each end.
TEST_P(ShmChannelTest, KeepsStreamsWholeWhenEveryThreadMakesProgress) {
  auto [a, b] = make();
  const std::uint64_t total = 4u * 1024 * 1024 / kSlowdown;
  std::atomic<bool> good{true};
  std::atomic<int> running{4};
  const auto sender = [&](Channel* channel, unsigned direction) {
    for (std::uint64_t sent = 0; sent < total && good;) {
      const Channel::View view = channel->tx_view();
      const std::size_t n = std::min<std::uint64_t>({view.size, total - sent, 700});
      if (n == 0) {
        channel->progress();
        std::this_thread::yield();
        continue;
      }
      fill(view, n, sent, direction);
      channel->commit(n);
      sent += n;
    }
    --running;
  };
  const auto receiver = [&](Channel* channel, unsigned direction) {
    for (std::uint64_t received = 0; received < total && good;) {
      const Channel::View view = channel->rx_view();
      if (view.size == 0) {
        channel->progress();
        std::this_thread::yield();
        continue;
      }
      if (!matches(view, view.size, received, direction) || channel->failed()) good = false;
      channel->consume(view.size);
      received += view.size;
    }
    --running;
  };
  std::vector<std::thread> threads;
  for (unsigned end = 0; end < 2; ++end) {
    Channel* channel = end == 0 ? a.get() : b.get();
    threads.emplace_back(sender, channel, end);
    threads.emplace_back(receiver, channel, 1 - end);
    threads.emplace_back([&, channel] {
      while (running > 0) {
        channel->progress();
        channel->arm();
        channel->drain();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(good);
  EXPECT_FALSE(a->failed() || b->failed());
}

// The race of arm() against commit(): random pauses move it about.
TEST_P(ShmChannelTest, LosesNoWakeUpInAMillionMessages) {
  auto [a, b] = make();
  const int rounds = 500'000 / kSlowdown;
  std::atomic<bool> good{true};
  const auto step = [&](Channel& channel, std::uint32_t& seed) {
    seed = seed * 1664525 + 1013904223;
    for (std::uint32_t spin = (seed >> 16) & 255; spin > 0; --spin) asm volatile("" ::: "memory");
    channel.tx_view().data[0] = std::byte{1};
    channel.commit(1);
  };
  const auto await = [&](Channel& channel) {
    while (channel.rx_view().size == 0) {
      if (!good || !sleep_for_news(channel, wake_ups(channel))) return false;
      if (channel.failed()) return false;
    }
    channel.consume(1);
    if (channel.tx_view().size > 0) return true;
    channel.progress();
    return channel.tx_view().size > 0;
  };
  std::thread peer([&, channel = b.get()] {
    std::uint32_t seed = 1;
    for (int i = 0; i < rounds && good; ++i) {
      if (!await(*channel)) {
        good = false;
        return;
      }
      step(*channel, seed);
    }
  });
  std::uint32_t seed = 2;
  for (int i = 0; i < rounds && good; ++i) {
    step(*a, seed);
    if (!await(*a)) good = false;
  }
  peer.join();
  EXPECT_TRUE(good);
}

// The race of arm() against consume(): a sender that is always blocked.
TEST_P(ShmChannelTest, LosesNoWakeUpOfABlockedSender) {
  auto [a, b] = make();
  const std::uint64_t total = 64u * 1024 * 1024 / kSlowdown;
  std::atomic<bool> good{true};
  std::thread peer([&, channel = b.get()] {
    std::mt19937 random(7);
    for (std::uint64_t received = 0; received < total && good;) {
      const std::size_t n = std::min<std::size_t>(channel->rx_view().size, 1 + random() % 2048);
      if (n == 0) {
        if (!sleep_for_news(*channel, wake_ups(*channel))) good = false;
        continue;
      }
      channel->consume(n);
      received += n;
    }
  });
  for (std::uint64_t sent = 0; sent < total && good;) {
    const std::size_t n = std::min<std::uint64_t>(a->tx_view().size, total - sent);
    if (n == 0) {
      if (!sleep_for_news(*a, wake_ups(*a))) good = false;
      continue;
    }
    a->commit(n);
    sent += n;
  }
  peer.join();
  EXPECT_TRUE(good);
}

}  // namespace
}  // namespace ringroad::shm_channel_test
