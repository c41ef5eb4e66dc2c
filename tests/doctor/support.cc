#include "tests/doctor/support.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/doctor/tree.h"

namespace ringroad::cli::doctor {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace

std::string testdata(const std::string& name) {
  return std::string(RINGROAD_DOCTOR_TESTDATA) + "/" + name;
}

Tree::Tree(const std::string& name) : path_(folder_.file("tree")) {
  std::filesystem::create_directory(path_);
  if (!name.empty()) {
    std::filesystem::copy(testdata(name), path_, std::filesystem::copy_options::recursive);
  }
}

Tree& Tree::write(const std::string& file, const std::string& text) {
  const std::filesystem::path where(path_ + file);
  std::filesystem::create_directories(where.parent_path());
  std::ofstream(where, std::ios::binary) << text;
  return *this;
}

Tree& Tree::remove(const std::string& file) {
  EXPECT_GT(std::filesystem::remove_all(path_ + file), 0U) << file << " was never there";
  return *this;
}

Tree& Tree::meta(const std::string& line) {
  std::ofstream(path_ + "/meta", std::ios::app) << "\n" << line << "\n";
  return *this;
}

Tree& Tree::says(const std::string& words, const std::string& out) {
  const std::string file = "/commands/" + file_name(words_of(words));
  std::filesystem::remove(path_ + file + ".exit");
  return write(file, out);
}

Tree& Tree::fails(const std::string& words, const std::string& exit) {
  const std::string file = "/commands/" + file_name(words_of(words));
  return write(file, "").write(file + ".exit", exit);
}

std::vector<Finding> Tree::examine(const Questions& questions,
                                   const std::vector<std::string>& only) const {
  RecordedHost host(path_);
  const std::string policy = path_ + "/policy";
  Context context(
      host, questions,
      std::filesystem::exists(policy) ? policy::Policy::load({policy}) : policy::Policy::load({}));
  return run_checks(context, only);
}

std::vector<Finding> Tree::check(const std::string& name, const Questions& questions) const {
  return examine(questions, {name});
}

Questions all_questions() {
  Questions questions;
  questions.user = "mysql";
  questions.unit = "mariadb";
  questions.pid = 4711;
  return questions;
}

std::string texts(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += std::string(level_name(finding.level)) + " " + finding.subject + ": " +
            finding.evidence + " | " + finding.consequence + " | " + finding.remedy + "\n";
  }
  return text;
}

void PrintTo(const Finding& finding, std::ostream* out) { *out << texts({finding}); }

}  // namespace ringroad::cli::doctor
