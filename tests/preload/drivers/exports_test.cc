// The preloaded object's outside: what it exports, what it needs, and that all of it is written down.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace ringroad::test {
namespace {

using Names = std::set<std::string>;

std::string output_of(const std::string& command) {
  std::string out;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  char buffer[4096];
  while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) out += buffer;
  if (pipe != nullptr) ::pclose(pipe);
  return out;
}

Names interposed() {
  Names names;
  std::ifstream file(RINGROAD_FUNCTIONS);
  const std::regex entry("^RINGROAD_(?:FUNCTION|ALIAS)\\([^,]+, ([A-Za-z0-9_]+),.*");
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, match, entry)) names.insert(match[1]);
  }
  return names;
}

Names difference(const Names& a, const Names& b) {
  Names out;
  for (const std::string& name : a) {
    if (b.count(name) == 0) out.insert(name);
  }
  return out;
}

TEST(ExportsTest, AreTheInterposedFunctionsAndNothingElse) {
  Names expected = interposed();
  ASSERT_GT(expected.size(), 50U);
  expected.insert("__tsan_default_suppressions");
  Names exported;
  std::istringstream lines(output_of("nm -D --defined-only " RINGROAD_LIBRARY));
  for (std::string address, type, name; lines >> address >> type >> name;) {
    EXPECT_EQ(type, "T") << name << " is no function";
    exported.insert(name);
  }
  EXPECT_EQ(difference(expected, exported), Names()) << "are not exported";
  EXPECT_EQ(difference(exported, expected), Names()) << "are exported and not in functions.def";
}

TEST(ExportsTest, NothingButTheCLibraryIsNeeded) {
  std::istringstream lines(output_of("readelf -dW " RINGROAD_LIBRARY));
  const std::regex entry(".*\\(NEEDED\\).*\\[(.*)\\]");
  const std::regex allowed("(libc|libm)\\.so\\.6|libpthread\\.so\\.0|libdl\\.so\\.2|ld-linux.*");
  std::smatch match;
  int needed = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_match(line, match, entry)) continue;
    ++needed;
    EXPECT_TRUE(std::regex_match(match[1].str(), allowed)) << match[1];
  }
  EXPECT_GT(needed, 0);
}

// By that name: not by the usual one, which the compiler may have put in its place.
TEST(ExportsTest, EveryFunctionIsCalledByTheScenarios) {
  Names called;
  std::istringstream lines(output_of("nm -D --undefined-only " RINGROAD_SCENARIOS));
  for (std::string type, name; lines >> type >> name;)
    called.insert(name.substr(0, name.find('@')));
  ASSERT_GT(called.size(), 50U);
  EXPECT_EQ(difference(interposed(), called), Names()) << "are called by no scenario";
}

TEST(ExportsTest, EveryFunctionIsInTheCompatibilityTable) {
  std::ifstream file(RINGROAD_COMPATIBILITY);
  const std::regex row("^\\| (`[^|]+) \\| ([^|]+) \\| ([^|]+) \\|.*");
  const std::regex function("`([A-Za-z0-9_]+)`");
  const std::regex test("`([a-z0-9_]+)`");
  const std::string scenarios = "\n" + output_of(RINGROAD_SCENARIOS " --list");
  Names described;
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) break;  // other tables follow
    if (!std::regex_match(line, match, row)) continue;
    const std::string names = match[1];
    const std::string tests = match[3];
    for (std::sregex_iterator it(names.begin(), names.end(), function), end; it != end; ++it) {
      EXPECT_TRUE(described.insert((*it)[1]).second) << (*it)[1] << " stands there twice";
    }
    for (std::sregex_iterator it(tests.begin(), tests.end(), test), end; it != end; ++it) {
      const std::string scenario = (*it)[1];
      const std::size_t at = scenarios.find("\n" + scenario);
      const bool known = at != std::string::npos &&
                         std::string(" \n").find(scenarios[at + 1 + scenario.size()]) !=
                             std::string::npos;
      EXPECT_TRUE(known) << names << ": there is no scenario " << scenario;
    }
  }
  const Names expected = interposed();
  EXPECT_EQ(difference(expected, described), Names()) << "are missing in docs/compatibility.md";
  EXPECT_EQ(difference(described, expected), Names()) << "are not interposed any more";
}

}  // namespace
}  // namespace ringroad::test
