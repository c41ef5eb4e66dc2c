#include "preload/real.h"

#include <fcntl.h>

#include "preload/lent_memory.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload {

namespace {

// jemalloc makes system calls by number while it holds a lock, before any other call. dlsym() of a glibc
// before 2.34 allocates memory, for which it would wait for that lock for ever: nothing is bound here.
// But where a child has this memory, which may return over a frame.
long unbound_syscall(long number, long a, long b, long c, long d, long e, long f) {
  if (rr_memory_was_lent.load(std::memory_order_relaxed)) {
    return bound_real().syscall(number, a, b, c, d, e, f);
  }
  return sys::call(number, a, b, c, d, e, f);
}

// And it opens a file by these, where the kernel has no open(2).
int unbound_open(const char* path, int flags, mode_t mode) {
  return static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, flags, mode));
}
int unbound_openat(int directory, const char* path, int flags, mode_t mode) {
  return static_cast<int>(sys::call(SYS_openat, directory, path, flags, mode));
}

constexpr Real unbound() noexcept {
  Real all;
  all.syscall = unbound_syscall;
  all.open = unbound_open;
  all.openat = unbound_openat;
  return all;
}

}  // namespace

constinit Real real_functions = unbound();
bool real_bound = false;

}  // namespace ringroad::preload

#define RINGROAD_FUNCTION(ret, name, params)
#define RINGROAD_ALIAS(ret, name, target, params, args) \
  ret rr_##name params { return rr_##target args; }
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
