#include "integration/bench/net_load/samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace net_load {

void Samples::sort() { std::sort(ns_.begin(), ns_.end()); }

double Samples::percentile_us(double percent) const {
  const double rank = std::ceil(percent * static_cast<double>(ns_.size()) / 100);
  const auto place = static_cast<std::size_t>(std::max(rank, 1.0)) - 1;
  return static_cast<double>(ns_[std::min(place, ns_.size() - 1)]) / 1e3;
}

double Samples::mean_us() const {
  const auto sum = std::accumulate(ns_.begin(), ns_.end(), std::int64_t{0});
  return static_cast<double>(sum) / static_cast<double>(ns_.size()) / 1e3;
}

}  // namespace net_load
