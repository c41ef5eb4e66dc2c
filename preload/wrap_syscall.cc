// System calls that are made by number.
#include <linux/aio_abi.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "preload/cancellation.h"
#include "preload/fd_room.h"
#include "preload/fd_table.h"
#include "preload/fork_exec.h"
#include "preload/lent_memory.h"
#include "preload/process_state.h"
#include "preload/real.h"
#include "preload/socket_lifecycle.h"
#include "rsocket-core/base/sys.h"

using namespace ringroad;
using namespace ringroad::preload;

namespace {

template <typename T>
T as(long value) noexcept {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(value);  // NOLINT: a register's contents
  } else {
    return static_cast<T>(value);
  }
}

// pselect6(2)'s last argument.
struct SizedMask {
  long mask;  // a pointer
  long size;
};

bool has_streams() noexcept { return process_state::existing_agent() != nullptr; }

// The kernel takes masks of this size alone, and says so.
bool of_mask(long mask, long size) noexcept { return mask == 0 || size == _NSIG / 8; }

// What the program points to, as the kernel reads and writes it: a wrong pointer is an error, not a signal.
bool copy(long number, const void* here, const void* there, size_t bytes) noexcept {
  const iovec local{const_cast<void*>(here), bytes};
  const iovec remote{const_cast<void*>(there), bytes};
  const int saved = errno;
  const bool done = sys::call(number, sys::getpid(), &local, 1, &remote, 1, 0) ==
                    static_cast<long>(bytes);
  errno = saved;
  return done;
}

template <typename T>
bool read_from(const T* there, T& out) noexcept {
  return copy(SYS_process_vm_readv, &out, there, sizeof out);
}

// The system calls write back what is left of a time-out, which libc keeps from its callers
// (select(2)); not where it may only be read. `wait` gets a copy.
template <typename Wait>
long and_tell_what_is_left(timespec* timeout, timespec& whole, Wait wait) {
  if (timeout == nullptr) return wait(nullptr);
  if (whole.tv_sec == 0 && whole.tv_nsec == 0) return wait(&whole);
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t began = sys::now_ns();
  const long result = wait(&whole);
  if (whole.tv_sec < 0 || whole.tv_nsec < 0 || whole.tv_nsec >= kSecond) return result;
  const std::int64_t took = sys::now_ns() - began;
  timespec left{whole.tv_sec - took / kSecond, whole.tv_nsec - took % kSecond};
  if (left.tv_nsec < 0) left = {left.tv_sec - 1, left.tv_nsec + kSecond};
  if (left.tv_sec < 0) left = {0, 0};
  copy(SYS_process_vm_writev, &left, timeout, sizeof left);
  return result;
}

// The place in the file takes two words, of which one has it on these processors.
ssize_t preadv2_by_number(int fd, const iovec* iov, int count, off_t offset, long /*unused*/, int flags) {
  return rr_preadv2(fd, iov, count, offset, flags);
}
ssize_t pwritev2_by_number(int fd, const iovec* iov, int count, off_t offset, long /*unused*/, int flags) {
  return rr_pwritev2(fd, iov, count, offset, flags);
}

// Calls it with the system call's words as its arguments.
template <typename Result, typename... Params, std::size_t... index>
[[gnu::always_inline]] inline long call_with(Result (*function)(Params...), const long* words,
                                             std::index_sequence<index...> /*of Params*/) {
  return function(as<Params>(words[index])...);
}
template <typename Result, typename... Params>
[[gnu::always_inline]] inline long call_with(Result (*function)(Params...), const long* words) {
  static_assert(sizeof...(Params) <= 6);
  return call_with(function, words, std::index_sequence_for<Params...>());
}

// Programs that make system calls by number (node closes its sockets so) go through the same doors.
// False: it is none of them.
RR_NOINLINE bool call_by_number(long number, const long* a, long* answer) {
  long& result = *answer;
  const int fd = static_cast<int>(a[0]);
  switch (number) {
#define RINGROAD_FUNCTION(ret, name, params)
#define RINGROAD_ALIAS(ret, name, target, params, args)
#define RINGROAD_BY_NUMBER(system_call, function, look) \
  case SYS_##system_call:                               \
    result = call_with(function, a);                    \
    return true;
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
    case SYS_epoll_pwait:
      if (!of_mask(a[4], a[5])) break;
      result = rr_epoll_pwait(fd, as<epoll_event*>(a[1]), as<int>(a[2]), as<int>(a[3]),
                              as<const sigset_t*>(a[4]));
      return true;
#ifdef SYS_select  // not of every processor
    case SYS_select: {
      timeval whole{};
      auto* timeout = as<timeval*>(a[4]);
      if (!has_streams() || (timeout != nullptr && !read_from(timeout, whole))) break;
      result = rr_select(fd, as<fd_set*>(a[1]), as<fd_set*>(a[2]), as<fd_set*>(a[3]),
                         timeout != nullptr ? &whole : nullptr);
      if (timeout != nullptr) copy(SYS_process_vm_writev, &whole, timeout, sizeof whole);
      return true;
    }
#endif
    case SYS_pselect6: {
      SizedMask mask{};
      timespec whole{};
      auto* timeout = as<timespec*>(a[4]);
      if (!has_streams() || (a[5] != 0 && !read_from(as<const SizedMask*>(a[5]), mask)) ||
          !of_mask(mask.mask, mask.size) || (timeout != nullptr && !read_from(timeout, whole))) {
        break;
      }
      result = and_tell_what_is_left(timeout, whole, [&](const timespec* wait) {
        return rr_pselect(fd, as<fd_set*>(a[1]), as<fd_set*>(a[2]), as<fd_set*>(a[3]), wait,
                          as<const sigset_t*>(mask.mask));
      });
      return true;
    }
    case SYS_ppoll: {
      timespec whole{};
      auto* timeout = as<timespec*>(a[2]);
      if (!has_streams() || !of_mask(a[3], a[4]) ||
          (timeout != nullptr && !read_from(timeout, whole))) {
        break;
      }
      result = and_tell_what_is_left(timeout, whole, [&](const timespec* wait) {
        return rr_ppoll(as<pollfd*>(a[0]), as<nfds_t>(a[1]), wait, as<const sigset_t*>(a[3]));
      });
      return true;
    }
    case SYS_epoll_pwait2: {
      timespec whole{};
      if (!has_streams() || !of_mask(a[4], a[5]) ||
          (a[3] != 0 && !read_from(as<const timespec*>(a[3]), whole))) {
        break;
      }
      result = rr_epoll_pwait2(fd, as<epoll_event*>(a[1]), as<int>(a[2]),
                               a[3] != 0 ? &whole : nullptr, as<const sigset_t*>(a[4]));
      return true;
    }
    case SYS_io_submit:
      for (long i = 0; has_streams() && i < a[1]; ++i) {
        iocb* request = nullptr;
        iocb its{};
        if (!read_from(as<iocb**>(a[2]) + i, request) || !read_from(request, its)) break;
        socket_lifecycle::give_away(static_cast<int>(its.aio_fildes), Reason::kDescriptorUse);
      }
      break;
    case SYS_io_uring_setup:
      // What it will be asked for is not seen.
      Stream::note_goes_past();
      break;
    case SYS_pidfd_getfd:
      socket_lifecycle::give_away(as<int>(a[1]), Reason::kFdPassed);
      break;
    case SYS_execve:
    case SYS_execveat:
      result = fork_exec::become([&] {
        return static_cast<int>(real().syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]));
      });
      return true;
    case SYS_prctl:
      if (a[0] == PR_SET_SECCOMP) socket_lifecycle::use_the_kernel_only();
      break;
    case SYS_seccomp:
      if (a[0] == SECCOMP_SET_MODE_STRICT || a[0] == SECCOMP_SET_MODE_FILTER) {
        socket_lifecycle::use_the_kernel_only();
      }
      break;
    case SYS_exit_group:
      fork_exec::leave(Reason::kExit);
      break;
    default:
      break;
  }
  return false;
}

// Which calls go there at all: most are none of the library's business.
enum class Look : std::uint8_t {
  kNever,
  kIfManaged,
  kAlways,
  kMakes,
  kMakesLimited,  // as many as the user may have, which EMFILE says too
  kLendsMemory,
};

// Those that call_by_number() looks at more closely.
constexpr long kLookedAt[] = {
    SYS_epoll_pwait, SYS_epoll_pwait2, SYS_pselect6, SYS_ppoll,   SYS_io_submit,  SYS_io_uring_setup,
    SYS_pidfd_getfd, SYS_execve,       SYS_execveat, SYS_prctl,   SYS_seccomp,    SYS_exit_group,
#ifdef SYS_select
    SYS_select,
#endif
};
constexpr std::size_t kNumbers = 512;
constexpr long kLenders[] = {
    SYS_clone,
    SYS_clone3,
#ifdef SYS_vfork
    SYS_vfork,
#endif
};
#ifdef SYS_pipe
constexpr long kPipe = SYS_pipe;
#else
constexpr long kPipe = SYS_pipe2;
#endif
// They make descriptors that are never streams (wrap_making.cc).
constexpr long kMakers[] = {
    SYS_openat,        SYS_openat2,    SYS_open_by_handle_at, SYS_pipe2,        SYS_socketpair,
    SYS_eventfd2,      SYS_signalfd4,  SYS_epoll_create1,     SYS_memfd_create, SYS_timerfd_create,
    SYS_pidfd_open,    SYS_userfaultfd,
#ifdef SYS_open
    SYS_open,
    SYS_creat,
    SYS_pipe,
    SYS_eventfd,
    SYS_signalfd,
    SYS_epoll_create,
#endif
};
constexpr long kLimitedMakers[] = {
    SYS_inotify_init1,
    SYS_fanotify_init,
#ifdef SYS_inotify_init
    SYS_inotify_init,
#endif
};
constexpr auto kLooks = [] {
  std::array<Look, kNumbers> looks{};
#define RINGROAD_FUNCTION(ret, name, params)
#define RINGROAD_ALIAS(ret, name, target, params, args)
#define RINGROAD_BY_NUMBER(system_call, function, look) looks[SYS_##system_call] = Look::look;
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
  for (const long number : kLookedAt) looks[static_cast<std::size_t>(number)] = Look::kAlways;
  for (const long number : kMakers) looks[static_cast<std::size_t>(number)] = Look::kMakes;
  for (const long number : kLimitedMakers) {
    looks[static_cast<std::size_t>(number)] = Look::kMakesLimited;
  }
  for (const long number : kLenders) {
    looks[static_cast<std::size_t>(number)] = Look::kLendsMemory;
  }
  return looks;
}();

Look look_at(long number) noexcept {
  return static_cast<unsigned long>(number) < kNumbers ? kLooks[static_cast<std::size_t>(number)]
                                                       : Look::kNever;
}

RR_NOINLINE long look_and_call(long number, long a, long b, long c, long d, long e, long f) {
  // jemalloc closes with its lock held, from its constructor; see unbound_syscall() in real.cc.
  if (number == SYS_close && !is_bound()) return sys::call(SYS_close, a);
  const long words[6] = {a, b, c, d, e, f};
  long result = 0;
  if (cancellation::no_point<call_by_number>(number, words, &result)) return result;
  return real().syscall(number, a, b, c, d, e, f);
}

RR_NOINLINE long make(long number, long a, long b, long c, long d, long e, long f) {
  const long result = real().syscall(number, a, b, c, d, e, f);
  if (hardly_ever(result < 0)) {
    const bool again = look_at(number) == Look::kMakes && fd_room::came_free();
    return again ? real().syscall(number, a, b, c, d, e, f) : result;
  }
  const long ends = number == SYS_socketpair ? d : number == SYS_pipe2 || number == kPipe ? a : 0;
  if (ends != 0 && fd_room::is_looked_at()) {
    const int* const both = reinterpret_cast<const int*>(ends);
    fd_room::look_at(std::max(both[0], both[1]));
  } else {
    fd_room::look_at(static_cast<int>(result));
  }
  return result;
}

}  // namespace

// No frame here while libc makes the call: a child that has this memory may return over it.
long rr_syscall(long number, long a, long b, long c, long d, long e, long f) {
  const Look look = look_at(number);
  if (look == Look::kNever) return real().syscall(number, a, b, c, d, e, f);
  if (look == Look::kIfManaged ? fd_table::managed(static_cast<int>(a))
                               : look == Look::kAlways) {
    return look_and_call(number, a, b, c, d, e, f);
  }
  if (look == Look::kMakes || look == Look::kMakesLimited) {
    return make(number, a, b, c, d, e, f);
  }
  if (look == Look::kLendsMemory) rr_memory_was_lent.store(true, std::memory_order_relaxed);
  return real().syscall(number, a, b, c, d, e, f);
}
