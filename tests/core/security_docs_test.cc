// docs/security.md names a test for each claim; a claim whose test has gone is none.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace ringroad {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = RINGROAD_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::set<std::string> matches(const std::string& text, const std::regex& pattern,
                              const std::string& format) {
  std::set<std::string> out;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
    out.insert(it->format(format));
  }
  return out;
}

// Suite.Name of every test below tests/, test_name of every one below integration/.
std::set<std::string> all_tests() {
  std::set<std::string> out;
  const std::regex cpp(R"(\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\))");
  const std::regex python(R"(\bdef (test_\w+)\()");
  for (const char* folder : {"tests", "integration"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
      const bool is_cpp = entry.path().extension() == ".cc";
      if (!is_cpp && entry.path().extension() != ".py") continue;
      out.merge(matches(text_of(entry.path()), is_cpp ? cpp : python, is_cpp ? "$1.$2" : "$1"));
    }
  }
  return out;
}

TEST(SecurityDocs, EveryTestThatTheyNameExists) {
  const std::string page = text_of(kSource / "docs" / "security.md");
  const std::set<std::string> named =
      matches(page, std::regex(R"(`([A-Z]\w+\.[A-Z]\w+|test_\w+)`)"), "$1");
  const std::set<std::string> tests = all_tests();
  EXPECT_GT(named.size(), 30U) << "the page has moved, or is written in another way";
  for (const std::string& name : named) {
    if (name == "test_name" || name == "Suite.Name") continue;
    EXPECT_TRUE(tests.contains(name)) << "docs/security.md names " << name << ", which is no test";
  }
}

}  // namespace
}  // namespace ringroad
