// How a recorded host is laid down.

#include "cli/doctor/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace ringroad::cli::doctor {
namespace {

using End = CommandResult::End;

TEST(FileName, IsOneComponentOfAPath) {
  EXPECT_EQ(file_name({"cat", "/proc/self/limits"}), "cat_%proc%self%limits");
  EXPECT_EQ(file_name({".."}), "%..");
  EXPECT_EQ(file_name({}), "%");
  EXPECT_EQ(file_name({"a\nb"}), "a%b");
}

TEST(FileName, OfLongCommandsDiffersAndStaysShort) {
  const std::string one = file_name({std::string(400, 'x'), "1"});
  const std::string two = file_name({std::string(400, 'x'), "2"});
  EXPECT_NE(one, two);
  EXPECT_LT(one.size(), 250U);
}

TEST(ExitText, HoldsEveryEnd) {
  for (const auto& [end, status] : {std::pair{End::kExited, 0},
                                    {End::kExited, 3},
                                    {End::kKilled, 9},
                                    {End::kTimedOut, 0},
                                    {End::kFailed, 13},
                                    {End::kMissing, 0}}) {
    CommandResult result;
    result.end = end;
    result.status = status;
    result.err = end == End::kFailed || end == End::kMissing ? "" : "why\nso";
    CommandResult back;
    apply_exit(exit_text(result), back);
    EXPECT_EQ(back.end, end);
    EXPECT_EQ(back.status, status);
    EXPECT_EQ(back.err, result.err);
  }
  CommandResult odd;
  apply_exit("nonsense", odd);
  EXPECT_EQ(odd.end, End::kExited);
  EXPECT_EQ(odd.status, 1);
}

TEST(Meta, HoldsErrorsModesAndLinks) {
  Meta meta;
  meta.errors["/a"] = EACCES;
  meta.statuses["/b"] = {0, 020660, 7, 8};
  meta.links["/c"] = "../d";
  meta.links["/with space"] = "x";
  const Meta back = parse_meta(to_text(meta));
  EXPECT_EQ(back.errors.at("/a"), EACCES);
  EXPECT_EQ(back.statuses.at("/b").mode, 020660U);
  EXPECT_EQ(back.statuses.at("/b").owner, 7U);
  EXPECT_EQ(back.statuses.at("/b").group, 8U);
  EXPECT_EQ(back.links.at("/c"), "../d");
  EXPECT_EQ(back.links.size(), 1U);
}

TEST(Meta, LinesWithoutSenseArePassedOver) {
  const Meta meta = parse_meta("error\nerror /a\nstatus /b 666\nlink\n\n\0x\nnonsense / /\n");
  EXPECT_TRUE(meta.errors.empty() && meta.statuses.empty() && meta.links.empty());
}

TEST(Names, AreInNaturalOrder) {
  EXPECT_TRUE(name_less("cpu2", "cpu10"));
  EXPECT_FALSE(name_less("cpu10", "cpu2"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
