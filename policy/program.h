// The two names that a program has, either of which a rule's `program` may mean.
#pragma once

#include <string>
#include <string_view>

namespace ringroad::policy {

// What follows the last '/'.
constexpr std::string_view base_name(std::string_view path) noexcept {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// Only refers to the texts that it is made of: they outlive it.
class Program {
 public:
  // Each is a path or a base name. `file` is the executable file, behind every link; `called` is
  // argv[0], and "" where it is not known. Debian's redis-server is a link to redis-check-rdb, so
  // the two differ there.
  constexpr Program(std::string_view file, std::string_view called) noexcept
      : file_(base_name(file)), called_(called.empty() ? file_ : base_name(called)) {}
  constexpr Program(std::string_view name) noexcept : Program(name, {}) {}
  constexpr Program(const char* name) noexcept : Program(std::string_view(name)) {}
  Program(const std::string& name) noexcept : Program(std::string_view(name)) {}

  constexpr std::string_view file() const noexcept { return file_; }
  constexpr std::string_view called() const noexcept { return called_; }
  constexpr bool has_two_names() const noexcept { return called_ != file_; }

 private:
  std::string_view file_;
  std::string_view called_;
};

}  // namespace ringroad::policy
