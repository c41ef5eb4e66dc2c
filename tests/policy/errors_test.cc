// Every error that a policy can have, word for word, with its place and its remedy. The cases are
// in tests/data/policy/errors.txt, which says how they are written.

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <sstream>
#include <vector>

#include "tests/policy/support.h"

namespace ringroad::policy {
namespace {

struct Case {
  int line = 0;  // in errors.txt
  std::string policy;
  std::string errors;
};

struct Section {
  std::string title;
  std::vector<Case> cases;

  friend void PrintTo(const Section& section, std::ostream* out) { *out << section.title; }
};

// "{n*64}" is 64 times n.
std::string repeated(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t end = text.find('}', i);
    if (text[i] == '{' && text.substr(i + 2, 1) == "*" && end != std::string::npos) {
      result.append(std::stoul(text.substr(i + 3, end - i - 3)), text[i + 1]);
      i = end;
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      result += text[i];
      continue;
    }
    switch (text.at(++i)) {
      case 'n':
        result += '\n';
        break;
      case 't':
        result += '\t';
        break;
      case 'x':
        result += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
        i += 2;
        break;
      case '\\':
        result += '\\';
        break;
      default:
        ADD_FAILURE() << "unknown escape in " << text;
    }
  }
  return result;
}

std::string policy_of(const std::string& kind, const std::string& text) {
  if (kind == "@rule") {
    return one_rule(text);
  }
  if (kind == "@subnet") {
    return "version = 1\n[[rule]]\nsubnet = " + text + "\n";
  }
  EXPECT_EQ(kind, "@file");
  return text;
}

// "4:7: message (remedy)" as the program prints it.
std::string printed(const std::string& error) {
  const std::size_t after_place = error.find(": ") + 2;
  return "p.toml:" + error.substr(0, after_place) + "error: " + error.substr(after_place) + "\n";
}

std::vector<Section> read_sections() {
  std::ifstream file(RINGROAD_POLICY_ERRORS);
  std::vector<Section> sections;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.starts_with("## ")) {
      sections.push_back({line.substr(3), {}});
    } else if (line.starts_with('@')) {
      const std::size_t space = line.find(' ');
      const std::string text =
          space == std::string::npos ? "" : unescaped(repeated(line.substr(space + 1)));
      sections.back().cases.push_back({number, policy_of(line.substr(0, space), text), ""});
    } else if (!line.empty() && !line.starts_with('#')) {
      sections.back().cases.back().errors += printed(repeated(line));
    }
  }
  return sections;
}

class PolicyErrors : public testing::TestWithParam<Section> {};

TEST_P(PolicyErrors, AreWordForWordAsListed) {
  EXPECT_FALSE(GetParam().cases.empty());
  for (const Case& one : GetParam().cases) {
    const LoadResult loaded = Policy::load_text(one.policy, "p.toml");
    EXPECT_FALSE(loaded);
    EXPECT_EQ(all_of(loaded.errors), one.errors) << "errors.txt:" << one.line;
  }
}

std::string test_name(const testing::TestParamInfo<Section>& section) {
  std::string name;
  for (const char c : section.param.title) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Listed, PolicyErrors, testing::ValuesIn(read_sections()), test_name);

TEST(PolicyErrorList, IsComplete) {
  std::size_t cases = 0;
  for (const Section& section : read_sections()) {
    cases += section.cases.size();
  }
  EXPECT_GT(cases, 150U) << "was errors.txt found at " << RINGROAD_POLICY_ERRORS << "?";
}

TEST(PolicyErrorList, EndsAfterSixtyFour) {
  std::string text = "version = 1\n";
  for (int i = 0; i < 100; ++i) {
    text += "[[rule]]\n";
  }
  const LoadResult loaded = Policy::load_text(text, "p.toml");
  EXPECT_FALSE(loaded);
  ASSERT_EQ(loaded.errors.size(), 64U);
  EXPECT_EQ(loaded.errors.back().line, 65U);
}

TEST(PolicyError, IsPrintedWithoutAPlaceOrARemedyWhereItHasNone) {
  EXPECT_EQ(to_string(Error{"f", 0, 0, "m", ""}), "f: error: m");
  EXPECT_EQ(to_string(Error{"f", 1, 2, "m", "r"}, "warning"), "f:1:2: warning: m (r)");
}

TEST(PolicyWarnings, TellOfKeysWithoutEffect) {
  const auto warnings = [](std::string_view lines) {
    return all_of(must_load(one_rule(lines))->warnings(), "warning");
  };
  EXPECT_EQ(warnings("via = \"shm\"\ndevice = \"mlx5_0\"\ntraffic_class = 1\nring = \"4KiB\""),
            "policy.toml:5:1: warning: \"device\" has no effect with via = \"shm\" (leave it out)\n"
            "policy.toml:6:1: warning: \"traffic_class\" has no effect with via = \"shm\" (leave "
            "it out)\n");
  const std::string on_tcp = warnings(
      "device = \"mlx5_0\"\ntraffic_class = 1\nring = \"4KiB\"\nspin = \"1us\"\n"
      "promote_after = { messages = 0 }\nwait = \"1ms\"\nvia = \"tcp\"");
  for (const char* key :
       {"4:1: warning: \"device\"", "5:1: warning: \"traffic_class\"", "6:1: warning: \"ring\"",
        "7:1: warning: \"spin\"", "8:1: warning: \"promote_after\"", "9:1: warning: \"wait\""}) {
    EXPECT_NE(on_tcp.find(key), std::string::npos) << key << " in\n" << on_tcp;
  }
  EXPECT_EQ(warnings("wait = \"1ms\""),
            "policy.toml:4:1: warning: \"wait\" has no effect on a connection that starts on TCP "
            "(write promote_after = { messages = 0 } too, or leave it out)\n");
  EXPECT_EQ(warnings("wait = \"1ms\"\npromote_after = { bytes = \"0B\" }"), "");
  EXPECT_EQ(warnings("wait = \"0ms\"\nvia = \"rdma\"\ndevice = \"mlx5_0\""), "");
}

}  // namespace
}  // namespace ringroad::policy
