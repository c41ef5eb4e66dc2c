#include "tests/core/fault_channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "rsocket-core/channel/shm/shm_channel.h"

namespace ringroad {
namespace {

struct Rig {
  std::unique_ptr<FaultChannel> near;
  std::unique_ptr<Channel> far;
};

Rig make_rig(std::vector<Fault> script) {
  auto [near, far] = make_shm_pair(4096);
  return {std::make_unique<FaultChannel>(std::move(near), std::move(script)), std::move(far)};
}

void send(Channel& channel, std::string_view text) {
  const Channel::View view = channel.tx_view();
  ASSERT_GE(view.size, text.size());
  std::memcpy(view.data, text.data(), text.size());
  channel.commit(text.size());
}

std::string text_of(Channel::View view) {
  return std::string(reinterpret_cast<const char*>(view.data), view.size);
}

std::string receive(Channel& channel) {
  channel.progress();
  const std::string text = text_of(channel.rx_view());
  channel.consume(text.size());
  return text;
}

ControlMessage switch_message(std::uint64_t value) {
  ControlMessage message;
  message.type = static_cast<std::uint8_t>(ControlType::kSwitch);
  message.value = value;
  return message;
}

std::vector<std::uint64_t> control_values(Channel& channel) {
  std::vector<std::uint64_t> values;
  channel.progress();
  for (ControlMessage message; channel.take_control(message);) values.push_back(message.value);
  return values;
}

std::byte byte_at(std::uint64_t offset) {
  return static_cast<std::byte>(offset * 0x9E3779B97F4A7C15u >> 56);
}

TEST(FaultChannelTest, WithAnEmptyScriptOnlyCounts) {
  Rig rig = make_rig({});
  send(*rig.near, "there");                                  // 1
  send(*rig.far, "back");
  EXPECT_EQ(receive(*rig.far), "there");
  EXPECT_EQ(receive(*rig.near), "back");                     // 2, 3
  EXPECT_TRUE(rig.near->send_control(switch_message(7)));    // 4
  EXPECT_EQ(control_values(*rig.far), std::vector<std::uint64_t>{7});
  EXPECT_TRUE(rig.near->arm());                              // 5
  ControlMessage message;
  EXPECT_FALSE(rig.near->take_control(message));             // 6
  EXPECT_EQ(rig.near->steps(), 6u);
  EXPECT_EQ(rig.near->faults(), 0u);
  EXPECT_TRUE(rig.near->delivered());
}

TEST(FaultChannelTest, FailsExactlyAtItsStep) {
  for (std::uint64_t at = 1; at <= 3; ++at) {
    Rig rig = make_rig({{FaultKind::kFail, at, 0, Reason::kTimeout}});
    for (std::uint64_t step = 1; step <= 3; ++step) {
      EXPECT_FALSE(rig.near->failed());
      rig.near->progress();
      if (step == at) break;
    }
    EXPECT_EQ(rig.near->failure(), Reason::kTimeout);
    EXPECT_FALSE(rig.far->failed());
  }
}

TEST(FaultChannelTest, LosesTheFirstControlMessageFromItsStepOn) {
  Rig rig = make_rig({{FaultKind::kDropControl, 2, 0, Reason::kNone}});
  for (std::uint64_t value = 1; value <= 3; ++value) {
    EXPECT_TRUE(rig.near->send_control(switch_message(value)));
  }
  EXPECT_EQ(control_values(*rig.far), (std::vector<std::uint64_t>{1, 3}));
}

TEST(FaultChannelTest, SendsTheFirstControlMessageFromItsStepOnTwice) {
  Rig rig = make_rig({{FaultKind::kDuplicateControl, 2, 0, Reason::kNone}});
  for (std::uint64_t value = 1; value <= 3; ++value) {
    EXPECT_TRUE(rig.near->send_control(switch_message(value)));
  }
  EXPECT_EQ(control_values(*rig.far), (std::vector<std::uint64_t>{1, 2, 2, 3}));
}

TEST(FaultChannelTest, WithholdsArrivalsForSoManyLooks) {
  Rig rig = make_rig({{FaultKind::kDelay, 1, 2, Reason::kNone}});
  send(*rig.far, "late");
  EXPECT_TRUE(rig.far->send_control(switch_message(1)));
  for (int look = 0; look < 2; ++look) {
    rig.near->progress();
    EXPECT_EQ(rig.near->rx_head(), 0u);
    EXPECT_FALSE(rig.near->control_pending());
  }
  EXPECT_EQ(receive(*rig.near), "late");
  EXPECT_TRUE(rig.near->control_pending());
}

TEST(FaultChannelTest, DoesNotSleepOnWhatItWithholds) {
  Rig rig = make_rig({{FaultKind::kDelay, 1, 1, Reason::kNone}});
  EXPECT_FALSE(rig.near->arm());
  rig.near->progress();
  EXPECT_TRUE(rig.near->arm());
}

TEST(FaultChannelTest, PostsCommittedBytesTogetherWhenCreditComes) {
  Rig rig = make_rig({{FaultKind::kLimitCredit, 1, 3, Reason::kNone}});
  send(*rig.near, "ab");
  send(*rig.near, "cd");
  EXPECT_EQ(rig.near->tx_head(), 4u);
  EXPECT_EQ(rig.near->tx_posted(), 0u);
  EXPECT_EQ(rig.near->tx_view().size, 4092u);
  EXPECT_FALSE(rig.near->delivered());
  EXPECT_FALSE(rig.near->arm());
  rig.near->progress();
  rig.near->flush();
  EXPECT_EQ(receive(*rig.far), "");
  rig.near->progress();
  EXPECT_EQ(rig.near->tx_posted(), 4u);
  EXPECT_EQ(receive(*rig.far), "abcd");
  EXPECT_TRUE(rig.near->delivered());
}

TEST(FaultChannelTest, HoldsBytesForEverWithoutCredit) {
  Rig rig = make_rig({{FaultKind::kLimitCredit, 1, 0, Reason::kNone}});
  send(*rig.near, "ab");
  for (int i = 0; i < 100; ++i) rig.near->flush();
  EXPECT_EQ(rig.near->tx_posted(), 0u);
  EXPECT_TRUE(rig.near->arm());
}

TEST(FaultChannelTest, ReplaysWhatWasPostedAndWhatWasHeld) {
  Rig rig = make_rig({{FaultKind::kLimitCredit, 2, 0, Reason::kNone}});
  send(*rig.near, "posted");
  send(*rig.near, "held");
  rig.near->fail(Reason::kQpError);
  EXPECT_EQ(text_of(rig.near->tx_replay(0)), "postedheld");
  EXPECT_EQ(text_of(rig.near->tx_replay(3)), "tedheld");
  EXPECT_EQ(text_of(rig.near->tx_replay(8)), "ld");
  EXPECT_EQ(text_of(rig.near->tx_replay(10)), "");
}

// The bytes of a stream come whole and in order through delays and scarce credit.
TEST(FaultChannelTest, CarriesAStreamThroughDelaysAndScarceCredit) {
  std::vector<Fault> script{{FaultKind::kLimitCredit, 1, 3, Reason::kNone}};
  for (std::uint64_t at = 10; at < 3000; at += 50) {
    script.push_back({FaultKind::kDelay, at, 5, Reason::kNone});
  }
  Rig rig = make_rig(std::move(script));
  constexpr std::uint64_t kTotal = 1 << 20;
  std::thread sender([&] {
    for (std::uint64_t sent = 0; sent < kTotal || rig.near->tx_posted() < kTotal;) {
      const Channel::View view = rig.near->tx_view();
      const std::size_t n = std::min<std::uint64_t>({view.size, kTotal - sent, 333});
      for (std::size_t i = 0; i < n; ++i) view.data[i] = byte_at(sent + i);
      if (n > 0) rig.near->commit(n);
      sent += n;
      rig.near->progress();
      if (n == 0) std::this_thread::yield();
    }
  });
  std::uint64_t wrong = 0;
  for (std::uint64_t received = 0; received < kTotal;) {
    rig.far->progress();
    const Channel::View view = rig.far->rx_view();
    for (std::size_t i = 0; i < view.size; ++i) {
      wrong += view.data[i] != byte_at(received + i) ? 1u : 0u;
    }
    rig.far->consume(view.size);
    received += view.size;
    if (view.size == 0) std::this_thread::yield();
  }
  sender.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(rig.near->faults(), 50u);
}

}  // namespace
}  // namespace ringroad
