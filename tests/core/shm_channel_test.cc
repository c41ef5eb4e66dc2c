#include "rsocket-core/channel/shm/shm_channel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstring>
#include <string>

#include "rsocket-core/base/sys.h"
#include "tests/core/open_descriptors.h"
#include "tests/core/shm_channel_ends.h"

namespace ringroad::shm_channel_test {
namespace {

INSTANTIATE_TEST_SUITE_P(Wake, ShmChannelTest,
                         testing::Values(ShmWakeKind::kEvents, ShmWakeKind::kSocket, ShmWakeKind::kOneEvent),
                         [](const auto& param_info) {
                           return param_info.param == ShmWakeKind::kEvents   ? "Events"
                                  : param_info.param == ShmWakeKind::kSocket ? "Socket"
                                                                             : "OneEvent";
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
  EXPECT_EQ(info.descriptors, GetParam() == ShmWakeKind::kOneEvent ? 1u : 2u);
}

TEST_P(ShmChannelTest, KeepsItsDescriptorsHighAndGivesThemBack) {
  const int before = open_descriptors();
  {
    auto [a, b] = make_shm_pair(4096, GetParam());
    EXPECT_EQ(open_descriptors(), before + (GetParam() == ShmWakeKind::kOneEvent ? 2 : 4));
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

TEST_P(ShmChannelTest, ShowsConsumptionInTheEndToASenderThatKeepsAsking) {
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
  EXPECT_FALSE(told(*a));
  b->consume(24);
  EXPECT_TRUE(told(*a));
  a->drain();
  EXPECT_FALSE(told(*a));
  a->progress();
  EXPECT_EQ(a->tx_view().size, 1024u);
}

TEST_P(ShmChannelTest, DoesNotWakeAReceiverForCreditThatNobodyNeeds) {
  auto [a, b] = make();
  a->commit(2048);
  ASSERT_TRUE(a->arm());
  b->progress();
  b->consume(2048);
  EXPECT_FALSE(told(*a));
}

TEST_P(ShmChannelTest, WakesASleeperForCreditWhenTheRoomBecameShortAfterItFellAsleep) {
  auto [a, b] = make();
  ASSERT_TRUE(a->arm());  // an event loop, say; another thread fills the ring
  a->commit(4096);
  b->progress();
  b->consume(4096);
  EXPECT_TRUE(told(*a));
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
    EXPECT_FALSE(told(*a));
    b->consume(1);
    EXPECT_TRUE(told(*a)) << "asleep first: " << asleep_first;
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
  EXPECT_FALSE(told(*b));
  send(*a, "x");
  EXPECT_TRUE(told(*b));
}

TEST_P(ShmChannelTest, WakesASleeperForControl) {
  auto [a, b] = make();
  ASSERT_TRUE(b->arm());
  ASSERT_TRUE(a->send_control(control(ControlType::kGiveUp, 0)));
  EXPECT_TRUE(told(*b));
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
  EXPECT_FALSE(told(*b));
}

TEST_P(ShmChannelTest, WakesOncePerArm) {
  auto [a, b] = make();
  ASSERT_TRUE(b->arm());
  send(*a, "x");
  EXPECT_TRUE(told(*b));
  b->drain();
  send(*a, "y");
  EXPECT_FALSE(told(*b));
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
  EXPECT_TRUE(told(*b));
  b->drain();
  EXPECT_FALSE(b->arm());
  b->progress();
  EXPECT_EQ(b->failure(), Reason::kPeerGone);
}

TEST_P(ShmChannelTest, IsQuietBetweenThePeersEndAndTheLastByte) {
  auto [a, b] = make();
  send(*a, "x");
  a.reset();
  told(*b);
  b->drain();
  b->progress();
  EXPECT_TRUE(b->arm());
  EXPECT_FALSE(told(*b)) << "a descriptor that stays readable makes its poller spin";
  b->consume(1);
  EXPECT_TRUE(told(*b)) << "the failure wakes the others";
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
  EXPECT_TRUE(told(*a));
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

}  // namespace
}  // namespace ringroad::shm_channel_test
