// Descriptors of the library's own that do not count for the program's limit on descriptors.
//
// RLIMIT_NOFILE is a limit on numbers, and a descriptor that has a greater one stays valid. Where the soft
// limit is below the hard one, a process of a moment's life that shares the table of descriptors and the
// memory, and has a limit of its own, which it raises, makes the copy. The program's limit stays as it is at
// any time: nobody can see it raised, and no child can inherit it so.
#pragma once

namespace ringroad {

// Moves the library's own descriptors, made by open_high(), to numbers at and above the soft limit. What is
// -1, is there already, or cannot be moved stays what it is. REQUIRES: nobody else knows the numbers. Keeps
// errno.
void move_above_limit(int* fds, unsigned count) noexcept;

// A copy there, of a descriptor that stays open. -1: there can be none. Keeps errno.
int copy_above_limit(int fd) noexcept;

inline int above_limit(int fd) noexcept {
  move_above_limit(&fd, 1);
  return fd;
}

}  // namespace ringroad
