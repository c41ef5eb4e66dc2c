// What a channel over real verbs promises. Needs two RDMA addresses, as
// integration/softroce/run gives them; integration/verbs/test_verbs.py starts it there.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "tests/verbs/verbs_test.h"

namespace ringroad::verbs_test {
namespace {

using namespace std::chrono_literals;

// A wake-up that does not come would not come later either; an emulated machine can be slow.
constexpr auto kWake = 10s;

std::uint64_t hardware_counter(const std::string& device, const char* name) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/" + name);
  std::uint64_t value = 0;
  EXPECT_TRUE(file >> value) << device << "/" << name;
  return value;
}

// ---- data

TEST_F(VerbsTest, BytesOfRandomSizesArriveInOrderBothWays) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  constexpr std::uint64_t kTotal = 6 * 1024 * 1024;
  std::mt19937 dice(7);
  std::uint64_t sent[2] = {0, 0};
  std::uint64_t received[2] = {0, 0};
  Channel* ends[2] = {a_.get(), b_.get()};
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] {
    for (int i : {0, 1}) {
      const std::size_t wanted = dice() % 4 == 0 ? dice() % 30'000 : dice() % 300;
      const std::uint64_t from = i == 0 ? sent[0] : sent[1] + 12345;
      sent[i] += write_some(*ends[i], pattern(from, std::min<std::uint64_t>(wanted, kTotal - sent[i])));
      if (dice() % 3 != 0) continue;
      const std::string got = read_all(*ends[1 - i]);
      EXPECT_EQ(got, pattern(i == 0 ? received[0] : received[1] + 12345, got.size()));
      received[i] += got.size();
    }
    return testing::Test::HasFailure() || (received[0] == kTotal && received[1] == kTotal);
  }, 120s));
  EXPECT_FALSE(a_->failed()) << reason_name(a_->failure());
  EXPECT_FALSE(b_->failed()) << reason_name(b_->failure());
}

TEST_F(VerbsTest, WritesThatMeetTheRingsEndArriveWhole) {
  ASSERT_NO_FATAL_FAILURE(make_channels(4096));
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] {
    sent += write_some(*a_, pattern(sent, 1021));
    const std::string got = read_all(*b_);
    EXPECT_EQ(got, pattern(received, got.size()));
    received += got.size();
    return testing::Test::HasFailure() || received > 400'000;
  }));
}

TEST_F(VerbsTest, SmallMessagesThatFindNoCreditAreSentTogetherLater) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  const char* const rnr[] = {"rcvd_rnr_err", "send_rnr_err"};
  const bool soft = server_device().starts_with("rxe");
  std::uint64_t before = 0;
  for (const char* name : rnr) {
    if (soft) before += hardware_counter(client_device(), name) + hardware_counter(server_device(), name);
  }
  constexpr std::uint64_t kCount = 20'000;
  std::uint64_t sent = 0;
  // The peer looks at nothing meanwhile.
  for (; sent < kCount; ++sent) ASSERT_EQ(write_some(*a_, pattern(sent, 1)), 1U);
  EXPECT_LT(a_->tx_posted(), 100U) << "one receive a byte would not have been enough";
  EXPECT_EQ(a_->tx_head(), kCount);
  std::string got;
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] {
    got += read_all(*b_);
    return got.size() == kCount;
  }));
  EXPECT_EQ(got, pattern(0, kCount));
  EXPECT_EQ(a_->tx_posted(), kCount);
  std::uint64_t after = 0;
  for (const char* name : rnr) {
    if (soft) after += hardware_counter(client_device(), name) + hardware_counter(server_device(), name);
  }
  EXPECT_EQ(after, before) << "a message met no receive";
}

TEST_F(VerbsTest, BothRingsFullAtOnceDrainAgain) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent[2] = {0, 0};
  Channel* ends[2] = {a_.get(), b_.get()};
  for (int round = 0; round < 20; ++round) {
    // Odd sizes, until neither takes a byte more. The word of what the peer has read may be on its way.
    const std::uint64_t full = static_cast<std::uint64_t>(round + 1) * kRing;
    ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] {
      for (int i : {0, 1}) sent[i] += write_some(*ends[i], pattern(sent[i], 777));
      return sent[0] == full && sent[1] == full && a_->tx_posted() == a_->tx_head() &&
             b_->tx_posted() == b_->tx_head() &&
             a_->rx_head() == b_->tx_head() && b_->rx_head() == a_->tx_head();
    }));
    for (int i : {0, 1}) {
      const std::uint64_t from = ends[1 - i]->rx_consumed();
      const std::string got = read_all(*ends[1 - i]);
      ASSERT_EQ(got.size(), kRing);
      ASSERT_EQ(got, pattern(from, got.size()));
    }
  }
  EXPECT_FALSE(a_->failed() || b_->failed());
}

TEST_F(VerbsTest, ControlMessagesArriveInOrderBesideFullRings) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  for (std::uint64_t sent = 0; sent < kRing;) sent += write_some(*a_, pattern(sent, 61));
  for (const ControlType type : {ControlType::kSwitch, ControlType::kSwitchAck, ControlType::kFin}) {
    ControlMessage message;
    message.type = static_cast<std::uint8_t>(type);
    message.value = 1000 + static_cast<std::uint64_t>(type);
    ASSERT_TRUE(a_->send_control(message));
  }
  for (const ControlType type : {ControlType::kSwitch, ControlType::kSwitchAck, ControlType::kFin}) {
    ControlMessage message;
    ASSERT_TRUE(poll_until({b_.get()}, [&] { return b_->take_control(message); }));
    EXPECT_EQ(message.type, static_cast<std::uint8_t>(type));
    EXPECT_EQ(message.value, 1000 + static_cast<std::uint64_t>(type));
  }
  EXPECT_FALSE(b_->control_pending());
}

TEST_F(VerbsTest, ReplayGivesTheBytesThatThePeerHasNotConsumed) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent = 0;
  while (sent < kRing / 2) sent += write_some(*a_, pattern(sent, 1000));
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->rx_head() == sent; }));
  b_->consume(kRing / 4 + 8);
  ASSERT_TRUE(poll_until({a_.get()}, [&] { return a_->tx_consumed() == kRing / 4 + 8; }));
  a_->fail(Reason::kOperator);
  EXPECT_EQ(a_->failure(), Reason::kOperator);
  const Channel::View view = a_->tx_replay(kRing / 4 + 8);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(view.data), view.size),
            pattern(kRing / 4 + 8, sent - kRing / 4 - 8));
}

// ---- waiting

bool readable(const Channel& channel, std::chrono::milliseconds limit) {
  pollfd fd{channel.wait_fd(), POLLIN, 0};
  return poll(&fd, 1, static_cast<int>(limit.count())) == 1;
}

TEST_F(VerbsTest, ArmedSleepersWakeForDataControlAndCredit) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  b_->progress();
  ASSERT_TRUE(b_->arm());
  EXPECT_FALSE(readable(*b_, 0ms));
  write_some(*a_, "x");
  EXPECT_TRUE(readable(*b_, kWake)) << "data";
  b_->drain();
  b_->progress();
  EXPECT_EQ(read_all(*b_), "x");

  ASSERT_TRUE(b_->arm());
  ControlMessage message;
  message.type = static_cast<std::uint8_t>(ControlType::kGiveUp);
  ASSERT_TRUE(a_->send_control(message));
  EXPECT_TRUE(readable(*b_, kWake)) << "control";
  b_->drain();
  b_->progress();
  EXPECT_TRUE(b_->take_control(message));

  std::uint64_t sent = 1;
  while (const std::size_t n = write_some(*a_, pattern(sent, 30'000))) sent += n;
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->rx_head() == sent; }));
  while (!a_->arm()) a_->progress();
  EXPECT_FALSE(readable(*a_, 0ms));
  read_all(*b_);
  EXPECT_TRUE(readable(*a_, kWake)) << "credit";
}

// The device's libraries make calls that are cancellation points.
TEST_F(VerbsTest, AThreadThatIsToBeCancelledIsNotAmidTheDevicesLibraries) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  b_->progress();
  ASSERT_TRUE(b_->arm());
  std::atomic<bool> came_through{false};
  std::thread cancelled([&] {
    pthread_cancel(pthread_self());
    write_some(*a_, "x");
    ControlMessage message;
    message.type = static_cast<std::uint8_t>(ControlType::kGiveUp);
    EXPECT_TRUE(a_->send_control(message));
    a_->arm();
    b_->drain();
    b_->progress();
    b_.reset();
    came_through = true;
    pthread_testcancel();
    came_through = false;
  });
  cancelled.join();
  EXPECT_TRUE(came_through);
}

TEST_F(VerbsTest, ArmingAfterAnArrivalSaysSo) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  b_->progress();
  write_some(*a_, "x");
  ASSERT_TRUE(poll_until({a_.get()}, [&] { return a_->delivered(); }));
  EXPECT_FALSE(b_->arm()) << "what has arrived would never wake it";
  EXPECT_EQ(read_all(*b_), "x");
}

TEST_F(VerbsTest, AnArmedSleeperWakesForDelivery) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent = 0;
  while (sent < kRing) sent += write_some(*a_, pattern(sent, 4000));
  bool done = a_->delivered();
  while (!done) {
    if (a_->arm()) {
      ASSERT_TRUE(readable(*a_, kWake)) << "nothing told of the last completion";
    }
    a_->drain();
    a_->progress();
    done = a_->delivered();
  }
}

TEST_F(VerbsTest, AFailureWakesSleepersAtBothEnds) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  a_->progress();
  b_->progress();
  ASSERT_TRUE(a_->arm());
  ASSERT_TRUE(b_->arm());
  a_->fail(Reason::kOperator);
  EXPECT_TRUE(readable(*a_, kWake));
  a_.reset();
  ASSERT_TRUE(serve_until({server_.get()}, [&] { return b_->failed(); }));
  EXPECT_EQ(b_->failure(), Reason::kPeerGone);
  EXPECT_EQ(server_->outcome(server_->last_request).channel_events, 1U);
  EXPECT_TRUE(readable(*b_, kWake));
}

// Calls of read(2) that this thread has made so far, those of this function included.
std::uint64_t calls_of_read() {
  std::ifstream file("/proc/thread-self/io");
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value && name != "syscr:") continue;
  return value;
}

TEST_F(VerbsTest, AWakeUpCostsOneReadOfTheEventChannel) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  b_->progress();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(b_->arm());
    write_some(*a_, "x");
    ASSERT_TRUE(readable(*b_, kWake));
    const std::uint64_t before = calls_of_read();
    const std::uint64_t looking = calls_of_read() - before;
    b_->drain();
    EXPECT_EQ(calls_of_read() - before, 2 * looking + 1);
    EXPECT_FALSE(readable(*b_, 0ms)) << "the event was read";
    b_->progress();
    EXPECT_EQ(read_all(*b_), "x");
  }
}

// Each end has a thread that writes and one that reads, all of which sleep when there is nothing
// to do, and two that only call progress().
TEST_F(VerbsTest, ThreadsThatSleepAndThreadsThatPollShareAChannel) {
  ASSERT_NO_FATAL_FAILURE(make_channels(16 * 1024));
  constexpr std::uint64_t kTotal = 1024 * 1024;
  std::atomic<bool> stop{false};
  std::atomic<int> running{4};
  std::atomic<bool> wrong{false};
  const auto until = std::chrono::steady_clock::now() + 120s;
  const auto sleep = [&](Channel& channel) {
    // Another thread may take the wake-up, as it may in a stream, which then wakes the others: the
    // bound stands for that.
    if (channel.arm()) readable(channel, 2ms);
    channel.drain();
    channel.progress();
    if (std::chrono::steady_clock::now() > until || channel.failed()) wrong = true;
  };
  const auto write = [&](Channel& channel) {
    std::mt19937 dice(3);
    for (std::uint64_t sent = 0; sent < kTotal && !wrong;) {
      const std::uint64_t n = std::min<std::uint64_t>(1 + dice() % 5000, kTotal - sent);
      const std::size_t took = write_some(channel, pattern(sent, n));
      sent += took;
      if (took == 0) sleep(channel);
    }
    while (channel.tx_posted() != channel.tx_head() && !wrong) {
      channel.flush();
      sleep(channel);
    }
    --running;
  };
  const auto read = [&](Channel& channel) {
    for (std::uint64_t received = 0; received < kTotal && !wrong;) {
      const std::string got = read_all(channel);
      if (got != pattern(received, got.size())) wrong = true;
      received += got.size();
      if (got.empty()) sleep(channel);
    }
    --running;
  };
  std::vector<std::thread> threads;
  for (Channel* channel : {a_.get(), b_.get()}) {
    threads.emplace_back(write, std::ref(*channel));
    threads.emplace_back(read, std::ref(*channel));
    threads.emplace_back([&stop, channel] {
      while (!stop) {
        channel->progress();
        std::this_thread::yield();
      }
    });
  }
  for (std::size_t i : {0U, 1U, 3U, 4U}) threads[i].join();
  stop = true;
  for (std::size_t i : {2U, 5U}) threads[i].join();
  EXPECT_FALSE(wrong);
  EXPECT_EQ(a_->rx_consumed(), kTotal);
  EXPECT_EQ(b_->rx_consumed(), kTotal);
}

// ---- the end

TEST_F(VerbsTest, WhatArrivedBeforeThePeerClosedCanStillBeRead) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent = 0;
  while (sent < 50'000) sent += write_some(*a_, pattern(sent, 999));
  ASSERT_TRUE(poll_until({a_.get()}, [&] {
    b_->progress();
    return a_->delivered();
  }));
  a_.reset();
  ASSERT_TRUE(serve_until({server_.get()}, [&] { return b_->failed(); }));
  EXPECT_EQ(b_->failure(), Reason::kPeerGone);
  EXPECT_EQ(read_all(*b_), pattern(0, sent));
}

TEST_F(VerbsTest, DeliveredMeansInThePeersMemoryWithoutThePeerLooking) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  std::uint64_t sent = 0;
  while (sent < 40'000) sent += write_some(*a_, pattern(sent, 5000));
  EXPECT_TRUE(poll_until({}, [&] { return a_->delivered(); }));
  b_->progress();
  EXPECT_EQ(b_->rx_head(), sent);
}

TEST_F(VerbsTest, AnEndThatHasEndedItsOutputHearsThatAllOfItWasConsumed) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  const auto send_fin = [](Channel& channel) {
    ControlMessage fin;
    fin.type = static_cast<std::uint8_t>(ControlType::kFin);
    fin.value = channel.tx_head();
    ASSERT_TRUE(channel.send_control(fin));
  };
  // Before it was read.
  write_some(*a_, "a few bytes");
  ASSERT_NO_FATAL_FAILURE(send_fin(*a_));
  ControlMessage taken;
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->take_control(taken); }));
  b_->consume(6);
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return a_->delivered(); }));
  EXPECT_FALSE(a_->all_consumed());
  EXPECT_EQ(read_all(*b_), "bytes");
  EXPECT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return a_->all_consumed(); }));
  // After that.
  write_some(*b_, "more of them");
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return a_->rx_head() == 12; }));
  EXPECT_EQ(read_all(*a_), "more of them");
  EXPECT_FALSE(b_->all_consumed());
  ASSERT_NO_FATAL_FAILURE(send_fin(*b_));
  EXPECT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->all_consumed(); }));
}

TEST_F(VerbsTest, ChannelsOutliveTheirTransport) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  client_.reset();
  write_some(*a_, "still here");
  std::string got;
  EXPECT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return (got += read_all(*b_)).size() == 10; }));
  a_.reset();
}

}  // namespace
}  // namespace ringroad::verbs_test
