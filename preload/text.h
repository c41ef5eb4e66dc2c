// Text in memory of a fixed size.
#pragma once

#include <cstddef>
#include <cstring>

namespace ringroad::preload {

// As much of `from`, which may be null, as there is space for.
inline void copy_text(char* to, std::size_t size, const char* from) noexcept {
  const std::size_t n = from == nullptr ? 0 : strnlen(from, size - 1);
  if (n > 0) std::memcpy(to, from, n);
  to[n] = '\0';
}

// What follows the last slash.
inline const char* base_name(const char* path) noexcept {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

}  // namespace ringroad::preload
