// What `ringroad bench` says of its options.
#include "cli/benches.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>
#include <string>

namespace ringroad::cli {
namespace {

BenchOption option_of(std::string_view bench, const std::string& name) {
  for (BenchOption& option : bench_options(bench)) {
    if (option.name == name) return option;
  }
  ADD_FAILURE() << bench << " has no " << name;
  return {};
}

TEST(BenchOptions, HaveTheirDefaultsInTheirHelp) {
  EXPECT_EQ(option_of("oltp", "--threads").help, "numbers of connections; default: 1,4,16,64,256");
  EXPECT_EQ(option_of("oltp", "--threads").value, "LIST");
  EXPECT_EQ(option_of("model", "--latency").help,
            "of a one-sided write, one card each; 1 us is a cable's, 1.26 a\nswitch's; "
            "default: 1us,1.26us,2us,5us");
  EXPECT_EQ(option_of("shared", "--quick").value, "") << "a flag";
}

TEST(BenchOptions, NameWhatMayBeChosenInLinesThatFitATerminal) {
  EXPECT_EQ(option_of("redis", "--commands").help, "of get,set; default: both");
  EXPECT_THAT(option_of("net", "--carriers").help, testing::HasSubstr("tcp,rdma,shm,rsockets"));
  for (const char* bench : {"oltp", "net", "redis", "model", "accept", "shared"}) {
    for (const BenchOption& option : bench_options(bench)) {
      EXPECT_THAT(option.help, testing::Not(testing::HasSubstr("{")));
      EXPECT_THAT(option.help, testing::Not(testing::HasSubstr(" \n")));
      std::istringstream lines(option.help);
      for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 64U) << option.name;
    }
  }
}

}  // namespace
}  // namespace ringroad::cli
