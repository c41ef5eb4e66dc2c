#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace raft {

// The entries that a store has, numbered from 1, in memory and in a file of lengths and bytes.
class Log {
 public:
  // Reads what the file has; a record that was cut off is dropped.
  explicit Log(const std::string& path);

  uint64_t last() const { return entries_.size(); }
  const std::string& at(uint64_t index) const { return entries_[index - 1]; }
  void append(std::span<const std::string> entries);

 private:
  std::vector<std::string> entries_;
  std::ofstream file_;
};

}  // namespace raft
