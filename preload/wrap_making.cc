// Calls that make descriptors which are never streams: they are libc's. Where the library has what they
// lack, it gives that back.
#include "preload/fd_room.h"
#include "preload/real.h"

using namespace ringroad;
using namespace ringroad::preload;

namespace {

template <auto function, typename... Args>
inline int make(Args... args) {
  const int result = (real().*function)(args...);
  if (hardly_ever(result < 0)) return fd_room::came_free() ? (real().*function)(args...) : result;
  fd_room::look_at(result);
  return result;
}

// EMFILE may also say that the user has too many of them (inotify(7)), so it is not made again.
template <auto function, typename... Args>
inline int make_limited(Args... args) {
  const int result = (real().*function)(args...);
  fd_room::look_at(result);
  return result;
}

// `call` makes two.
template <typename Call>
inline int make_both(const int* ends, Call call) {
  int result = call();
  if (hardly_ever(result < 0) && fd_room::came_free()) result = call();
  if (result == 0) fd_room::look_at(ends[0] > ends[1] ? ends[0] : ends[1]);
  return result;
}

template <auto function, auto number_of, typename... Args>
inline auto make_handle(Args... args) {
  auto* result = (real().*function)(args...);
  if (hardly_ever(result == nullptr) && fd_room::came_free()) result = (real().*function)(args...);
  if (result != nullptr && fd_room::is_looked_at()) fd_room::look_at(number_of(result));
  return result;
}

}  // namespace

int rr_open(const char* path, int flags, mode_t mode) { return make<&Real::open>(path, flags, mode); }

int rr_openat(int dirfd, const char* path, int flags, mode_t mode) {
  return make<&Real::openat>(dirfd, path, flags, mode);
}

// Where flags that need a mode end the program (_FORTIFY_SOURCE).
int rr___open_2(const char* path, int flags) { return make<&Real::__open_2>(path, flags); }

int rr___openat_2(int dirfd, const char* path, int flags) {
  return make<&Real::__openat_2>(dirfd, path, flags);
}

int rr_creat(const char* path, mode_t mode) { return make<&Real::creat>(path, mode); }

FILE* rr_fopen(const char* path, const char* mode) {
  return make_handle<&Real::fopen, fileno>(path, mode);
}

DIR* rr_opendir(const char* path) { return make_handle<&Real::opendir, dirfd>(path); }

int rr_pipe(int ends[2]) {
  return make_both(ends, [&] { return real().pipe(ends); });
}

int rr_pipe2(int ends[2], int flags) {
  return make_both(ends, [&] { return real().pipe2(ends, flags); });
}

int rr_socketpair(int domain, int type, int protocol, int ends[2]) {
  return make_both(ends, [&] { return real().socketpair(domain, type, protocol, ends); });
}

int rr_eventfd(unsigned initial, int flags) { return make<&Real::eventfd>(initial, flags); }

int rr_epoll_create(int size) { return make<&Real::epoll_create>(size); }

int rr_epoll_create1(int flags) { return make<&Real::epoll_create1>(flags); }

int rr_timerfd_create(clockid_t clock, int flags) { return make<&Real::timerfd_create>(clock, flags); }

int rr_signalfd(int fd, const sigset_t* mask, int flags) {
  return make<&Real::signalfd>(fd, mask, flags);
}

int rr_inotify_init() { return make_limited<&Real::inotify_init>(); }

int rr_inotify_init1(int flags) { return make_limited<&Real::inotify_init1>(flags); }

int rr_memfd_create(const char* name, unsigned flags) {
  return make<&Real::memfd_create>(name, flags);
}
