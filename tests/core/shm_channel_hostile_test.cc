// Channels over shared memory whose peer lies in the header, or dies.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_channel.h"
#include "tests/core/shm_channel_ends.h"

namespace ringroad::shm_channel_test {
namespace {

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
  for (const ShmWakeKind kind : {ShmWakeKind::kEvents, ShmWakeKind::kSocket, ShmWakeKind::kOneEvent}) {
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
}  // namespace ringroad::shm_channel_test
