// Checks do not stop each other, and odd content stops none.

#include <filesystem>
#include <set>
#include <stdexcept>

#include "cli/doctor/live_host.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

void throwing(Context&, Findings&) { throw std::runtime_error("it is broken"); }
void content(Context&, Findings& findings) { findings.ok("", "fine"); }

TEST(Runner, ACheckThatFailsIsUnknownAndTheOthersRun) {
  Tree tree("");
  RecordedHost host(tree.path());
  const Questions questions;
  Context context(host, questions, policy::Policy::load({}));
  const Check checks[] = {{"one", "g", "", throwing}, {"two", "g", "", content}};
  const std::vector<Finding> findings = run_checks(context, checks, {});
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].level, Level::kUnknown);
  EXPECT_EQ(findings[0].evidence, "the check failed: it is broken");
  EXPECT_EQ(findings[1].level, Level::kOk);
}

TEST(Runner, OnlyNamedChecksRun) {
  for (const Finding& finding : Tree().examine(all_questions(), {"mtu", "port"})) {
    EXPECT_TRUE(finding.check == "mtu" || finding.check == "port") << finding.check;
  }
}

TEST(Runner, NamesOfChecksAreUniqueAndGroupsStandTogether) {
  std::set<std::string> names;
  std::set<std::string> groups;
  std::string last;
  for (const Check& check : all_checks()) {
    EXPECT_TRUE(names.insert(check.name).second) << check.name;
    if (check.group != last) {
      EXPECT_TRUE(groups.insert(check.group).second) << check.group;
    }
    last = check.group;
  }
}

// Every file and every command's output replaced by the same nonsense: no check may fail over it.
class OddContent : public testing::TestWithParam<std::string> {};

TEST_P(OddContent, StopsNoCheck) {
  const std::string bad = testdata("bad");
  Tree tree("");
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(bad)) {
    if (!entry.is_regular_file()) continue;
    const std::string file = entry.path().string().substr(bad.size());
    tree.write(file, file.starts_with("/policy/") ? read_text(entry.path()).text : GetParam());
    ++files;
  }
  ASSERT_GT(files, 50);
  const std::vector<Finding> findings = tree.examine(all_questions());
  EXPECT_GE(findings.size(), 10U);
  EXPECT_THAT(texts(findings), testing::Not(testing::HasSubstr("the check failed")));
}

INSTANTIATE_TEST_SUITE_P(
    Texts, OddContent,
    testing::Values(
        "", "\n\n\n", std::string("\0\xff\xfe\x01", 4), "-1", "99999999999999999999999", "[]", "{}",
        "[[[[[]]]]]", "null", "[null]", "{\"nftables\":[{\"rule\":null}]}",
        "{\"nftables\":[{\"chain\":{\"name\":7}},{\"rule\":{\"expr\":[null,7,{\"match\":7},"
        "{\"jump\":7},{\"match\":{\"left\":7,\"right\":{\"range\":[1]}}}]}}]}",
        "[{\"dev\":7,\"ifname\":[],\"addr_info\":[7,{\"local\":7,\"prefixlen\":-3}]}]",
        "{\"prio_pfc\":[[9,1],[-1],\"x\"],\"dscp_prio\":[[1],[70,9],7]}", "0-4294967295",
        "7-3,,-,5-", std::string(100000, 'x'), std::string(1000000, '['),
        ": : :", "prio: dscp:", "4: ", "%s%n"));

}  // namespace
}  // namespace ringroad::cli::doctor
