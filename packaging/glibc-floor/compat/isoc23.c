// Since glibc 2.38: what its headers make of strtol() and its like for C23, and for C++ with GNU's
// additions. These are strtol() itself, which does not know "0b101": as where an older glibc has the
// headers.
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

// By their names in libc, because the headers of such a glibc say otherwise.
#define IN_LIBC(name) __asm__(#name)
long old_strtol(const char*, char**, int) IN_LIBC(strtol);
unsigned long old_strtoul(const char*, char**, int) IN_LIBC(strtoul);
int old_vsscanf(const char*, const char*, va_list) IN_LIBC(vsscanf);
int old_vfscanf(FILE*, const char*, va_list) IN_LIBC(vfscanf);

_Static_assert(sizeof(long) == sizeof(long long) && sizeof(long) == sizeof(intmax_t), "64 bits");

#define NUMBER(type, name, old)                         \
  type name(const char*, char**, int);                  \
  type name(const char* text, char** end, int base) {   \
    return old(text, end, base);                        \
  }
NUMBER(long, __isoc23_strtol, old_strtol)
NUMBER(long long, __isoc23_strtoll, old_strtol)
NUMBER(intmax_t, __isoc23_strtoimax, old_strtol)
NUMBER(unsigned long, __isoc23_strtoul, old_strtoul)
NUMBER(unsigned long long, __isoc23_strtoull, old_strtoul)
NUMBER(uintmax_t, __isoc23_strtoumax, old_strtoul)

int __isoc23_sscanf(const char*, const char*, ...);
int __isoc23_sscanf(const char* text, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const int result = old_vsscanf(text, format, args);
  va_end(args);
  return result;
}

int __isoc23_fscanf(FILE*, const char*, ...);
int __isoc23_fscanf(FILE* file, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const int result = old_vfscanf(file, format, args);
  va_end(args);
  return result;
}
