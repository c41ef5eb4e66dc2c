#include "cli/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace ringroad::cli {
namespace {

TEST(HumanCount, CountsBelowAThousandAndTwentyFourAreExact) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(1023), "1023");
}

TEST(HumanCount, LargerOnesAreScaledByPowersOfThatNumber) {
  EXPECT_EQ(human_count(1024), "1.0K");
  EXPECT_EQ(human_count(1536), "1.5K");
  EXPECT_EQ(human_count(100 << 10), "100K");
  EXPECT_EQ(human_count(5 << 20), "5.0M");
  EXPECT_EQ(human_count(std::uint64_t{3} << 40), "3.0T");
}

TEST(HumanCount, RoundingNeverNeedsMoreThanFiveCharacters) {
  EXPECT_EQ(human_count((1 << 20) - 1), "1.0M");  // not 1024K
  EXPECT_EQ(human_count(102349), "100K");         // not 99.95K as 100.0K
  EXPECT_EQ(human_count(std::numeric_limits<std::uint64_t>::max()), "16.0E");
}

TEST(Counted, OneIsNoPlural) {
  EXPECT_EQ(counted(1, "stream"), "1 stream");
  EXPECT_EQ(counted(0, "stream"), "0 streams");
  EXPECT_EQ(counted(2, "rule"), "2 rules");
}

TEST(Printable, ControlCharactersCannotReachTheTerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\n\x7f"), "a?[2Jb??");
}

TEST(Printable, WhatSteersATerminalWithoutUtf8IsReplaced) {
  EXPECT_EQ(printable("a\x9b" "2Jb\x9d\xc2\x9b" "c\xc3"), "a?2Jb??c?");
}
TEST(Printable, OtherTextIsKept) { EXPECT_EQ(printable("règle-1 x"), "règle-1 x"); }

TEST(Table, ColumnsAreAsWideAsTheirWidestCellAndLinesEndWithoutSpaces) {
  Table table({{"PID", Table::Align::kRight}, {"NAME"}, {"N", Table::Align::kRight}, {"LAST"}});
  table.add({"1", "mariadbd", "7", "x"});
  table.add({"12345", "x", "1234", "longer"});
  EXPECT_EQ(table.to_string(),
            "  PID  NAME         N  LAST\n"
            "    1  mariadbd     7  x\n"
            "12345  x         1234  longer\n");
}

TEST(Table, AnEmptyCellIsADash) {
  Table table({{"A"}, {"B"}});
  table.add({"", ""});
  EXPECT_EQ(table.to_string(), "A  B\n-  -\n");
}

TEST(Table, CharactersOfSeveralBytesTakeOneColumn) {
  Table table({{"A"}, {"B"}});
  table.add({"é", "x"});
  EXPECT_EQ(table.to_string(), "A  B\né  x\n");
}

}  // namespace
}  // namespace ringroad::cli
