// Memory of which a part is not there.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>

namespace ringroad::test {

constexpr std::size_t kPage = 4096;

// The last `n` bytes before a page that nobody can touch; each call fills them anew. At most a page.
inline char* before_a_hole(std::size_t n) {
  static char* const pages = [] {
    auto* two = static_cast<char*>(
        ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(two + kPage, kPage, PROT_NONE);
    return two;
  }();
  std::memset(pages, 'm', kPage);
  return pages + kPage - n;
}

}  // namespace ringroad::test
