// What tests call and glibc 2.17 lacks. Preloaded, the library answers; plain, libc does, or the kernel where
// libc has no such function.
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdint>

namespace {

// Looked up before main(): dlsym() may not be called in a handler.
template <typename Function>
Function* newer(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

using Vectored = ssize_t(int, const iovec*, int, off64_t, int);
auto* const the_fork = newer<pid_t()>("_Fork");
auto* const the_close_range = newer<int(unsigned, unsigned, int)>("close_range");
auto* const the_closefrom = newer<void(int)>("closefrom");
auto* const the_epoll_pwait2 =
    newer<int(int, epoll_event*, int, const timespec*, const sigset_t*)>("epoll_pwait2");
auto* const the_execveat = newer<int(int, const char*, char* const*, char* const*, int)>("execveat");
auto* const the_fcntl64 = newer<int(int, int, ...)>("fcntl64");
auto* const the_gettid = newer<pid_t()>("gettid");
auto* const the_mallinfo = newer<struct mallinfo()>("mallinfo");
auto* const the_mallinfo2 = newer<struct mallinfo2()>("mallinfo2");
auto* const the_pidfd_getfd = newer<int(int, int, unsigned)>("pidfd_getfd");
auto* const the_pidfd_open = newer<int(pid_t, unsigned)>("pidfd_open");
auto* const the_preadv2 = newer<Vectored>("preadv2");
auto* const the_preadv64v2 = newer<Vectored>("preadv64v2");
auto* const the_pwritev2 = newer<Vectored>("pwritev2");
auto* const the_pwritev64v2 = newer<Vectored>("pwritev64v2");

template <typename... Arguments>
int kernel(long number, Arguments... arguments) {
  return static_cast<int>(::syscall(number, arguments...));
}

ssize_t vectored(long number, int fd, const iovec* pieces, int count, off64_t at, int flags) {
  return ::syscall(number, fd, pieces, count, at, 0L, flags);
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier): the names are libc's
extern "C" {

pid_t _Fork() noexcept {
  return the_fork != nullptr ? the_fork() : kernel(SYS_clone, SIGCHLD, 0L, 0L, 0L, 0L);
}

int close_range(unsigned first, unsigned last, int flags) noexcept {
  return the_close_range != nullptr ? the_close_range(first, last, flags)
                                    : kernel(SYS_close_range, first, last, flags);
}

void closefrom(int first) noexcept {
  if (the_closefrom != nullptr) return the_closefrom(first);
  kernel(SYS_close_range, first < 0 ? 0U : static_cast<unsigned>(first), ~0U, 0);
}

int epoll_pwait2(int epfd, epoll_event* events, int most, const timespec* timeout, const sigset_t* mask) {
  constexpr std::size_t kMaskBytes = 8;
  return the_epoll_pwait2 != nullptr
             ? the_epoll_pwait2(epfd, events, most, timeout, mask)
             : kernel(SYS_epoll_pwait2, epfd, events, most, timeout, mask, kMaskBytes);
}

int execveat(int directory, const char* path, char* const arguments[], char* const environment[],
             int flags) noexcept {
  return the_execveat != nullptr ? the_execveat(directory, path, arguments, environment, flags)
                                 : kernel(SYS_execveat, directory, path, arguments, environment, flags);
}

int fcntl64(int fd, int command, ...) {
  va_list more;
  va_start(more, command);
  void* const argument = va_arg(more, void*);
  va_end(more);
  return the_fcntl64 != nullptr ? the_fcntl64(fd, command, argument)
                                : kernel(SYS_fcntl, fd, command, argument);
}

pid_t gettid() noexcept { return the_gettid != nullptr ? the_gettid() : kernel(SYS_gettid); }

// As far as the older one knows, in its smaller numbers.
struct mallinfo2 mallinfo2() noexcept {
  if (the_mallinfo2 != nullptr) return the_mallinfo2();
  const struct mallinfo older = the_mallinfo();
  const auto number = [](int value) { return static_cast<std::size_t>(static_cast<unsigned>(value)); };
  return {number(older.arena),    number(older.ordblks),  number(older.smblks),   number(older.hblks),
          number(older.hblkhd),   number(older.usmblks),  number(older.fsmblks),  number(older.uordblks),
          number(older.fordblks), number(older.keepcost)};
}

int pidfd_getfd(int pidfd, int fd, unsigned flags) noexcept {
  return the_pidfd_getfd != nullptr ? the_pidfd_getfd(pidfd, fd, flags)
                                    : kernel(SYS_pidfd_getfd, pidfd, fd, flags);
}

int pidfd_open(pid_t process, unsigned flags) noexcept {
  return the_pidfd_open != nullptr ? the_pidfd_open(process, flags) : kernel(SYS_pidfd_open, process, flags);
}

#define RR_VECTORED(name, number)                                                          \
  ssize_t name(int fd, const iovec* pieces, int count, off64_t at, int flags) {            \
    return the_##name != nullptr ? the_##name(fd, pieces, count, at, flags)                \
                                 : vectored(number, fd, pieces, count, at, flags);         \
  }
RR_VECTORED(preadv2, SYS_preadv2)
RR_VECTORED(preadv64v2, SYS_preadv2)
RR_VECTORED(pwritev2, SYS_pwritev2)
RR_VECTORED(pwritev64v2, SYS_pwritev2)
#undef RR_VECTORED

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
