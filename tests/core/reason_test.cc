#include "rsocket-core/protocol/reason.h"

#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <string>

namespace ringroad {
namespace {

TEST(ReasonTest, EveryReasonHasANameOfItsOwnAndAnExplanation) {
  std::set<std::string> names;
  for (unsigned i = 0; i < static_cast<unsigned>(Reason::kCount); ++i) {
    const auto reason = static_cast<Reason>(i);
    const std::string name = reason_name(reason);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_FALSE(name.empty());
    for (const char c : name) {
      EXPECT_TRUE(std::islower(static_cast<unsigned char>(c)) != 0 || c == '_') << name;
    }
    EXPECT_GT(std::string(reason_text(reason)).size(), name.size()) << name;
  }
}

TEST(ReasonTest, ValuesOutOfRangePrintAsInvalid) {
  for (const Reason reason : {Reason::kCount, static_cast<Reason>(255)}) {
    EXPECT_STREQ(reason_name(reason), "invalid");
    EXPECT_STREQ(reason_text(reason), "invalid");
  }
}

// Values cross the wire: peers of another version know them by number.
TEST(ReasonTest, ValuesDoNotMove) {
  EXPECT_EQ(static_cast<int>(Reason::kNone), 0);
  EXPECT_EQ(static_cast<int>(Reason::kPeerHasNoRingroad), 3);
  EXPECT_EQ(static_cast<int>(Reason::kUntrackedIo), 10);
  EXPECT_EQ(static_cast<int>(Reason::kBadRequest), 15);
  EXPECT_EQ(static_cast<int>(Reason::kPeerGone), 19);
  EXPECT_EQ(static_cast<int>(Reason::kOperator), 30);
}

TEST(ReasonTest, ABadByteFromTheWireIsABadRequest) {
  for (unsigned i = 0; i < 256; ++i) {
    const Reason reason = reason_from_wire(static_cast<std::uint8_t>(i));
    if (i < static_cast<unsigned>(Reason::kCount)) {
      EXPECT_EQ(static_cast<unsigned>(reason), i);
    } else {
      EXPECT_EQ(reason, Reason::kBadRequest);
    }
  }
}

}  // namespace
}  // namespace ringroad
