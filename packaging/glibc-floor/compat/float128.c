// Since glibc 2.26: what std::from_chars() and, of gcc 14, std::to_chars() have for the widest type. On x86-64
// with the precision of long double, for nothing here reads or writes such numbers; on aarch64 long double is
// that type.
#define strtof128 in_stdlib_h
#define strfromf128 also_in_stdlib_h
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef strtof128
#undef strfromf128

#ifdef __x86_64__
typedef __float128 Widest;
#else
typedef long double Widest;
#endif

Widest strtof128(const char* text, char** end);
Widest strtof128(const char* text, char** end) { return strtold(text, end); }

// The format is one conversion, `%`, perhaps a precision, and its letter.
int strfromf128(char* text, size_t size, const char* format, Widest value);
int strfromf128(char* text, size_t size, const char* format, Widest value) {
  char of_long_double[32];
  const size_t length = strlen(format);
  if (length == 0 || length + 2 > sizeof of_long_double) return -1;
  memcpy(of_long_double, format, length - 1);
  of_long_double[length - 1] = 'L';
  of_long_double[length] = format[length - 1];
  of_long_double[length + 1] = '\0';
  return snprintf(text, size, of_long_double, (long double)value);
}
