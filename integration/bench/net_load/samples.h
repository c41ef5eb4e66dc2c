// The times of a run's operations, every one of them.
#pragma once

#include <cstdint>
#include <vector>

namespace net_load {

class Samples {
 public:
  void reserve(std::size_t n) { ns_.reserve(n); }
  void add(std::int64_t ns) { ns_.push_back(ns); }
  void add(const Samples& others) { ns_.insert(ns_.end(), others.ns_.begin(), others.ns_.end()); }
  std::size_t size() const { return ns_.size(); }

  void sort();
  // Sorted and not empty: the smallest time that at least this share of all does not exceed.
  double percentile_us(double percent) const;
  double mean_us() const;

 private:
  std::vector<std::int64_t> ns_;
};

}  // namespace net_load
