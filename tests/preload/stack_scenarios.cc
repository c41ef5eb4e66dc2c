// How much of a thread's stack each function of the library's needs, beyond what libc's own does: programs have threads
// with a few kilobytes. Measured by a thread on painted memory: how deep the paint is gone after the call.
#include <aio.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/preload/actor.h"

namespace ringroad::test {
namespace {

// docs/compatibility.md, "Stack".
#if defined(RINGROAD_CHECKS) || !defined(__OPTIMIZE__)  // frames are larger
constexpr std::ptrdiff_t kBound = 8 * 1024;
#else
constexpr std::ptrdiff_t kBound = 1536;
#endif
// Of the call by which the library starts: it reads the policy.
constexpr std::ptrdiff_t kBoundOfTheFirst = 8 * kBound;

// Over RDMA the device's library has frames of its own.
std::ptrdiff_t bound_of_a_call() {
  const char* const via = std::getenv("RINGROAD_TEST_VIA");
  return via == nullptr || std::string_view(via) == "shm" ? kBound : 8 * kBound;
}

constexpr std::size_t kStackBytes = std::size_t{512} * 1024;
constexpr std::size_t kSlack = 160;  // for the frame that looks; a call needs more in any case
constexpr unsigned char kPaint = 0xa7;

struct Call {
  const char* name = nullptr;
  void* function = nullptr;  // the library's, or libc's own
  int fd = -1;
  int other = -1;  // whatever a call wants besides
  void (*make)(Call&) = nullptr;
  std::ptrdiff_t depth = -1;
  long value = 0;

  template <typename F>
  F* as() const {
    return reinterpret_cast<F*>(function);
  }
};

// Nothing is called in between, and the loops are no memset().
__attribute__((noinline)) void* measure(void* data) {
  auto& call = *static_cast<Call*>(data);
  auto* const here = static_cast<volatile unsigned char*>(__builtin_frame_address(0));
  constexpr std::size_t kPainted = kStackBytes / 2;
  volatile unsigned char* const low = here - kPainted;
  for (volatile unsigned char* at = here - kSlack; at-- != low;) *at = kPaint;
  call.make(call);
  volatile unsigned char* first = low;
  while (first != here && *first == kPaint) ++first;
  call.depth = here - first;
  return nullptr;
}

// On a thread that has called nothing before.
void run_measured(Call& call) {
  void* const stack =
      ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstack(&attributes, stack, kStackBytes);
  pthread_t thread;
  if (::pthread_create(&thread, &attributes, measure, &call) == 0) ::pthread_join(thread, nullptr);
  ::pthread_attr_destroy(&attributes);
  ::munmap(stack, kStackBytes);
}

struct Measured {
  const char* name;
  void (*make)(Call&);
};

void* libcs(const char* name) {
  static void* const libc = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  return ::dlsym(libc, name);
}

// For who wants the figures.
void show(const char* name, std::ptrdiff_t need, std::ptrdiff_t libcs_own) {
  if (std::getenv("RINGROAD_TEST_SHOW_STACK") == nullptr) return;
  std::fprintf(stderr, "%-28s %6td  (libc %td)\n", name, need, libcs_own);
}

// What the function needs on `fd` besides what libc's own does on `plain`: the first time that a thread calls it, but
// not the first that the process does. `before`: what that one is made on, where it is not to be `fd`.
void expect_bound(Actor& a, const Measured& one, int fd, int plain, int other = -1, int before = -1) {
  Call libc{one.name, libcs(one.name), plain, other, one.make};
  Call ours{one.name, ::dlsym(RTLD_DEFAULT, one.name), fd, other, one.make};
  if (libc.function == nullptr || ours.function == nullptr) return;  // of a newer libc
  Call first = ours;
  if (before >= 0) first.fd = before;
  for (Call* const call : {&libc, &libc, &first, &ours}) run_measured(*call);
  const std::ptrdiff_t need = ours.depth - libc.depth;
  show(one.name, need, libc.depth);
  if (need > bound_of_a_call()) a.log("%s needs %td bytes of stack besides libc's %td", one.name, need, libc.depth);
}

char memory[64];
iovec piece{memory, 8};

// ---- Calls that a stream on a channel serves

const Measured kServed[] = {
    {"read", [](Call& c) { c.value = c.as<decltype(::read)>()(c.fd, memory, 8); }},
    {"readv", [](Call& c) { c.value = c.as<decltype(::readv)>()(c.fd, &piece, 1); }},
    {"preadv2", [](Call& c) { c.value = c.as<decltype(::preadv2)>()(c.fd, &piece, 1, -1, 0); }},
    {"preadv64v2", [](Call& c) { c.value = c.as<decltype(::preadv2)>()(c.fd, &piece, 1, -1, 0); }},
    {"recv", [](Call& c) { c.value = c.as<decltype(::recv)>()(c.fd, memory, 8, 0); }},
    {"recvfrom",
     [](Call& c) {
       c.value = c.as<ssize_t(int, void*, size_t, int, void*, void*)>()(c.fd, memory, 8, 0, nullptr, nullptr);
     }},
    {"recvmsg",
     [](Call& c) {
       msghdr message{};
       message.msg_iov = &piece;
       message.msg_iovlen = 1;
       c.value = c.as<decltype(::recvmsg)>()(c.fd, &message, 0);
     }},
    {"__read", [](Call& c) { c.value = c.as<decltype(::read)>()(c.fd, memory, 8); }},
    {"__read_chk",
     [](Call& c) { c.value = c.as<ssize_t(int, void*, size_t, size_t)>()(c.fd, memory, 8, 64); }},
    {"__recv_chk",
     [](Call& c) { c.value = c.as<ssize_t(int, void*, size_t, size_t, int)>()(c.fd, memory, 8, 64, 0); }},
    {"__recvfrom_chk",
     [](Call& c) {
       c.value = c.as<ssize_t(int, void*, size_t, size_t, int, void*, void*)>()(c.fd, memory, 8, 64, 0,
                                                                               nullptr, nullptr);
     }},
    {"write", [](Call& c) { c.value = c.as<decltype(::write)>()(c.fd, memory, 8); }},
    {"__write", [](Call& c) { c.value = c.as<decltype(::write)>()(c.fd, memory, 8); }},
    {"writev", [](Call& c) { c.value = c.as<decltype(::writev)>()(c.fd, &piece, 1); }},
    {"pwritev2", [](Call& c) { c.value = c.as<decltype(::pwritev2)>()(c.fd, &piece, 1, -1, 0); }},
    {"pwritev64v2", [](Call& c) { c.value = c.as<decltype(::pwritev2)>()(c.fd, &piece, 1, -1, 0); }},
    {"send", [](Call& c) { c.value = c.as<decltype(::send)>()(c.fd, memory, 8, 0); }},
    {"__send", [](Call& c) { c.value = c.as<decltype(::send)>()(c.fd, memory, 8, 0); }},
    {"sendto",
     [](Call& c) {
       c.value = c.as<ssize_t(int, const void*, size_t, int, void*, socklen_t)>()(c.fd, memory, 8, 0, nullptr, 0);
     }},
    {"sendmsg",
     [](Call& c) {
       msghdr message{};
       message.msg_iov = &piece;
       message.msg_iovlen = 1;
       c.value = c.as<decltype(::sendmsg)>()(c.fd, &message, 0);
     }},
    {"sendfile",
     [](Call& c) {
       off_t at = 0;
       c.value = c.as<decltype(::sendfile)>()(c.fd, c.other, &at, 8);
     }},
    {"sendfile64",
     [](Call& c) {
       off_t at = 0;
       c.value = c.as<decltype(::sendfile)>()(c.fd, c.other, &at, 8);
     }},
    {"ioctl", [](Call& c) { c.value = c.as<decltype(::ioctl)>()(c.fd, FIONREAD, &c.value); }},
    {"getsockopt",
     [](Call& c) {
       socklen_t length = sizeof(int);
       c.value = c.as<decltype(::getsockopt)>()(c.fd, SOL_SOCKET, SO_ERROR, memory, &length);
     }},
    {"setsockopt",
     [](Call& c) {
       const int on = 1;
       c.value = c.as<decltype(::setsockopt)>()(c.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
     }},
    {"fcntl", [](Call& c) { c.value = c.as<decltype(::fcntl)>()(c.fd, F_GETFL, 0); }},
    {"__fcntl", [](Call& c) { c.value = c.as<decltype(::fcntl)>()(c.fd, F_GETFL, 0); }},
    {"fcntl64", [](Call& c) { c.value = c.as<decltype(::fcntl)>()(c.fd, F_SETFL, O_RDWR); }},
    // Each makes a number and closes it.
    {"dup", [](Call& c) { ::close(static_cast<int>(c.value = c.as<decltype(::dup)>()(c.fd))); }},
    {"dup2", [](Call& c) { ::close(static_cast<int>(c.value = c.as<decltype(::dup2)>()(c.fd, 300))); }},
    {"__dup2", [](Call& c) { ::close(static_cast<int>(c.value = c.as<decltype(::dup2)>()(c.fd, 300))); }},
    {"dup3",
     [](Call& c) { ::close(static_cast<int>(c.value = c.as<decltype(::dup3)>()(c.fd, 300, O_CLOEXEC))); }},
    {"close", [](Call& c) { c.value = c.as<decltype(::close)>()(::dup(c.fd)); }},
    {"__close", [](Call& c) { c.value = c.as<decltype(::close)>()(::dup(c.fd)); }},
    {"close_range",
     [](Call& c) {
       const auto copy = static_cast<unsigned>(::dup(c.fd));
       c.value = c.as<int(unsigned, unsigned, int)>()(copy, copy, 0);
     }},
    {"closefrom", [](Call& c) { c.as<void(int)>()((::dup2(c.fd, 100'000), 100'000)); }},
    {"syscall",
     [](Call& c) {
       c.value = c.as<decltype(::syscall)>()(SYS_sendto, c.fd, memory, 8, MSG_NOSIGNAL, nullptr, 0);
     }},
};

// ---- Calls that wait, for a moment in which nothing comes, on a stream on a channel

constexpr int kMoment = 5;
const timespec kMomentOf{0, kMoment * 1'000'000};

const Measured kWaiting[] = {
    {"recv", [](Call& c) { c.value = c.as<decltype(::recv)>()(c.fd, memory, 8, 0); }},
    {"read", [](Call& c) { c.value = c.as<decltype(::read)>()(c.fd, memory, 8); }},
    {"readv", [](Call& c) { c.value = c.as<decltype(::readv)>()(c.fd, &piece, 1); }},
    {"poll",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<decltype(::poll)>()(&entry, 1, kMoment);
     }},
    {"__poll",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<decltype(::poll)>()(&entry, 1, kMoment);
     }},
    {"ppoll",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<decltype(::ppoll)>()(&entry, 1, &kMomentOf, nullptr);
     }},
    {"__poll_chk",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<int(pollfd*, nfds_t, int, size_t)>()(&entry, 1, kMoment, sizeof entry);
     }},
    {"__ppoll_chk",
     [](Call& c) {
       pollfd entry{c.fd, POLLIN, 0};
       c.value = c.as<int(pollfd*, nfds_t, const timespec*, const sigset_t*, size_t)>()(
           &entry, 1, &kMomentOf, nullptr, sizeof entry);
     }},
    {"select",
     [](Call& c) {
       fd_set in;
       FD_ZERO(&in);
       FD_SET(c.fd, &in);
       timeval moment{0, kMoment * 1000};
       c.value = c.as<decltype(::select)>()(c.fd + 1, &in, nullptr, nullptr, &moment);
     }},
    {"__select",
     [](Call& c) {
       fd_set in;
       FD_ZERO(&in);
       FD_SET(c.fd, &in);
       timeval moment{0, kMoment * 1000};
       c.value = c.as<decltype(::select)>()(c.fd + 1, &in, nullptr, nullptr, &moment);
     }},
    {"pselect",
     [](Call& c) {
       fd_set in;
       FD_ZERO(&in);
       FD_SET(c.fd, &in);
       c.value = c.as<decltype(::pselect)>()(c.fd + 1, &in, nullptr, nullptr, &kMomentOf, nullptr);
     }},
};

// The same of a set of eight, a stream and what is no stream.
const Measured kWaitingForMany[] = {
    {"poll",
     [](Call& c) {
       pollfd set[8];
       for (pollfd& entry : set) entry = {c.other, POLLIN, 0};
       set[3].fd = c.fd;
       c.value = c.as<decltype(::poll)>()(set, 8, kMoment);
     }},
};

// `fd` is the instance, `other` what it holds already.
const Measured kEpoll[] = {
    {"epoll_ctl",
     [](Call& c) {
       epoll_event event{};
       event.events = EPOLLIN;
       c.value = c.as<decltype(::epoll_ctl)>()(c.fd, EPOLL_CTL_MOD, c.other, &event);
     }},
    {"epoll_wait",
     [](Call& c) {
       epoll_event event{};
       c.value = c.as<decltype(::epoll_wait)>()(c.fd, &event, 1, kMoment);
     }},
    {"epoll_pwait",
     [](Call& c) {
       epoll_event event{};
       c.value = c.as<decltype(::epoll_pwait)>()(c.fd, &event, 1, kMoment, nullptr);
     }},
    {"epoll_pwait2",
     [](Call& c) {
       epoll_event event{};
       c.value = c.as<int(int, epoll_event*, int, const timespec*, const sigset_t*)>()(
           c.fd, &event, 1, &kMomentOf, nullptr);
     }},
};

// ---- Calls by which a stream goes back to the kernel

int print_to(int fd, void* function, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = reinterpret_cast<decltype(::vdprintf)*>(function)(fd, format, arguments);
  va_end(arguments);
  return result;
}
int print_checked_to(int fd, void* function, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result =
      reinterpret_cast<int (*)(int, int, const char*, va_list)>(function)(fd, 1, format, arguments);
  va_end(arguments);
  return result;
}

void request(Call& c) {
  static aiocb block;
  block = aiocb{};
  block.aio_fildes = c.fd;
  block.aio_buf = memory;
  block.aio_nbytes = 0;
  c.value = c.as<decltype(::aio_write)>()(&block);
  const aiocb* const all[] = {&block};
  if (c.value == 0) ::aio_suspend(all, 1, nullptr);
}
void request_of_a_list(Call& c) {
  static aiocb block;
  block = aiocb{};
  block.aio_fildes = c.fd;
  block.aio_buf = memory;
  block.aio_nbytes = 0;
  block.aio_lio_opcode = LIO_WRITE;
  aiocb* const all[] = {&block};
  c.value = c.as<decltype(::lio_listio)>()(LIO_WAIT, all, 1, nullptr);
}

const Measured kReturning[] = {
    {"recvmmsg",
     [](Call& c) {
       mmsghdr message{};
       message.msg_hdr.msg_iov = &piece;
       message.msg_hdr.msg_iovlen = 1;
       c.value = c.as<decltype(::recvmmsg)>()(c.fd, &message, 1, MSG_DONTWAIT, nullptr);
     }},
    {"sendmmsg",
     [](Call& c) {
       mmsghdr message{};
       message.msg_hdr.msg_iov = &piece;
       message.msg_hdr.msg_iovlen = 1;
       c.value = c.as<decltype(::sendmmsg)>()(c.fd, &message, 1, MSG_DONTWAIT);
     }},
    {"splice",
     [](Call& c) {
       c.value = c.as<decltype(::splice)>()(c.other, nullptr, c.fd, nullptr, 8, SPLICE_F_NONBLOCK);
     }},
    {"aio_read", request},
    {"aio_read64", request},
    {"aio_write", request},
    {"aio_write64", request},
    {"lio_listio", request_of_a_list},
    {"lio_listio64", request_of_a_list},
    {"fdopen",
     [](Call& c) { c.value = c.as<decltype(::fdopen)>()(c.fd, "r") != nullptr ? 1 : 0; }},
    {"_IO_fdopen",
     [](Call& c) { c.value = c.as<decltype(::fdopen)>()(c.fd, "r") != nullptr ? 1 : 0; }},
    {"dprintf", [](Call& c) { c.value = c.as<decltype(::dprintf)>()(c.fd, "%d", 8); }},
    {"vdprintf", [](Call& c) { c.value = print_to(c.fd, c.function, "%d", 8); }},
    {"__dprintf_chk",
     [](Call& c) { c.value = c.as<int(int, int, const char*, ...)>()(c.fd, 1, "%d", 8); }},
    {"__vdprintf_chk", [](Call& c) { c.value = print_checked_to(c.fd, c.function, "%d", 8); }},
    {"pidfd_getfd",
     [](Call& c) { c.value = c.as<int(int, int, unsigned)>()(c.other, c.fd, 0); }},
    {"connect",
     [](Call& c) {
       const sockaddr none{AF_UNSPEC, {}};
       c.value = c.as<int(int, const sockaddr*, socklen_t)>()(c.fd, &none, sizeof none);
     }},
};

// ---- What concerns no descriptor, or makes one

void nothing(int) {}

template <typename Buffer>
void jump(Call& c, Buffer& buffer) {
  if (::sigsetjmp(buffer, 0) == 0) c.as<void(Buffer&, int)>()(buffer, 1);
}

int nothing_in_a_child(void*) { return 0; }

void in_a_child(Call& c) {
  alignas(16) static char stack[64 * 1024];
  const int child = c.as<decltype(::clone)>()(nothing_in_a_child, stack + sizeof stack,
                                              CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
  c.value = ::waitpid(child, nullptr, 0);
}
void spawn(Call& c) {
  pid_t child = -1;
  char name[] = "true";
  char* const arguments[] = {name, nullptr};
  char* const environment[] = {nullptr};
  c.value = c.as<decltype(::posix_spawn)>()(&child, "/bin/true", nullptr, nullptr, arguments, environment);
  ::waitpid(child, nullptr, 0);
}
template <typename... Args>
void fail_to_become(Call& c, Args... args) {
  c.value = c.as<int(Args...)>()(args...);
}
const char* const kNone = "/nowhere/at/all";
char none_of[] = "none";
char* const kArguments[] = {none_of, nullptr};

// Each makes a descriptor, or two, and closes it.
void open_null(Call& c) { ::close(c.as<decltype(::open)>()("/dev/null", O_RDONLY)); }
void open_null_at(Call& c) { ::close(c.as<decltype(::openat)>()(AT_FDCWD, "/dev/null", O_RDONLY)); }
void create_null(Call& c) { ::close(c.as<int(const char*, mode_t)>()("/dev/null", 0600)); }
void fopen_null(Call& c) {
  if (std::FILE* const file = c.as<std::FILE*(const char*, const char*)>()("/dev/null", "re")) std::fclose(file);
}
void close_both(const int (&ends)[2]) {
  for (const int end : ends) ::close(end);
}

const Measured kOthers[] = {
    {"open", open_null},
    {"open64", open_null},
    {"__open", open_null},
    {"__open64", open_null},
    {"__open_2", open_null},
    {"__open64_2", open_null},
    {"openat", open_null_at},
    {"openat64", open_null_at},
    {"__openat_2", open_null_at},
    {"__openat64_2", open_null_at},
    {"creat", create_null},
    {"creat64", create_null},
    {"fopen", fopen_null},
    {"fopen64", fopen_null},
    {"opendir",
     [](Call& c) {
       if (DIR* const directory = c.as<DIR*(const char*)>()("/")) ::closedir(directory);
     }},
    {"pipe",
     [](Call& c) {
       int ends[2] = {-1, -1};
       c.value = c.as<int(int*)>()(ends);
       close_both(ends);
     }},
    {"pipe2",
     [](Call& c) {
       int ends[2] = {-1, -1};
       c.value = c.as<int(int*, int)>()(ends, O_CLOEXEC);
       close_both(ends);
     }},
    {"socketpair",
     [](Call& c) {
       int ends[2] = {-1, -1};
       c.value = c.as<int(int, int, int, int*)>()(AF_UNIX, SOCK_STREAM, 0, ends);
       close_both(ends);
     }},
    {"eventfd", [](Call& c) { ::close(c.as<int(unsigned, int)>()(0, 0)); }},
    {"epoll_create", [](Call& c) { ::close(c.as<int(int)>()(1)); }},
    {"epoll_create1", [](Call& c) { ::close(c.as<int(int)>()(0)); }},
    {"timerfd_create", [](Call& c) { ::close(c.as<int(int, int)>()(CLOCK_MONOTONIC, 0)); }},
    {"signalfd",
     [](Call& c) {
       sigset_t none;
       ::sigemptyset(&none);
       ::close(c.as<int(int, const sigset_t*, int)>()(-1, &none, 0));
     }},
    {"inotify_init", [](Call& c) { ::close(c.as<int()>()()); }},
    {"inotify_init1", [](Call& c) { ::close(c.as<int(int)>()(0)); }},
    {"memfd_create", [](Call& c) { ::close(c.as<int(const char*, unsigned)>()("none", 0)); }},
    {"socket", [](Call& c) { ::close(c.as<decltype(::socket)>()(AF_INET, SOCK_STREAM, 0)); }},
    {"listen",
     [](Call& c) {
       const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
       sockaddr_in any{};
       any.sin_family = AF_INET;
       any.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
       ::bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any);
       c.value = c.as<decltype(::listen)>()(fd, 1);
       ::close(fd);
     }},
    {"prctl", [](Call& c) { c.value = c.as<decltype(::prctl)>()(PR_GET_DUMPABLE, 0, 0, 0, 0); }},
    {"sigaction",
     [](Call& c) {
       struct sigaction action {};
       action.sa_handler = nothing;
       c.value = c.as<int(int, const struct sigaction*, struct sigaction*)>()(SIGUSR2, &action, nullptr);
     }},
    {"__sigaction",
     [](Call& c) {
       struct sigaction action {};
       action.sa_handler = nothing;
       c.value = c.as<int(int, const struct sigaction*, struct sigaction*)>()(SIGUSR2, &action, nullptr);
     }},
    {"signal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"bsd_signal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"ssignal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"__sysv_signal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"sysv_signal", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"sigset", [](Call& c) { c.as<decltype(::signal)>()(SIGUSR2, nothing); }},
    {"siginterrupt", [](Call& c) { c.value = c.as<int(int, int)>()(SIGUSR2, 1); }},
    {"longjmp", [](Call& c) { static jmp_buf b; jump(c, b); }},
    {"_longjmp", [](Call& c) { static jmp_buf b; jump(c, b); }},
    {"siglongjmp", [](Call& c) { static jmp_buf b; jump(c, b); }},
    {"__longjmp_chk", [](Call& c) { static jmp_buf b; jump(c, b); }},
    {"setcontext",
     [](Call& c) {
       static ucontext_t here;
       volatile bool back = false;
       ::getcontext(&here);
       if (!back) {
         back = true;
         c.as<decltype(::setcontext)>()(&here);
       }
     }},
    {"pthread_setcanceltype",
     [](Call& c) { c.value = c.as<int(int, int*)>()(PTHREAD_CANCEL_DEFERRED, nullptr); }},
    {"clone", in_a_child},
    {"__clone", in_a_child},
    {"posix_spawn", spawn},
    {"posix_spawnp", spawn},
    {"posix_spawn_file_actions_adddup2",
     [](Call& c) {
       posix_spawn_file_actions_t actions;
       ::posix_spawn_file_actions_init(&actions);
       c.value = c.as<decltype(::posix_spawn_file_actions_adddup2)>()(&actions, 0, 300);
       ::posix_spawn_file_actions_destroy(&actions);
     }},
    {"system", [](Call& c) { c.value = c.as<decltype(::system)>()("true"); }},
    {"popen",
     [](Call& c) {
       std::FILE* const pipe = c.as<decltype(::popen)>()("true", "r");
       if (pipe != nullptr) ::pclose(pipe);
     }},
    {"execve", [](Call& c) { fail_to_become(c, kNone, kArguments, environ); }},
    {"execv", [](Call& c) { fail_to_become(c, kNone, kArguments); }},
    {"execvp", [](Call& c) { fail_to_become(c, kNone, kArguments); }},
    {"execvpe", [](Call& c) { fail_to_become(c, kNone, kArguments, environ); }},
    {"execl",
     [](Call& c) { c.value = c.as<decltype(::execl)>()(kNone, "none", static_cast<char*>(nullptr)); }},
    {"execlp",
     [](Call& c) { c.value = c.as<decltype(::execlp)>()(kNone, "none", static_cast<char*>(nullptr)); }},
    {"execle",
     [](Call& c) {
       c.value = c.as<decltype(::execle)>()(kNone, "none", static_cast<char*>(nullptr), environ);
     }},
    {"execveat", [](Call& c) { fail_to_become(c, AT_FDCWD, kNone, kArguments, environ, 0); }},
    {"fexecve", [](Call& c) { fail_to_become(c, c.other, kArguments, environ); }},
};

// What cannot be measured so: it does not return, or it has no frame of its own (in assembly), or it ends
// another thread, from which on all calls of the process know of that.
[[maybe_unused]] const char* const kNotMeasured[] = {"_exit", "_Exit", "vfork", "__vfork", "pthread_cancel"};

// A connection of AF_UNIX: no business of the library's.
int plain_socket(int (&ends)[2]) {
  ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
  const std::string bytes(4096, 'p');
  if (::write(ends[1], bytes.data(), bytes.size()) < 0) return -1;
  return ends[0];
}

int file_of_bytes() {
  const int file = ::memfd_create("bytes", MFD_CLOEXEC);
  if (::write(file, memory, sizeof memory) < 0) return -1;
  return file;
}

void drain(int fd) {
  char buffer[4096];
  while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
  }
}

}  // namespace

SCENARIO(stack_of_calls_on_a_channel, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    const std::string bytes(4096, 's');
    if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) a.log("nothing to read");
  });
  a.client([&] {
    int ends[2];
    const int plain = plain_socket(ends);
    const int file = file_of_bytes();
    a.settle_unread(fd, 4096);
    for (const Measured& one : kServed) expect_bound(a, one, fd, plain, file);
    for (const Measured& one : kServed) expect_bound(a, one, plain, plain, file);
    for (const int end : {ends[0], ends[1], file}) ::close(end);
    a.shutdown(fd, SHUT_WR);
  });
  a.server([&] {
    drain(fd);
    a.log("all drained");
  });
}

SCENARIO(stack_of_calls_that_wait, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "something"); });
  a.server([&] { a.recv(fd, 100); });
  a.both([&] {
    int ends[2];
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    const timeval moment{0, kMoment * 1000};
    for (const int one : {fd, ends[0]}) ::setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment);
    for (const Measured& one : kWaiting) expect_bound(a, one, fd, ends[0]);
    for (const Measured& one : kWaiting) expect_bound(a, one, ends[0], ends[0]);
    for (const Measured& one : kWaitingForMany) expect_bound(a, one, fd, ends[0], ends[1]);
    int instances[2];
    epoll_event event{};
    event.events = EPOLLIN;
    for (int& instance : instances) instance = ::epoll_create1(EPOLL_CLOEXEC);
    ::epoll_ctl(instances[0], EPOLL_CTL_ADD, fd, &event);
    ::epoll_ctl(instances[0], EPOLL_CTL_ADD, ends[0], &event);
    ::epoll_ctl(instances[1], EPOLL_CTL_ADD, fd, &event);
    ::epoll_ctl(instances[1], EPOLL_CTL_ADD, ends[0], &event);
    for (const Measured& one : kEpoll) expect_bound(a, one, instances[0], instances[1], fd);
    for (const Measured& one : kEpoll) expect_bound(a, one, instances[1], instances[1], ends[0]);
    for (const int end : {ends[0], ends[1], instances[0], instances[1]}) ::close(end);
  });
}

SCENARIO(stack_of_calls_that_go_back_to_the_kernel, 0) {
  for (const Measured& one : kReturning) {
    const int before = a.stream();
    const int fd = a.stream();
    a.client([&] {
      int ends[2];
      const int plain = plain_socket(ends);
      const int other = std::string_view(one.name) == "pidfd_getfd"
                            ? static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))
                            : file_of_bytes();
      expect_bound(a, one, fd, plain, other, before);
      for (const int end : {ends[0], ends[1], other}) ::close(end);
    });
    for (const int end : {before, fd}) ::close(end);
    a.sync();
  }
  a.client([&] { a.log("measured"); });
}

SCENARIO(stack_of_other_calls, 0) {
  const int fd = a.stream();
  a.client([&] {
    const int other = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (const Measured& one : kOthers) expect_bound(a, one, fd, fd, other);
    ::close(other);
  });
  a.client([&] { a.send(fd, "still here"); });
  a.server([&] { a.recv(fd, 100); });
}

SCENARIO(stack_of_the_first_call, 0) {
  a.both([&] {
    const auto& listen = *std::find_if(std::begin(kOthers), std::end(kOthers), [](const Measured& one) {
      return std::string_view(one.name) == "listen";
    });
    Call ours{listen.name, ::dlsym(RTLD_DEFAULT, listen.name), -1, -1, listen.make};
    Call libc{listen.name, libcs(listen.name), -1, -1, listen.make};
    run_measured(ours);
    run_measured(libc);
    const std::ptrdiff_t need = ours.depth - libc.depth;
    show(listen.name, need, libc.depth);
    if (need > kBoundOfTheFirst) a.log("the first listen() needs %td bytes of stack", need);
  });
  const int fd = a.stream();
  a.client([&] { a.send(fd, "and goes on"); });
  a.server([&] { a.recv(fd, 100); });
}

// connect(2) and its peers make streams, as many as they are called.
SCENARIO(stack_of_calls_that_make_and_end_streams, 0) {
  static sockaddr_storage address;
  static socklen_t length;
  a.meet();
  address = a.address(AF_INET, length);
  static constexpr Measured kConnect[] = {
      {"connect",
       [](Call& c) {
         const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
         c.value = c.as<int(int, const void*, socklen_t)>()(made, &address, length);
         ::close(made);
       }},
      {"__connect",
       [](Call& c) {
         const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
         c.value = c.as<int(int, const void*, socklen_t)>()(made, &address, length);
         ::close(made);
       }},
  };
  static constexpr Measured kAccept[] = {
      {"accept",
       [](Call& c) { ::close(c.as<int(int, void*, void*)>()(c.fd, nullptr, nullptr)); }},
      {"accept4",
       [](Call& c) { ::close(c.as<int(int, void*, void*, int)>()(c.fd, nullptr, nullptr, SOCK_CLOEXEC)); }},
  };
  static constexpr Measured kShutdown[] = {
      {"shutdown", [](Call& c) { c.value = c.as<decltype(::shutdown)>()(c.fd, SHUT_WR); }},
  };
  for (int i = 0; i < 2; ++i) {
    if (a.is_client()) {
      expect_bound(a, kConnect[i], -1, -1);
    } else {
      expect_bound(a, kAccept[i], a.listening(), a.listening());
    }
    a.sync();
  }
  const int fd = a.stream();
  a.client([&] { expect_bound(a, kShutdown[0], fd, fd); });
  a.server([&] { a.recv(fd, 100); });
}

}  // namespace ringroad::test
