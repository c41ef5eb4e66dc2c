// A stream whose both directions are always full comes to a channel and leaves it again a thousand
// times, for whatever reason, and nothing is lost, repeated or left behind.
#include <algorithm>
#include <fstream>
#include <random>

#include "rsocket-core/base/sys.h"
#include "tests/core/fault_channel.h"
#include "tests/core/open_descriptors.h"
#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

constexpr unsigned kCycles = 1000;
constexpr std::uint32_t kSmallRing = 4096;
constexpr std::size_t kMost = 3000;  // of one call

char cycle_byte(unsigned side, std::uint64_t at) {
  return static_cast<char>(((at + side * 131'071) * 2'654'435'761U) >> 16);
}

// What the library has mapped for channels.
unsigned shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  unsigned count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != line.npos;
  return count;
}

class Torrent {
 public:
  explicit Torrent(unsigned seed) : random_(seed) {
    for (const int fd : {pair_.a_fd, pair_.b_fd}) {
      const int small = 16 * 1024;
      setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
      setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
  }

  unsigned below(unsigned n) { return static_cast<unsigned>(random_() % n); }

  // Both programs and both agents do a little. False: something is not as it must be.
  bool work() {
    for (unsigned side = 0; side < 2; ++side) {
      AgentStream& stream = *streams_[side];
      if (!ends_ && !stream.tx_is_held()) {
        std::string text(1 + below(kMost), '\0');
        for (std::size_t i = 0; i < text.size(); ++i) text[i] = cycle_byte(side, sent_[side] + i);
        const ssize_t n = send_text(stream, text);
        if (n < 0 && errno != EAGAIN) return false;
        if (n > 0) sent_[side] += static_cast<std::uint64_t>(n);
        full_[side] += n < static_cast<ssize_t>(text.size()) ? 1U : 0U;
      }
      const std::string got = recv_text(stream, 1 + below(kMost));
      if (got == "<EAGAIN>") continue;
      std::uint64_t& at = got_[1 - side];
      for (const char byte : got) {
        if (byte != cycle_byte(1 - side, at++)) return false;
      }
    }
    for (AgentStream* const stream : streams_) {
      if (stream->state() == State::kSwitching &&
          sys::now_ns() > stream->interest().deadline_ns) {
        stream->deadline_passed();
      }
      stream->service();
    }
    return true;
  }

  template <typename Done>
  bool work_until(Done done) {
    for (const std::int64_t end = sys::now_ns() + 20'000'000'000; sys::now_ns() < end;) {
      if (!work()) return false;
      if (done()) return true;
    }
    return false;
  }

  bool both(State state) const {
    return streams_[0]->state() == state && streams_[1]->state() == state;
  }

  // To a channel that may go wrong, for a while, and back.
  bool cycle() {
    if (!work_until([&] { return begin(); })) return false;
    auto [a, b] = make_shm_pair(kSmallRing);
    pair_.a->channel_up(wrapped(std::move(a)), pair_.b_nonce);
    pair_.b->channel_up(wrapped(std::move(b)), pair_.a_nonce);
    const bool in_the_middle = below(5) == 0;
    work_until([&] {
      const auto is_through = [](const AgentStream* stream) {
        return stream->state() != State::kSwitching;
      };
      return in_the_middle ? below(4) == 0 : std::all_of(streams_, streams_ + 2, is_through);
    });
    promoted_ += both(State::kOnChannel) ? 1U : 0U;
    for (unsigned i = below(30); i > 0; --i) {
      if (!work()) return false;
    }
    const unsigned who = 1 + below(3);
    for (unsigned side = 0; side < 2; ++side) {
      if ((who & (1U << side)) != 0) streams_[side]->leave_channel(Reason::kQpError);
    }
    return work_until([&] { return both(State::kOnTcp); });
  }

  void finish() {
    ends_ = true;
    ASSERT_TRUE(work_until([&] { return got_[0] == sent_[0] && got_[1] == sent_[1]; }));
    ASSERT_EQ(0, pair_.a->shutdown(SHUT_WR));
    ASSERT_TRUE(pair_.pump_until([&] { return recv_text(*pair_.b, 10).empty(); }));
    ASSERT_EQ(0, pair_.b->shutdown(SHUT_WR));
    ASSERT_TRUE(pair_.pump_until([&] { return recv_text(*pair_.a, 10).empty(); }));
  }

  std::string told() const {
    std::string text;
    for (unsigned side = 0; side < 2; ++side) {
      text += std::string(state_name(streams_[side]->state())) + "/" +
              reason_name(streams_[side]->reason()) + " sent " + std::to_string(sent_[side]) +
              " of which came " + std::to_string(got_[side]) + "; ";
    }
    return text;
  }
  unsigned promoted() const { return promoted_; }
  bool were_full() const { return full_[0] > kCycles / 10 && full_[1] > kCycles / 10; }

 private:
  // Not while a frame of the last cycle is on its way.
  bool begin() {
    if (!make_nonce(pair_.a_nonce) || !make_nonce(pair_.b_nonce)) return false;
    if (pair_.a->promotion_started(pair_.a_nonce) != Reason::kNone) return false;
    if (pair_.b->promotion_started(pair_.b_nonce) == Reason::kNone) return true;
    pair_.a->promotion_refused(Reason::kPeerRefused, Reason::kBusy);
    return false;
  }

  std::unique_ptr<Channel> wrapped(std::unique_ptr<Channel> channel) {
    std::vector<Fault> script;
    const unsigned kind = below(6);  // not what only a liar does: nobody talks to one again
    const std::uint64_t at = 1 + below(200);
    if (kind == 0) script.push_back({FaultKind::kFail, at, 0, Reason::kPeerGone});
    if (kind == 1) script.push_back({FaultKind::kDelay, at, 1 + below(20), Reason::kQpError});
    if (kind == 2) script.push_back({FaultKind::kLimitCredit, at, below(4), Reason::kQpError});
    return std::make_unique<FaultChannel>(std::move(channel), std::move(script));
  }

  std::mt19937 random_;
  StreamPair pair_{kSmallRing};
  AgentStream* const streams_[2] = {pair_.a.get(), pair_.b.get()};
  std::uint64_t sent_[2] = {};
  std::uint64_t got_[2] = {};
  unsigned full_[2] = {};
  unsigned promoted_ = 0;
  bool ends_ = false;
};

TEST(StreamCycles, AThousandLoseNothingAndLeaveNothingBehind) {
  ASSERT_TRUE(Torrent(1).cycle());
  ASSERT_GE(thread_wake_fd(), 0);  // is opened once
  const auto descriptors = open_descriptors();
  const unsigned mappings = shared_mappings();
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  {
    Torrent torrent(seed);
    for (unsigned cycle = 1; cycle <= kCycles; ++cycle) {
      ASSERT_TRUE(torrent.cycle()) << "cycle " << cycle << ": " << torrent.told();
    }
    torrent.finish();
    EXPECT_GT(torrent.promoted(), kCycles / 4) << torrent.told();
    EXPECT_TRUE(torrent.were_full());
    std::printf("%s%u of %u cycles came to a channel\n", torrent.told().c_str(),
                torrent.promoted(), kCycles);
  }
  EXPECT_EQ(descriptors, open_descriptors());
  EXPECT_EQ(mappings, shared_mappings());
}

}  // namespace
}  // namespace ringroad::test
