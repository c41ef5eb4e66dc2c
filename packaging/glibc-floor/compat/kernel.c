// System calls that glibc has functions for since 2.25 and 2.27.
#include <stddef.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t getrandom(void* to, size_t length, unsigned flags) {
  return syscall(SYS_getrandom, to, length, flags);
}

ssize_t copy_file_range(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t length,
                        unsigned flags) {
  return syscall(SYS_copy_file_range, in, in_offset, out, out_offset, length, flags);
}
