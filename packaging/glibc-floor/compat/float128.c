// Since glibc 2.26: what std::from_chars() has for the widest type. On x86-64 with the precision of long
// double, for nothing here reads such numbers; on aarch64 long double is that type.
#define strtof128 in_stdlib_h
#include <stdlib.h>
#undef strtof128

#ifdef __x86_64__
typedef __float128 Widest;
#else
typedef long double Widest;
#endif

Widest strtof128(const char* text, char** end);
Widest strtof128(const char* text, char** end) { return strtold(text, end); }
