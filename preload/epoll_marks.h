// Which numbers the program has put into the kernel's epoll instances, and in which: noted beside
// epoll_ctl(2), as a connection may become a stream later.
//
// Thread rule: any thread at any time.
#pragma once

#include <atomic>

#include "preload/fd_table.h"
#include "rsocket-core/base/hints.h"

namespace ringroad::preload::epoll_marks {

inline constexpr int kNone = -1;
inline constexpr int kSeveral = -2;
// The instance's number plus one; 0: none.
extern std::atomic<int> marks[fd_table::kLimit] RR_HIDDEN;
inline constexpr int kSeveralMark = -1;

inline bool is_in_any(int fd) noexcept {
  return fd_table::in_range(fd) && marks[fd].load(std::memory_order_relaxed) != 0;
}
inline int instance_of(int fd) noexcept {  // or kNone, kSeveral
  if (!fd_table::in_range(fd)) return kNone;
  const int mark = marks[fd].load(std::memory_order_relaxed);
  return mark == kSeveralMark ? kSeveral : mark - 1;
}
inline void note_add(int fd, int epfd) noexcept {
  if (!fd_table::in_range(fd)) return;
  const bool first = marks[fd].load(std::memory_order_relaxed) == 0;
  marks[fd].store(first ? epfd + 1 : kSeveralMark, std::memory_order_relaxed);
  if (hardly_ever(fd > fd_table::highest.load(std::memory_order_relaxed))) fd_table::raise_highest(fd);
}
// Taken out of `epfd`.
inline void note_delete(int fd, int epfd) noexcept {
  if (!fd_table::in_range(fd)) return;
  if (marks[fd].load(std::memory_order_relaxed) == epfd + 1) {
    marks[fd].store(0, std::memory_order_relaxed);
  }
}
// Taken out, or closed.
inline void note_end(int fd) noexcept {
  if (is_in_any(fd)) marks[fd].store(0, std::memory_order_relaxed);
}

}  // namespace ringroad::preload::epoll_marks
