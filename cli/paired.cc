#include "cli/paired.h"

#include <cmath>
#include <cstdint>
#include <iterator>

namespace ringroad::cli {
namespace {

// Student's t, 97.5 %, by degrees of freedom from 1 (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
constexpr double kT975[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                            2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093};

double share_as_far(const std::vector<double>& logs, double sum) {
  // Rounding must not tell a swap of everything from no swap.
  const double limit = std::fabs(sum) * (1 - 1e-9);
  const std::uint64_t ways = std::uint64_t{1} << logs.size();
  std::uint64_t as_far = 0;
  for (std::uint64_t way = 0; way < ways; ++way) {
    double swapped = 0;
    for (std::size_t i = 0; i < logs.size(); ++i) {
      swapped += (way >> i & 1) != 0 ? -logs[i] : logs[i];
    }
    if (std::fabs(swapped) >= limit) ++as_far;
  }
  return static_cast<double>(as_far) / static_cast<double>(ways);
}

}  // namespace

Comparison compare(const std::vector<Pair>& pairs) {
  Comparison out;
  std::vector<double> logs;
  double sum = 0;
  for (const Pair& pair : pairs) {
    if (!(pair.a > 0) || !(pair.b > 0)) continue;
    out.mean_a += pair.a;
    out.mean_b += pair.b;
    logs.push_back(std::log(pair.b / pair.a));
    sum += logs.back();
  }
  out.pairs = logs.size();
  if (logs.empty()) return out;
  const auto n = static_cast<double>(logs.size());
  out.mean_a /= n;
  out.mean_b /= n;
  const double mean = sum / n;
  out.ratio = std::exp(mean);
  if (logs.size() >= 2) {
    double squares = 0;
    for (const double log : logs) squares += (log - mean) * (log - mean);
    const std::size_t at = logs.size() - 2;
    const double t = kT975[at < std::size(kT975) ? at : std::size(kT975) - 1];
    const double half = t * std::sqrt(squares / (n - 1) / n);
    out.low = std::exp(mean - half);
    out.high = std::exp(mean + half);
  }
  out.p = share_as_far(logs, sum);
  return out;
}

}  // namespace ringroad::cli
