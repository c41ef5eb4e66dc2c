// A function of glibc since 2.27. It stands apart from kernel.c, as libringroad.so has one of its own.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int memfd_create(const char* name, unsigned flags) {
  return (int)syscall(SYS_memfd_create, name, flags);
}
