#include "cli/doctor/finding.h"

#include <algorithm>

namespace ringroad::cli::doctor {

const char* level_name(Level level) noexcept {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kUnknown:
      return "unknown";
    case Level::kWarn:
      return "warn";
    case Level::kFail:
      break;
  }
  return "fail";
}

Level worst(const std::vector<Finding>& findings) noexcept {
  Level level = Level::kOk;
  for (const Finding& finding : findings) level = std::max(level, finding.level);
  return level;
}

}  // namespace ringroad::cli::doctor
