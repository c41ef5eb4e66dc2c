// The start and the end of the process, and system calls made by number.
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>

#include "preload/cancellation.h"
#include "preload/real.h"
#include "preload/runtime.h"
#include "rsocket-core/sys.h"

using namespace ringroad;
using namespace ringroad::preload;

namespace {

__attribute__((constructor(101))) void library_loaded() noexcept {
  const int saved = errno;
  bind_real();
  runtime::capture_environment();
  // Registered first, so it runs last: after the handlers of the program.
  at_quick_exit([] { runtime::leave(Reason::kExit); });
  errno = saved;
}

// exit(3) and return from main end here; what was sent must be in the kernel's hands by then.
__attribute__((destructor)) void library_unloaded() noexcept { runtime::leave(Reason::kExit); }

template <typename T>
T as(long value) noexcept {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(value);  // NOLINT: a register's contents
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace

void rr__exit(int status) {
  runtime::leave(Reason::kExit);
  real()._exit(status);
  __builtin_unreachable();
}

void rr__Exit(int status) {
  runtime::leave(Reason::kExit);
  real()._Exit(status);
  __builtin_unreachable();
}

// ---- Helper programs: they inherit streams and leave them alone, but for those that they are given as
// standard input, output or error. Libc starts them by calls of its own.

int rr_system(const char* command) {
  runtime::give_away_stdio();
  return real().system(command);
}

FILE* rr_popen(const char* command, const char* mode) {
  runtime::give_away_stdio();
  return real().popen(command, mode);
}

int rr_posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                   const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  runtime::give_away_stdio();
  return real().posix_spawn(pid, path, actions, attributes, argv, envp);
}

int rr_posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                    const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  runtime::give_away_stdio();
  return real().posix_spawnp(pid, file, actions, attributes, argv, envp);
}

// What stands in the list cannot be asked for again.
int rr_posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int from, int to) {
  runtime::give_away(from, Reason::kExec);
  return real().posix_spawn_file_actions_adddup2(actions, from, to);
}

// ---- exec: a vfork child's parent keeps its streams.

namespace {

template <typename Call>
int become(Call call) {
  const bool has_left = runtime::leave(Reason::kExec);
  const int result = call();
  if (has_left) runtime::exec_failed();
  return result;
}

}  // namespace

int rr_execve(const char* path, char* const argv[], char* const envp[]) {
  return become([&] { return real().execve(path, argv, envp); });
}

int rr_execv(const char* path, char* const argv[]) {
  return become([&] { return real().execv(path, argv); });
}

int rr_execvp(const char* file, char* const argv[]) {
  return become([&] { return real().execvp(file, argv); });
}

int rr_execvpe(const char* file, char* const argv[], char* const envp[]) {
  return become([&] { return real().execvpe(file, argv, envp); });
}

int rr_fexecve(int fd, char* const argv[], char* const envp[]) {
  return become([&] { return real().fexecve(fd, argv, envp); });
}

int rr_execveat(int dirfd, const char* path, char* const argv[], char* const envp[], int flags) {
  return become([&] { return real().execveat(dirfd, path, argv, envp, flags); });
}

// The variadic ones as libc makes them: the arguments on the stack, because a vfork child may call.
#define RINGROAD_COLLECT(first, args, argv)                                      \
  va_list args;                                                                  \
  va_start(args, first);                                                         \
  std::size_t count = 1;                                                         \
  while (va_arg(args, char*) != nullptr) ++count;                                \
  va_end(args);                                                                  \
  auto** argv = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*))); \
  argv[0] = const_cast<char*>(first);                                            \
  va_start(args, first);                                                         \
  for (std::size_t i = 1; i <= count; ++i) argv[i] = va_arg(args, char*)

int rr_execl(const char* path, const char* arg, ...) {
  RINGROAD_COLLECT(arg, args, argv);
  va_end(args);
  return rr_execv(path, argv);
}

int rr_execlp(const char* file, const char* arg, ...) {
  RINGROAD_COLLECT(arg, args, argv);
  va_end(args);
  return rr_execvp(file, argv);
}

int rr_execle(const char* path, const char* arg, ...) {
  RINGROAD_COLLECT(arg, args, argv);
  auto* const* envp = va_arg(args, char* const*);
  va_end(args);
  return rr_execve(path, argv, envp);
}

#undef RINGROAD_COLLECT

int rr_prctl(int option, ...) {
  va_list args;
  va_start(args, option);
  unsigned long a[4];
  for (unsigned long& word : a) word = va_arg(args, unsigned long);
  va_end(args);
  if (option == PR_SET_SECCOMP) runtime::use_the_kernel_only();
  return real().prctl(option, a[0], a[1], a[2], a[3]);
}

namespace {

// Programs that make system calls by number (node closes its sockets so) go through the same doors.
// False: it is none of them.
RR_NOINLINE bool call_by_number(long number, const long* a, long* answer) {
  long& result = *answer;
  const int fd = static_cast<int>(a[0]);
  switch (number) {
    case SYS_close:
      result = rr_close(fd);
      return true;
    case SYS_close_range:
      result = rr_close_range(as<unsigned>(a[0]), as<unsigned>(a[1]), as<int>(a[2]));
      return true;
    case SYS_read:
      result = rr_read(fd, as<void*>(a[1]), as<size_t>(a[2]));
      return true;
    case SYS_write:
      result = rr_write(fd, as<const void*>(a[1]), as<size_t>(a[2]));
      return true;
    case SYS_readv:
      result = rr_readv(fd, as<const iovec*>(a[1]), as<int>(a[2]));
      return true;
    case SYS_writev:
      result = rr_writev(fd, as<const iovec*>(a[1]), as<int>(a[2]));
      return true;
    case SYS_recvfrom:
      result = rr_recvfrom(fd, as<void*>(a[1]), as<size_t>(a[2]), as<int>(a[3]),
                         as<sockaddr*>(a[4]), as<socklen_t*>(a[5]));
      return true;
    case SYS_sendto:
      result = rr_sendto(fd, as<const void*>(a[1]), as<size_t>(a[2]), as<int>(a[3]),
                       as<const sockaddr*>(a[4]), as<socklen_t>(a[5]));
      return true;
    case SYS_recvmsg:
      result = rr_recvmsg(fd, as<msghdr*>(a[1]), as<int>(a[2]));
      return true;
    case SYS_sendmsg:
      result = rr_sendmsg(fd, as<const msghdr*>(a[1]), as<int>(a[2]));
      return true;
    case SYS_recvmmsg:
      result = rr_recvmmsg(fd, as<mmsghdr*>(a[1]), as<unsigned>(a[2]), as<int>(a[3]),
                         as<timespec*>(a[4]));
      return true;
    case SYS_sendmmsg:
      result = rr_sendmmsg(fd, as<mmsghdr*>(a[1]), as<unsigned>(a[2]), as<int>(a[3]));
      return true;
    case SYS_preadv:
    case SYS_pwritev:
      break;  // sockets cannot seek: the kernel's ESPIPE is right
    case SYS_connect:
      result = rr_connect(fd, as<const sockaddr*>(a[1]), as<socklen_t>(a[2]));
      return true;
    case SYS_listen:
      result = rr_listen(fd, as<int>(a[1]));
      return true;
    case SYS_accept4:
      result = rr_accept4(fd, as<sockaddr*>(a[1]), as<socklen_t*>(a[2]), as<int>(a[3]));
      return true;
#ifdef SYS_accept
    case SYS_accept:
      result = rr_accept(fd, as<sockaddr*>(a[1]), as<socklen_t*>(a[2]));
      return true;
#endif
    case SYS_shutdown:
      result = rr_shutdown(fd, as<int>(a[1]));
      return true;
    case SYS_dup:
      result = rr_dup(fd);
      return true;
#ifdef SYS_dup2
    case SYS_dup2:
      result = rr_dup2(fd, as<int>(a[1]));
      return true;
#endif
    case SYS_dup3:
      result = rr_dup3(fd, as<int>(a[1]), as<int>(a[2]));
      return true;
    case SYS_fcntl:
      result = rr_fcntl(fd, as<int>(a[1]), a[2]);
      return true;
    case SYS_ioctl:
      result = rr_ioctl(fd, as<unsigned long>(a[1]), a[2]);
      return true;
    case SYS_setsockopt:
      result = rr_setsockopt(fd, as<int>(a[1]), as<int>(a[2]), as<const void*>(a[3]),
                           as<socklen_t>(a[4]));
      return true;
    case SYS_getsockopt:
      result = rr_getsockopt(fd, as<int>(a[1]), as<int>(a[2]), as<void*>(a[3]),
                           as<socklen_t*>(a[4]));
      return true;
    case SYS_sendfile:
      result = rr_sendfile64(fd, as<int>(a[1]), as<off64_t*>(a[2]), as<size_t>(a[3]));
      return true;
    case SYS_splice:
      result = rr_splice(fd, as<off64_t*>(a[1]), as<int>(a[2]), as<off64_t*>(a[3]),
                       as<size_t>(a[4]), as<unsigned>(a[5]));
      return true;
    case SYS_epoll_ctl:
      result = rr_epoll_ctl(fd, as<int>(a[1]), as<int>(a[2]), as<epoll_event*>(a[3]));
      return true;
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
      result = rr_epoll_wait(fd, as<epoll_event*>(a[1]), as<int>(a[2]), as<int>(a[3]));
      return true;
#endif
    case SYS_epoll_pwait:
      result = rr_epoll_pwait(fd, as<epoll_event*>(a[1]), as<int>(a[2]), as<int>(a[3]),
                            as<const sigset_t*>(a[4]));
      return true;
#ifdef SYS_poll
    case SYS_poll:
      result = rr_poll(as<pollfd*>(a[0]), as<nfds_t>(a[1]), as<int>(a[2]));
      return true;
#endif
    case SYS_execve:
    case SYS_execveat:
      result = become([&] {
        return static_cast<int>(real().syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]));
      });
      return true;
    case SYS_prctl:
      if (a[0] == PR_SET_SECCOMP) runtime::use_the_kernel_only();
      break;
    case SYS_seccomp:
      if (a[0] == SECCOMP_SET_MODE_STRICT || a[0] == SECCOMP_SET_MODE_FILTER) {
        runtime::use_the_kernel_only();
      }
      break;
    case SYS_exit_group:
      runtime::leave(Reason::kExit);
      break;
    default:
      break;
  }
  return false;
}

}  // namespace

long rr_syscall(long number, ...) {
  va_list args;
  va_start(args, number);
  long a[6];
  for (long& word : a) word = va_arg(args, long);
  va_end(args);
  long result = 0;
  if (cancellation::no_point<call_by_number>(number, a, &result)) return result;
  return real().syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
