// The report as a person and as a script read it.

#include "cli/doctor/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::vector<Finding> kFindings = {
    {"mtu", "link", Level::kOk, "eth0", "MTU 9000", "", ""},
    {"port", "link", Level::kFail, "mlx5_0/1", "state DOWN", "stays on TCP", "ip link\nset up"},
    {"tuned", "host", Level::kUnknown, "", "not installed", "nothing", "apt-get install tuned"},
    {"pfc", "fabric", Level::kWarn, "eth0", "PFC on 0 \x1b[31m", "drops", ""}};

TEST(ReportText, IsWorstFirstWithConsequenceAndRemedy) {
  EXPECT_EQ(report_text(kFindings, 0),
            "fail     port   mlx5_0/1: state DOWN\n"
            "         means: stays on TCP\n"
            "         mend: ip link\n"
            "               set up\n"
            "warn     pfc    eth0: PFC on 0 ?[31m\n"
            "         means: drops\n"
            "unknown  tuned  not installed\n"
            "         not known: nothing\n"
            "         mend: apt-get install tuned\n"
            "ok       mtu    eth0: MTU 9000\n"
            "\n"
            "1 fail, 1 warn, 1 unknown, 1 ok\n");
}

TEST(ReportText, OfNothingIsItsCounts) {
  EXPECT_EQ(report_text({}, 0), "0 fail, 0 warn, 0 unknown, 0 ok\n");
}

TEST(ReportText, IsBrokenForATerminalAndNeverBelowFortyColumns) {
  std::string words;
  for (int i = 0; i < 60; ++i) words += "word ";
  const std::vector<Finding> findings = {{"port", "link", Level::kFail, "", words, words, words}};
  for (const unsigned columns : {1U, 40U, 80U}) {
    std::istringstream lines(report_text(findings, columns));
    std::size_t longest = 0;
    for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
    EXPECT_LE(longest, std::max(columns, 40U));
    EXPECT_GT(longest, std::max(columns, 40U) - 6);
  }
  EXPECT_THAT(report_text(findings, 0), HasSubstr("word word word word word word word word word"));
}

TEST(ReportJson, HoldsEverythingInTheOrderOfTheChecks) {
  const auto json = nlohmann::json::parse(report_json(kFindings));
  EXPECT_EQ(json["worst"], "fail");
  EXPECT_EQ(json["counts"]["unknown"], 1);
  ASSERT_EQ(json["findings"].size(), 4U);
  EXPECT_EQ(json["findings"][1]["remedy"], "ip link\nset up");
  EXPECT_EQ(json["findings"][1]["level"], "fail");
  EXPECT_EQ(json["findings"][3]["check"], "pfc");
}

TEST(ReportJson, IsValidWhateverAFileHeld) {
  const std::vector<Finding> findings = {{"x", "y", Level::kOk, "\xff", "\xfe\x01", "", ""}};
  EXPECT_FALSE(nlohmann::json::parse(report_json(findings), nullptr, false).is_discarded());
}

TEST(Levels, AreOrderedBySeverity) {
  EXPECT_EQ(worst({}), Level::kOk);
  EXPECT_EQ(worst(kFindings), Level::kFail);
  EXPECT_LT(Level::kOk, Level::kUnknown);
  EXPECT_LT(Level::kUnknown, Level::kWarn);
  EXPECT_LT(Level::kWarn, Level::kFail);
}

}  // namespace
}  // namespace ringroad::cli::doctor
