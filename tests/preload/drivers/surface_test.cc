// Every flag, option and request that the sources treat in a way of their own stands in
// docs/compatibility.md, with a scenario that uses it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace ringroad::test {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

const char kWords[] =
    "\\b(?:MSG_|SOCK_|EPOLL|POLL|SO_|TCP_|IP_|IPV6_|F_|O_|FIO|SIOC|SHUT_|CLOSE_RANGE_|PR_SET_|"
    "SECCOMP_SET_)[A-Z0-9_]+\\b";

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Names words_in(const std::string& text) {
  static const std::regex word(kWords);
  return {std::sregex_token_iterator(text.begin(), text.end(), word), {}};
}

// Where the program's arguments are looked at.
Names treated_specially() {
  const fs::path root(RINGROAD_SOURCES);
  std::vector<fs::path> files = {root / "rsocket-core/stream/stream_io.cc",
                                 root / "rsocket-core/stream/stream_recv.cc",
                                 root / "rsocket-core/stream/stream_sleep.cc",
                                 root / "rsocket-core/stream/stream_poll.cc",
                                 root / "rsocket-core/stream/stream_sockopts.cc",
                                 root / "rsocket-core/stream/epoll_evaluate.cc",
                                 root / "rsocket-core/stream/epoll_evaluate.h",
                                 root / "rsocket-core/stream/epoll_item.h",
                                 root / "rsocket-core/stream/epoll_look.cc",
                                 root / "rsocket-core/stream/epoll_membership.cc",
                                 root / "rsocket-core/stream/epoll_set.cc",
                                 root / "rsocket-core/stream/epoll_wait.cc"};
  for (const auto& entry : fs::directory_iterator(root / "preload")) {
    if (entry.path().filename().string().starts_with("wrap_")) files.push_back(entry.path());
  }
  Names names;
  for (const fs::path& file : files) {
    const std::string code = std::regex_replace(text_of(file), std::regex("//[^\n]*"), "");
    EXPECT_FALSE(code.empty()) << file;
    names.merge(words_in(code));
  }
  return names;
}

// Other names of what stands in the table, and the states that TCP_INFO tells.
Names without_synonyms(Names names) {
  for (const char* other : {"SIOCINQ", "TCP_CM_INQ", "TCP_CLOSE", "TCP_CLOSE_WAIT", "TCP_FIN_WAIT2"}) {
    names.erase(other);
  }
  return names;
}

// What each scenario's own lines say.
std::map<std::string, std::string> scenarios_by_name() {
  std::map<std::string, std::string> bodies;
  const std::string start = "\nSCENARIO(";
  for (const auto& entry : fs::directory_iterator(fs::path(RINGROAD_SOURCES) / "tests/preload/scenarios")) {
    if (entry.path().extension() != ".cc") continue;
    const std::string text = text_of(entry.path());
    for (std::size_t at = text.find(start); at != std::string::npos;) {
      const std::size_t name = at + start.size();
      const std::size_t next = text.find(start, name);
      bodies[text.substr(name, text.find(',', name) - name)] = text.substr(at, next - at);
      at = next;
    }
  }
  return bodies;
}

struct Row {
  std::vector<std::string> names;
  std::vector<std::string> tests;
};

std::vector<std::string> quoted_in(const std::string& cell) {
  static const std::regex quoted("`([A-Za-z0-9_]+)`");
  return {std::sregex_token_iterator(cell.begin(), cell.end(), quoted, 1), {}};
}

std::vector<Row> table(const std::string& named = "Flags, options and requests") {
  const std::string heading = "\n## " + named + "\n";
  const std::string text = text_of(fs::path(RINGROAD_SOURCES) / "docs/compatibility.md");
  const std::size_t from = text.find(heading);
  if (from == std::string::npos) return {};
  std::istringstream lines(text.substr(from, text.find("\n## ", from + 1) - from));
  const std::regex row("^\\| (`[^|]+) \\| ([^|]+) \\| ([^|]+) \\|$");
  std::vector<Row> rows;
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, match, row)) {
      rows.push_back({quoted_in(match[1]), quoted_in(match[3])});
    }
  }
  return rows;
}

const char kByNumber[] = "System calls by number";

Names described(const std::vector<Row>& rows = table()) {
  Names names;
  for (const Row& row : rows) {
    for (const std::string& name : row.names) {
      EXPECT_TRUE(names.insert(name).second) << name << " stands there twice";
    }
  }
  return names;
}

TEST(SurfaceTest, WhatTheSourcesTreatSpeciallyIsInTheTable) {
  const Names all = described();
  const Names special = without_synonyms(treated_specially());
  ASSERT_GT(special.size(), 50U);
  for (const std::string& name : special) {
    EXPECT_EQ(all.count(name), 1U) << name << " is missing in docs/compatibility.md";
  }
}

// A function is measured under its name, or stands among those that cannot be.
TEST(SurfaceTest, TheStackOfEveryFunctionIsMeasured) {
  const std::string functions = text_of(RINGROAD_FUNCTIONS);
  const fs::path folder = fs::path(RINGROAD_SOURCES) / "tests/preload/scenarios";
  const std::string scenarios =
      text_of(folder / "stack_scenarios.cc") + text_of(folder / "stack_other_scenarios.cc");
  const std::regex line("\nRINGROAD_(?:FUNCTION|ALIAS)\\([^,]+, ([A-Za-z0-9_]+),");
  const std::vector<std::string> names(
      std::sregex_token_iterator(functions.begin(), functions.end(), line, 1), {});
  ASSERT_GT(names.size(), 100U);
  for (const std::string& name : names) {
    EXPECT_NE(scenarios.find('"' + name + '"'), std::string::npos) << name << " is measured nowhere";
  }
}

TEST(SurfaceTest, EveryRowNamesScenariosThatThereAre) {
  const auto scenarios = scenarios_by_name();
  ASSERT_GT(scenarios.size(), 100U);
  std::vector<Row> rows = table();
  ASSERT_GT(rows.size(), 30U);
  const std::vector<Row> numbers = table(kByNumber);
  ASSERT_GT(numbers.size(), 10U);
  rows.insert(rows.end(), numbers.begin(), numbers.end());
  for (const Row& row : rows) {
    EXPECT_FALSE(row.tests.empty()) << row.names.at(0) << " has no scenario";
    for (const std::string& test : row.tests) {
      EXPECT_EQ(scenarios.count(test), 1U) << row.names.at(0) << ": there is no scenario " << test;
    }
  }
}

TEST(SurfaceTest, EveryNameIsUsedByOneOfItsScenarios) {
  const auto scenarios = scenarios_by_name();
  std::vector<Row> rows = table();
  const std::vector<Row> numbers = table(kByNumber);
  rows.insert(rows.end(), numbers.begin(), numbers.end());
  for (const Row& row : rows) {
    for (const std::string& name : row.names) {
      const bool used = std::any_of(row.tests.begin(), row.tests.end(), [&](const auto& test) {
        const auto it = scenarios.find(test);
        return it != scenarios.end() &&
               std::regex_search(it->second, std::regex("\\b" + name + "\\b"));
      });
      EXPECT_TRUE(used) << "none of its scenarios has to do with " << name;
    }
  }
}

Names matches(const std::string& text, const std::regex& wanted) {
  return {std::sregex_token_iterator(text.begin(), text.end(), wanted, 1), {}};
}

std::string code_by_number() {
  return text_of(fs::path(RINGROAD_SOURCES) / "preload/wrap_syscall.cc");
}

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t at = text.find(begin);
  EXPECT_NE(at, std::string::npos) << begin;
  return at == std::string::npos ? "" : text.substr(at, text.find(end, at) - at);
}

Names cases_of_numbers() {
  return matches(code_by_number(), std::regex("\n    case (SYS_[a-z0-9_]+):"));
}

// Those that are a function's with the same arguments stand beside it.
Names rows_of_numbers() {
  const Names rows =
      matches(text_of(RINGROAD_FUNCTIONS), std::regex("\nRINGROAD_BY_NUMBER\\(([a-z0-9_]+), "));
  Names names;
  for (const std::string& row : rows) names.insert("SYS_" + row);
  return names;
}

Names done_by_number() {
  Names done = cases_of_numbers();
  done.merge(rows_of_numbers());
  const std::string makers = between(code_by_number(), "constexpr long kMakers[]", "constexpr auto");
  done.merge(matches(makers, std::regex("\\b(SYS_[a-z0-9_]+),")));
  return done;
}

TEST(SurfaceTest, EveryNumberThatIsDoneIsLookedAt) {
  const std::string looked_at =
      between(code_by_number(), "constexpr long kLookedAt[]", "constexpr std::size_t");
  EXPECT_EQ(matches(looked_at, std::regex("\\b(SYS_[a-z0-9_]+),")), cases_of_numbers());
  // The rows are looked at as they say, and done, by the same line.
  EXPECT_GT(rows_of_numbers().size(), 25U);
  for (const std::string& name : rows_of_numbers()) {
    EXPECT_EQ(cases_of_numbers().count(name), 0U) << name << " is done in two places";
  }
}

TEST(SurfaceTest, WhatIsDoneByNumberIsInTheTable) {
  const Names all = described(table(kByNumber));
  const Names done = done_by_number();
  ASSERT_GT(done.size(), 40U);
  for (const std::string& name : done) {
    EXPECT_EQ(all.count(name), 1U) << name << " is missing in docs/compatibility.md";
  }
}

// A new function cannot be forgotten there.
TEST(SurfaceTest, EveryInterposedFunctionThatIsASystemCallIsDoneByNumber) {
  const Names functions = matches(text_of(RINGROAD_FUNCTIONS),
                                  std::regex("\nRINGROAD_FUNCTION\\([^,]+, ([a-z0-9_]+),"));
  ASSERT_GT(functions.size(), 60U);
  const Names done = done_by_number();
  const Names numbers =
      matches(text_of(RINGROAD_SYSTEM_CALLS), std::regex("#define SYS_([a-z0-9_]+) "));
  ASSERT_GT(numbers.size(), 200U);
  int both = 0;
  for (const std::string& name : functions) {
    // Noticed in front of the call, as a child may return from that over its parent's frames.
    if (numbers.count(name) == 0 || name == "vfork" || name == "clone") continue;
    ++both;
    EXPECT_EQ(done.count("SYS_" + name), 1U)
        << name << " is neither in functions.def nor a case of wrap_syscall.cc";
  }
  EXPECT_GT(both, 30);
}

}  // namespace
}  // namespace ringroad::test
