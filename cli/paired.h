// Compares two treatments that took turns: what one round measured of each belongs together, so
// that a drift of the whole (caches that warm up, a neighbour that comes and goes) is in both and
// cancels.
#pragma once

#include <cstddef>
#include <vector>

namespace ringroad::cli {

struct Pair {
  double a = 0;
  double b = 0;
};

struct Comparison {
  std::size_t pairs = 0;  // in which both are positive; others are left out
  double mean_a = 0;      // arithmetic, of those
  double mean_b = 0;
  double ratio = 0;  // b / a, geometric mean
  // Of the ratio: 95 % by Student's t on the logarithms. Both 0 with fewer than two pairs.
  double low = 0;
  double high = 0;
  // How often chance alone would give a ratio at least so far from 1: the share of the 2^pairs ways
  // to swap a and b within pairs that do (exact sign-flip test). 1 without pairs.
  double p = 1;
};

// REQUIRES: at most 20 pairs.
Comparison compare(const std::vector<Pair>& pairs);

}  // namespace ringroad::cli
