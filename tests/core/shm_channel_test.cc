#include "rsocket-core/shm_channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rsocket-core/sys.h"
#include "tests/core/open_descriptors.h"

namespace ringroad {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlowdown = 10;
#else
constexpr int kSlowdown = 1;
#endif
constexpr int kHungMs = 20'000;

using Pair = std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>>;

// What stands at an offset of a direction: depends on both, so that a byte in a wrong place shows.
std::uint8_t byte_at(std::uint64_t offset, unsigned direction) {
  return static_cast<std::uint8_t>((offset * 0x9E3779B97F4A7C15u >> 32) + direction * 101);
}

void fill(Channel::View view, std::size_t n, std::uint64_t offset, unsigned direction) {
  for (std::size_t i = 0; i < n; ++i) view.data[i] = std::byte{byte_at(offset + i, direction)};
}

bool matches(Channel::View view, std::size_t n, std::uint64_t offset, unsigned direction) {
  for (std::size_t i = 0; i < n; ++i) {
    if (view.data[i] != std::byte{byte_at(offset + i, direction)}) return false;
  }
  return true;
}

void send(Channel& channel, std::string_view text) {
  const Channel::View view = channel.tx_view();
  ASSERT_GE(view.size, text.size());
  std::memcpy(view.data, text.data(), text.size());
  channel.commit(text.size());
}

std::string receive_all(Channel& channel) {
  channel.progress();
  const Channel::View view = channel.rx_view();
  std::string text(reinterpret_cast<const char*>(view.data), view.size);
  channel.consume(view.size);
  return text;
}

bool readable(int fd, int timeout_ms = 0) {
  pollfd poll_fd{fd, POLLIN, 0};
  return ::poll(&poll_fd, 1, timeout_ms) == 1;
}

// Sleeps until there is news. False: none came, so a wake-up was lost.
bool sleep_for_news(Channel& channel) {
  if (channel.arm()) {
    if (!readable(channel.wait_fd(), kHungMs)) return false;
    channel.drain();
  }
  channel.progress();
  return true;
}

ControlMessage control(ControlType type, std::uint64_t value) {
  ControlMessage message;
  message.type = static_cast<std::uint8_t>(type);
  message.value = value;
  return message;
}

class ShmChannelTest : public testing::TestWithParam<ShmWakeKind> {
 protected:
  Pair make(std::uint32_t ring_bytes = 4096) { return make_shm_pair(ring_bytes, GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Wake, ShmChannelTest,
                         testing::Values(ShmWakeKind::kEvents, ShmWakeKind::kSocket),
                         [](const auto& param_info) {
                           return param_info.param == ShmWakeKind::kEvents ? "Events" : "Socket";
                         });

// ---- Bytes

TEST_P(ShmChannelTest, CarriesBytesBothWays) {
  auto [a, b] = make();
  send(*a, "to the listener");
  send(*b, "to the connector");
  EXPECT_EQ(receive_all(*b), "to the listener");
  EXPECT_EQ(receive_all(*a), "to the connector");
}

TEST_P(ShmChannelTest, ShowsNothingBeforeProgress) {
  auto [a, b] = make();
  send(*a, "x");
  EXPECT_EQ(b->rx_view().size, 0u);
  EXPECT_EQ(b->rx_head(), 0u);
  b->progress();
  EXPECT_EQ(b->rx_view().size, 1u);
  EXPECT_EQ(b->rx_head(), 1u);
}

TEST_P(ShmChannelTest, TakesExactlyARingOfBytesUntilTheyAreConsumed) {
  auto [a, b] = make();
  ASSERT_EQ(a->tx_view().size, 4096u);
  fill(a->tx_view(), 4096, 0, 0);
  a->commit(4096);
  EXPECT_EQ(a->tx_view().size, 0u);
  b->progress();
  ASSERT_EQ(b->rx_view().size, 4096u);
  EXPECT_TRUE(matches(b->rx_view(), 4096, 0, 0));
  b->consume(4096);
  a->progress();
  EXPECT_EQ(a->tx_view().size, 4096u);
  EXPECT_EQ(a->tx_consumed(), 4096u);
}

TEST_P(ShmChannelTest, PresentsASpanThatCrossesTheEndOfTheRingAsOnePiece) {
  auto [a, b] = make();
  fill(a->tx_view(), 3000, 0, 0);
  a->commit(3000);
  b->progress();
  b->consume(3000);
  a->progress();
  ASSERT_EQ(a->tx_view().size, 4096u);
  fill(a->tx_view(), 4096, 3000, 0);
  a->commit(4096);
  b->progress();
  ASSERT_EQ(b->rx_view().size, 4096u);
  EXPECT_TRUE(matches(b->rx_view(), 4096, 3000, 0));
}

TEST_P(ShmChannelTest, PostsEverythingAtOnceAndHasItDelivered) {
  auto [a, b] = make();
  send(*a, "abc");
  EXPECT_EQ(a->tx_head(), 3u);
  EXPECT_EQ(a->tx_posted(), 3u);
  EXPECT_TRUE(a->delivered());
}

TEST_P(ShmChannelTest, ReplaysFromAnyOffsetOfTheRingAlsoAfterFailure) {
  auto [a, b] = make();
  send(*a, "0123456789");
  a->fail(Reason::kQpError);
  const Channel::View view = a->tx_replay(4);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(view.data), view.size), "456789");
  EXPECT_EQ(a->tx_replay(10).size, 0u);
}

TEST_P(ShmChannelTest, ReportsItsMemoryAndDescriptors) {
  auto [a, b] = make(65536);
  ChannelInfo info;
  a->info(info);
  EXPECT_EQ(info.carrier, Carrier::kShm);
  EXPECT_GE(info.pinned_bytes, 2 * 65536u);
  EXPECT_LE(info.pinned_bytes, 2 * 65536u + 65536u);
  EXPECT_EQ(info.descriptors, 2u);
}

TEST_P(ShmChannelTest, KeepsItsDescriptorsHighAndGivesThemBack) {
  const int before = open_descriptors();
  {
    auto [a, b] = make();
    EXPECT_EQ(open_descriptors(), before + 4);
    EXPECT_GE(a->wait_fd(), sys::kPrivateDescriptorBase);
    EXPECT_GE(b->wait_fd(), sys::kPrivateDescriptorBase);
    EXPECT_EQ(sys::fcntl(a->wait_fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
  EXPECT_EQ(open_descriptors(), before);
}

// ---- Credit

TEST_P(ShmChannelTest, ShowsConsumptionAtOnceWhenASenderCouldCare) {
  auto [a, b] = make();
  fill(a->tx_view(), 4096, 0, 0);
  a->commit(4096);
  b->progress();
  b->consume(1);
  a->progress();
  EXPECT_EQ(a->tx_consumed(), 1u);
  EXPECT_EQ(a->tx_view().size, 1u);
}

TEST_P(ShmChannelTest, ShowsRoomWithoutProgressWhenLessThanHalfIsKnownToBeFree) {
  auto [a, b] = make();
  a->commit(2049);
  b->progress();
  b->consume(2049);
  EXPECT_EQ(a->tx_view().size, 4096u);
}

TEST_P(ShmChannelTest, ShowsConsumptionExactlyAfterFin) {
  auto [a, b] = make();
  send(*a, "abcdef");
  b->progress();
  b->consume(2);
  ASSERT_TRUE(a->send_control(control(ControlType::kFin, 6)));
  a->progress();
  EXPECT_EQ(a->tx_consumed(), 2u);
  b->consume(1);
  a->progress();
  EXPECT_EQ(a->tx_consumed(), 3u);
}

TEST_P(ShmChannelTest, ShowsConsumptionInTheEndToWhoKeepsAsking) {
  auto [a, b] = make();
  send(*a, "abc");
  EXPECT_EQ(receive_all(*b), "abc");
  for (int i = 0; i < 1000 && a->tx_consumed() != 3; ++i) a->progress();
  EXPECT_EQ(a->tx_consumed(), 3u);
}

TEST_P(ShmChannelTest, WakesABlockedSenderWhenAQuarterIsFreeAndNotBefore) {
  auto [a, b] = make();
  a->commit(4096);
  ASSERT_TRUE(a->arm());
  b->progress();
  b->consume(1000);
  EXPECT_FALSE(readable(a->wait_fd()));
  b->consume(24);
  EXPECT_TRUE(readable(a->wait_fd()));
  a->drain();
  EXPECT_FALSE(readable(a->wait_fd()));
  a->progress();
  EXPECT_EQ(a->tx_view().size, 1024u);
}

TEST_P(ShmChannelTest, DoesNotWakeAReceiverForCreditThatNobodyNeeds) {
  auto [a, b] = make();
  a->commit(2048);
  ASSERT_TRUE(a->arm());
  b->progress();
  b->consume(2048);
  EXPECT_FALSE(readable(a->wait_fd()));
}

TEST_P(ShmChannelTest, WakesASleeperForCreditWhenTheRoomBecameShortAfterItFellAsleep) {
  auto [a, b] = make();
  ASSERT_TRUE(a->arm());  // an event loop, say; another thread fills the ring
  a->commit(4096);
  b->progress();
  b->consume(4096);
  EXPECT_TRUE(readable(a->wait_fd()));
}

TEST_P(ShmChannelTest, WakesASleeperThatWaitsForItsFinToBeConsumed) {
  for (const bool asleep_first : {true, false}) {
    auto [a, b] = make();
    send(*a, "abc");
    if (asleep_first) {
      ASSERT_TRUE(a->arm());
    }
    ASSERT_TRUE(a->send_control(control(ControlType::kFin, 3)));
    if (!asleep_first) {
      ASSERT_TRUE(a->arm());
    }
    b->progress();
    ControlMessage message;
    ASSERT_TRUE(b->take_control(message));
    b->consume(2);
    EXPECT_FALSE(readable(a->wait_fd()));
    b->consume(1);
    EXPECT_TRUE(readable(a->wait_fd())) << "asleep first: " << asleep_first;
  }
}

// ---- Control messages

TEST_P(ShmChannelTest, KeepsControlMessagesInOrder) {
  auto [a, b] = make();
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(a->send_control(control(ControlType::kSwitch, i)));
    ASSERT_TRUE(a->send_control(control(ControlType::kSwitchAck, i)));
    EXPECT_FALSE(b->control_pending());
    b->progress();
    EXPECT_TRUE(b->control_pending());
    ControlMessage message;
    ASSERT_TRUE(b->take_control(message));
    EXPECT_EQ(message.type, static_cast<std::uint8_t>(ControlType::kSwitch));
    EXPECT_EQ(message.value, i);
    ASSERT_TRUE(b->take_control(message));
    EXPECT_EQ(message.type, static_cast<std::uint8_t>(ControlType::kSwitchAck));
    EXPECT_FALSE(b->take_control(message));
    EXPECT_FALSE(b->control_pending());
  }
}

TEST_P(ShmChannelTest, RefusesControlBeyondItsReserveUntilSomeIsTaken) {
  auto [a, b] = make();
  for (std::uint32_t i = 0; i < kShmControlSlots; ++i) {
    ASSERT_TRUE(a->send_control(control(ControlType::kSwitch, i)));
  }
  EXPECT_FALSE(a->send_control(control(ControlType::kSwitch, 99)));
  ControlMessage message;
  b->progress();
  ASSERT_TRUE(b->take_control(message));
  EXPECT_TRUE(a->send_control(control(ControlType::kSwitch, 99)));
  EXPECT_FALSE(a->failed());
}

TEST_P(ShmChannelTest, SendsControlWhileTheRingIsFull) {
  auto [a, b] = make();
  a->commit(4096);
  EXPECT_TRUE(a->send_control(control(ControlType::kGiveUp, 0)));
  b->progress();
  EXPECT_TRUE(b->control_pending());
}

// ---- Waiting

TEST_P(ShmChannelTest, WakesASleeperForData) {
  auto [a, b] = make();
  ASSERT_TRUE(b->arm());
  EXPECT_FALSE(readable(b->wait_fd()));
  send(*a, "x");
  EXPECT_TRUE(readable(b->wait_fd()));
}

TEST_P(ShmChannelTest, WakesASleeperForControl) {
  auto [a, b] = make();
  ASSERT_TRUE(b->arm());
  ASSERT_TRUE(a->send_control(control(ControlType::kGiveUp, 0)));
  EXPECT_TRUE(readable(b->wait_fd()));
}

TEST_P(ShmChannelTest, DoesNotArmOverNews) {
  auto [a, b] = make();
  send(*a, "x");
  EXPECT_FALSE(b->arm());
  b->progress();
  EXPECT_TRUE(b->arm()) << "unread data that progress() showed is no news";
  ASSERT_TRUE(a->send_control(control(ControlType::kGiveUp, 0)));
  b->drain();
  EXPECT_FALSE(b->arm());
  b->progress();
  EXPECT_TRUE(b->arm());
}

TEST_P(ShmChannelTest, DoesNotArmOverCredit) {
  auto [a, b] = make();
  a->commit(4096);
  b->progress();
  b->consume(4096);
  EXPECT_FALSE(a->arm());
  a->progress();
  EXPECT_TRUE(a->arm());
}

TEST_P(ShmChannelTest, WritesNoWakeUpToAPeerThatIsAwake) {
  auto [a, b] = make();
  send(*a, "x");
  EXPECT_FALSE(readable(b->wait_fd()));
}

TEST_P(ShmChannelTest, WakesOncePerArm) {
  auto [a, b] = make();
  ASSERT_TRUE(b->arm());
  send(*a, "x");
  b->drain();
  send(*a, "y");
  EXPECT_FALSE(readable(b->wait_fd()));
}

// ---- The end

TEST_P(ShmChannelTest, FailsOnlyAfterAllDataAndControlOfAClosedPeerAreTaken) {
  auto [a, b] = make();
  send(*a, "last words");
  ASSERT_TRUE(a->send_control(control(ControlType::kFin, 10)));
  a.reset();
  b->progress();
  EXPECT_FALSE(b->failed());
  ControlMessage message;
  ASSERT_TRUE(b->take_control(message));
  EXPECT_FALSE(b->failed());
  b->consume(9);
  EXPECT_FALSE(b->failed());
  b->consume(1);
  EXPECT_EQ(b->failure(), Reason::kPeerGone);
}

TEST_P(ShmChannelTest, FailsAfterTheLastControlMessageWhenThatIsTakenLast) {
  auto [a, b] = make();
  ASSERT_TRUE(a->send_control(control(ControlType::kGiveUp, 0)));
  a.reset();
  b->progress();
  EXPECT_FALSE(b->failed());
  ControlMessage message;
  ASSERT_TRUE(b->take_control(message));
  EXPECT_EQ(b->failure(), Reason::kPeerGone);
}

TEST_P(ShmChannelTest, WakesASleeperWhenThePeerCloses) {
  auto [a, b] = make();
  ASSERT_TRUE(b->arm());
  a.reset();
  EXPECT_TRUE(readable(b->wait_fd()));
  b->drain();
  EXPECT_FALSE(b->arm());
  b->progress();
  EXPECT_EQ(b->failure(), Reason::kPeerGone);
}

TEST_P(ShmChannelTest, IsQuietBetweenThePeersEndAndTheLastByte) {
  auto [a, b] = make();
  send(*a, "x");
  a.reset();
  b->drain();
  b->progress();
  EXPECT_TRUE(b->arm());
  EXPECT_FALSE(readable(b->wait_fd())) << "a descriptor that stays readable makes its poller spin";
  b->consume(1);
  EXPECT_TRUE(readable(b->wait_fd())) << "the failure wakes the others";
}

TEST_P(ShmChannelTest, ForkedChildThatDropsItsCopyLeavesTheParentsStreamAlone) {
  auto [a, b] = make();
  const pid_t child = fork();
  if (child == 0) {
    a.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  send(*a, "x");
  EXPECT_EQ(receive_all(*b), "x");
  EXPECT_FALSE(b->failed());
}

TEST_P(ShmChannelTest, KeepsTheFirstReasonAndWakesItsOwnSleepers) {
  auto [a, b] = make();
  ASSERT_TRUE(a->arm());
  a->fail(Reason::kOperator);
  a->fail(Reason::kPeerGone);
  EXPECT_TRUE(a->failed());
  EXPECT_EQ(a->failure(), Reason::kOperator);
  EXPECT_TRUE(readable(a->wait_fd()));
  EXPECT_FALSE(a->arm());
  EXPECT_FALSE(a->send_control(control(ControlType::kGiveUp, 0)));
}

TEST_P(ShmChannelTest, TakesInWhatADeadPeerHadWritten) {
  auto [a, b] = make();
  send(*a, "x");
  ASSERT_TRUE(a->send_control(control(ControlType::kFin, 1)));
  b->fail(Reason::kPeerGone);
  EXPECT_EQ(b->rx_view().size, 1u);
  EXPECT_TRUE(b->control_pending());
}

// ---- Streams

// One thread an end, both directions at once, sleeping when neither moves.
void run_duplex_end(Channel& channel, unsigned direction, std::uint64_t total, bool& good) {
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
    if (!sleep_for_news(channel)) return;
  }
  good = true;
}

TEST_P(ShmChannelTest, CarriesStreamsOfRandomPiecesBothWaysWhileBothEndsSleep) {
  for (const std::uint32_t ring : {4096u, 16384u, 262144u}) {
    auto [a, b] = make(ring);
    const std::uint64_t total = 16u * 1024 * 1024 / kSlowdown;
    bool good_a = false, good_b = false;
    std::thread peer([&, channel = b.get()] { run_duplex_end(*channel, 1, total, good_b); });
    run_duplex_end(*a, 0, total, good_a);
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
      if (!good || !sleep_for_news(channel)) return false;
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
        if (!sleep_for_news(*channel)) good = false;
        continue;
      }
      channel->consume(n);
      received += n;
    }
  });
  for (std::uint64_t sent = 0; sent < total && good;) {
    const std::size_t n = std::min<std::uint64_t>(a->tx_view().size, total - sent);
    if (n == 0) {
      if (!sleep_for_news(*a)) good = false;
      continue;
    }
    a->commit(n);
    sent += n;
  }
  peer.join();
  EXPECT_TRUE(good);
}

// ---- Lies

struct Rig {
  std::shared_ptr<ShmMemory> memory;
  std::unique_ptr<ShmChannel> victim;  // the listener
  ShmWake liar_wake;

  ShmSide& liar() { return memory->header().side[0]; }
  ShmSide& own() { return memory->header().side[1]; }
};

Rig make_rig(std::size_t ring_bytes = 4096) {
  Rig rig;
  int memfd = -1;
  Reason why = Reason::kNone;
  rig.memory = ShmMemory::create(ring_bytes, memfd, why);
  sys::close_quietly(memfd);
  ShmWake wake;
  EXPECT_TRUE(ShmWake::make_pair(ShmWakeKind::kEvents, rig.liar_wake, wake, why));
  rig.victim =
      std::make_unique<ShmChannel>(rig.memory, ShmSideIndex::kListener, std::move(wake));
  return rig;
}

TEST(ShmChannelLies, RefusesATailBeyondTheRing) {
  Rig rig = make_rig();
  rig.liar().tail = 4096;
  rig.victim->progress();
  EXPECT_FALSE(rig.victim->failed());
  rig.liar().tail = 4097;
  rig.victim->progress();
  EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest);
  EXPECT_EQ(rig.victim->rx_view().size, 4096u);
}

TEST(ShmChannelLies, RefusesATailThatGoesBack) {
  Rig rig = make_rig();
  rig.liar().tail = 100;
  rig.victim->progress();
  rig.liar().tail = 99;
  rig.victim->progress();
  EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest);
  EXPECT_EQ(rig.victim->rx_view().size, 100u);
}

// As far ahead as a signed distance reaches, and so too far from what was consumed for one.
TEST(ShmChannelLies, RefusesATailHalfOfAllNumbersAhead) {
  Rig rig = make_rig();
  rig.liar().tail = 100;
  rig.victim->progress();
  rig.liar().tail = 100 + (std::uint64_t{1} << 63) - 1;
  rig.victim->progress();
  EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest);
  EXPECT_EQ(rig.victim->rx_view().size, 100u);
}

TEST(ShmChannelLies, RefusesAControlTailHalfOfAllNumbersAhead) {
  Rig rig = make_rig();
  rig.liar().control_tail = 1;
  rig.victim->progress();
  rig.liar().control_tail = 1 + (std::uint32_t{1} << 31) - 1;
  rig.victim->progress();
  EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest);
}

TEST(ShmChannelLies, RefusesConsumptionOfWhatWasNeverSent) {
  Rig rig = make_rig();
  rig.victim->commit(2000);
  rig.liar().consumed = 2001;
  rig.victim->progress();
  EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest);
  EXPECT_EQ(rig.victim->tx_consumed(), 0u);
}

TEST(ShmChannelLies, RefusesConsumptionThatGoesBack) {
  Rig rig = make_rig();
  rig.victim->commit(2000);
  rig.liar().consumed = 900;
  rig.victim->progress();
  EXPECT_FALSE(rig.victim->failed());
  rig.liar().consumed = 899;
  rig.victim->progress();
  EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest);
  EXPECT_EQ(rig.victim->tx_consumed(), 900u);
}

TEST(ShmChannelLies, RefusesMoreControlMessagesThanThereAreSlots) {
  Rig rig = make_rig();
  rig.liar().control_tail = kShmControlSlots + 1;
  rig.victim->progress();
  EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest);
  EXPECT_FALSE(rig.victim->control_pending());
}

TEST(ShmChannelLies, RefusesAControlTailThatGoesBack) {
  Rig rig = make_rig();
  rig.liar().control_tail = 0xffffffff;
  rig.victim->progress();
  EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest);
}

TEST(ShmChannelLies, RefusesAControlHeadThatWasNeverSent) {
  for (const std::uint32_t head : {kShmControlSlots + 1, 0xffffffffu}) {
    Rig rig = make_rig();
    for (std::uint32_t i = 0; i < kShmControlSlots; ++i) {
      ASSERT_TRUE(rig.victim->send_control(control(ControlType::kSwitch, 0)));
    }
    rig.liar().control_head = head;
    EXPECT_FALSE(rig.victim->send_control(control(ControlType::kSwitch, 0)));
    EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest);
  }
}

TEST(ShmChannelLies, RefusesMalformedControlMessages) {
  ControlMessage messages[8];
  std::fill(std::begin(messages), std::end(messages), control(ControlType::kFin, 0));
  messages[0].type = 0;
  messages[1].type = static_cast<std::uint8_t>(ControlType::kCredit);
  messages[2].type = 7;
  messages[3].reason = static_cast<std::uint8_t>(Reason::kCount);
  messages[4].zero16 = 1;
  messages[5].credits = 1;
  messages[6].consumed = 1;
  messages[7].proof = 1;  // which only SWITCH has
  for (const ControlMessage& bad : messages) {
    Rig rig = make_rig();
    std::memcpy(static_cast<void*>(&rig.liar().control[0]), &bad, sizeof bad);
    rig.liar().control_tail = 1;
    rig.victim->progress();
    ControlMessage message;
    EXPECT_FALSE(rig.victim->take_control(message));
    EXPECT_EQ(rig.victim->failure(), Reason::kBadRequest) << &bad - messages;
  }
}

// Random values all over the header while the victim works: it may fail, but it must stay inside
// its rings, and it must never move a cursor back.
TEST(ShmChannelLies, StaysInsideItsRingsWhateverStandsInTheHeader) {
  std::mt19937_64 random(42);
  int failures = 0;
  for (int round = 0; round < 400 / kSlowdown; ++round) {
    Rig rig = make_rig();
    std::atomic<bool> stop{false};
    std::thread scribbler([&, seed = random()] {
      std::mt19937_64 lies(seed);
      auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(&rig.memory->header());
      constexpr std::size_t kWords = kShmHeaderBytes / sizeof(std::uint64_t);
      constexpr std::size_t kHot[] = {0, 1, 16, 17, 32, 48};  // the cursors and the first slot
      while (!stop.load(std::memory_order_relaxed)) {
        const std::uint64_t r = lies();
        const std::size_t index =
            (r & 1) != 0 ? r / 2 % kWords : (r / 2 % 2) * 256 + kHot[r / 4 % std::size(kHot)];
        const std::uint64_t old = words[index].load(std::memory_order_relaxed);
        const std::uint64_t value = (r >> 40) % 4 == 0 ? lies() : old + (r >> 32) % 3;
        words[index].store(value, std::memory_order_relaxed);
        if ((r >> 20) % 64 == 0) std::this_thread::yield();
      }
    });
    const std::byte* rx_base = rig.memory->ring(0).base();
    const std::byte* tx_base = rig.memory->ring(1).base();
    std::uint64_t rx_head = 0, tx_consumed = 0;
    for (int i = 0; i < 2000; ++i) {
      ShmChannel& victim = *rig.victim;
      victim.progress();
      ASSERT_GE(victim.rx_head(), rx_head);
      ASSERT_GE(victim.tx_consumed(), tx_consumed);
      rx_head = victim.rx_head();
      tx_consumed = victim.tx_consumed();
      const Channel::View rx = victim.rx_view();
      ASSERT_LE(rx.size, 4096u);
      ASSERT_TRUE(rx.data >= rx_base && rx.data + rx.size <= rx_base + 8192);
      victim.consume(rx.size / 2);
      const Channel::View tx = victim.tx_view();
      ASSERT_LE(tx.size, 4096u);
      ASSERT_TRUE(tx.data >= tx_base && tx.data + tx.size <= tx_base + 8192);
      std::memset(tx.data, i, tx.size);
      victim.commit(tx.size / 2);
      victim.send_control(control(ControlType::kSwitch, 1));
      ControlMessage message;
      while (victim.take_control(message)) {
        ASSERT_GE(message.type, static_cast<std::uint8_t>(ControlType::kSwitch));
        ASSERT_LE(message.type, static_cast<std::uint8_t>(ControlType::kLeft));
      }
      victim.arm();
      victim.drain();
      if (victim.failed()) break;
    }
    failures += rig.victim->failed() ? 1 : 0;
    stop = true;
    scribbler.join();
  }
  EXPECT_GT(failures, 0) << "the lies were too timid to test anything";
}

// ---- Death

TEST(ShmChannelDeath, LeavesWhatTheDeadProcessHadCommitted) {
  auto [a, b] = make_shm_pair(65536);
  const pid_t child = fork();
  if (child == 0) {
    for (std::uint64_t sent = 0; sent < 50'000; sent += 1000) {
      fill(b->tx_view(), 1000, sent, 1);
      b->commit(1000);
    }
    kill(sys::getpid(), SIGKILL);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  a->progress();
  EXPECT_FALSE(a->failed()) << "TCP tells; the channel cannot";
  ASSERT_EQ(a->rx_view().size, 50'000u);
  EXPECT_TRUE(matches(a->rx_view(), 50'000, 0, 1));
  a->fail(Reason::kPeerGone);
  EXPECT_EQ(a->rx_view().size, 50'000u);
}

// The victim must not hang on a peer that is stopped or dead with a full socket queue.
TEST(ShmChannelDeath, WakingADeadPeerNeitherWaitsNorRaisesASignal) {
  for (const ShmWakeKind kind : {ShmWakeKind::kEvents, ShmWakeKind::kSocket}) {
    ShmWake mine, gone;
    Reason why = Reason::kNone;
    ASSERT_TRUE(ShmWake::make_pair(kind, mine, gone, why));
    for (int i = 0; i < 5000; ++i) mine.signal_peer();
    gone = ShmWake();
    for (int i = 0; i < 10; ++i) mine.signal_peer();
    mine.drain();
  }
}

TEST(ShmWakeTest, StaysReadableWhileAFloodIsNotDrained) {
  ShmWake mine, peer;
  Reason why = Reason::kNone;
  ASSERT_TRUE(ShmWake::make_pair(ShmWakeKind::kSocket, mine, peer, why));
  int drains = 0;
  for (int i = 0; i < 100; ++i) peer.signal_peer();
  for (; readable(mine.fd()) && drains < 1000; ++drains) mine.drain();
  EXPECT_GT(drains, 1) << "one drain must not go on for as long as a peer likes";
  EXPECT_LT(drains, 1000);
  peer.signal_peer();
  EXPECT_TRUE(readable(mine.fd()));
}

TEST(ShmWakeTest, AdoptsEventfdsOnly) {
  const int event = sys::eventfd(0, EFD_CLOEXEC);
  EXPECT_TRUE(adopt_wake_event(event));
  EXPECT_NE(sys::fcntl(event, F_GETFL) & O_NONBLOCK, 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(adopt_wake_event(ends[1]));
  const int epoll = sys::epoll_create1(EPOLL_CLOEXEC);
  EXPECT_FALSE(adopt_wake_event(epoll));
  for (const int fd : {event, ends[0], ends[1], epoll}) sys::close_quietly(fd);
  EXPECT_FALSE(adopt_wake_event(event));
}

TEST(ShmMemoryTest, MapsNothingButASealedFileOfTheRightSize) {
  Reason why = Reason::kNone;
  int memfd = -1;
  auto memory = ShmMemory::create(4096, memfd, why);
  ASSERT_NE(memory, nullptr);
  EXPECT_NE(ShmMemory::map(memfd, 4096, why), nullptr);
  EXPECT_EQ(ShmMemory::map(memfd, 8192, why), nullptr);
  EXPECT_EQ(why, Reason::kBadRequest);
  sys::close_quietly(memfd);

  const int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(loose, static_cast<off_t>(shm_file_bytes(4096))), 0);
  why = Reason::kNone;
  EXPECT_EQ(ShmMemory::map(loose, 4096, why), nullptr);
  EXPECT_EQ(why, Reason::kBadRequest);
  why = Reason::kNone;
  ASSERT_EQ(sys::fcntl(loose, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
  EXPECT_EQ(ShmMemory::map(loose, 4096, why), nullptr) << "sealed against writing";
  EXPECT_EQ(why, Reason::kBadRequest);
  sys::close_quietly(loose);
}

}  // namespace
}  // namespace ringroad
