// What the commands' tables are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringroad::cli {

// 0 .. 1023 as they are, then 1.0K, 12.3M, 456G: powers of 1024, at most six characters.
std::string human_count(std::uint64_t value);

// "1 stream", "2 streams".
std::string counted(std::uint64_t count, std::string_view noun);

// `text` with every control character replaced by '?': what comes from another process must not
// steer the terminal. Bytes above 127 stay.
std::string printable(std::string_view text);

// Columns as wide as their widest cell, two spaces apart.
class Table {
 public:
  enum class Align : bool { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: as many cells as there are columns. An empty cell is shown as "-".
  void add(std::vector<std::string> cells);
  bool empty() const noexcept { return rows_.empty(); }
  // Titles and rows, each with its newline and without spaces at its end.
  std::string to_string() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ringroad::cli
