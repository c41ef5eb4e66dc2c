// docs/security.md names a test for each claim; a claim whose test has gone is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
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

std::string word_at(const std::string& text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() &&
         (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) {
    ++end;
  }
  return text.substr(at, end - at);
}

std::size_t behind_space(const std::string& text, std::size_t at) {
  return std::min(text.find_first_not_of(" \n", at), text.size());
}

// Suite.Name of every test below tests/.
void add_cpp_tests(const std::string& text, std::set<std::string>& out) {
  for (const std::string macro : {"TEST(", "TEST_F(", "TEST_P("}) {
    for (std::size_t at = text.find(macro); at != text.npos; at = text.find(macro, at + 1)) {
      const std::size_t suite_at = behind_space(text, at + macro.size());
      const std::string suite = word_at(text, suite_at);
      const std::size_t comma = suite_at + suite.size();
      if (suite.empty() || comma >= text.size() || text[comma] != ',') continue;
      out.insert(suite + "." + word_at(text, behind_space(text, comma + 1)));
    }
  }
}

// test_name of every one below integration/.
void add_python_tests(const std::string& text, std::set<std::string>& out) {
  const std::string definition = "def test_";
  for (std::size_t at = text.find(definition); at != text.npos; at = text.find(definition, at + 1)) {
    out.insert(word_at(text, at + 4));
  }
}

std::set<std::string> all_tests() {
  std::set<std::string> out;
  for (const char* folder : {"tests", "integration"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
      if (entry.path().extension() == ".cc") add_cpp_tests(text_of(entry.path()), out);
      if (entry.path().extension() == ".py") add_python_tests(text_of(entry.path()), out);
    }
  }
  return out;
}

// What the page names between backquotes that looks like a test.
std::set<std::string> named_tests(const std::string& page) {
  std::set<std::string> out;
  for (std::size_t at = page.find('`'); at != page.npos; at = page.find('`', at + 1)) {
    std::string name = word_at(page, at + 1);
    const std::size_t dot = at + 1 + name.size();
    if (dot < page.size() && page[dot] == '.') name += "." + word_at(page, dot + 1);
    const std::size_t end = at + 1 + name.size();
    if (end >= page.size() || page[end] != '`' || name.empty()) continue;
    const std::size_t inner = name.find('.');
    const bool is_cpp = inner != name.npos && std::isupper(static_cast<unsigned char>(name[0])) != 0 &&
                        std::isupper(static_cast<unsigned char>(name[inner + 1])) != 0;
    if (is_cpp || name.starts_with("test_")) out.insert(name);
  }
  return out;
}

TEST(SecurityDocs, EveryTestThatTheyNameExists) {
  const std::set<std::string> named = named_tests(text_of(kSource / "docs" / "security.md"));
  const std::set<std::string> tests = all_tests();
  EXPECT_GT(named.size(), 30U) << "the page has moved, or is written in another way";
  for (const std::string& name : named) {
    if (name == "test_name" || name == "Suite.Name") continue;
    EXPECT_TRUE(tests.contains(name)) << "docs/security.md names " << name << ", which is no test";
  }
}

}  // namespace
}  // namespace ringroad
