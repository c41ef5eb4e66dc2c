// How an end of a channel over shared memory is woken: on a word of the memory, and by one eventfd.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "rsocket-core/base/futex.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/shm/shm_channel.h"
#include "tests/core/shm_channel_ends.h"
#include "tests/core/wake_ups.h"

namespace ringroad::shm_channel_test {
namespace {

// Sleeps on the word of `channel` until somebody changes it. False: nobody did.
bool is_rung(Channel& channel, const Channel::WaitWord& on) {
  const timespec at_most{kHungMs / 1000, 0};
  return channel.wait_word().value != on.value && sys::futex_wait(on.word.get(), on.value, &at_most) == 1;
}

TEST(ShmChannelWord, IsRungByWhatAnEndWaitsForAndTheDescriptorIsNot) {
  auto [a, b] = make_shm_pair(4096);
  WakeUps wake_ups(*b);
  const Channel::WaitWord on = b->wait_word();
  ASSERT_TRUE(on);
  ASSERT_TRUE(b->arm_word());
  EXPECT_EQ(b->wait_word().value, on.value);
  send(*a, "x");
  EXPECT_TRUE(is_rung(*b, on));
  EXPECT_FALSE(wake_ups.told());
  EXPECT_EQ(receive_all(*b), "x");
  const Channel::WaitWord once = b->wait_word();
  send(*a, "y");
  EXPECT_EQ(b->wait_word().value, once.value) << "nobody sleeps";
}

TEST(ShmChannelWord, AndTheDescriptorAreBothRungWhereThreadsSleepOnBoth) {
  auto [a, b] = make_shm_pair(4096);
  WakeUps wake_ups(*b);
  const Channel::WaitWord on = b->wait_word();
  ASSERT_TRUE(b->arm_word());
  ASSERT_TRUE(b->arm());
  send(*a, "x");
  EXPECT_TRUE(is_rung(*b, on));
  EXPECT_TRUE(wake_ups.told());
}

TEST(ShmChannelWord, IsRungByAFailureAndByThePeersEnd) {
  for (const bool peer_ends : {false, true}) {
    auto [a, b] = make_shm_pair(4096);
    const Channel::WaitWord on = b->wait_word();
    ASSERT_TRUE(b->arm_word());
    if (peer_ends) {
      a.reset();
    } else {
      b->fail(Reason::kPeerGone);
    }
    EXPECT_TRUE(is_rung(*b, on)) << "the peer's: " << peer_ends;
  }
}

TEST(ShmChannelWord, IsNotArmedOverNewsNorOverAFailure) {
  auto [a, b] = make_shm_pair(4096);
  send(*a, "x");
  EXPECT_FALSE(b->arm_word());
  b->progress();
  EXPECT_TRUE(b->arm_word());
  b->fail(Reason::kPeerGone);
  EXPECT_FALSE(b->arm_word());
}

TEST(ShmChannelWord, OutlivesTheChannel) {
  auto [a, b] = make_shm_pair(4096);
  const Channel::WaitWord on = b->wait_word();
  a.reset();
  b.reset();
  sys::futex_ring(*on.word);
  EXPECT_EQ(on.word->load(), on.value + 1);
}

TEST(ShmChannelWord, IsForPeersThatKnowItAndAreOfOneUser) {
  auto [a, b] = make_shm_pair(4096);
  Agreement older = b->agreement();
  older.features &= static_cast<std::uint8_t>(~static_cast<std::uint32_t>(Feature::kWaitWord));
  b->set_agreement(older);
  EXPECT_FALSE(b->wait_word());
  auto [c, d] = make_shm_pair(4096, ShmWakeKind::kSocket);
  EXPECT_FALSE(d->wait_word());
}

// What a build without Feature::kWaitWord asks for names no place.
TEST(ShmChannelWord, IsNotWhereAnOlderPeerIsWoken) {
  int memfd = -1;
  Reason why = Reason::kNone;
  auto memory = ShmMemory::create(4096, memfd, why);
  ASSERT_NE(memory, nullptr);
  sys::close_quietly(memfd);
  ShmWake wakes[2];
  ASSERT_TRUE(ShmWake::make_pair(ShmWakeKind::kEvents, wakes[0], wakes[1], why));
  ShmChannel newer(memory, ShmSideIndex::kConnector, std::move(wakes[0]));
  memory->header().side[1].waiting.store(kShmWantsArrivals);
  send(newer, "x");
  EXPECT_TRUE(readable(wakes[1].fd()));
  EXPECT_EQ(memory->header().side[1].wakes.load(), 0u);
}

// Both directions have one eventfd.
TEST(ShmChannelOneEvent, AWakeUpIsForThePeerAloneHoweverOftenOneSideWakes) {
  auto [a, b] = make_shm_pair(4096, ShmWakeKind::kOneEvent);
  WakeUps wakes_a(*a);
  WakeUps wakes_b(*b);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(b->arm());
    send(*a, "x");
    ASSERT_TRUE(wakes_b.told());
    ASSERT_FALSE(wakes_b.told());
    ASSERT_FALSE(wakes_a.told());
    EXPECT_EQ(receive_all(*b), "x");
    a->progress();
  }
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(a->arm());
    send(*b, "y");
    ASSERT_TRUE(wakes_a.told());
    ASSERT_FALSE(wakes_b.told());
    EXPECT_EQ(receive_all(*a), "y");
    b->progress();
  }
}

}  // namespace
}  // namespace ringroad::shm_channel_test
