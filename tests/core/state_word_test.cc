#include "rsocket-core/protocol/state_word.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

namespace ringroad {
namespace {

TEST(StateWord, SaysOfAStateAloneThatThereIsNothingElse) {
  StateWord standing;
  standing.move(State::kOnTcp, State::kOnChannel);
  EXPECT_TRUE(standing.is_only(State::kOnChannel));
  EXPECT_FALSE(standing.is_only(State::kSwitching));
}

TEST(StateWord, OfEachMarkAndOfAnErrorThereIsSomethingElse) {
  for (const auto mark : {StateWord::kPeerClosed, StateWord::kPeerClosing, StateWord::kShutWr,
                          StateWord::kStalled}) {
    StateWord standing;
    EXPECT_FALSE(standing.mark(mark));
    EXPECT_TRUE(standing.mark(mark)) << "it was there already";
    EXPECT_TRUE(standing.is(mark));
    EXPECT_FALSE(standing.is_only(State::kOnTcp));
    EXPECT_TRUE(standing.is_only(State::kOnTcp, mark)) << "set aside";
    EXPECT_EQ(standing.state(), State::kOnTcp);
    EXPECT_EQ(standing.error(), 0);
    standing.unmark(mark);
    EXPECT_TRUE(standing.is_only(State::kOnTcp));
  }
  StateWord standing;
  standing.set_error(EPIPE);
  EXPECT_FALSE(standing.is_only(State::kOnTcp));
}

TEST(StateWord, TellsTheLastErrorOnceAndKeepsTheRest) {
  StateWord standing;
  standing.mark(StateWord::kPeerClosed);
  standing.set_error(ECONNRESET);
  standing.set_error(EPIPE);
  standing.move(State::kOnTcp, State::kReset);
  EXPECT_EQ(standing.error(), EPIPE);
  EXPECT_EQ(standing.take_error(), EPIPE);
  EXPECT_EQ(standing.take_error(), 0);
  EXPECT_EQ(standing.state(), State::kReset);
  EXPECT_TRUE(standing.is(StateWord::kPeerClosed));
}

// Errors come from a holder of either lock, while the holder of both moves the state.
TEST(StateWord, NothingIsLostThatComesWhileAnotherThreadMovesIt) {
  StateWord standing;
  constexpr int kRounds = 20'000;
  std::thread mover([&] {
    for (int i = 0; i < kRounds; ++i) {
      standing.move(State::kOnTcp, State::kOnChannel);
      standing.move(State::kOnChannel, State::kOnTcp);
    }
  });
  std::thread marker([&] {
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_FALSE(standing.mark(StateWord::kStalled)) << i;
      standing.unmark(StateWord::kStalled);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    standing.set_error(EPIPE);
    EXPECT_EQ(standing.take_error(), EPIPE) << i;
  }
  mover.join();
  marker.join();
  EXPECT_TRUE(standing.is_only(State::kOnTcp));
}

}  // namespace
}  // namespace ringroad
