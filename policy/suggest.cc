#include "policy/suggest.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "policy/complaint.h"

namespace ringroad::policy {
namespace {

constexpr std::size_t kLongestWord = 64;

// What other programs call it, and what we do.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kSynonyms = {{
    {"address", "subnet"},
    {"cidr", "subnet"},
    {"network", "subnet"},
    {"prefix", "subnet"},
    {"remote", "subnet"},
    {"process", "program"},
    {"command", "program"},
    {"transport", "via"},
    {"dscp", "traffic_class"},
    {"tos", "traffic_class"},
    {"tclass", "traffic_class"},
    {"buffer", "ring"},
    {"poll", "spin"},
    {"roce", "rdma"},
    {"client", "connect"},
    {"server", "accept"},
}};

char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lower_case(std::string_view word) {
  std::string result(word);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

// Insertions, deletions, replacements and swaps of neighbours that turn one into the other.
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> before_last(to.size() + 1);
  std::vector<std::size_t> last(to.size() + 1);
  std::vector<std::size_t> row(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) {
    last[j] = j;
  }
  for (std::size_t i = 1; i <= from.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (from[i - 1] == to[j - 1] ? 0U : 1U);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = last;
    last = row;
  }
  return last[to.size()];
}

bool contains(std::span<const std::string_view> words, std::string_view word) noexcept {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> known) {
  if (word.empty() || word.size() > kLongestWord) {
    return {};
  }
  const std::string wanted = lower_case(word);
  for (const auto& [synonym, ours] : kSynonyms) {
    if (wanted == synonym && contains(known, ours)) {
      return ours;
    }
  }
  std::string_view best;
  std::size_t best_distance = 1 + wanted.size() / 4;
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(wanted, candidate);
    const bool closer = best.empty() ? distance <= best_distance : distance < best_distance;
    // A short word must not turn into an unrelated one by having all its letters replaced.
    if (closer && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty()) {
    return best;
  }
  // "ring_size" for "ring", "spin_us" for "spin".
  for (const std::string_view candidate : known) {
    if (candidate.size() >= 3 && wanted.starts_with(candidate)) {
      return candidate;
    }
  }
  return {};
}

std::string suggestion(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view guess = nearest(word, known);
  if (!guess.empty()) {
    return "did you mean " + in_quotes(guess) + "?";
  }
  std::string text = known.size() == 1 ? "it can only be " : "it can be ";
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (i != 0) {
      text += i + 1 == known.size() ? " or " : ", ";
    }
    text += in_quotes(known[i]);
  }
  return text;
}

}  // namespace ringroad::policy
