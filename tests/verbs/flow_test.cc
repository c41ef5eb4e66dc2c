#include "rsocket-core/channel/verbs/flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <random>

namespace ringroad {
namespace {

TEST(ConsumedShift, TellsAWholeRingApartBySixteenBits) {
  for (std::uint64_t ring = 4096; ring <= std::uint64_t{1} << 30; ring *= 2) {
    const std::uint64_t units = ring >> consumed_shift(ring);
    EXPECT_LT(units, 65536U) << ring;
    if (ring > 65536) {
      EXPECT_GE(units, 32768U) << "coarser than it must be: " << ring;
    }
  }
}

TEST(Immediate, ComesBackRoundedDownToAUnit) {
  const unsigned shift = consumed_shift(1 << 20);
  const FlowCounts counts{70'000, 0x1'2345'6789};
  FlowCounts out;
  ASSERT_TRUE(decode_immediate(encode_immediate(counts, shift), shift, counts.reposted - 60, 64,
                               counts.consumed - (1 << 20) + 32, counts.consumed, out));
  EXPECT_EQ(out, told_by_immediate(counts, shift));
  EXPECT_EQ(out.consumed, counts.consumed >> shift << shift);
}

TEST(Immediate, KeepsTheExactOffsetWhenRoundingFallsBehindIt) {
  const unsigned shift = consumed_shift(1 << 20);
  const std::uint64_t exact = (1 << shift) + 7;
  FlowCounts out;
  ASSERT_TRUE(decode_immediate(encode_immediate({0, exact}, shift), shift, 0, 1, exact, exact, out));
  EXPECT_EQ(out.consumed, exact);
}

TEST(Immediate, WrapsBothCounts) {
  const FlowCounts counts{65'536 + 3, (std::uint64_t{65'536} << 3) + 16};
  FlowCounts out;
  ASSERT_TRUE(decode_immediate(encode_immediate(counts, 3), 3, 65'530, 64,
                               counts.consumed - 4096, counts.consumed, out));
  EXPECT_EQ(out, counts);
}

TEST(Immediate, WithMoreReceivesThanWereUsedIsALie) {
  FlowCounts out;
  EXPECT_TRUE(decode_immediate(encode_immediate({10, 0}, 0), 0, 5, 5, 0, 0, out));
  EXPECT_FALSE(decode_immediate(encode_immediate({11, 0}, 0), 0, 5, 5, 0, 0, out));
  EXPECT_FALSE(decode_immediate(encode_immediate({4, 0}, 0), 0, 5, 5, 0, 0, out)) << "backwards";
}

TEST(Immediate, WithMoreBytesThanWereSentIsALie) {
  FlowCounts out;
  EXPECT_TRUE(decode_immediate(encode_immediate({0, 100}, 0), 0, 0, 0, 40, 100, out));
  EXPECT_FALSE(decode_immediate(encode_immediate({0, 101}, 0), 0, 0, 0, 40, 100, out));
  EXPECT_FALSE(decode_immediate(encode_immediate({0, 39}, 0), 0, 0, 0, 40, 100, out)) << "backwards";
}

TEST(SendWindow, KeepsAReserveForCreditsAndThenForTheStream) {
  SendWindow window;
  window.open(kDataReceives);
  for (std::uint32_t i = 0; i < kDataReceives; ++i, window.sent()) {
    EXPECT_TRUE(window.may_send_data());
  }
  EXPECT_FALSE(window.may_send_data());
  for (std::uint32_t i = 0; i < kCreditReserve; ++i, window.sent()) {
    EXPECT_TRUE(window.may_send_credit());
  }
  EXPECT_FALSE(window.may_send_credit());
  for (std::uint32_t i = 0; i < kStreamReserve; ++i, window.sent()) {
    EXPECT_TRUE(window.may_send_control());
  }
  EXPECT_FALSE(window.may_send_control());
  EXPECT_EQ(window.outstanding(), kPostedReceives) << "never more than the peer has posted";
}

TEST(SendWindow, TakesOnlyAcknowledgementsOfWhatWasSent) {
  SendWindow window;
  window.open(kDataReceives);
  for (int i = 0; i < 5; ++i) window.sent();
  EXPECT_FALSE(window.acked(6));
  EXPECT_TRUE(window.acked(5));
  EXPECT_FALSE(window.acked(4)) << "backwards";
  EXPECT_EQ(window.outstanding(), 0U);
}

TEST(OwesCredit, OnlyForHalfTheReceivesOrAQuarterOfTheRing) {
  constexpr std::size_t kRing = 65'536;
  EXPECT_FALSE(owes_credit({kDataReceives / 2 - 1, kRing / 4 - 1}, {0, 0}, kRing));
  EXPECT_TRUE(owes_credit({kDataReceives / 2, 0}, {0, 0}, kRing));
  EXPECT_TRUE(owes_credit({0, kRing / 4}, {0, 0}, kRing));
}

// Two ends with rings, a wire that delivers when the dice say so, and the rules of flow.h as the
// channel applies them. No end may overrun the other's receives, use up its credit reserve, or wait
// for ever.
class Exchange {
 public:
  static constexpr std::size_t kRing = 4096;

  struct Message {
    bool data;
    std::uint64_t bytes;
    std::uint32_t immediate;
    FlowCounts counts;
  };
  struct End {
    SendWindow window;
    std::uint64_t head = 0, posted = 0, acked_bytes = 0;
    std::uint64_t rx_head = 0;
    FlowCounts counts, told;
    std::deque<Message> incoming;
    std::uint32_t most_outstanding = 0;
  };

  Exchange() {
    for (End& end : ends) end.window.open(kDataReceives);
  }

  void post(int i) {
    End& end = ends[i];
    while (end.posted < end.head && end.window.may_send_data()) {
      const std::uint64_t n = std::min<std::uint64_t>(end.head - end.posted, kRing - end.posted % kRing);
      send(i, {true, n, encode_immediate(end.counts, kShift), {}});
      end.posted += n;
      end.told = told_by_immediate(end.counts, kShift);
    }
    if (owes_credit(end.counts, end.told, kRing) && end.window.may_send_credit()) {
      send(i, {false, 0, 0, end.counts});
      end.told = end.counts;
    }
  }

  void write(int i, std::uint64_t n) {
    End& end = ends[i];
    end.head += std::min<std::uint64_t>(n, kRing - (end.head - end.acked_bytes));
    post(i);
  }

  void read(int i, std::uint64_t n) {
    End& end = ends[i];
    end.counts.consumed += std::min<std::uint64_t>(n, end.rx_head - end.counts.consumed);
    post(i);
  }

  // Processes up to `n` messages, as one progress() does.
  void progress(int i, std::size_t n) {
    End& end = ends[i];
    for (; n > 0 && !end.incoming.empty(); --n) {
      const Message message = end.incoming.front();
      end.incoming.pop_front();
      FlowCounts counts = message.counts;
      if (message.data) {
        ASSERT_TRUE(decode_immediate(message.immediate, kShift, end.window.acked_count(),
                                     end.window.outstanding(), end.acked_bytes, end.posted, counts));
        end.rx_head += message.bytes;
        ASSERT_LE(end.rx_head - end.counts.consumed, kRing);
      }
      ASSERT_TRUE(end.window.acked(counts.reposted));
      ASSERT_GE(counts.consumed, end.acked_bytes);
      end.acked_bytes = counts.consumed;
      ++end.counts.reposted;
    }
    post(i);
  }

  End ends[2];

 private:
  static constexpr unsigned kShift = consumed_shift(kRing);

  void send(int i, const Message& message) {
    ends[i].window.sent();
    ends[i].most_outstanding = std::max(ends[i].most_outstanding, ends[i].window.outstanding());
    ASSERT_LE(ends[i].window.outstanding(), kDataReceives + kCreditReserve);
    ends[1 - i].incoming.push_back(message);
  }
};

TEST(Exchange, NeverStallsNorUsesUpTheReserveWhateverTheOrder) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 dice(seed);
    Exchange exchange;
    // How eagerly each end writes, reads and looks differs from seed to seed.
    std::array<double, 6> bias;
    for (double& weight : bias) weight = static_cast<double>(1 + dice() % 8);
    std::discrete_distribution<int> choose(bias.begin(), bias.end());
    for (int step = 0; step < 20'000; ++step) {
      const int what = choose(dice);
      const int end = what % 2;
      const std::uint64_t n = dice() % 3 == 0 ? dice() % 5000 : dice() % 3;
      if (what < 2) exchange.write(end, n);
      if (what == 2 || what == 3) exchange.read(end, n);
      if (what > 3) {
        ASSERT_NO_FATAL_FAILURE(exchange.progress(end, dice() % 40));
      }
    }
    for (const auto& end : exchange.ends) {
      EXPECT_LT(end.most_outstanding, kDataReceives + kCreditReserve) << "seed " << seed;
    }
    // Both applications read on; everything arrives and nothing waits.
    for (int i = 0; i < 1000; ++i) {
      for (int end : {0, 1}) {
        ASSERT_NO_FATAL_FAILURE(exchange.progress(end, 1000));
        exchange.read(end, 100'000);
      }
    }
    for (int end : {0, 1}) {
      EXPECT_EQ(exchange.ends[end].posted, exchange.ends[end].head) << "seed " << seed;
      EXPECT_EQ(exchange.ends[1 - end].counts.consumed, exchange.ends[end].head) << "seed " << seed;
      EXPECT_LT(exchange.ends[end].head - exchange.ends[end].acked_bytes, Exchange::kRing / 4);
    }
  }
}

}  // namespace
}  // namespace ringroad
