#include "rsocket-core/base/above_limit.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

// The kernel's table is as long as the greatest number, and a fork copies it.
constexpr rlim_t kFarthest = 65536;

struct Moves {
  rlimit limits;
  int* fds;
  unsigned count;
  long from;
  bool also_above;  // those that are above the limit already
};

// Runs in the other process, on the memory of this one, whose thread waits meanwhile.
__attribute__((no_sanitize("address", "thread", "undefined"), noinline)) long move_all(
    Moves* moves) noexcept {
  const rlimit raised{moves->limits.rlim_max, moves->limits.rlim_max};
  if (sys::raw(SYS_prlimit64, 0, RLIMIT_NOFILE, sys::word(&raised), 0) != 0) return 1;
  for (unsigned i = 0; i < moves->count; ++i) {
    int& fd = moves->fds[i];
    if (fd < 0) continue;
    if (!moves->also_above && static_cast<rlim_t>(fd) >= moves->limits.rlim_cur) continue;
    const long moved = sys::raw(SYS_fcntl, fd, F_DUPFD_CLOEXEC, moves->from);
    if (moved >= 0) fd = static_cast<int>(moved);
  }
  return 0;
}

// As vfork(2), on a stack of its own, and without a signal at its end. Its number, or -errno.
long run_in_other_process(Moves* moves) noexcept {
  alignas(16) long stack[128];
  long* const top = stack + 124;
  top[0] = reinterpret_cast<long>(moves);
  top[1] = reinterpret_cast<long>(&move_all);
  constexpr long kFlags = CLONE_VM | CLONE_FILES | CLONE_VFORK;
#if defined(__x86_64__)
  long result = SYS_clone;
  register long r10 asm("r10") = 0;
  register long r8 asm("r8") = 0;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov (%%rsp), %%rdi\n\t"
      "call *8(%%rsp)\n\t"
      "mov %%eax, %%edi\n\t"
      "mov %[end], %%eax\n\t"
      "syscall\n\t"
      "hlt\n\t"
      "1:"
      : "+a"(result)
      : "D"(kFlags), "S"(top), "d"(0L), "r"(r10), "r"(r8), [end] "i"(SYS_exit)
      : "rcx", "r11", "cc", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = SYS_clone;
  register long x0 asm("x0") = kFlags;
  register long* x1 asm("x1") = top;
  register long x2 asm("x2") = 0;
  register long x3 asm("x3") = 0;
  register long x4 asm("x4") = 0;
  asm volatile(
      "svc #0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "ldp x0, x1, [sp]\n\t"
      "blr x1\n\t"
      "mov x8, %[end]\n\t"
      "svc #0\n\t"
      "1:"
      : "+r"(x0)
      : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), [end] "i"(SYS_exit)
      : "cc", "memory");
  return x0;
#else
  return -ENOSYS;
#endif
}

// Where the thread has left its children another namespace (unshare(2)), the next process is the first in it,
// and with its end the namespace ends.
bool children_are_like_this() noexcept {
  struct stat own {};
  struct stat childrens {};
  return sys::call(SYS_newfstatat, AT_FDCWD, "/proc/thread-self/ns/pid", &own, 0) == 0 &&
         sys::call(SYS_newfstatat, AT_FDCWD, "/proc/thread-self/ns/pid_for_children", &childrens, 0) ==
             0 &&
         own.st_ino == childrens.st_ino;
}

// In a forked child.
bool was_kept(int fd) noexcept {
  using namespace reserved_fds;
  return covers(fd) && ((inherited[fd / 64].load(std::memory_order_relaxed) >> (fd % 64)) & 1) != 0;
}

// The soft limit is below the hard one, and not so far up that the table would grow too long.
bool has_place_above(rlimit& limits) noexcept {
  return sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limits) == 0 &&
         limits.rlim_cur < limits.rlim_max && limits.rlim_cur <= kFarthest;
}

// Puts the copies' numbers in the place of those in `moves`.
void make_copies(Moves& moves) noexcept {
  // A small limit may be there for a moment only.
  const auto soft = static_cast<long>(moves.limits.rlim_cur);
  const bool has_usual = moves.limits.rlim_max > sys::kPrivateDescriptorBase;
  moves.from = has_usual ? std::max<long>(soft, sys::kPrivateDescriptorBase) : soft;
  // Of the program's handlers none may run in the other process.
  const std::uint64_t all = ~std::uint64_t{0};
  std::uint64_t mask = 0;
  sys::raw(SYS_rt_sigprocmask, SIG_SETMASK, sys::word(&all), sys::word(&mask), _NSIG / 8);
  const long other = run_in_other_process(&moves);
  if (other > 0) sys::raw(SYS_wait4, other, 0, __WCLONE, 0);
  sys::raw(SYS_rt_sigprocmask, SIG_SETMASK, sys::word(&mask), 0, _NSIG / 8);
}

}  // namespace

void move_above_limit(int* fds, unsigned count) noexcept {
  constexpr unsigned kMost = 4;
  const int saved = errno;
  Moves moves{{}, fds, count, 0, false};
  bool counts = false;
  if (count <= kMost && has_place_above(moves.limits)) {
    for (unsigned i = 0; i < count; ++i) {
      counts |= fds[i] >= 0 && static_cast<rlim_t>(fds[i]) < moves.limits.rlim_cur;
    }
  }
  if (counts && children_are_like_this()) {
    int before[kMost];
    for (unsigned i = 0; i < count; ++i) before[i] = fds[i];
    make_copies(moves);
    for (unsigned i = 0; i < count; ++i) {
      if (fds[i] == before[i]) continue;
      reserved_fds::mark(fds[i]);
      if (was_kept(before[i])) {
        reserved_fds::keep_in_children(fds[i]);
      }
      sys::close_quietly(before[i]);
    }
  }
  errno = saved;
}

int copy_above_limit(int fd) noexcept {
  const int saved = errno;
  int copy = fd;
  Moves moves{{}, &copy, 1, 0, true};
  if (has_place_above(moves.limits) && children_are_like_this()) make_copies(moves);
  errno = saved;
  if (copy == fd) return -1;
  reserved_fds::mark(copy);
  return copy;
}

}  // namespace ringroad
