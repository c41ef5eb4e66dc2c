#include "cli/doctor/tree.h"

#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sstream>

namespace ringroad::cli::doctor {
namespace {

constexpr std::size_t kLongestName = 180;
constexpr int kMostErrno = 133;

std::uint64_t hash(const std::string& text) noexcept {
  std::uint64_t value = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return value;
}

int errno_of(const std::string& name) noexcept {
  for (int number = 1; number <= kMostErrno; ++number) {
    const char* known = strerrorname_np(number);
    if (known != nullptr && name == known) return number;
  }
  return EIO;
}

bool has_space(const std::string& text) noexcept {
  return text.empty() || text.find_first_of(" \t\r\n") != std::string::npos;
}

}  // namespace

std::string file_name(const std::vector<std::string>& words) {
  std::string name;
  for (const std::string& word : words) {
    if (!name.empty()) name += '_';
    for (const char c : word) {
      const bool plain =
          std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("-.:,=+@", c) != nullptr;
      name += plain && c != '\0' ? c : '%';
    }
  }
  if (name.size() > kLongestName) {
    char tail[24];
    std::snprintf(tail, sizeof tail, "~%016llx", static_cast<unsigned long long>(hash(name)));
    name = name.substr(0, kLongestName) + tail;
  }
  return name.empty() || name[0] == '.' ? "%" + name : name;
}

Meta parse_meta(const std::string& text) {
  Meta meta;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind;
    std::string path;
    std::string value;
    words >> kind >> path >> value;
    if (value.empty()) continue;
    if (kind == "error") meta.errors[path] = errno_of(value);
    if (kind == "link") meta.links[path] = value;
    FileStatus status;
    if (kind == "status" && (words >> status.owner >> status.group)) {
      std::istringstream(value) >> std::oct >> status.mode;
      meta.statuses[path] = status;
    }
  }
  return meta;
}

std::string to_text(const Meta& meta) {
  std::ostringstream text;
  for (const auto& [path, error] : meta.errors) {
    const char* name = strerrorname_np(error);
    if (!has_space(path))
      text << "error " << path << ' ' << (name != nullptr ? name : "EIO") << '\n';
  }
  for (const auto& [path, status] : meta.statuses) {
    if (has_space(path)) continue;
    text << "status " << path << ' ' << std::oct << status.mode << std::dec << ' ' << status.owner
         << ' ' << status.group << '\n';
  }
  for (const auto& [path, target] : meta.links) {
    if (!has_space(path) && !has_space(target)) text << "link " << path << ' ' << target << '\n';
  }
  return text.str();
}

std::string exit_text(const CommandResult& result) {
  const std::string number = std::to_string(result.status);
  switch (result.end) {
    case CommandResult::End::kExited:
      return number + "\n" + result.err;
    case CommandResult::End::kKilled:
      return "killed " + number + "\n" + result.err;
    case CommandResult::End::kTimedOut:
      return "timeout\n" + result.err;
    case CommandResult::End::kFailed:
      return "failed " + number + "\n";
    case CommandResult::End::kMissing:
      break;
  }
  return "missing\n";
}

void apply_exit(const std::string& text, CommandResult& result) {
  using End = CommandResult::End;
  const std::size_t line_end = text.find('\n');
  std::istringstream first(text.substr(0, line_end));
  std::string word;
  first >> word;
  result.err = line_end == std::string::npos ? std::string() : text.substr(line_end + 1);
  result.end = word == "killed"    ? End::kKilled
               : word == "timeout" ? End::kTimedOut
               : word == "failed"  ? End::kFailed
               : word == "missing" ? End::kMissing
                                   : End::kExited;
  if (result.end == End::kExited) {
    first.clear();
    first.str(word);
  }
  if (!(first >> result.status)) result.status = result.end == End::kExited ? 1 : 0;
}

}  // namespace ringroad::cli::doctor
