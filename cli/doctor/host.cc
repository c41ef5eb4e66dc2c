#include "cli/doctor/host.h"

#include <cstring>

namespace ringroad::cli::doctor {
namespace {

constexpr const char* kSpace = " \t\r\n\f\v";

}  // namespace

std::string CommandResult::problem() const {
  switch (end) {
    case End::kMissing:
      return "not installed";
    case End::kTimedOut:
      return "no answer in time";
    case End::kKilled:
      return "ended by signal " + std::to_string(status);
    case End::kFailed: {
      const char* text = strerrordesc_np(status);
      return text != nullptr ? text : "errno " + std::to_string(status);
    }
    case End::kExited:
      break;
  }
  const std::string said = trimmed(err);
  return said.empty() ? "exit status " + std::to_string(status) : said.substr(0, said.find('\n'));
}

bool name_less(const std::string& a, const std::string& b) noexcept {
  const int order = strverscmp(a.c_str(), b.c_str());
  return order < 0;
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace ringroad::cli::doctor
