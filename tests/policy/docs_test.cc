// The documents must not drift from the program: their examples load, and they name every key.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "tests/policy/support.h"

namespace ringroad::policy {
namespace {

std::string text_of(const char* path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> toml_blocks(const std::string& text) {
  constexpr std::string_view kOpen = "```toml\n";
  std::vector<std::string> blocks;
  for (std::size_t at = text.find(kOpen); at != std::string::npos; at = text.find(kOpen, at)) {
    at += kOpen.size();
    const std::size_t end = text.find("```", at);
    blocks.push_back(text.substr(at, end - at));
  }
  return blocks;
}

TEST(Reference, EveryExampleLoadsWithoutAWarning) {
  const std::vector<std::string> blocks = toml_blocks(text_of(RINGROAD_POLICY_DOCS));
  EXPECT_GE(blocks.size(), 2U);
  for (const std::string& block : blocks) {
    EXPECT_EQ(all_of(must_load(block)->warnings(), "warning"), "") << block;
  }
}

TEST(Reference, DescribesEveryKey) {
  // The error for an unknown key lists them all.
  const LoadResult loaded = Policy::load_text(one_rule("zzz = 1"), "p");
  ASSERT_EQ(loaded.errors.size(), 1U);
  std::istringstream words(loaded.errors[0].remedy);
  const std::string text = text_of(RINGROAD_REFERENCE);
  int keys = 0;
  for (std::string word; words >> word;) {
    if (word.front() == '"') {
      const std::string key = word.substr(1, word.find('"', 1) - 1);
      EXPECT_NE(text.find("| `" + key + "` |"), std::string::npos) << key;
      ++keys;
    }
  }
  EXPECT_EQ(keys, 19);
}

}  // namespace
}  // namespace ringroad::policy
