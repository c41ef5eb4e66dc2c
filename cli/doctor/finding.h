// What a check found: how bad it is, what was seen, what it means for Ringroad, and what mends it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ringroad::cli::doctor {

// By severity: what is not known may be bad, so it is worse than ok.
enum class Level : std::uint8_t { kOk, kUnknown, kWarn, kFail };

const char* level_name(Level level) noexcept;  // ok, unknown, warn, fail

struct Finding {
  std::string check;  // the check's name
  std::string group;
  Level level = Level::kUnknown;
  std::string subject;      // device, subnet, unit ... that it is about; may be empty
  std::string evidence;     // what was seen, and where
  std::string consequence;  // for Ringroad; empty with kOk
  std::string remedy;       // a command or the text of a file; may be empty; may have several lines
};

// kOk when there is none.
Level worst(const std::vector<Finding>& findings) noexcept;

// What one check adds its findings to. The texts may hold what files and commands said: see
// printable().
class Findings {
 public:
  Findings(std::string check, std::string group, std::vector<Finding>& list)
      : check_(std::move(check)), group_(std::move(group)), list_(list) {}

  void ok(std::string subject, std::string evidence) {
    add(Level::kOk, std::move(subject), std::move(evidence), {}, {});
  }
  void unknown(std::string subject, std::string evidence, std::string consequence,
               std::string remedy) {
    add(Level::kUnknown, std::move(subject), std::move(evidence), std::move(consequence),
        std::move(remedy));
  }
  void warn(std::string subject, std::string evidence, std::string consequence,
            std::string remedy) {
    add(Level::kWarn, std::move(subject), std::move(evidence), std::move(consequence),
        std::move(remedy));
  }
  void fail(std::string subject, std::string evidence, std::string consequence,
            std::string remedy) {
    add(Level::kFail, std::move(subject), std::move(evidence), std::move(consequence),
        std::move(remedy));
  }
  void add(Level level, std::string subject, std::string evidence, std::string consequence,
           std::string remedy) {
    list_.push_back({check_, group_, level, std::move(subject), std::move(evidence),
                     std::move(consequence), std::move(remedy)});
  }

 private:
  std::string check_;
  std::string group_;
  std::vector<Finding>& list_;
};

}  // namespace ringroad::cli::doctor
