// Counters, read twice.

#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kPort = "/sys/class/infiniband/mlx5_0/ports/1";

TEST(Counters, OnlyOnesThatRiseAreBad) {
  Tree tree;
  tree.write(std::string(kPort) + "/counters/symbol_error", "5000");
  const auto findings = tree.check("counters");
  EXPECT_EQ(worst(findings), Level::kOk);
  EXPECT_THAT(texts(findings),
              HasSubstr("since they began: link_downed 1, out_of_sequence 7, symbol_error 5000"));
}

TEST(Counters, LossAndCongestionAreWarningsAndNamedApart) {
  Tree tree;
  tree.write(std::string("/later") + kPort + "/hw_counters/out_of_sequence", "8")
      .write(std::string("/later") + kPort + "/hw_counters/rp_cnp_handled", "13");
  const auto findings = tree.check("counters");
  EXPECT_THAT(findings, Worst(Level::kWarn, "out_of_sequence +1 within 1 s"));
  EXPECT_THAT(findings, Worst(Level::kWarn, "rp_cnp_handled +1 within 1 s"));
}

TEST(Counters, OnesThatMeanNothingBadMayRise) {
  Tree tree;
  tree.write(std::string("/later") + kPort + "/hw_counters/lifespan", "99")
      .write("/later/sys/class/net/ens1f0np0/statistics/tx_bytes", "9999999");
  EXPECT_EQ(worst(tree.check("counters")), Level::kOk);
}

TEST(Counters, OfTheNetworkDeviceCountToo) {
  Tree tree;
  tree.write("/later/sys/class/net/ens1f0np0/statistics/rx_crc_errors", "2");
  Questions questions;
  questions.watch = std::chrono::milliseconds(250);
  EXPECT_THAT(tree.check("counters", questions),
              Worst(Level::kFail, "rx_crc_errors +2 within 250 ms"));
}

TEST(Counters, ThatStartAgainFromZeroDidNotRise) {
  Tree tree;
  tree.write(std::string("/later") + kPort + "/hw_counters/out_of_sequence", "0");
  EXPECT_EQ(worst(tree.check("counters")), Level::kOk);
}

TEST(Counters, NoneAreUnknown) {
  Tree tree;
  tree.remove(std::string(kPort) + "/counters").remove(std::string(kPort) + "/hw_counters");
  EXPECT_THAT(tree.check("counters"), Worst(Level::kUnknown, "no counters that are known"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
