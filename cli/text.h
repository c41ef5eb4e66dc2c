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

// 900ns, 1.0us, 12.3ms, 456s.
std::string human_time(std::uint64_t ns);

// "1 stream", "2 streams"; or as `plural` says.
std::string counted(std::uint64_t count, std::string_view noun, std::string_view plural = {});

// How many bytes the character at the front of `text`, which is not empty, has; 0: it is none (RFC 3629).
std::size_t utf8_length(std::string_view text) noexcept;

// `text` with every control character, and every byte that is of no character, replaced by '?': what comes
// from another process must not steer the terminal.
std::string printable(std::string_view text);

// What fits into so many columns of a line of UTF-8.
std::string cut(std::string_view text, std::size_t columns);

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
  // `titles`: false leaves the line of these away.
  std::string to_string(bool titles = true) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ringroad::cli
