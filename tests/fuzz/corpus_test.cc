// The inputs that are kept, tried again without a fuzzer: what was found once stays found. And each of
// them cut short and with a bit turned, which costs little.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace ringroad::fuzz {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = RINGROAD_FUZZ_CORPUS;

std::vector<fs::path> inputs_of(const std::string& target) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(kCorpus / target)) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::uint8_t> bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Corpus : public testing::TestWithParam<Target> {};

TEST_P(Corpus, HoldsForEveryInputThatIsKept) {
  const std::vector<fs::path> inputs = inputs_of(GetParam().name);
  ASSERT_FALSE(inputs.empty()) << "no inputs in " << kCorpus / GetParam().name;
  for (const fs::path& path : inputs) EXPECT_EQ("", GetParam().run(bytes_of(path))) << path;
}

TEST_P(Corpus, HoldsForInputsThatAreCutShortOrAltered) {
  constexpr std::size_t kPlaces = 24;
  for (const fs::path& path : inputs_of(GetParam().name)) {
    const std::vector<std::uint8_t> whole = bytes_of(path);
    for (std::size_t i = 0; i < kPlaces && !whole.empty(); ++i) {
      const std::size_t at = whole.size() * i / kPlaces;
      std::vector<std::uint8_t> altered = whole;
      altered[at] = static_cast<std::uint8_t>(altered[at] ^ (1U << (i % 8)));
      ASSERT_EQ("", GetParam().run(altered)) << path << " with byte " << at << " altered";
      ASSERT_EQ("", GetParam().run({whole.data(), at})) << path << " cut to " << at << " bytes";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Corpus, testing::ValuesIn(kTargets),
                         [](const auto& target) { return std::string(target.param.name); });

TEST(CorpusFolder, HoldsNothingThatNobodyTries) {
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    EXPECT_TRUE(std::any_of(std::begin(kTargets), std::end(kTargets), [&](const Target& target) {
      return entry.path().filename() == target.name;
    })) << entry.path();
  }
}

}  // namespace
}  // namespace ringroad::fuzz
