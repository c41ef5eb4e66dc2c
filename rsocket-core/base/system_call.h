// A system call by its number. sys.h names those that the library makes.
#pragma once

#include <sys/syscall.h>

#include <cerrno>
#include <type_traits>

namespace ringroad::sys {

// The instruction itself: libc's syscall() is an interposed name too. Returns -errno on failure.
#if defined(__x86_64__)
inline long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                long f = 0) noexcept {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
inline long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                long f = 0) noexcept {
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0"
               : "+r"(x0)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory");
  return x0;
}
#else
#error "Ringroad runs on x86-64 and aarch64"
#endif

// Arguments as the kernel takes them: pointers and integers in registers.
template <typename T>
inline long word(T value) noexcept {
  if constexpr (std::is_null_pointer_v<T>) {
    return 0;
  } else if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<long>(value);
  } else {
    return static_cast<long>(value);
  }
}

// As libc's syscall(3): -1 and errno on failure.
template <typename... Args>
inline long call(long number, Args... args) noexcept {
  const long result = raw(number, word(args)...);
  if (static_cast<unsigned long>(result) > static_cast<unsigned long>(-4096)) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}

}  // namespace ringroad::sys
