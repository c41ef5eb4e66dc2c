// The start and the end of the process, and what makes another of it.
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>

#include "preload/fork_exec.h"
#include "preload/process_start.h"
#include "preload/real.h"
#include "preload/socket_lifecycle.h"

using namespace ringroad;
using namespace ringroad::preload;

namespace {

// Glibc hands constructors what main() gets.
__attribute__((constructor(101))) void library_loaded(int argc, char** argv) noexcept {
  const int saved = errno;
  bind_real();
  process_start::capture(argc > 0 ? argv[0] : nullptr);
  process_start::watch_forks();
  // Registered first, so it runs last: after the handlers of the program.
  at_quick_exit([] { fork_exec::leave(Reason::kExit); });
  errno = saved;
}

// exit(3) and return from main end here; what was sent must be in the kernel's hands by then.
__attribute__((destructor)) void library_unloaded() noexcept { fork_exec::leave(Reason::kExit); }

}  // namespace

void rr__exit(int status) {
  fork_exec::leave(Reason::kExit);
  real()._exit(status);
  __builtin_unreachable();
}

void rr__Exit(int status) {
  fork_exec::leave(Reason::kExit);
  real()._Exit(status);
  __builtin_unreachable();
}

// ---- Helper programs: they inherit streams and leave them alone, but for those that they are given as
// standard input, output or error. Libc starts them by calls of its own.

int rr_system(const char* command) {
  fork_exec::give_away_stdio();
  return real().system(command);
}

FILE* rr_popen(const char* command, const char* mode) {
  fork_exec::give_away_stdio();
  return real().popen(command, mode);
}

int rr_posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                   const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  fork_exec::give_away_stdio();
  return real().posix_spawn(pid, path, actions, attributes, argv, envp);
}

int rr_posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                    const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  fork_exec::give_away_stdio();
  return real().posix_spawnp(pid, file, actions, attributes, argv, envp);
}

// What stands in the list cannot be asked for again.
int rr_posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int from, int to) {
  socket_lifecycle::give_away(from, Reason::kExec);
  return real().posix_spawn_file_actions_adddup2(actions, from, to);
}

// ---- exec: a vfork child's parent keeps its streams.

using fork_exec::become;

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
  if (option == PR_SET_SECCOMP) socket_lifecycle::use_the_kernel_only();
  return bound_real().prctl(option, a[0], a[1], a[2], a[3]);
}
