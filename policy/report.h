// Collects what is wrong with one file.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "policy/complaint.h"
#include "policy/document.h"
#include "policy/error.h"

namespace ringroad::policy {

// After so many errors in all files, the rest is noise.
constexpr std::size_t kMostErrors = 64;

class Report {
 public:
  // Both vectors outlive the report and may hold what other files caused.
  Report(std::string file, std::vector<Error>& errors, std::vector<Error>& warnings)
      : file_(std::move(file)), errors_(errors), warnings_(warnings) {}

  const std::string& file() const noexcept { return file_; }

  void error(Position at, Complaint complaint) { add(errors_, at, std::move(complaint)); }
  void warning(Position at, Complaint complaint) { add(warnings_, at, std::move(complaint)); }

 private:
  void add(std::vector<Error>& list, Position at, Complaint complaint) const {
    if (list.size() < kMostErrors) {
      list.push_back(
          {file_, at.line, at.column, std::move(complaint.message), std::move(complaint.remedy)});
    }
  }

  std::string file_;
  std::vector<Error>& errors_;
  std::vector<Error>& warnings_;
};

}  // namespace ringroad::policy
