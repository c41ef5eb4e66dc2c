#include "preload/absent.h"

#include <dirent.h>
#include <dlfcn.h>

#include <cstdlib>

#include "rsocket-core/base/sys.h"

namespace ringroad::preload::absent {
namespace {

// A system call that is a cancellation point, as the function of libc's would be.
template <typename... Args>
long cancellable(long number, Args... args) {
  int type = PTHREAD_CANCEL_DEFERRED;
  bound_real().pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  const long result = sys::call(number, args...);
  bound_real().pthread_setcanceltype(type, nullptr);
  return result;
}

// Before glibc 2.34 these are librt's, which is in the process by the time that a program calls them, or can
// be got: the look at the start of the process may have been too early.
template <typename Function>
Function of_librt(const char* name) noexcept {
  void* librt = dlopen("librt.so.1", RTLD_LAZY);
  return librt != nullptr ? reinterpret_cast<Function>(dlsym(librt, name)) : nullptr;
}

template <typename Result, typename... Params, typename... Args>
Result in_librt(Result (*function)(Params...), Args... args) {
  return function != nullptr ? function(args...) : failed<Result>();
}

}  // namespace

int close_range(unsigned first, unsigned last, int flags) {
  return static_cast<int>(sys::call(SYS_close_range, first, last, flags));
}

void close_each(unsigned first, unsigned last) noexcept {
  const int folder = sys::open_high([] {
    return sys::call(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  });
  if (folder < 0) return;
  alignas(dirent64) char entries[4096];
  for (bool closed = true; closed;) {
    closed = false;  // the folder is read again until nothing in it was to be closed
    sys::call(SYS_lseek, folder, 0, SEEK_SET);
    for (long filled; (filled = sys::call(SYS_getdents64, folder, entries, sizeof entries)) > 0;) {
      for (long at = 0; at < filled;) {
        const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
        at += entry->d_reclen;
        char* end;
        const unsigned long number = std::strtoul(entry->d_name, &end, 10);
        if (end == entry->d_name || *end != '\0' || number < first || number > last ||
            number == static_cast<unsigned long>(folder)) {
          continue;
        }
        if (sys::call(SYS_close, number) == 0) closed = true;
      }
    }
  }
  sys::close_quietly(folder);
}

void closefrom(int first) {
  const int saved = errno;
  const unsigned from = first < 0 ? 0 : static_cast<unsigned>(first);
  if (close_range(from, ~0U, 0) != 0) close_each(from, ~0U);
  errno = saved;
}

// One word has the place in the file, on these processors; the other is not looked at.
ssize_t preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  return cancellable(SYS_preadv2, fd, iov, count, offset, 0, flags);
}
ssize_t pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  return cancellable(SYS_pwritev2, fd, iov, count, offset, 0, flags);
}

int aio_read(aiocb* request) {
  static const auto function = of_librt<decltype(Real::aio_read)>("aio_read");
  return in_librt(function, request);
}
int aio_write(aiocb* request) {
  static const auto function = of_librt<decltype(Real::aio_write)>("aio_write");
  return in_librt(function, request);
}
int lio_listio(int mode, aiocb* const requests[], int count, sigevent* event) {
  static const auto function = of_librt<decltype(Real::lio_listio)>("lio_listio");
  return in_librt(function, mode, requests, count, event);
}

int epoll_pwait2(int epfd, epoll_event* events, int max, const timespec* timeout,
                 const sigset_t* mask) {
  return static_cast<int>(
      cancellable(SYS_epoll_pwait2, epfd, events, max, timeout, mask, _NSIG / 8));
}

int fcntl64(int fd, int cmd, long arg) { return bound_real().fcntl(fd, cmd, arg); }

int pidfd_getfd(int pidfd, int fd, unsigned flags) {
  return static_cast<int>(sys::call(SYS_pidfd_getfd, pidfd, fd, flags));
}

int memfd_create(const char* name, unsigned flags) {
  return static_cast<int>(sys::call(SYS_memfd_create, name, flags));
}

int execveat(int dirfd, const char* path, char* const argv[], char* const envp[], int flags) {
  return static_cast<int>(sys::call(SYS_execveat, dirfd, path, argv, envp, flags));
}

// Each libc has them.
void jump(__jmp_buf_tag* /*buffer*/, int /*value*/) { __builtin_trap(); }

void _exit(int status) {
  for (;;) sys::raw(SYS_exit_group, status);
}

}  // namespace ringroad::preload::absent
