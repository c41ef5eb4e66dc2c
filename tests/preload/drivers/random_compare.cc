#include "tests/preload/drivers/random_compare.h"

#include <algorithm>
#include <sstream>

#include "tests/preload/drivers/scenario_run.h"

namespace ringroad::test {
namespace {

constexpr std::size_t kLinesAround = 25;

std::string list_of(const std::vector<long>& numbers) {
  std::string list;
  for (const long number : numbers) list += (list.empty() ? "" : ",") + std::to_string(number);
  return list;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Every word of the kernel's edges, in braces, is told; the rest of the line is the same. More edges,
// or more in one, may be told while a stream changes carrier.
bool no_edge_less(const std::string& plain, const std::string& preloaded) {
  const auto split = [](const std::string& line, std::vector<std::string>& edges) {
    std::string rest;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.size() > 2 && word.front() == '{' && word.back() == '}') {
        edges.push_back("|" + word.substr(1, word.size() - 2) + "|");
      } else {
        rest += " " + word;
      }
    }
    return rest;
  };
  std::vector<std::string> expected;
  std::vector<std::string> told;
  if (split(plain, expected) != split(preloaded, told)) return false;
  return std::all_of(expected.begin(), expected.end(), [&](const std::string& edge) {
    const std::string label = edge.substr(0, edge.find('=') + 1);
    const auto found = std::find_if(told.begin(), told.end(), [&](const std::string& other) {
      return other.compare(0, label.size(), label) == 0;
    });
    if (found == told.end()) return false;
    std::istringstream bits(edge.substr(label.size()));
    for (std::string bit; std::getline(bits, bit, '|');) {
      if (!bit.empty() && ("|" + found->substr(label.size())).find("|" + bit + "|") == std::string::npos) {
        return false;
      }
    }
    return true;
  });
}

}  // namespace

std::string first_difference(const std::string& plain, const std::string& preloaded, bool more_edges) {
  const std::vector<std::string> a = lines_of(plain);
  const std::vector<std::string> b = lines_of(preloaded);
  std::size_t at = 0;
  while (at < std::min(a.size(), b.size()) &&
         (a[at] == b[at] || (more_edges && no_edge_less(a[at], b[at])))) {
    ++at;
  }
  if (at == a.size() && at == b.size()) return "";
  std::string out = "\n";
  for (std::size_t i = at < kLinesAround ? 0 : at - kLinesAround; i < at; ++i) out += "    " + a[i] + "\n";
  out += "  - " + (at < a.size() ? a[at] : "(its end)") + "\n";
  out += "  + " + (at < b.size() ? b[at] : "(its end)") + "\n";
  for (std::size_t i = at + 1; i < std::min(a.size(), at + 4); ++i) out += "    " + a[i] + "\n";
  return out;
}

RandomOutcome run_random(const RandomRun& run, int timeout_ms) {
  TemporaryDirectory directory;
  const std::string policy = directory.write(
      "policy.toml", run.from_the_first_byte ? policy_from_the_first_byte() : policy_after_messages(3));
  const std::string segments = directory.path() + "/run";
  std::vector<std::string> changes;
  if (run.preloaded) {
    changes = {"LD_PRELOAD=" RINGROAD_LIBRARY, "RINGROAD_POLICY=" + policy,
               "RINGROAD_RUNTIME_DIR=" + segments};
  }
  std::vector<std::string> words = {RINGROAD_RANDOM_OPERATIONS, run.mode, std::to_string(run.seed),
                                    std::to_string(run.count)};
  if (!run.only.empty()) words.push_back(list_of(run.only));
  Program program(words, environment_with(changes));
  RandomOutcome outcome;
  outcome.ended = program.wait_for("== end\n", timeout_ms);
  if (run.preloaded) outcome.snapshot = cli::read_segments(segments);
  outcome.status = program.finish(timeout_ms);
  outcome.transcript = program.out();
  outcome.errors = program.err();
  return outcome;
}

std::string command_of(const RandomRun& run) {
  return "random_operations " + run.mode + " " + std::to_string(run.seed) + " " + std::to_string(run.count) +
         (run.only.empty() ? "" : " " + list_of(run.only));
}

}  // namespace ringroad::test
