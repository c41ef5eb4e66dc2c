#include "cli/doctor/memlock.h"

#include <algorithm>
#include <cstdlib>

#include "cli/doctor/context.h"

namespace ringroad::cli::doctor {
namespace {

constexpr unsigned kIpcLock = 14;  // linux/capability.h
constexpr std::uint64_t kBesides = 64U << 10;

// What follows `name` on its line.
std::optional<std::string> line_after(const std::string& text, const std::string& name) {
  const std::size_t at = text.starts_with(name) ? 0 : text.find("\n" + name);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = text.find(name, at) + name.size();
  return trimmed(text.substr(begin, text.find('\n', begin) - begin));
}

}  // namespace

std::optional<std::uint64_t> memlock_of_limits(const std::string& text) {
  const auto line = line_after(text, "Max locked memory");
  if (!line) return std::nullopt;
  const std::vector<std::string> words = split(*line);
  return words.empty() ? std::nullopt : memlock_of_unit(words.front());
}

bool may_lock_everything(const std::string& status) {
  const auto line = line_after(status, "CapEff:");
  if (!line) return false;
  return (std::strtoull(line->c_str(), nullptr, 16) >> kIpcLock & 1U) != 0;
}

std::optional<std::uint64_t> memlock_of_unit(const std::string& value) {
  if (value == "infinity" || value == "unlimited") return kUnlimited;
  const auto number = to_number(value);
  return number ? std::optional<std::uint64_t>(*number) : std::nullopt;
}

std::uint64_t stream_bytes(const std::vector<const policy::Rule*>& rules) {
  std::uint64_t ring = rules.empty() ? policy::kDefaultRingBytes : 0;
  for (const policy::Rule* rule : rules) {
    ring = std::max<std::uint64_t>(ring, rule->settings.ring_bytes);
  }
  return 2 * ring + kBesides;
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  constexpr std::uint64_t kKib = 1U << 10;
  constexpr std::uint64_t kMib = 1U << 20;
  constexpr std::uint64_t kGib = 1U << 30;
  if (bytes >= kGib && bytes % kGib == 0) return std::to_string(bytes / kGib) + " GiB";
  if (bytes >= kMib && bytes % kMib == 0) return std::to_string(bytes / kMib) + " MiB";
  return bytes >= kKib ? std::to_string(bytes / kKib) + " KiB" : std::to_string(bytes) + " B";
}

}  // namespace ringroad::cli::doctor
