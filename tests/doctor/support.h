// Recorded hosts that a test changes before it has them examined.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "cli/doctor/check.h"
#include "cli/doctor/recorded_host.h"
#include "tests/cli/support.h"

namespace ringroad::cli::doctor {

// tests/data/hosts/NAME
std::string testdata(const std::string& name);

// A copy of a recorded host.
class Tree {
 public:
  // "good", "bad", "softroce"; empty: an empty host.
  explicit Tree(const std::string& name = "good");

  const std::string& path() const noexcept { return path_; }
  Tree& write(const std::string& file, const std::string& text);
  Tree& remove(const std::string& file);  // or a folder
  Tree& meta(const std::string& line);    // another line of it; a later one holds
  // What the command says on stdout; `words` are separated by spaces.
  Tree& says(const std::string& words, const std::string& out);
  // That it fails: "1\nthe reason", "timeout", "missing".
  Tree& fails(const std::string& words, const std::string& exit);

  std::vector<Finding> examine(const Questions& questions = {},
                               const std::vector<std::string>& only = {}) const;
  // Of one check.
  std::vector<Finding> check(const std::string& name, const Questions& questions = {}) const;

 private:
  const TempFolder folder_;
  const std::string path_;
};

// With --user mysql --unit mariadb --pid 4711, as tests/data/hosts/good and bad know them.
Questions all_questions();

// The worst of them; all texts of them.
std::string texts(const std::vector<Finding>& findings);
void PrintTo(const Finding& finding, std::ostream* out);

// One finding of that level whose evidence holds that text, and no worse one.
MATCHER_P2(Worst, level, evidence, "") {
  if (worst(arg) != level) return false;
  for (const Finding& finding : arg) {
    if (finding.level == level && finding.evidence.find(evidence) != std::string::npos) return true;
  }
  return false;
}

}  // namespace ringroad::cli::doctor
