// random_explorer [--seconds S] [--seed FIRST] [--count N]: runs random_operations strange, plain and
// preloaded, with one seed after another until S seconds are over (20), N operations each (400). The kernel
// says what is right.
//
// A difference is looked at again: if two plain runs do not agree either, it proves nothing, and is counted.
// If they do, operations are left out as long as the difference stays, and the shortest run that shows it is
// printed with the command for it. Seeds that are even are promoted from the first byte, the others after
// some messages.
//
// Without a seed the time is the first one: each run looks elsewhere.
//
// Exit status: 0 no difference; 1 one at least, or no byte ever went over a channel; 2 wrong arguments.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/preload/drivers/random_compare.h"

namespace ringroad::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimeoutMs = 40'000;
constexpr auto kShorteningTime = std::chrono::seconds(90);
constexpr int kTriesToSeeItAgain = 4;

struct Options {
  int seconds = 20;
  std::uint64_t seed = 0;
  long count = 400;
};

std::optional<Options> options_of(int argc, char** argv) {
  Options options;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  options.seed = static_cast<std::uint64_t>(now / std::chrono::seconds(1));
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) return std::nullopt;
    char* end = nullptr;
    const unsigned long long value = std::strtoull(argv[i + 1], &end, 0);
    if (*end != '\0' || end == argv[i + 1]) return std::nullopt;
    if (name == "--seconds") {
      options.seconds = static_cast<int>(value);
    } else if (name == "--seed") {
      options.seed = value;
    } else if (name == "--count") {
      options.count = static_cast<long>(value);
    } else {
      return std::nullopt;
    }
  }
  return options;
}

class Explorer {
 public:
  explicit Explorer(const Options& options) : options_(options) {}

  int run() {
    const auto until = Clock::now() + std::chrono::seconds(options_.seconds);
    std::uint64_t seed = options_.seed;
    std::printf("seeds from %llu, %ld operations each\n", static_cast<unsigned long long>(seed),
                options_.count);
    std::fflush(stdout);
    do {
      explore(seed++);
    } while (Clock::now() < until);
    std::printf(
        "%llu seeds: %d with a difference, %d on which plain runs do not agree; %llu bytes over channels\n",
        static_cast<unsigned long long>(seed - options_.seed), different_, in_doubt_,
        static_cast<unsigned long long>(crossed_));
    return different_ == 0 && crossed_ > 0 ? 0 : 1;
  }

 private:
  RandomRun run_of(std::uint64_t seed, bool preloaded, const std::vector<long>& only) const {
    RandomRun run;
    run.mode = "strange";
    run.seed = seed;
    run.count = only.empty() ? options_.count : only.back() + 1;
    run.only = only;
    run.preloaded = preloaded;
    run.from_the_first_byte = seed % 2 == 0;
    return run;
  }

  static std::string all_of(const RandomOutcome& outcome) {
    std::string all = outcome.transcript + outcome.errors;
    if (!outcome.ended) all += "no end in sight\n";
    if (outcome.status != 0) all += "exit status " + std::to_string(outcome.status) + "\n";
    return all;
  }

  // "": none, or two plain runs do not agree.
  std::string difference(std::uint64_t seed, const std::vector<long>& only, bool& doubtful) {
    const std::string plain = all_of(run_random(run_of(seed, false, only), kTimeoutMs));
    const RandomOutcome preloaded = run_random(run_of(seed, true, only), kTimeoutMs);
    for (const cli::ProcessReport& process : preloaded.snapshot.processes) {
      crossed_ += process.totals().channel.rx_bytes;
    }
    const std::string found = first_difference(plain, all_of(preloaded), true);
    if (found.empty()) return found;
    const std::string again = all_of(run_random(run_of(seed, false, only), kTimeoutMs));
    doubtful = plain != again || plain.find("does not settle") != std::string::npos;
    return doubtful ? "" : found;
  }

  void explore(std::uint64_t seed) {
    bool doubtful = false;
    std::string found = difference(seed, {}, doubtful);
    if (doubtful) ++in_doubt_;
    if (found.empty()) return;
    ++different_;
    std::printf("\nseed %llu: a difference%s\n", static_cast<unsigned long long>(seed), found.c_str());
    std::fflush(stdout);
    const std::vector<long> shortest = shortened(seed, found);
    if (shortest.empty()) {
      std::printf("it is not seen again\n");
    } else {
      std::printf("shortened%s", found.c_str());
    }
    std::printf("again, plain, and preloaded with promote_after = { messages = %d }:\n  %s\n",
                seed % 2 == 0 ? 0 : 3, command_of(run_of(seed, true, shortest)).c_str());
    std::fflush(stdout);
  }

  // The operation that is told otherwise.
  long number_of(const std::string& difference) const {
    const std::size_t at = difference.find("\n  - ");
    const long number = at == std::string::npos ? 0 : std::atol(difference.c_str() + at + 5);
    return number > 0 && number < options_.count ? number : options_.count - 1;
  }

  // Without those that it does not need, so far as that is found in time. Empty: it does not come again.
  std::vector<long> shortened(std::uint64_t seed, std::string& found) {
    const auto until = Clock::now() + kShorteningTime;
    const auto shows = [&](const std::vector<long>& only) {
      bool doubtful = false;
      const std::string here = difference(seed, only, doubtful);
      if (!here.empty()) found = here;
      return !here.empty();
    };
    std::vector<long> kept(static_cast<std::size_t>(number_of(found)) + 1);
    std::iota(kept.begin(), kept.end(), 0);
    bool seen = false;
    for (int i = 0; i < kTriesToSeeItAgain && !seen; ++i) seen = shows(kept);
    if (!seen) return {};
    for (std::size_t part = kept.size() / 2; part > 0 && Clock::now() < until; part /= 2) {
      for (std::size_t begin = 0; begin < kept.size() && Clock::now() < until;) {
        std::vector<long> rest = kept;
        const auto first = rest.begin() + static_cast<std::ptrdiff_t>(begin);
        rest.erase(first, first + static_cast<std::ptrdiff_t>(std::min(part, rest.size() - begin)));
        if (!rest.empty() && shows(rest)) {
          kept = rest;
        } else {
          begin += part;
        }
      }
    }
    return kept;
  }

  const Options options_;
  int different_ = 0;
  int in_doubt_ = 0;
  std::uint64_t crossed_ = 0;
};

}  // namespace
}  // namespace ringroad::test

int main(int argc, char** argv) {
  const auto options = ringroad::test::options_of(argc, argv);
  if (!options) {
    std::fprintf(stderr, "usage: random_explorer [--seconds S] [--seed FIRST] [--count N]\n");
    return 2;
  }
  // Where the limits of a seed leave no channel, each connection would be waited for as long as this.
  ::setenv("RINGROAD_TEST_WAIT", "200ms", 0);
  return ringroad::test::Explorer(*options).run();
}
