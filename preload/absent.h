// What stands for a function of functions.def where libc does not have it.
//
// A program can find ours, by dlsym() or because it was built elsewhere, and must get an answer. Those that
// glibc 2.17 lacks have one each, which answers as the kernel does; any other answers ENOSYS.
#pragma once

#include <cerrno>
#include <type_traits>

#include "preload/real.h"

namespace ringroad::preload::absent {

template <typename Result>
Result failed() noexcept {
  errno = ENOSYS;
  if constexpr (std::is_same_v<Result, sighandler_t>) {
    return SIG_ERR;
  } else if constexpr (std::is_pointer_v<Result>) {
    return nullptr;
  } else {
    static_assert(std::is_signed_v<Result>, "it cannot fail: give it a function of its own");
    return -1;
  }
}

template <typename Function>
struct NoSuch;
template <typename Result, typename... Params>
struct NoSuch<Result (*)(Params...)> {
  static Result call(Params...) { return failed<Result>(); }
};
template <typename Result, typename... Params>
struct NoSuch<Result (*)(Params..., ...)> {
  static Result call(Params..., ...) { return failed<Result>(); }
};

// The functions of their own. `Real` is whole: they may call what libc has.
int close_range(unsigned first, unsigned last, int flags);
void closefrom(int first);
ssize_t preadv2(int fd, const iovec* iov, int count, off_t offset, int flags);
ssize_t pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags);
int aio_read(aiocb* request);
int aio_write(aiocb* request);
int lio_listio(int mode, aiocb* const requests[], int count, sigevent* event);
int epoll_pwait2(int epfd, epoll_event* events, int max, const timespec* timeout, const sigset_t* mask);
int fcntl64(int fd, int cmd, long arg);
int pidfd_getfd(int pidfd, int fd, unsigned flags);
int memfd_create(const char* name, unsigned flags);
int execveat(int dirfd, const char* path, char* const argv[], char* const envp[], int flags);
void _exit(int status);
void jump(__jmp_buf_tag* buffer, int value);

// What stands for the function that `member` is of.
template <auto member>
constexpr auto instead() noexcept {
  using Function = std::remove_reference_t<decltype(std::declval<Real&>().*member)>;
  return &NoSuch<Function>::call;
}
#define RINGROAD_OWN(name, own) \
  template <>                   \
  constexpr auto instead<&Real::name>() noexcept { return &own; }
RINGROAD_OWN(close_range, close_range)
RINGROAD_OWN(closefrom, closefrom)
RINGROAD_OWN(preadv2, preadv2)
RINGROAD_OWN(pwritev2, pwritev2)
RINGROAD_OWN(aio_read, aio_read)
RINGROAD_OWN(aio_write, aio_write)
RINGROAD_OWN(lio_listio, lio_listio)
RINGROAD_OWN(epoll_pwait2, epoll_pwait2)
RINGROAD_OWN(fcntl64, fcntl64)
RINGROAD_OWN(pidfd_getfd, pidfd_getfd)
RINGROAD_OWN(memfd_create, memfd_create)
RINGROAD_OWN(execveat, execveat)
RINGROAD_OWN(_exit, _exit)
RINGROAD_OWN(_Exit, _exit)
RINGROAD_OWN(longjmp, jump)
RINGROAD_OWN(_longjmp, jump)
RINGROAD_OWN(siglongjmp, jump)
RINGROAD_OWN(__longjmp_chk, jump)
#undef RINGROAD_OWN

// Closes what is open from `first` to `last`, one by one: Linux before 5.9 has no close_range(2).
void close_each(unsigned first, unsigned last) noexcept;

}  // namespace ringroad::preload::absent
